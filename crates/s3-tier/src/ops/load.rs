//! Loads: one GET each, verified while the bytes arrive.
//!
//! A response is used only if it fits what is known of the object. Bytes that differ from the facts
//! are read once more, in case the object was replaced during the read or damaged on the network. A
//! response without facts is suspicious if its length differs from the listing, or its bytes from
//! those that this version had: a proxy may have sent it. So is one that contradicts itself. Then the
//! load fails, and nothing is recorded.

use std::sync::Arc;

use kvtier_core::{Class, Error, ErrorKind, Event, Key, Load, Loaded, MissReason, Slot};
use kvtier_key::BlockSums;
use kvtier_mem::Lease;
use kvtier_s3::{BodyBuffer, Client};
use tokio::time::Instant;

use crate::ops::metadata::{self, StoredFacts, StreamVerifier};
use crate::state::counters::add;
use crate::state::key_locks::ReadVersion;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::{FoundObject, Shared};
use crate::{Layout, Verify};

/// A load: one GET into the leases; its bytes are verified while they arrive.
pub async fn load(shared: Arc<Shared>, mut op: Load, slot: Slot<Load, Loaded>, class: Class) {
    // Leases may come filled from an earlier use; what is not overwritten must not count as loaded.
    clear(&mut op);
    let deadline = Instant::from_std(slot.deadline());
    let late = || Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("load"));
    let work = async {
        // The deadline covers the wait for a permit as well.
        let _permit = shared.scheduler.acquire(RequestQueue::for_load(class)).await;
        match slot.is_over() {
            Some(over) => Err(Error::new(over, "ended before it began").with_op("load")),
            None => fill(&shared, &mut op, deadline).await,
        }
    };
    let result = tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| late());
    // Also after the deadline: the GET was dropped, and the leases hold part of an object.
    if !matches!(result, Ok(Loaded::Hit { .. })) {
        clear(&mut op);
    }
    let counters = &shared.counters;
    match &result {
        Ok(Loaded::Hit { len }) => {
            add(&counters.hits, 1);
            add(&counters.loaded_bytes, *len);
            shared.listeners.push(Event::Touched { key: *op.key.digest() });
            shared.listeners.notify();
        }
        Ok(Loaded::Miss(MissReason::Corrupt)) => add(&counters.misses_corrupt, 1),
        Ok(Loaded::Miss(MissReason::Length)) => add(&counters.misses_length, 1),
        Ok(Loaded::Miss(MissReason::Unverified)) => add(&counters.misses_unverified, 1),
        Ok(Loaded::Miss(_)) => add(&counters.misses_absent, 1),
        _ => {}
    }
    slot.finish(op, result);
}

fn clear(op: &mut Load) {
    op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
}

async fn fill(shared: &Shared, op: &mut Load, deadline: Instant) -> Result<Loaded, Error> {
    let name = shared.name_of(&op.key)?;
    let digest = *op.key.digest();
    // Also while it is being evicted.
    // One chunk of its atomic set is missing: all of them are misses.
    if shared.catalog().index.is_hidden(&digest) {
        return Ok(Loaded::Miss(MissReason::Absent));
    }
    // Before the request: what is learned from the response is entered only if no write of the key
    // began since.
    let version = shared.key_locks.read(&digest);
    let mut damaged = None;
    for name in std::iter::once(name.clone()).chain(shared.names_but(&op.key, &name)) {
        match get(shared, op, &name, &version, deadline).await? {
            None => {}
            // The object under another name may be good.
            Some(miss @ Loaded::Miss(_)) => damaged = damaged.or(Some(miss)),
            Some(loaded) => return Ok(loaded),
        }
    }
    if let Some(miss) = damaged {
        return Ok(miss);
    }
    // Only now: the object may have had another name.
    shared.record_missing(&digest, &version);
    Ok(Loaded::Miss(MissReason::Absent))
}

/// Reads one object; `None` if there is none.
async fn get(
    shared: &Shared,
    op: &mut Load,
    name: &str,
    version: &ReadVersion<'_>,
    deadline: Instant,
) -> Result<Option<Loaded>, Error> {
    let memory_bytes = op.into.iter().map(|lease| lease.len() as u64).sum::<u64>();
    // No object of ours has no bytes, and a request for none would say nothing.
    if memory_bytes == 0 {
        return Ok(Some(Loaded::Miss(MissReason::Length)));
    }
    let client = shared.client.until(deadline);
    // Ranges need the exact length in advance, since they are sent before any response.
    let mut by_ranges = is_for_ranges(shared, op, memory_bytes);
    // One repetition for each load. A second failure of the same kind is no accident of the
    // network.
    let mut again = true;
    let read = loop {
        let (answer, mut read) = match by_ranges {
            true => ranges(shared, &client, op, name).await,
            false => whole(&client, op, name).await,
        };
        match answer {
            Ok(None) => return Ok(None),
            // It has another length than was known, or the store supports no ranges: one GET shows
            // it.
            Err(e) if by_ranges && is_of_ranges(&e) => by_ranges = false,
            // Replaced during the read, or damaged on the network: the object is read again from
            // its start, once.
            Err(e) if e.kind() == kvtier_s3::ErrorKind::Conflict && again => again = false,
            Ok(Some(()))
                if !read.intact && matches!(read.facts, Some(StoredFacts::Valid(_))) && again =>
            {
                again = false
            }
            // No response, or a refusal. It says nothing about the object, so nothing is recorded.
            Err(e) if e.kind() != kvtier_s3::ErrorKind::Corrupt => {
                return Err(shared.error("load", Some(&op.key), e));
            }
            answer
                if let Some(e) = suspicious_response(shared, &op.key, &read)
                    .or_else(|| changed_in_transit(shared, op, &read)) =>
            {
                if !std::mem::take(&mut again) {
                    return Err(shared.error("load", Some(&op.key), e));
                }
                drop(answer);
            }
            // The response contradicts itself: nothing is known of the object.
            Err(e) if e.is_retryable() && !e.is_wrong_checksum() => {
                return Err(shared.error("load", Some(&op.key), contradictory_response(e)));
            }
            // Longer than the memory, or it fails the store's own checksum.
            Err(e) => {
                read.intact = false;
                read.too_long = !e.is_retryable();
                break read;
            }
            Ok(Some(())) => break read,
        }
    };
    Ok(Some(record(shared, &op.key, &read, LoadTarget { name, version, memory_bytes })))
}

/// The object that a load reads, and the bytes of its memory.
struct LoadTarget<'a> {
    name: &'a str,
    version: &'a ReadVersion<'a>,
    memory_bytes: u64,
}

/// Classifies the response and updates the index.
fn record(shared: &Shared, key: &Key, read: &ReadObject, target: LoadTarget<'_>) -> Loaded {
    let LoadTarget { name, version, memory_bytes } = target;
    // From here on the response is taken for the store's: what it shows goes into the index.
    let state = classify(shared, key, read, Some(memory_bytes));
    let etag = read.etag.as_deref();
    let seen =
        FoundObject { key, name, len: read.len, etag, verified: state == ObjectState::Verified };
    match state {
        ObjectState::Verified | ObjectState::Unverified => {
            add(&shared.counters.unverified, u64::from(state == ObjectState::Unverified));
            if seen.verified {
                shared.geometry.learn(key, read.len);
            }
            let found = shared.record_found(seen, version);
            if let (Some(StoredFacts::Valid(facts)), Some(etag)) = (&read.facts, &read.etag) {
                shared.note_facts(key, etag, facts.sums.whole());
            }
            match found {
                // `false` where its atomic set is incomplete, or this version failed its checks before.
                true => Loaded::Hit { len: read.len },
                false => Loaded::Miss(MissReason::Absent),
            }
        }
        ObjectState::Miss(reason) => Loaded::Miss(reason),
        ObjectState::Corrupt(reason) => {
            shared.mark_corrupt(seen, version);
            Loaded::Miss(reason)
        }
    }
}

/// Why a response without facts may not be the store's: its length differs from that of listings
/// and saves. Unknown if nothing is listed, or in LMCache's layouts, where other programs replace
/// objects.
pub fn suspicious_response(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
) -> Option<kvtier_s3::Error> {
    if !matches!(read.facts, Some(StoredFacts::Missing)) || shared.layout != Layout::Kvtier {
        return None;
    }
    let listed = shared.capacity_bytes.and_then(|_| shared.catalog().listed_len(key.digest()));
    let what = "the answer has no facts and another length than the store lists: a proxy may have sent it, or another program replaced the \
                object, which the next listing finds out";
    listed
        .filter(|len| *len != read.len)
        .map(|_| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

/// A response whose head, framing or range make no sense, as of a proxy before the store.
fn contradictory_response(e: kvtier_s3::Error) -> kvtier_s3::Error {
    let what =
        "an answer that contradicts itself: check the endpoint and any proxy before the store";
    kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).with_source(e)
}

/// Why bytes without facts are not the object's: this version had facts when this process wrote or
/// read it, and other bytes.
fn changed_in_transit(shared: &Shared, op: &Load, read: &ReadObject) -> Option<kvtier_s3::Error> {
    let etag = read
        .etag
        .as_deref()
        .filter(|_| matches!(read.facts, Some(StoredFacts::Missing)) && read.intact)?;
    let known = shared.catalog().crc_of(op.key.digest(), etag)?;
    let mut pieces = Vec::new();
    let mut left = usize::try_from(read.len).unwrap_or(usize::MAX);
    for bytes in op.into.iter().filter_map(Lease::as_host) {
        let here = left.min(bytes.len());
        pieces.push(&bytes[..here]);
        left -= here;
    }
    let what = "the answer has neither the facts nor the bytes that this version of the object had: something before the store changes answers";
    let is_same = BlockSums::from_pieces(pieces).whole() == known;
    (!is_same).then(|| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

/// What a response shows of an object.
#[derive(Debug, Default)]
pub struct ReadObject {
    pub facts: Option<StoredFacts>,
    /// Its length.
    pub len: u64,
    pub etag: Option<String>,
    /// Its bytes match its facts.
    pub intact: bool,
    /// It is longer than the memory.
    pub too_long: bool,
}

/// The result of the checks of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectState {
    /// It is the chunk.
    Verified,
    /// It has no facts, and nothing else is wrong.
    Unverified,
    /// It is fine but of no use for this request.
    Miss(MissReason),
    /// It can never be a hit: a miss until it is overwritten.
    Corrupt(MissReason),
}

/// Classifies an object by its headers and, for a load into `memory_bytes`, by the received bytes.
pub fn classify(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
    memory_bytes: Option<u64>,
) -> ObjectState {
    match &read.facts {
        // The object is fine; the caller expected a shorter one. It stays for callers that know its
        // length.
        Some(StoredFacts::Valid(_)) if read.too_long => ObjectState::Miss(MissReason::Length),
        Some(StoredFacts::Valid(_)) if read.intact => ObjectState::Verified,
        Some(StoredFacts::Valid(_) | StoredFacts::Invalid) => {
            ObjectState::Corrupt(MissReason::Corrupt)
        }
        // Every object of this layout has facts, so this one was written by something else.
        Some(StoredFacts::Missing) if shared.layout == Layout::Kvtier => {
            ObjectState::Corrupt(MissReason::Corrupt)
        }
        Some(StoredFacts::Missing) if shared.verify == Verify::Strict => {
            ObjectState::Corrupt(MissReason::Unverified)
        }
        Some(StoredFacts::Missing) => foreign(shared, key, read, memory_bytes),
        // No head of a response was seen.
        None => ObjectState::Miss(MissReason::Corrupt),
    }
}

/// An object of another program is served if its length is exactly right: that of a full chunk, or
/// where it may be shorter or the length is unknown, that of the memory.
fn foreign(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
    memory_bytes: Option<u64>,
) -> ObjectState {
    let fits_memory = memory_bytes.is_none_or(|memory_bytes| memory_bytes == read.len);
    match shared.geometry.full(key) {
        _ if read.len == 0 => ObjectState::Corrupt(MissReason::Length),
        Some(full)
            if shared.geometry.is_too_long(key, read.len)
                || (read.len < full && !shared.geometry.allows_partial(key)) =>
        {
            ObjectState::Corrupt(MissReason::Length)
        }
        // Full chunks are longer than was learned; only a request for exactly this length may use
        // it.
        Some(full) if read.len > full && memory_bytes != Some(read.len) => {
            ObjectState::Miss(MissReason::Length)
        }
        Some(full) if read.len < full && !fits_memory => ObjectState::Miss(MissReason::Length),
        None if !fits_memory => ObjectState::Miss(MissReason::Length),
        _ if read.too_long => ObjectState::Miss(MissReason::Length),
        // The store's own checksum failed.
        _ if memory_bytes.is_some() && !read.intact => ObjectState::Corrupt(MissReason::Corrupt),
        _ => ObjectState::Unverified,
    }
}

/// One GET of the whole object.
async fn whole(
    client: &Client,
    op: &mut Load,
    name: &str,
) -> (kvtier_s3::Result<Option<()>>, ReadObject) {
    let mut verifier = StreamVerifier::new(&op.key);
    let Some(landing) = landing(&mut op.into) else {
        return (Err(device_memory_error()), ReadObject::default());
    };
    let answer = client.get_observed(name, &mut landing.observed_by(&mut verifier)).await;
    // The verifier saw the bytes as they arrived in the leases, so no second pass over them is
    // needed.
    let holds = verifier.is_verified();
    let StreamVerifier { facts, total, etag, .. } = verifier;
    let mut read =
        ReadObject { facts, len: total.unwrap_or(0), etag, intact: holds, too_long: false };
    if let Ok(Some(object)) = &answer {
        read.len = object.len();
        // Nothing to compare with: the client checked the length, and the store's checksum where
        // there is one.
        read.intact |= matches!(read.facts, Some(StoredFacts::Missing));
        fill_in(&mut op.into, object.len());
    }
    (answer.map(|object| object.map(drop)), read)
}

/// Several ranges at once; verified when all have arrived.
async fn ranges(
    shared: &Shared,
    client: &Client,
    op: &mut Load,
    name: &str,
) -> (kvtier_s3::Result<Option<()>>, ReadObject) {
    // `is_for_ranges` lets only loads into one lease come here, since each range has its own offset
    // in it.
    let [lease] = &mut op.into[..] else {
        return (Err(device_memory_error()), ReadObject::default());
    };
    add(&shared.counters.loads_in_ranges, 1);
    let answer = client
        .get_parallel(name, lease, shared.transfer.part_bytes, shared.transfer.parts_max)
        .await;
    let Ok(Some(object)) = &answer else { return (answer.map(|_| None), ReadObject::default()) };
    let facts = metadata::parse(|name| object.header(name), Some(object.total()), &op.key);
    let intact = match (&facts, lease.as_host()) {
        (StoredFacts::Valid(facts), Some(bytes)) => BlockSums::from_bytes(bytes) == facts.sums,
        (facts, _) => matches!(facts, StoredFacts::Missing),
    };
    let read = ReadObject {
        facts: Some(facts),
        len: object.len(),
        etag: object.etag().map(str::to_owned),
        intact,
        too_long: false,
    };
    (Ok(Some(())), read)
}

fn is_for_ranges(shared: &Shared, op: &Load, memory_bytes: u64) -> bool {
    memory_bytes >= shared.transfer.ranges_above_bytes
        && op.into.len() == 1
        && !shared.client.ignores_ranges()
        && shared
            .catalog()
            .index
            .get(op.key.digest())
            .is_some_and(|entry| entry.chunk.len == memory_bytes)
}

/// Whether the ranges may be the cause of an error, and not the object or the store.
fn is_of_ranges(error: &kvtier_s3::Error) -> bool {
    use kvtier_s3::ErrorKind::{Conflict, Corrupt, Invalid, Unsupported};
    matches!(error.kind(), Conflict | Corrupt | Invalid | Unsupported)
}

/// The memory of a load, in order.
fn landing(into: &mut [Lease]) -> Option<BodyBuffer<'_>> {
    let mut pieces = into.iter_mut().map(Lease::as_host_mut);
    let first = BodyBuffer::new(pieces.next()??);
    if pieces.len() == 0 {
        return Some(first);
    }
    Some(first.then(pieces.collect::<Option<Vec<_>>>()?))
}

/// Marks `len` bytes as filled.
fn fill_in(into: &mut [Lease], len: u64) {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    for lease in into {
        let here = left.min(lease.len());
        lease.assume_filled(here);
        left -= here;
    }
}

fn device_memory_error() -> kvtier_s3::Error {
    kvtier_s3::Error::new(
        kvtier_s3::ErrorKind::Invalid,
        "a network cannot write into device memory: give host memory",
    )
}

/// Why a load can never succeed here.
pub fn refusal(op: &Load) -> Option<Error> {
    let far = op.into.iter().find(|lease| !lease.place().is_host())?;
    let what =
        format!("memory at {:?} cannot be written by the CPU; use a tier that can", far.place());
    Some(Error::new(ErrorKind::Invalid, what).with_op("load").with_key(*op.key.digest()))
}
