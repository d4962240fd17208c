//! SpaceReservation in the bucket: saves claim it, one task deletes what has to go, ahead of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::{Error, ErrorKind, Event, ShedReason};
use kvtier_index::{IndexEntry, Refusal, Reservation, Reserve, ReserveRequest};
use kvtier_s3::try_for_each_concurrent;
use tokio::time::Instant;

use crate::Compat;
use crate::state::counters::add;
use crate::state::eviction_queue::WaitingSave;
use crate::state::key_locks::WriteGuard;
use crate::state::scheduler::RequestKind;
use crate::state::shared::Shared;

/// S3 deletes no more at once.
const BATCH_MAX: usize = 1000;
/// Batches under way at a time.
const BATCHES_MAX: usize = 4;
/// Requests of one batch under way at a time where each deletes one object.
const SINGLY_MAX: usize = 32;
/// LMCache looks so often.
const TICK: Duration = Duration::from_secs(1);
/// How long to leave a store alone that deletes nothing.
const PAUSE: Duration = Duration::from_millis(200);
/// A tier without a cap remembers no more keys than this; which go, the policy says.
const KEYS_MAX: usize = 1 << 20;

/// Claimed room, given back unless it is spent.
#[derive(Debug)]
pub struct SpaceReservation<'a> {
    shared: &'a Shared,
    claim: Option<Reservation>,
}

impl SpaceReservation<'_> {
    /// Takes the claim.
    pub fn spend(mut self) -> Option<Reservation> {
        self.claim.take()
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.shared.catalog().index.cancel(claim);
            self.shared.freed.notify_waiters();
        }
    }
}

/// Claims room. Waits for what has to go, but not longer than that.
pub async fn reserve<'a>(
    shared: &'a Shared,
    want: &ReserveRequest,
    until: Instant,
) -> Result<SpaceReservation<'a>, ShedReason> {
    let mut waiting = None;
    loop {
        let freed = shared.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        let evicts = !shared.compat && shared.cluster.may_evict(shared.now_ms());
        let (asked, writing) = {
            let mut catalog = shared.catalog();
            let limit = catalog.quota_of(want.tenant);
            let index = &mut catalog.index;
            let cap = index.usage().capacity;
            let is_shared = !shared.compat && want.bytes <= cap;
            let asked = match evicts {
                _ if is_shared && !shared.cluster.shares.allows(want.bytes, cap) => Reserve::Busy,
                true => index.reserve_for(shared.now_ms(), want),
                false => shared.cluster.reserve(index, want, limit),
            };
            if matches!(asked, Reserve::Granted(_)) && shared.cluster.shares.grant(want.bytes, cap)
            {
                shared.cluster.request_round();
            }
            (asked, index.usage().reserved > 0)
        };
        match asked {
            Reserve::Granted(claim) => return Ok(SpaceReservation { shared, claim: Some(claim) }),
            Reserve::Evict(victims) => shared.eviction_queue.push(victims),
            Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
            Reserve::Full(Refusal::NotWorth) => return Err(ShedReason::NotWorth),
            Reserve::Full(Refusal::Quota { .. }) => return Err(ShedReason::Quota),
            // What is being written now may go when it is written.
            Reserve::Full(Refusal::Held) if writing => {}
            Reserve::Busy => shared.eviction_queue.notify(),
            _ => return Err(ShedReason::Full),
        }
        waiting.get_or_insert_with(|| WaitingSave::new(&shared.eviction_queue, *want));
        shared.cluster.request_exchange();
        if tokio::time::timeout_at(until, freed).await.is_err() {
            return Err(ShedReason::Full);
        }
    }
}

/// Deletes down to the high mark whenever it is passed, in batches as large as the need.
pub async fn evict_ahead(shared: Arc<Shared>) {
    loop {
        shared.eviction_queue.notified().await;
        if shared.capacity_bytes.is_none() {
            forget_beyond(&shared, KEYS_MAX);
            continue;
        }
        // Asked before each batch: another node may have taken over.
        while shared.cluster.may_evict(shared.now_ms()) {
            let victims = gather(&shared);
            if victims.is_empty() {
                break;
            }
            let (gone, _) = delete_victims(&shared, victims).await;
            add(&shared.counters.evicted, gone as u64);
            match gone {
                0 => tokio::time::sleep(PAUSE).await,
                _ => shared.cluster.request_exchange(),
            }
        }
        // What was chosen when another took over stays. Who waited for it to go asks as one who
        // does not evict.
        let left = shared.eviction_queue.take();
        for victim in &left {
            shared.catalog().index.abort_evict(&victim.chunk.digest);
        }
        if !left.is_empty() {
            shared.freed.notify_waiters();
        }
    }
}

/// As LMCache does: looks once a second, and then a share of all chunks goes at once.
pub async fn evict_by_the_second(shared: Arc<Shared>, compat: Compat) {
    let mut tick = tokio::time::interval(TICK);
    while !shared.gate.is_closed() {
        tick.tick().await;
        let usage = shared.catalog().index.usage();
        let due = usage.used as f64 >= compat.watermark * usage.capacity as f64
            && usage.entries > 0
            && compat.ratio > 0.0;
        if !due || !shared.cluster.may_evict(shared.now_ms()) {
            continue;
        }
        let mut wanted = ((usage.entries as f64 * compat.ratio) as usize).max(1);
        while wanted > 0 {
            let mut victims = Vec::new();
            // Those without a byte come many at a time.
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
            let (gone, _) = delete_victims(&shared, victims).await;
            add(&shared.counters.evicted, gone as u64);
        }
    }
}

fn gather(shared: &Shared) -> Vec<IndexEntry> {
    let mut victims = shared.eviction_queue.take();
    victims.extend(above_limits(shared));
    while victims.len() < BATCH_MAX * BATCHES_MAX {
        let wanted = shared.eviction_queue.requested_bytes();
        let more = shared.catalog().index.victims(shared.now_ms(), wanted);
        if more.is_empty() {
            break;
        }
        victims.extend(more);
    }
    victims
}

/// What has to go of tenants that fill their limits: for all of their saves that wait, and some
/// ahead, since other nodes, which delete nothing, wait for room below them too.
fn above_limits(shared: &Shared) -> Vec<IndexEntry> {
    let mut room = shared.eviction_queue.requested_by_tenant();
    let mut catalog = shared.catalog();
    for spare in catalog.index.full_tenants() {
        let room = room.entry(spare.tenant).or_default();
        *room = spare.bytes.max(*room);
    }
    let mut victims = Vec::new();
    for (tenant, bytes) in room {
        let Some(limit) = catalog.quota_of(tenant) else { continue };
        let want = ReserveRequest::new(limit.min(bytes)).with_tenant(tenant);
        victims.extend(catalog.index.victims_of_quota(shared.now_ms(), &want));
    }
    victims
}

/// Without a cap nothing is deleted, but what is known has a maximum too.
fn forget_beyond(shared: &Shared, keys_max: usize) {
    let mut catalog = shared.catalog();
    while catalog.index.usage().entries > keys_max {
        let victims = catalog.index.evict_bytes(shared.now_ms(), 1);
        if victims.is_empty() {
            return;
        }
        victims.iter().for_each(|victim| catalog.drop_entry(&victim.chunk.digest));
    }
}

/// Deletes victims of the index that nobody is at; the others stay. Answers how many went.
async fn delete_victims(shared: &Shared, victims: Vec<IndexEntry>) -> (usize, Option<Error>) {
    let mut ours = Vec::with_capacity(victims.len());
    for victim in victims {
        let guard = shared.key_locks.try_write(&victim.chunk.digest);
        let mut catalog = shared.catalog();
        match guard {
            Some(guard) if catalog.index.is_evicting(&victim.chunk.digest) => {
                ours.push((victim, guard))
            }
            _ => {
                catalog.index.abort_evict(&victim.chunk.digest);
            }
        }
    }
    delete(shared, ours).await
}

/// Deletes victims that are ours to change, a thousand with a request. What could not be deleted is
/// there as before.
pub async fn delete(
    shared: &Shared,
    victims: Vec<(IndexEntry, WriteGuard<'_>)>,
) -> (usize, Option<Error>) {
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
    let Ok(()) = try_for_each_concurrent(batches, BATCHES_MAX).await;
    drop(victims);
    shared.freed.notify_waiters();
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

async fn delete_batch(
    shared: &Shared,
    batch: &[(IndexEntry, WriteGuard<'_>)],
) -> (usize, Option<Error>) {
    let name_of = |victim: &(IndexEntry, WriteGuard<'_>)| {
        let known = shared.catalog().name(&victim.0.chunk.digest);
        known.map_or_else(
            || shared.names.format_digest(&victim.0.chunk.digest),
            |name| name.to_string(),
        )
    };
    let names: Vec<_> = batch.iter().map(name_of).collect();
    let other_names: Vec<_> = names.iter().map(|name| shared.names.other_name(name)).collect();
    let (refused, error) = match shared.client.deletes_many() {
        true => delete_many(shared, &names, &other_names).await,
        false => delete_singly(shared, &names, &other_names).await,
    };
    let stays = batch.iter().zip(&names).find(|(_, name)| refused.contains(*name));
    if let (None, Some(((victim, _), _))) = (&error, stays) {
        // Not the name, which may hold a salt.
        let what = format!(
            "the store does not delete {} objects, {} among them",
            refused.len(),
            victim.chunk.digest
        );
        shared.fault(what);
    }
    add(&shared.counters.delete_failures, refused.len() as u64);
    let mut catalog = shared.catalog();
    for ((victim, _), name) in batch.iter().zip(&names) {
        let digest = victim.chunk.digest;
        if refused.contains(name) {
            // It may be gone all the same.
            catalog.index.abort_evict(&digest);
            catalog.invalidate(&digest);
            continue;
        }
        let suspect = catalog.index.is_suspect(&digest);
        // The turn is ours: an entry that somebody took for undeletable meanwhile is one of an
        // object that is gone.
        if catalog.index.finish_evict(&digest) || catalog.index.forget(&digest).is_some() {
            catalog.note_changed(digest);
            catalog.note_absent(digest);
            shared.cluster.removed(digest);
            if !suspect {
                shared.listeners.push(Event::Gone { key: digest, len: victim.chunk.len });
            }
        }
    }
    drop(catalog);
    shared.listeners.notify();
    (names.len() - refused.len(), error)
}

/// Asks the store to delete objects, and what chunks have under another name. Answers the names of
/// those that stay, or may.
async fn delete_many(
    shared: &Shared,
    names: &[String],
    other_names: &[Option<String>],
) -> (HashSet<String>, Option<Error>) {
    let _permit = shared.scheduler.acquire(RequestKind::Delete).await;
    let mut refused = HashSet::new();
    let others: Vec<&String> = other_names.iter().flatten().collect();
    for part in [names.iter().collect(), others].iter().filter(|part| !part.is_empty()) {
        add(&shared.counters.delete_requests, 1);
        match shared.client.delete_many(part).await {
            Ok(some) => refused.extend(some.into_iter().map(|refused| refused.key)),
            Err(e) => {
                return (names.iter().cloned().collect(), Some(shared.error("remove", None, e)));
            }
        }
    }
    let stays = |(name, other): &(&String, &Option<String>)| {
        refused.contains(*name) || other.as_ref().is_some_and(|other| refused.contains(other))
    };
    (names.iter().zip(other_names).filter(stays).map(|(name, _)| name.clone()).collect(), None)
}

/// As [`delete_many`] where the store deletes one object with a request: each of them waits for its turn.
async fn delete_singly(
    shared: &Shared,
    names: &[String],
    other_names: &[Option<String>],
) -> (HashSet<String>, Option<Error>) {
    let outcome = Mutex::new((HashSet::new(), None));
    let one = |(name, other): (&String, &Option<String>)| {
        let (outcome, name, other) = (&outcome, name.clone(), other.clone());
        async move {
            for part in [Some(&name), other.as_ref()].into_iter().flatten() {
                let _permit = shared.scheduler.acquire(RequestKind::Delete).await;
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

/// What a remove that deleted less than it should answers.
pub fn not_deleted(error: Option<Error>) -> Error {
    error.unwrap_or_else(|| {
        Error::new(ErrorKind::Denied, "the store does not delete the objects").with_op("remove")
    })
}
