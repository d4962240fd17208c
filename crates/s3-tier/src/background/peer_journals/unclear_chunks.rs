//! Resolves what journals leave open: whether a chunk exists that one node deleted and another
//! saved at about the same time. A HEAD in the background decides.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvtier_index::Chunk;
use kvtier_key::Digest;
use kvtier_s3::try_for_each_concurrent;
use tokio::time::Instant;

use crate::state::counters::add;
use crate::state::key_locks::ReadVersion;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::Shared;

/// The most unclear chunks; the next listing resolves those beyond.
const WAITING_MAX: usize = 4096;
/// The most unclear chunks that are resolved in one round.
const ASKED_MAX: usize = 256;
/// HEADs at a time.
const WIDTH: usize = 16;
/// The time limit of a round, since journals must be written meanwhile.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Chunks that may or may not exist, as the journals describe them.
#[derive(Debug, Default)]
pub struct UnclearChunks(BTreeMap<Digest, Chunk>);

impl UnclearChunks {
    /// Adds a chunk. Answers whether it fits.
    pub fn put(&mut self, chunk: Chunk) -> bool {
        let fits = self.0.len() < WAITING_MAX || self.0.contains_key(&chunk.digest);
        if fits {
            self.0.insert(chunk.digest, chunk);
        }
        fits
    }

    /// Resolves some.
    pub async fn resolve(&mut self, shared: &Shared) {
        let until = Instant::now() + TIME_MAX;
        let some: Vec<Chunk> = self.0.values().take(ASKED_MAX).copied().collect();
        let answered = Mutex::new(Vec::with_capacity(some.len()));
        let asked = some.iter().map(|chunk| async {
            if resolve_one(shared, chunk, until).await? {
                answered.lock().unwrap_or_else(PoisonError::into_inner).push(chunk.digest);
            }
            Ok(())
        });
        if let Ok(Err(e)) =
            tokio::time::timeout(TIME_MAX, try_for_each_concurrent(asked, WIDTH)).await
        {
            drop(shared.error("ask", None, e));
        }
        for digest in answered.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.0.remove(&digest);
        }
    }
}

/// Resolves one; `false` if this node changed the key meanwhile and it must be tried again.
async fn resolve_one(shared: &Shared, chunk: &Chunk, until: Instant) -> kvtier_s3::Result<bool> {
    let version = shared.key_locks.read(&chunk.digest);
    let names = names(shared, &chunk.digest);
    for name in &names {
        let _permit = shared.scheduler.acquire(RequestQueue::Lookup).await;
        add(&shared.counters.heads, 1);
        match shared.client.until(until).head(name).await {
            Ok(Some(object)) => return Ok(found(shared, chunk, object.total(), &version)),
            Ok(None) => {}
            Err(e) if e.is_retryable() => return Err(e),
            // Another attempt would fail too: the next listing decides.
            Err(e) => {
                drop(shared.error("ask", None, e));
                return Ok(true);
            }
        }
    }
    if names.is_empty() {
        return Ok(count_unnamed(shared, chunk, &version));
    }
    let current = version.is_current();
    shared.record_missing(&chunk.digest, &version);
    Ok(current)
}

/// Counts a chunk that cannot be asked for, as if it existed: the next listing decides.
fn count_unnamed(shared: &Shared, chunk: &Chunk, version: &ReadVersion<'_>) -> bool {
    let mut catalog = shared.catalog();
    if !version.is_current() {
        return false;
    }
    if catalog.index.is_known(&chunk.digest) || !shared.names.admits_unnamed() {
        return true;
    }
    let _ = catalog.insert_unseen(*chunk);
    catalog.changed_keys.note(chunk.digest);
    shared.report_stored(&catalog, chunk);
    drop(catalog);
    add(&shared.counters.added_externally, 1);
    shared.node.listing_requested.notify_one();
    shared.eviction_queue.notify();
    shared.listeners.notify();
    true
}

/// The possible names of the chunk; none if they are not known.
fn names(shared: &Shared, digest: &Digest) -> Vec<String> {
    let name = shared.object_name(&shared.catalog(), digest);
    let other = name.as_ref().and_then(|name| shared.names.other_name(name));
    name.into_iter().chain(other).collect()
}

/// The chunk exists, and its object has this length: it is counted.
fn found(shared: &Shared, chunk: &Chunk, bytes: u64, version: &ReadVersion<'_>) -> bool {
    let mut catalog = shared.catalog();
    if !version.is_current() {
        return false;
    }
    let digest = chunk.digest;
    let new = !catalog.index.is_known(&digest);
    if new {
        let mut chunk = *chunk;
        if chunk.bytes != bytes {
            (chunk.len, chunk.bytes) = (shared.listed_len(bytes), bytes);
        }
        let _ = catalog.insert_unseen(chunk);
        shared.report_stored(&catalog, &chunk);
    } else if catalog.index.known(&digest).is_some_and(|entry| entry.chunk.bytes != bytes) {
        catalog.index.resize(&digest, shared.listed_len(bytes), bytes);
    }
    catalog.confirm(&digest, shared.ms_at(version.began()));
    drop(catalog);
    if new {
        add(&shared.counters.added_externally, 1);
        shared.eviction_queue.notify();
        shared.listeners.notify();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_conflicts_are_bounded() {
        let mut unclear = UnclearChunks::default();
        let chunk = |n: usize| Chunk::new(Digest::derive("test", &n.to_le_bytes()), 1, 1);
        assert!((0..WAITING_MAX).all(|n| unclear.put(chunk(n))));
        assert!((WAITING_MAX..2 * WAITING_MAX).all(|n| !unclear.put(chunk(n))));
        assert_eq!(unclear.0.len(), WAITING_MAX);
        unclear.put(Chunk::new(chunk(0).digest, 2, 2));
        assert_eq!(unclear.0[&chunk(0).digest].len, 2, "the last report counts");
    }
}
