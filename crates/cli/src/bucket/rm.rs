use std::sync::Arc;

use anyhow::Result;
use kvtier::bytes::format;
use kvtier::core::Digest;
use kvtier::s3::tier::inspect::facts_of;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Bucket, Chunk, chosen};
use crate::store::failed;

/// S3 takes no more at once.
const BATCH: usize = 1000;
/// So many chunks are asked at a time whose they are.
const HEADS_MAX: usize = 32;

/// Removes chunks, of all namespaces or of one, or says which. What is no chunk under the prefix is never touched.
pub fn rm(bucket: &Bucket, (keys, all, namespace): (&[String], bool, Option<Digest>), yes: bool) -> Result<()> {
    let mut chunks = chosen(bucket, keys, all)?;
    if let Some(namespace) = namespace {
        chunks = only_of(bucket, chunks, namespace)?;
    }
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

/// Those whose facts say that they are of this namespace; a listing does not tell.
fn only_of(bucket: &Bucket, chunks: Vec<Chunk>, namespace: Digest) -> Result<Vec<Chunk>> {
    let turns = Arc::new(Semaphore::new(HEADS_MAX));
    bucket.runtime.block_on(async {
        let mut heads = JoinSet::new();
        for chunk in chunks {
            crate::interrupt::check()?;
            let (client, turn) = (bucket.client.clone(), Arc::clone(&turns).acquire_owned().await?);
            heads.spawn(async move {
                let object = client.head(&chunk.name).await.map_err(failed)?;
                drop(turn);
                let facts = object.and_then(|object| facts_of(&object)?.ok());
                anyhow::Ok(facts.filter(|facts| facts.namespace == namespace).map(|_| chunk))
            });
        }
        let mut ours = Vec::new();
        while let Some(found) = heads.join_next().await {
            ours.extend(found??);
        }
        ours.sort_unstable_by(|a, b| a.label.cmp(&b.label));
        Ok(ours)
    })
}
