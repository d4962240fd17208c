//! Eviction: one task deletes victims ahead of the saves that need space.
//!
//! The task evicts down to the high mark in batches as large as the need. Before each batch it
//! checks that this node may still evict: another node may have taken over. It takes the write
//! guard of each victim and skips those in use; what the store does not delete returns to the
//! index.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::{Error, ErrorKind, Event};
use kvtier_index::{IndexEntry, ReserveRequest, TenantId};
use kvtier_s3::try_for_each_concurrent;

use crate::Compat;
use crate::state::catalog::best_len;
use crate::state::counters::add;
use crate::state::key_locks::WriteGuard;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::Shared;

/// The most keys that S3 deletes with one request.
const BATCH_MAX: usize = 1000;
/// Batches in flight.
const BATCHES_MAX: usize = 4;
/// Requests in flight of one batch where each deletes one object.
const SINGLY_MAX: usize = 32;
/// LMCache's interval.
const TICK: Duration = Duration::from_secs(1);
/// Pause after a batch of which the store deleted nothing.
const PAUSE: Duration = Duration::from_millis(200);
/// The most victims without names that are passed over at a time.
const UNNAMED_MAX: usize = BATCH_MAX * BATCHES_MAX;
/// The most keys that a tier without a cap tracks; the policy selects which it forgets.
const KEYS_MAX: usize = 1 << 20;

/// Evicts down to the high mark whenever it is passed.
pub async fn evict_ahead(shared: Arc<Shared>) {
    loop {
        shared.eviction_queue.notified().await;
        if shared.capacity_bytes.is_none() {
            forget_beyond(&shared, KEYS_MAX);
            continue;
        }
        // Checked before each batch: another node may have taken over.
        // One batch deletes about four thousand objects at most; then the lease is looked at again.
        while shared.node.may_evict(shared.now_ms()) {
            let victims = gather(&shared);
            if victims.is_empty() {
                break;
            }
            let (gone, _) = delete_victims(&shared, victims).await;
            add(&shared.counters.evicted, gone as u64);
            match gone {
                // The store refuses, or all victims are in use: without a pause this would spin.
                0 => tokio::time::sleep(PAUSE).await,
                _ => shared.node.request_exchange(),
            }
        }
        // Victims that were chosen before another node took over stay. Saves that waited for them
        // ask again, as those of a node that does not evict.
        let left = shared.eviction_queue.take();
        for victim in &left {
            shared.catalog().index.abort_evict(&victim.chunk.digest);
        }
        if !left.is_empty() {
            shared.freed.notify_waiters();
        }
    }
}

/// Evicts as LMCache does: checks once a second, then evicts a share of all chunks at once.
pub async fn evict_by_the_second(shared: Arc<Shared>, compat: Compat) {
    let mut tick = tokio::time::interval(TICK);
    while !shared.gate.is_closed() {
        tick.tick().await;
        let usage = shared.catalog().index.usage();
        // The conditions of LMCache's own loop, in its units.
        let due = usage.used as f64 >= compat.watermark * usage.capacity as f64
            && usage.entries > 0
            && compat.ratio > 0.0;
        if !due || !shared.node.may_evict(shared.now_ms()) {
            continue;
        }
        let mut wanted = ((usage.entries as f64 * compat.ratio) as usize).max(1);
        while wanted > 0 {
            let mut victims = Vec::new();
            // Chunks of no bytes come several at a time.
            while victims.len() < wanted.min(BATCH_MAX) {
                let more = shared.catalog().index.evict_bytes(shared.now_ms(), 1);
                if more.is_empty() {
                    break;
                }
                victims.extend(more);
            }
            if victims.is_empty() {
                break;
            }
            wanted = wanted.saturating_sub(victims.len());
            let victims = replace_unnamed(&shared, victims);
            if victims.is_empty() {
                break;
            }
            let (gone, _) = delete_victims(&shared, victims).await;
            add(&shared.counters.evicted, gone as u64);
        }
    }
}

fn gather(shared: &Shared) -> Vec<IndexEntry> {
    let mut victims = shared.eviction_queue.take();
    victims.extend(above_limits(shared));
    let mut above_cap = Vec::new();
    while victims.len() + above_cap.len() < BATCH_MAX * BATCHES_MAX {
        let wanted = shared.eviction_queue.requested_bytes();
        let more = shared.catalog().index.victims(shared.now_ms(), wanted);
        if more.is_empty() {
            break;
        }
        above_cap.extend(more);
    }
    // Not those above a quota: chunks of other tenants make no space below it.
    victims.extend(replace_unnamed(shared, above_cap));
    victims
}

/// Chooses others in the place of victims without names, which stay, and requests a listing for those.
fn replace_unnamed(shared: &Shared, mut chosen: Vec<IndexEntry>) -> Vec<IndexEntry> {
    if shared.names.is_own() {
        return chosen;
    }
    let (mut named, mut unnamed) = (Vec::new(), Vec::new());
    while !chosen.is_empty() {
        let mut catalog = shared.catalog();
        let has_name =
            |victim: &IndexEntry| shared.object_name(&catalog, &victim.chunk.digest).is_some();
        let (with, without): (Vec<_>, Vec<_>) = chosen.into_iter().partition(has_name);
        let missing = without.iter().map(|victim| victim.chunk.bytes).sum();
        named.extend(with);
        unnamed.extend(without);
        chosen = match missing {
            0 => Vec::new(),
            _ if unnamed.len() >= UNNAMED_MAX => Vec::new(),
            _ => catalog.index.evict_bytes(shared.now_ms(), missing),
        };
    }
    if !unnamed.is_empty() {
        shared.node.listing_requested.notify_one();
    }
    // Only now, or they would be chosen again.
    for some in unnamed.chunks(BATCH_MAX) {
        let mut catalog = shared.catalog();
        for victim in some {
            catalog.index.abort_evict(&victim.chunk.digest);
        }
    }
    named
}

/// Victims of tenants that fill their quotas: for all of their waiting saves, and some ahead,
/// because other nodes wait for space below the quotas too and delete nothing.
fn above_limits(shared: &Shared) -> Vec<IndexEntry> {
    // In order, so that each simulation deletes the same.
    let requested = shared.eviction_queue.requested_by_tenant();
    let mut space: BTreeMap<TenantId, u64> = requested.into_iter().collect();
    let mut catalog = shared.catalog();
    for spare in catalog.index.full_tenants() {
        let space = space.entry(spare.tenant).or_default();
        *space = spare.bytes.max(*space);
    }
    let mut victims = Vec::new();
    for (tenant, bytes) in space {
        let Some(limit) = catalog.quota_of(tenant) else { continue };
        let want = ReserveRequest::new(limit.min(bytes)).with_tenant(tenant);
        victims.extend(catalog.index.victims_of_quota(shared.now_ms(), &want));
    }
    victims
}

/// Without a cap nothing is deleted, but the index has a maximum.
fn forget_beyond(shared: &Shared, keys_max: usize) {
    let mut catalog = shared.catalog();
    while catalog.index.usage().entries > keys_max {
        let victims = catalog.index.evict_bytes(shared.now_ms(), 1);
        if victims.is_empty() {
            break;
        }
        for IndexEntry { chunk, .. } in victims {
            let is_suspect = catalog.index.is_suspect(&chunk.digest);
            catalog.drop_entry(&chunk.digest);
            if !is_suspect {
                shared.listeners.push(Event::Gone { key: chunk.digest, len: best_len(&chunk) });
            }
        }
    }
    drop(catalog);
    shared.listeners.notify();
}

/// A chunk that is about to be deleted.
pub struct Victim<'a> {
    pub entry: IndexEntry,
    /// The name of its object.
    pub name: String,
    /// No other operation uses its key meanwhile.
    pub _guard: WriteGuard<'a>,
}

/// Deletes victims whose keys are not in use and whose names are known; the others stay. Returns how many were
/// deleted.
async fn delete_victims(shared: &Shared, victims: Vec<IndexEntry>) -> (usize, Option<Error>) {
    let mut ours = Vec::with_capacity(victims.len());
    for victim in victims {
        // Without waiting. A key in use is the wrong victim anyway, and the batch must not wait for
        // a slow PUT.
        // The guard before the catalog: the same order everywhere.
        let guard = shared.key_locks.try_write(&victim.chunk.digest);
        let mut catalog = shared.catalog();
        let name = shared.object_name(&catalog, &victim.chunk.digest);
        match (guard, name) {
            // Saved again since it was chosen: then it is no victim any more.
            (Some(guard), Some(name)) if catalog.index.is_evicting(&victim.chunk.digest) => {
                ours.push(Victim { entry: victim, name, _guard: guard })
            }
            (guard, name) => {
                let is_unnamed = guard.is_some() && name.is_none();
                if catalog.index.abort_evict(&victim.chunk.digest) && is_unnamed {
                    shared.node.listing_requested.notify_one();
                }
            }
        }
    }
    delete(shared, ours).await
}

/// Deletes victims whose guards are held, up to a thousand with a request. Those that were not
/// deleted return to the index.
pub async fn delete(shared: &Shared, victims: Vec<Victim<'_>>) -> (usize, Option<Error>) {
    let outcome = Mutex::new((0, None));
    let batches = victims.chunks(BATCH_MAX).map(|batch| {
        let outcome = &outcome;
        async move {
            let (gone, error) = delete_batch(shared, batch).await;
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            outcome.0 += gone;
            outcome.1 = outcome.1.take().or(error);
            Ok::<_, std::convert::Infallible>(())
        }
    });
    // The closure never fails; errors are collected beside it, so that all batches run.
    let Ok(()) = try_for_each_concurrent(batches, BATCHES_MAX).await;
    // The guards, before the waiters are woken: a save of the same key can then begin.
    drop(victims);
    shared.freed.notify_waiters();
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

async fn delete_batch(shared: &Shared, batch: &[Victim<'_>]) -> (usize, Option<Error>) {
    let names: Vec<_> = batch.iter().map(|victim| victim.name.clone()).collect();
    let other_names: Vec<_> = names.iter().map(|name| shared.names.other_name(name)).collect();
    let (refused, error) = match shared.client.deletes_many() {
        true => delete_many(shared, &names, &other_names).await,
        false => delete_singly(shared, &names, &other_names).await,
    };
    let stays = batch.iter().find(|victim| refused.contains(&victim.name));
    if let (None, Some(victim)) = (&error, stays) {
        // Not the name, which may contain a salt.
        let what = format!(
            "the store does not delete {} objects, {} among them",
            refused.len(),
            victim.entry.chunk.digest
        );
        shared.fault(what);
    }
    add(&shared.counters.delete_failures, refused.len() as u64);
    let mut catalog = shared.catalog();
    for Victim { entry, name, .. } in batch {
        let digest = entry.chunk.digest;
        // Back into the index, so that it keeps counting against the cap. The next lookup asks the
        // bucket.
        if refused.contains(name) {
            // It may be deleted in spite of the error.
            catalog.index.abort_evict(&digest);
            catalog.invalidate(&digest);
            continue;
        }
        // A suspect was reported as gone when it was marked.
        let suspect = catalog.index.is_suspect(&digest);
        // The guard is held: if the entry is not being evicted any more, its object is gone all the
        // same.
        if catalog.index.finish_evict(&digest) || catalog.index.forget(&digest).is_some() {
            catalog.note_changed(digest);
            // Under the guard, so no save of the key is running that could make it present again.
            catalog.note_absent(digest);
            shared.node.removed(digest);
            if !suspect {
                shared.listeners.push(Event::Gone { key: digest, len: best_len(&entry.chunk) });
            }
        }
    }
    drop(catalog);
    shared.listeners.notify();
    (names.len() - refused.len(), error)
}

/// Deletes objects, under both of their names where there are two. Returns the names of those that
/// stay, or may.
async fn delete_many(
    shared: &Shared,
    names: &[String],
    other_names: &[Option<String>],
) -> (HashSet<String>, Option<Error>) {
    let _permit = shared.scheduler.acquire(RequestQueue::Delete).await;
    let mut refused = HashSet::new();
    let others: Vec<&String> = other_names.iter().flatten().collect();
    for part in [names.iter().collect(), others].iter().filter(|part| !part.is_empty()) {
        add(&shared.counters.delete_requests, 1);
        match shared.client.delete_many(part).await {
            Ok(some) => refused.extend(some.into_iter().map(|refused| refused.key)),
            Err(e) => {
                // An answer that did not come says nothing of any object: all of them count as
                // staying.
                return (names.iter().cloned().collect(), Some(shared.error("remove", None, e)));
            }
        }
    }
    let stays = |(name, other): &(&String, &Option<String>)| {
        refused.contains(*name) || other.as_ref().is_some_and(|other| refused.contains(other))
    };
    (names.iter().zip(other_names).filter(stays).map(|(name, _)| name.clone()).collect(), None)
}

/// As [`delete_many`], where the store deletes one object with a request; each waits for a permit.
async fn delete_singly(
    shared: &Shared,
    names: &[String],
    other_names: &[Option<String>],
) -> (HashSet<String>, Option<Error>) {
    let outcome = Mutex::new((HashSet::new(), None));
    let one = |(name, other): (&String, &Option<String>)| {
        let outcome = &outcome;
        let name = name.clone();
        let other = other.clone();
        async move {
            for part in [Some(&name), other.as_ref()].into_iter().flatten() {
                let _permit = shared.scheduler.acquire(RequestQueue::Delete).await;
                add(&shared.counters.delete_requests, 1);
                let Err(e) = shared.client.delete(part).await else { continue };
                let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                outcome.1 = outcome.1.take().or_else(|| Some(shared.error("remove", None, e)));
                outcome.0.insert(name.clone());
            }
            Ok::<_, std::convert::Infallible>(())
        }
    };
    let Ok(()) = try_for_each_concurrent(names.iter().zip(other_names).map(one), SINGLY_MAX).await;
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The error of a remove that deleted too little.
pub fn not_deleted(error: Option<Error>) -> Error {
    error.unwrap_or_else(|| {
        Error::new(ErrorKind::Denied, "the store does not delete the objects").with_op("remove")
    })
}

#[cfg(test)]
mod tests;
