//! Loads: one GET each, verified while the bytes arrive.
//!
//! A response is used only if it fits what is known of the object. Bytes that differ from the facts
//! are read once more, in case the object was replaced during the read or damaged on the network. A
//! response without facts is suspicious if its length differs from the listing, or its bytes from
//! those that this version had: a proxy may have sent it. So is one that contradicts itself. Then the
//! load fails, and nothing is recorded.

use std::sync::Arc;

use kvtier_codec::DecodeProgress;
use kvtier_core::{Class, Error, ErrorKind, Event, Key, Load, Loaded, MissReason, Slot};
use kvtier_key::{BlockSums, Facts};
use kvtier_mem::Lease;
use kvtier_s3::{BodyBuffer, Client};
use tokio::time::Instant;

use crate::ops::classify::{ObjectState, ReadObject, classify, mark_unusable, suspicious_response};
use crate::ops::decode::{self, EncodedRead, fill_in};
use crate::ops::decode_arriving::ArrivingObject;
use crate::ops::metadata::{self, StoredFacts, StreamVerifier};
use crate::state::counters::add;
use crate::state::key_locks::ReadVersion;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::{FoundObject, Shared};

/// Reads of one load: with the memory that the index suggests, with that for the object's true
/// length, and once more if it was replaced in between.
const READS_MAX: u32 = 3;

/// A load: one GET into the leases; its bytes are verified while they arrive.
pub async fn load(shared: Arc<Shared>, mut op: Load, slot: Slot<Load, Loaded>, class: Class) {
    // Leases may come filled from an earlier use; what is not overwritten must not count as loaded.
    clear(&mut op);
    let deadline = Instant::from_std(slot.deadline());
    let late = || Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("load"));
    let work = load_chunk(&shared, &mut op, &slot, class);
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
        Ok(Loaded::Miss(MissReason::Codec)) => add(&counters.misses_codec, 1),
        Ok(Loaded::Miss(MissReason::KeyMissing)) => add(&counters.misses_key, 1),
        Ok(Loaded::Miss(MissReason::TooLarge)) => add(&counters.misses_too_large, 1),
        Ok(Loaded::Miss(_)) => add(&counters.misses_absent, 1),
        _ => {}
    }
    slot.finish(op, result);
}

fn clear(op: &mut Load) {
    op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
}

/// Reads the object, and decodes it if it is encoded.
async fn load_chunk(
    shared: &Shared,
    op: &mut Load,
    slot: &Slot<Load, Loaded>,
    class: Class,
) -> Result<Loaded, Error> {
    // Memory before the permit, everywhere: a load that waits for memory must not hold a permit, on
    // which those that hold memory wait.
    let deadline = Instant::from_std(slot.deadline());
    let encoded_bytes = decode::expected_bytes(shared, &op.key, deadline).await?;
    let mut staging = match encoded_bytes {
        Some(bytes) => match decode::lease(shared, &op.key, bytes).await? {
            Some(staging) => Some(staging),
            None => return Ok(decode::too_large(shared, &op.key, bytes)),
        },
        None => None,
    };
    for _ in 0..READS_MAX {
        // The deadline covers the wait for a permit as well.
        let permit = shared.scheduler.acquire(RequestQueue::for_load(class)).await;
        if let Some(over) = slot.is_over() {
            return Err(Error::new(over, "ended before it began").with_op("load"));
        }
        let (into, raw) = match &mut staging {
            Some(staging) => (std::slice::from_mut(staging), Some(&mut op.into[..])),
            None => (&mut op.into[..], None),
        };
        let mut reading = Reading { shared, key: &op.key, into, raw, deadline };
        let answer = fill(&mut reading).await?;
        drop(permit);
        let read = match answer {
            Answer::Loaded(loaded) => return Ok(loaded),
            Answer::Encoded(read) => read,
        };
        if read.is_whole || read.exceeds(&op.into) {
            return decode::finish(shared, op, read, staging).await;
        }
        // It has another length than was known. What it had is returned first: it may be all there
        // is.
        drop(staging.take());
        if !read.facts.is_plain() {
            staging = decode::lease(shared, &op.key, read.facts.stored_len()).await?;
            if staging.is_none() {
                return Ok(read.too_large(shared, &op.key));
            }
        }
    }
    let what = "the object was replaced during each read; load it again";
    Err(Error::new(ErrorKind::Io, what).with_op("load").with_key(*op.key.digest()))
}

/// A load that reads an object.
struct Reading<'s, 'm> {
    shared: &'s Shared,
    key: &'m Key,
    /// The memory: that of the caller, or memory for encoded bytes.
    into: &'m mut [Lease],
    /// The memory of the caller, where `into` is memory for encoded bytes.
    raw: Option<&'m mut [Lease]>,
    deadline: Instant,
}

impl Reading<'_, '_> {
    fn memory_bytes(&self) -> u64 {
        self.into.iter().map(|lease| lease.len() as u64).sum()
    }

    fn is_for_ranges(&self) -> bool {
        let (shared, memory_bytes) = (self.shared, self.memory_bytes());
        memory_bytes >= shared.transfer.ranges_above_bytes
            && self.into.len() == 1
            && !shared.client.ignores_ranges()
            && shared
                .catalog()
                .index
                .get(self.key.digest())
                .is_some_and(|entry| entry.chunk.bytes == memory_bytes)
    }
}

/// What became of a read.
enum Answer<'a> {
    Loaded(Loaded),
    /// The object is encoded, or its bytes are in memory for encoded ones.
    Encoded(EncodedRead<'a>),
}

async fn fill<'s>(reading: &mut Reading<'s, '_>) -> Result<Answer<'s>, Error> {
    let Reading { shared, key, .. } = *reading;
    let name = shared.name_of(key)?;
    let digest = *key.digest();
    // Also while it is being evicted.
    // One chunk of its atomic set is missing: all of them are misses.
    if shared.catalog().index.is_hidden(&digest) {
        return Ok(Answer::Loaded(Loaded::Miss(MissReason::Absent)));
    }
    // Before the request: what is learned from the response is entered only if no write of the key
    // began since.
    let version = shared.key_locks.read(&digest);
    let mut damaged = None;
    for name in std::iter::once(name.clone()).chain(shared.names_but(key, &name)) {
        match get(reading, &name, &version).await? {
            None => {}
            // The object under another name may be good.
            Some(Read::Loaded(miss @ Loaded::Miss(_))) => damaged = damaged.or(Some(miss)),
            Some(Read::Loaded(loaded)) => return Ok(Answer::Loaded(loaded)),
            Some(Read::Encoded { facts, etag, is_whole, decoded }) => {
                let read = EncodedRead { facts, name, etag, version, is_whole, decoded };
                return Ok(Answer::Encoded(read));
            }
        }
    }
    if let Some(miss) = damaged {
        return Ok(Answer::Loaded(miss));
    }
    // Only now: the object may have had another name.
    shared.record_missing(&digest, &version);
    Ok(Answer::Loaded(Loaded::Miss(MissReason::Absent)))
}

/// Reads one object; `None` if there is none.
async fn get(
    reading: &mut Reading<'_, '_>,
    name: &str,
    version: &ReadVersion<'_>,
) -> Result<Option<Read>, Error> {
    let Reading { shared, key, deadline, .. } = *reading;
    // No object of ours has no bytes, and a request for none would say nothing.
    if reading.memory_bytes() == 0 {
        return Ok(Some(Read::Loaded(Loaded::Miss(MissReason::Length))));
    }
    let client = shared.client.until(deadline);
    // Ranges need the exact length in advance, since they are sent before any response.
    let mut by_ranges = reading.is_for_ranges();
    // One repetition for each load. A second failure of the same kind is no accident of the
    // network.
    let mut again = true;
    let read = loop {
        let (answer, mut read) = match by_ranges {
            true => ranges(&client, reading, name).await,
            false => whole(&client, reading, name).await,
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
                return Err(shared.error("load", Some(key), e));
            }
            answer
                if let Some(e) = suspicious_response(shared, key, &read)
                    .or_else(|| changed_in_transit(reading, &read)) =>
            {
                if !std::mem::take(&mut again) {
                    return Err(shared.error("load", Some(key), e));
                }
                drop(answer);
            }
            // The response contradicts itself: nothing is known of the object.
            Err(e) if e.is_retryable() && !e.is_wrong_checksum() => {
                return Err(shared.error("load", Some(key), contradictory_response(e)));
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
    Ok(Some(record(reading, name, read, version)))
}

/// What one object shows.
enum Read {
    Loaded(Loaded),
    /// It is encoded, or its bytes are in memory for encoded ones.
    Encoded {
        facts: Box<Facts>,
        etag: Option<String>,
        is_whole: bool,
        decoded: DecodeProgress,
    },
}

/// Classifies the response and updates the index.
fn record(
    reading: &Reading<'_, '_>,
    name: &str,
    read: ReadObject,
    version: &ReadVersion<'_>,
) -> Read {
    let Reading { shared, key, .. } = *reading;
    let is_staged = reading.raw.is_some();
    // From here on the response is taken for the store's: what it shows goes into the index.
    let state = classify(shared, key, &read, Some(reading.memory_bytes()));
    let verified = state == ObjectState::Verified;
    let (len, bytes) = (read.raw_len(), read.len);
    let seen = FoundObject { key, name, len, bytes, etag: read.etag.as_deref(), verified };
    match state {
        ObjectState::Verified | ObjectState::Miss(MissReason::Length)
            if let Some(StoredFacts::Valid(facts)) = &read.facts
                && (is_staged || !facts.is_plain()) =>
        {
            let (facts, etag) = (facts.clone(), read.etag.clone());
            Read::Encoded { facts, etag, is_whole: verified, decoded: read.decoded }
        }
        ObjectState::Verified | ObjectState::Unverified => {
            add(&shared.counters.unverified, u64::from(state == ObjectState::Unverified));
            if verified {
                shared.geometry.learn(key, len);
            }
            let found = shared.record_found(seen, version);
            if let (Some(StoredFacts::Valid(facts)), Some(etag)) = (&read.facts, &read.etag) {
                shared.note_facts(key, etag, facts.sums.whole());
            }
            Read::Loaded(match found {
                // `false` where its atomic set is incomplete, or this version failed its checks before.
                true => Loaded::Hit { len },
                false => Loaded::Miss(MissReason::Absent),
            })
        }
        ObjectState::Miss(reason) => Read::Loaded(Loaded::Miss(reason)),
        ObjectState::Unusable(reason) => {
            mark_unusable(shared, seen, version, reason);
            Read::Loaded(Loaded::Miss(reason))
        }
    }
}

/// A response whose head, framing or range make no sense, as of a proxy before the store.
fn contradictory_response(e: kvtier_s3::Error) -> kvtier_s3::Error {
    let what =
        "an answer that contradicts itself: check the endpoint and any proxy before the store";
    kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).with_source(e)
}

/// Why bytes without facts are not the object's: this version had facts when this process wrote or
/// read it, and other bytes.
fn changed_in_transit(reading: &Reading<'_, '_>, read: &ReadObject) -> Option<kvtier_s3::Error> {
    let etag = read
        .etag
        .as_deref()
        .filter(|_| matches!(read.facts, Some(StoredFacts::Missing)) && read.intact)?;
    let known = reading.shared.catalog().crc_of(reading.key.digest(), etag)?;
    let mut pieces = Vec::new();
    let mut left = usize::try_from(read.len).unwrap_or(usize::MAX);
    for bytes in reading.into.iter().filter_map(Lease::as_host) {
        let here = left.min(bytes.len());
        pieces.push(&bytes[..here]);
        left -= here;
    }
    let what = "the answer has neither the facts nor the bytes that this version of the object had: something before the store changes answers";
    let is_same = BlockSums::from_pieces(pieces).whole() == known;
    (!is_same).then(|| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

/// One GET of the whole object.
async fn whole(
    client: &Client,
    reading: &mut Reading<'_, '_>,
    name: &str,
) -> (kvtier_s3::Result<Option<()>>, ReadObject) {
    let Some(landing) = landing(reading.into) else {
        return (Err(device_memory_error()), ReadObject::default());
    };
    let verifier = StreamVerifier::new(reading.key);
    let mut object = ArrivingObject::new(reading.shared, verifier, reading.raw.as_deref_mut());
    let answer = client.get_observed(name, &mut landing.observed_by(&mut object)).await;
    let ArrivingObject { verifier, decoded, .. } = object;
    // The verifier saw the bytes as they arrived in the leases, so no second pass over them is
    // needed.
    let holds = verifier.is_verified();
    let StreamVerifier { facts, total, etag, .. } = verifier;
    let len = total.unwrap_or(0);
    let mut read = ReadObject { facts, len, etag, intact: holds, too_long: false, decoded };
    if let Ok(Some(object)) = &answer {
        read.len = object.len();
        // Nothing to compare with: the client checked the length, and the store's checksum where
        // there is one.
        read.intact |= matches!(read.facts, Some(StoredFacts::Missing));
        fill_in(reading.into, object.len());
    }
    (answer.map(|object| object.map(drop)), read)
}

/// Several ranges at once; verified when all have arrived.
async fn ranges(
    client: &Client,
    reading: &mut Reading<'_, '_>,
    name: &str,
) -> (kvtier_s3::Result<Option<()>>, ReadObject) {
    // `is_for_ranges` lets only loads into one lease come here, since each range has its own offset
    // in it.
    let Reading { shared, key, .. } = *reading;
    let [lease] = &mut *reading.into else {
        return (Err(device_memory_error()), ReadObject::default());
    };
    add(&shared.counters.loads_in_ranges, 1);
    let answer = client
        .get_parallel(name, lease, shared.transfer.part_bytes, shared.transfer.parts_max)
        .await;
    let Ok(Some(object)) = &answer else { return (answer.map(|_| None), ReadObject::default()) };
    let facts = metadata::parse(|name| object.header(name), Some(object.total()), key);
    let intact = match (&facts, lease.as_host()) {
        (StoredFacts::Valid(facts), Some(bytes)) => BlockSums::from_bytes(bytes) == facts.sums,
        (facts, _) => matches!(facts, StoredFacts::Missing),
    };
    let read = ReadObject {
        facts: Some(facts),
        len: object.len(),
        etag: object.etag().map(str::to_owned),
        intact,
        ..ReadObject::default()
    };
    (Ok(Some(())), read)
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
