use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

use super::{Choice, RmOutcome};
use crate::bucket::{Asking, Bucket, BucketChunk, infos};
use crate::bucket_args::failed;
use crate::parallel::{Pace, ThroughputArgs};

/// S3 takes no more at once.
const BATCH: usize = 1000;

/// Removes the chunks of a choice, or counts them. What is no chunk under the prefix is never
/// touched.
pub fn rm(bucket: &Bucket, choice: &Choice, pace: &ThroughputArgs, yes: bool) -> Result<RmOutcome> {
    let asking = Asking {
        at_once: pace.workers(Asking::default().at_once)?,
        lines: pace.progress,
        // The order of use is not needed to choose.
        uses: false,
    };
    let pace = pace.checked(1)?;
    let chunks = chosen(bucket, choice, asking)?;
    let bytes = chunks.iter().map(|chunk| chunk.bytes).sum();
    if !yes {
        return Ok(RmOutcome { chunks: chunks.len() as u64, bytes });
    }
    let batches = batches(&chunks, &pace);
    let gone = AtomicU64::new(0);
    let remove = |batch: &&[BucketChunk]| {
        let names: Vec<&str> = batch.iter().map(|chunk| chunk.name.as_str()).collect();
        let refused = bucket.runtime.block_on(bucket.client.delete_many(&names)).map_err(failed)?;
        // A request of many deletions may fail in part.
        let removed = (names.len() - refused.len()) as u64;
        let gone = gone.fetch_add(removed, Ordering::Relaxed) + removed;
        match refused.first() {
            Some(first) => anyhow::bail!(
                "removed {gone} chunks, then the store refused {}: {}",
                first.key,
                first.code
            ),
            None => Ok(()),
        }
    };
    pace.each(&batches, |batch| batch.iter().map(|chunk| chunk.bytes).sum(), remove)?;
    Ok(RmOutcome { chunks: gone.into_inner(), bytes })
}

/// Chunks of one request each: as many as S3 takes, and with a limit no more than it allows in a
/// second.
fn batches<'a>(chunks: &'a [BucketChunk], pace: &Pace) -> Vec<&'a [BucketChunk]> {
    let bytes_max = pace.bytes_per_s().unwrap_or(u64::MAX);
    let mut batches = Vec::new();
    let mut rest = chunks;
    while !rest.is_empty() {
        let mut bytes = 0_u64;
        let fits = |chunk: &&BucketChunk| {
            bytes = bytes.saturating_add(chunk.bytes);
            bytes <= bytes_max
        };
        // At least one: a single chunk may be larger than the limit.
        let count = rest.iter().take(BATCH).take_while(fits).count().max(1);
        let (batch, behind) = rest.split_at(count);
        batches.push(batch);
        rest = behind;
    }
    batches
}

fn chosen(bucket: &Bucket, choice: &Choice, asking: Asking) -> Result<Vec<BucketChunk>> {
    let chunks = bucket.chunks();
    let mut chunks = chunks.with_context(|| {
        format!("cannot list {} under {:?}", bucket.client.endpoint(), bucket.root)
    })?;
    choice.check_keys(chunks.iter().map(|chunk| chunk.label.as_str()))?;
    chunks.retain(|chunk| choice.takes(&chunk.label, || chunk.written_s));
    if !choice.needs_info() {
        return Ok(chunks);
    }
    let infos = infos(bucket, &chunks, asking)?;
    Ok(chunks
        .into_iter()
        .zip(infos)
        .filter(|(_, info)| choice.takes_info(info))
        .map(|(chunk, _)| chunk)
        .collect())
}
