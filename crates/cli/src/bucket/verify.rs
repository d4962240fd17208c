use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier::s3::Get;
use kvtier::s3::tier::{Layout, inspect, inspect::Damage};

use super::{Bucket, Chunk};
use crate::json::json;
use crate::store::failed;

/// Reads every chunk whole and checks every byte. Answers whether all are right.
pub fn verify(bucket: &Bucket, as_json: bool) -> Result<bool> {
    let chunks = bucket.contents()?.chunks;
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} (eta {eta})");
    let bar = ProgressBar::new(chunks.iter().map(|chunk| chunk.bytes).sum()).with_style(style.context("template")?);
    let longest = chunks.iter().map(|chunk| chunk.bytes).max().unwrap_or(0).next_multiple_of(4096).max(4096);
    let arena = Arena::new(ArenaConfig::heap(usize::try_from(longest)?)).context("no memory for the longest chunk")?;
    let (mut damaged, mut gone, mut unverified) = (Vec::new(), 0, 0);
    for chunk in &chunks {
        crate::interrupt::check()?;
        match one(bucket, &arena, chunk)? {
            None => gone += 1,
            Some(Ok(())) => {}
            Some(Err(Damage::Unverified)) if !is_own(bucket, chunk) => unverified += 1,
            Some(Err(damage)) => damaged.push((chunk, format!("{damage:?}").to_lowercase())),
        }
        bar.inc(chunk.bytes);
    }
    bar.finish_and_clear();
    if as_json {
        let list: Vec<_> =
            damaged.iter().map(|(c, d)| json!({ "key": c.label, "bytes": c.bytes, "damage": d })).collect();
        let all = json!({ "chunks": chunks.len(), "gone": gone, "unverified": unverified, "damaged": list });
        crate::out::line(&all.to_string())?;
        return Ok(damaged.is_empty());
    }
    damaged.iter().try_for_each(|(chunk, damage)| crate::out::line(&format!("damaged {} ({damage})", chunk.label)))?;
    let next =
        if damaged.is_empty() { "" } else { "; loads of the damaged are misses, and the next save writes over them" };
    let unproven =
        if unverified > 0 { format!(", {unverified} without facts, which nothing proves") } else { String::new() };
    crate::out::line(&format!("{} chunks, {} damaged{unproven}{next}", chunks.len(), damaged.len()))?;
    Ok(damaged.is_empty())
}

fn is_own(bucket: &Bucket, chunk: &Chunk) -> bool {
    inspect::layout_of(rest(bucket, chunk)) == Some(Layout::Kvtier)
}

fn rest<'a>(bucket: &Bucket, chunk: &'a Chunk) -> &'a str {
    chunk.name.strip_prefix(&bucket.root).unwrap_or(&chunk.name)
}

/// One chunk; `None` where it is gone meanwhile.
fn one(bucket: &Bucket, arena: &Arena, chunk: &Chunk) -> Result<Option<Result<(), Damage>>> {
    let len = usize::try_from(chunk.bytes)?;
    if len == 0 {
        return Ok(Some(Err(Damage::Length)));
    }
    let mut lease = arena.lease(len).context("no memory for a chunk")?;
    let got = bucket.runtime.block_on(bucket.client.get(&chunk.name, &mut lease, &Get::at_most())).map_err(failed)?;
    let Some(object) = got else { return Ok(None) };
    let bytes = lease.as_host().context("memory of the host")?;
    let held = usize::try_from(object.len())?.min(bytes.len());
    Ok(Some(inspect::check(rest(bucket, chunk), &object, &bytes[..held])))
}
