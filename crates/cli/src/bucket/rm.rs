use anyhow::Result;
use kvtier::bytes::format;

use super::{Bucket, chosen};
use crate::store::failed;

/// S3 takes no more at once.
const BATCH: usize = 1000;

/// Removes chunks, or says which. What is no chunk under the prefix is never touched.
pub fn rm(bucket: &Bucket, (keys, all, yes): (&[String], bool, bool)) -> Result<()> {
    let chunks = chosen(bucket, keys, all)?;
    let bytes = format(chunks.iter().map(|chunk| chunk.bytes).sum());
    if !yes {
        return crate::out::line(&format!("would remove {} chunks ({bytes}); add --yes to do it", chunks.len()));
    }
    let mut gone = 0;
    for batch in chunks.chunks(BATCH) {
        crate::interrupt::check()?;
        let names: Vec<&str> = batch.iter().map(|chunk| chunk.name.as_str()).collect();
        let refused = bucket.runtime.block_on(bucket.client.delete_many(&names)).map_err(failed)?;
        gone += names.len() - refused.len();
        if let Some(first) = refused.first() {
            anyhow::bail!("removed {gone} chunks, then the store refused {}: {}", first.key, first.code);
        }
    }
    crate::out::line(&format!("removed {gone} chunks ({bytes})"))
}
