//! `kvtier ls|stat|verify|rm`: a directory or bucket looked at from outside.

mod verify;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kvtier::bytes::format;
use kvtier::core::Digest;
use kvtier::file::Layout;
use kvtier::file::inspect::{Directory, Named};

use crate::BadInput;
use crate::bucket::{self, Bucket};
use crate::json::json;
use crate::store::StoreArgs;

pub use verify::{VerifyArgs, verify};

/// Which directory, and whose files.
#[derive(clap::Args)]
pub struct Where {
    /// The directory, or `s3://bucket/prefix`.
    path: PathBuf,
    /// Whose files it holds, where its manifest does not say: lmcache-mp, lmcache or lmcache-gds. In a bucket: only chunks of this layout.
    #[arg(long)]
    layout: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
}

impl Where {
    /// The bucket, if it is one.
    fn bucket(&self) -> Result<Option<Bucket>> {
        let bucket = Bucket::open(self.path.to_str().unwrap_or_default(), self.layout.as_deref(), &self.store)?;
        if let Some(flag) = self.store.first_said().filter(|_| bucket.is_none()) {
            return Err(BadInput(format!("{flag}: {} is no bucket; leave {flag} out", self.path.display())).into());
        }
        Ok(bucket)
    }
}

/// `kvtier ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    at: Where,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// `kvtier stat`.
#[derive(clap::Args)]
pub struct StatArgs {
    #[command(flatten)]
    at: Where,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// `kvtier rm`.
#[derive(clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    at: Where,
    /// Chunks to remove, by the digests that `kvtier ls` prints.
    #[arg(long, value_delimiter = ',')]
    key: Vec<String>,
    /// Remove all chunks.
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Of these only chunks of this namespace, by its digest (64 hexadecimal digits), as their facts say. Chunks without facts stay.
    #[arg(long)]
    namespace: Option<String>,
    /// Remove them; without this, only say what would be removed.
    #[arg(long)]
    yes: bool,
}

impl RmArgs {
    fn namespace(&self) -> Result<Option<Digest>> {
        let Some(text) = &self.namespace else { return Ok(None) };
        let wrong = || BadInput(format!("--namespace {text}: not 64 hexadecimal digits"));
        Ok(Some(Digest::from_hex(text).ok_or_else(wrong)?))
    }
}

fn open(at: &Where) -> Result<Directory> {
    open_as(&at.path, at.layout.as_deref())
}

/// Opens a directory as its manifest says, or as it is told to, or as the names in it look.
pub fn open_as(path: &Path, layout: Option<&str>) -> Result<Directory> {
    if let Some(layout) = layout {
        let layout = layout.parse().map_err(crate::cannot_open)?;
        return Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?);
    }
    let guessed = if path.join(".kvtier").exists() { None } else { Directory::guess(path).ok().flatten() };
    let Some(layout) = guessed else { return Ok(Directory::open(path).map_err(crate::cannot_open)?) };
    eprintln!(
        "kvtier: {} has no manifest; its names are those of layout {layout} (--layout says otherwise)",
        path.display()
    );
    Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?)
}

/// The chunks of a directory, in no order.
pub fn listed(dir: &Directory, path: &Path) -> Result<Vec<Named>> {
    dir.chunks().with_context(|| format!("cannot list {}", path.display()))
}

/// Lists chunks: digest, payload bytes.
pub fn ls(args: &LsArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return bucket::ls(&bucket, args.json);
    }
    let mut chunks = listed(&open(&args.at)?, &args.at.path)?;
    chunks.sort_unstable();
    for chunk in chunks {
        let line = if args.json {
            json!({ "key": chunk.label(), "bytes": chunk.len }).to_string()
        } else {
            format!("{} {}", chunk.label(), chunk.len)
        };
        crate::out::line(&line)?;
    }
    Ok(())
}

/// Sums a directory up.
pub fn stat(args: &StatArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return bucket::stat(&bucket, args.json);
    }
    let sum = open(&args.at)?.summary().with_context(|| format!("cannot read {}", args.at.path.display()))?;
    let quarantine: Vec<_> =
        sum.quarantine.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
    let strangers: Vec<_> = sum.strangers.iter().map(|(path, _)| path.display().to_string()).collect();
    if args.json {
        let all = json!({
            "layout": sum.layout.name(), "chunks": sum.chunks, "bytes": sum.bytes, "payload_bytes": sum.payload_bytes, "ledger_bytes": sum.ledger_bytes,
            "unfinished": sum.unfinished, "quarantine": quarantine, "quarantine_bytes": sum.quarantine_bytes, "capacity_bytes": sum.capacity_bytes, "strangers": strangers,
            "living": sum.living, "dead": sum.dead, "snapshot": sum.snapshot,
        });
        return crate::out::line(&all.to_string());
    }
    let mut lines = vec![
        format!("layout       {}", sum.layout),
        format!(
            "chunks       {} in {} of files ({} of payload)",
            sum.chunks,
            format(sum.bytes),
            format(sum.payload_bytes)
        ),
        format!("ledger       {}", sum.ledger_bytes.map_or("none: the next start counts".to_owned(), format)),
        format!("open by      {}", or_nobody(&sum.living)),
        format!("ended badly  {} (the next start clears {} unfinished files)", or_nobody(&sum.dead), sum.unfinished),
        format!("order of use {}", if sum.snapshot { "in a snapshot and journals" } else { "in journals only" }),
        format!("cap          {}", sum.capacity_bytes.map_or("none noted".to_owned(), format)),
        format!("quarantine   {} files that failed a check, {}", sum.quarantine.len(), format(sum.quarantine_bytes)),
    ];
    lines.extend(sum.quarantine.iter().map(|(name, bytes)| format!("             {name} ({})", format(*bytes))));
    lines.extend(sum.strangers.iter().map(|(path, _)| format!("not ours     {}", path.display())));
    lines.iter().try_for_each(|line| crate::out::line(line))
}

fn or_nobody(names: &[String]) -> String {
    if names.is_empty() { "nobody".into() } else { names.join(", ") }
}

/// Removes chunks, or says which.
pub fn rm(args: &RmArgs) -> Result<()> {
    if args.key.is_empty() && !args.all {
        return Err(BadInput(
            "rm: which chunks? name them with --key, as `kvtier ls` prints them, or say --all".into(),
        )
        .into());
    }
    if let Some(bucket) = args.at.bucket()? {
        return bucket::rm(&bucket, (&args.key, args.all, args.namespace()?), args.yes);
    }
    let (dir, namespace) = (open(&args.at)?, args.namespace()?);
    let chunks = listed(&dir, &args.at.path)?;
    if dir.layout() == Layout::Kvtier
        && let Some(bad) = args.key.iter().find(|text| Digest::from_hex(text).is_none())
    {
        let what = format!("--key {bad}: not 64 hexadecimal digits; take them from `kvtier ls`");
        return Err(BadInput(what).into());
    }
    let wanted: BTreeSet<&str> = args.key.iter().map(String::as_str).collect();
    let mut absent = wanted.clone();
    let mut chosen: Vec<Named> = chunks
        .into_iter()
        .filter(|chunk| {
            absent.remove(chunk.label().as_str());
            args.all || wanted.contains(chunk.label().as_str())
        })
        .collect();
    if let Some(absent) = absent.first() {
        return Err(BadInput(format!("--key {absent}: no such chunk; nothing was removed")).into());
    }
    if let Some(namespace) = namespace {
        chosen.retain(|chunk| matches!(dir.footer(chunk), Ok(Ok((facts, _))) if facts.namespace == namespace));
    }
    let bytes = format(chosen.iter().map(|chunk| chunk.len).sum());
    if !args.yes {
        return crate::out::line(&format!("would remove {} chunks ({bytes}); add --yes to do it", chosen.len()));
    }
    let mut gone = 0;
    for chunk in &chosen {
        gone += u64::from(
            dir.remove(chunk)
                .with_context(|| format!("removed {gone} chunks, then cannot remove {}", chunk.label()))?,
        );
    }
    crate::out::line(&format!("removed {gone} chunks ({bytes})"))
}
