use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::file::inspect::{Damage, Named};

use crate::json::json;

/// `kvtier verify`.
#[derive(clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    at: super::Where,
    /// Move damaged files into quarantine, as a load that meets them does.
    #[arg(long)]
    set_aside: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads every chunk whole and checks every byte. Answers whether all are right.
pub fn verify(args: &VerifyArgs) -> Result<bool> {
    if let Some(bucket) = args.at.bucket()? {
        if args.set_aside {
            let what = "--set-aside is for directories; in a bucket the next save writes over what is damaged";
            return Err(crate::BadInput(what.into()).into());
        }
        return crate::bucket::verify(&bucket, args.json);
    }
    crate::interrupt::watch()?;
    let dir = super::open(&args.at)?;
    let mut chunks = super::listed(&dir, &args.at.path)?;
    chunks.sort_unstable();
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} (eta {eta})");
    let bar = ProgressBar::new(chunks.iter().map(|chunk| chunk.len).sum()).with_style(style.context("template")?);
    let (mut damaged, mut gone, mut unverified): (Vec<(Named, Damage)>, u64, u64) = (Vec::new(), 0, 0);
    for chunk in &chunks {
        if crate::interrupt::asked() {
            return Err(crate::interrupt::Interrupted.into());
        }
        match dir.verify(chunk) {
            Ok(Ok(())) => {}
            Ok(Err(Damage::Unverified)) => unverified += 1,
            Ok(Err(damage)) => damaged.push((chunk.clone(), damage)),
            // A tier that has the directory open took it away meanwhile.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => gone += 1,
            Err(e) => return Err(e).with_context(|| format!("cannot read the file of {}", chunk.label())),
        }
        bar.inc(chunk.len);
    }
    bar.finish_and_clear();
    for (chunk, _) in damaged.iter().filter(|_| args.set_aside) {
        // What is not there any more needs no room in quarantine.
        let _ = dir.set_aside(chunk).with_context(|| format!("cannot set the file of {} aside", chunk.label()))?;
    }
    let named = |damage: &Damage| format!("{damage:?}").to_lowercase();
    if args.json {
        let list: Vec<_> =
            damaged.iter().map(|(c, d)| json!({ "key": c.label(), "bytes": c.len, "damage": named(d) })).collect();
        crate::out::line(
            &json!({ "chunks": chunks.len(), "gone": gone, "unverified": unverified, "damaged": list, "set_aside": args.set_aside }).to_string(),
        )?;
        return Ok(damaged.is_empty());
    }
    for (chunk, damage) in &damaged {
        crate::out::line(&format!("damaged {} ({})", chunk.label(), named(damage)))?;
    }
    let next = match (damaged.is_empty(), args.set_aside) {
        (true, _) => "",
        (false, true) => "; the damaged are in quarantine",
        (false, false) => "; loads of the damaged are misses; --set-aside moves them into quarantine",
    };
    let unproven =
        if unverified > 0 { format!(", {unverified} without facts, which nothing proves") } else { String::new() };
    crate::out::line(&format!("{} chunks, {} damaged{unproven}{next}", chunks.len(), damaged.len()))?;
    Ok(damaged.is_empty())
}
