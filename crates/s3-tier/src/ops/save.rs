//! Saves: one PUT each, or one upload in parts.
//!
//! A save first reserves space, then takes the key's write guard, then sends its PUT. From the
//! start of the PUT until its answer the object is unknown: if the save is dropped or fails there,
//! `InvalidateOnDrop` makes the next lookup ask the bucket. A save that ends without a known
//! outcome is followed by a HEAD, so that a stored object is counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind, Op, Save, Saved, ShedReason, Slot};
use kvtier_evict::EvictionHint;
use kvtier_index::ReserveRequest;
use kvtier_key::{BlockSums, Digest, Facts};
use kvtier_mem::View;
use kvtier_s3::{Checksum, Client, Multipart, Stored};
use tokio::time::Instant;

use crate::ops::admission_order::{AdmissionOrder, SaveOrders};
use crate::ops::classify::{ObjectState, ReadObject, classify};
use crate::ops::encode::{EncodedChunk, encode};
use crate::ops::lookup::{head, shortly_before};
use crate::ops::metadata;
use crate::ops::reserve::{SpaceReservation, reserve};
use crate::ops::save_batch::PendingChunk;
use crate::state::counters::add;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::{ChunkLengths, ObjectName, Shared, enter};

/// The time limit of the HEAD after a save with an unknown outcome.
const OUTCOME_CHECK_MAX: Duration = Duration::from_secs(5);

/// A save that was admitted.
#[derive(Debug)]
pub struct QueuedSave {
    pub op: Save,
    pub slot: Slot<Save, Saved>,
    /// The chunk's position in its chain, and its batch.
    pub pending: PendingChunk,
    /// Its place in the batch.
    pub orders: SaveOrders,
    /// When it was admitted.
    pub begun: Instant,
}

/// A save: reserves space, locks the key, sends one PUT.
pub async fn save(shared: Arc<Shared>, queued: QueuedSave) {
    let QueuedSave { op, slot, pending, mut orders, begun } = queued;
    let result = match slot.is_over() {
        Some(over) => Err(Error::new(over, "ended before it began").with_op("save")),
        None => {
            let deadline = Instant::from_std(slot.deadline());
            let late =
                || Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("save"));
            // A wait for space ends before the deadline: a caller with a long one is not blocked by a
            // full bucket, and one with a short one learns that it is full.
            let until = shortly_before(deadline).min(begun + shared.transfer.space_wait_max);
            let work = async {
                if let Some(refusal) = shared.geometry.refusal(&op.key, op.bytes()) {
                    return Err(refusal);
                }
                // Before anything else: a chunk that is stored already must evict nothing.
                if is_present(&shared, op.key.digest(), op.bytes(), &pending) {
                    return Ok(Saved::Present);
                }
                let encoded = encode(&shared, &op, &mut orders.memory).await?;
                let bytes = encoded.as_ref().map_or(op.bytes(), |one| one.body.len() as u64);
                let wait = SpaceWait { order: &mut orders.space, until };
                let space = match reserve_space(&shared, &op, bytes, &pending, wait).await {
                    Ok(space) => space,
                    Err(shed) => return Ok(Saved::Shed(shed)),
                };
                // Saves of one batch reserve in the order of their chain, and write at once: only
                // the reservation is ordered.
                orders.space.done();
                put(Saving { shared: &shared, op: &op, slot: &slot, encoded }, space, &pending)
                    .await
            };
            tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| late())
        }
    };
    match &result {
        Ok(Saved::Shed(_)) => add(&shared.counters.shed, 1),
        Ok(Saved::Present) => add(&shared.counters.present, 1),
        Ok(_) => add(&shared.counters.stored, 1),
        Err(_) => {}
    }
    // A save with an unknown outcome may have succeeded: a HEAD finds out, so that the object is
    // counted.
    // Not after a refusal: that is an answer, and the object is as it was.
    let unsettled =
        result.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Io));
    let key = unsettled.then(|| op.key.clone()).filter(|key| shared.known(key.digest()).is_none());
    // The batch's uses are recorded before its last result is delivered, and pending chunks are
    // removed before the next save asks for space.
    drop(pending);
    drop(orders);
    slot.finish(op, result);
    if let Some(key) = key
        // Bounded and without waiting: in an outage all saves end so, and a store that comes back
        // must not be met by a HEAD for each.
        && let Ok(_one) = shared.transfer.outcome_checks.try_acquire()
    {
        drop(head(&shared, &key, Instant::now() + OUTCOME_CHECK_MAX).await);
    }
}

/// How a save waits for space.
struct SpaceWait<'a> {
    order: &'a mut AdmissionOrder,
    until: Instant,
}

/// Reserves `bytes` of space for a save.
async fn reserve_space<'a>(
    shared: &'a Shared,
    op: &Save,
    bytes: u64,
    pending: &PendingChunk,
    wait: SpaceWait<'_>,
) -> Result<SpaceReservation<'a>, ShedReason> {
    let SpaceWait { order, until } = wait;
    let tenant = op.key.namespace().tenant();
    // Space is counted by tenant, and its identity is derived with a key that is read from the
    // bucket.
    shared.wait_for_tenant_key(tenant, until).await;
    let tenant = shared.catalog().tenant(tenant);
    let want = ReserveRequest::new(bytes)
        .with_place(pending.place())
        .with_tenant(tenant)
        .with_digest(op.key.digest());
    // The chunks of a chain are reserved from the first on, so that a full tier keeps a usable
    // prefix.
    order.wait().await;
    reserve(shared, &want, until).await
}

/// A save that has its space.
struct Saving<'a> {
    shared: &'a Shared,
    op: &'a Save,
    slot: &'a Slot<Save, Saved>,
    /// What is stored; `None` for the raw bytes.
    encoded: Option<EncodedChunk>,
}

async fn put(
    saving: Saving<'_>,
    space: SpaceReservation<'_>,
    pending: &PendingChunk,
) -> Result<Saved, Error> {
    let Saving { shared, op, slot, encoded } = saving;
    let digest = op.key.digest();
    let len = op.bytes();
    let name = shared.names.format(&op.key)?;
    // Saves and deletes of one key one after the other. The check below is repeated, because
    // another save of the key may have ended during the wait.
    let _alone = shared.key_locks.write(digest).await;
    if is_present(shared, digest, len, pending) {
        return Ok(Saved::Present);
    }
    // Inside the guard, since the memory is scarce: a save that waits for the guard must not hold
    // it.
    let body = match &encoded {
        Some(encoded) => Some(encoded.body.clone()),
        None => whole(shared, &op.from, len).await,
    };
    let Some(body) = body else {
        return Ok(Saved::Shed(ShedReason::Throttled));
    };
    // After the memory, which may take long: a permit that waits would keep a request from being
    // sent.
    let _permit = shared.scheduler.acquire(RequestQueue::Write).await;
    if let Some(over) = slot.is_over() {
        return Err(Error::new(over, "ended before it began").with_op("save"));
    }
    // From here until the answer the state of the object is unknown.
    let unanswered = InvalidateOnDrop(shared, digest);
    let facts = match encoded {
        Some(encoded) => encoded.facts(op),
        None => {
            let sums = sums(shared, &op.from);
            Facts::plain(*digest, op.key.namespace().digest(), sums)
        }
    };
    let object = ObjectName { key: &op.key, name: &name };
    let stored = store(shared, object, &body, slot.deadline().into(), &facts).await;
    let written = stored.map_err(|e| shared.error("save", Some(&op.key), e))?;
    // The answer arrived, so the state of the object is known.
    // It holds two references only, so nothing leaks.
    std::mem::forget(unanswered);
    // The memory is free for the next save before the caller learns of this one.
    drop(body);
    entered(shared, object, written, space, pending)
}

/// What the bucket has after a PUT.
struct Written {
    lens: ChunkLengths,
    /// The store's answer.
    stored: Stored,
    crc: u32,
}

fn entered(
    shared: &Shared,
    object: ObjectName<'_>,
    written: Written,
    space: SpaceReservation<'_>,
    pending: &PendingChunk,
) -> Result<Saved, Error> {
    let ObjectName { key, .. } = object;
    let Written { lens, stored, crc } = written;
    shared.geometry.learn(key, lens.raw);
    if let Some(space) = space.spend()
        // The policy may refuse the chunk. Its object is in the bucket all the same; the next
        // listing counts it.
        && !enter(shared, object, lens, space, pending.place())
    {
        return Ok(Saved::Shed(ShedReason::Full));
    }
    if let Stored::New { etag: Some(etag) } = &stored {
        shared.note_facts(key, etag, crc);
    }
    shared.eviction_queue.notify();
    // Another node wrote the same chunk first: this one now counts as seen.
    if stored == Stored::Present {
        return Ok(Saved::Present);
    }
    add(&shared.counters.saved_bytes, lens.raw);
    Ok(Saved::Stored)
}

/// Whether the chunk is stored already, which counts as a use: in a batch at its end, but in the
/// journal now.
fn is_present(shared: &Shared, digest: &Digest, len: u64, pending: &PendingChunk) -> bool {
    let encoding = &shared.encoding.tier;
    // Where encryption was turned on, what is stored in clear is saved again, as far as its length
    // shows that. Others are found by the next load.
    let is_in_clear = || encoding.encrypts() && shared.catalog().is_as_long_as_its_chunk(digest);
    let present = shared.known(digest) == Some(Some(len)) && !is_in_clear()
        // What a listing shows of this length is taken for the chunk where no stage changes it.
        || !encoding.is_on()
            && shared.catalog().has_object_of(digest, len, shared.now_ms());
    match (present, pending.batch().has_many()) {
        (true, true) => shared.node.touched(&[*digest]),
        (true, false) => shared.used(&[*digest], &EvictionHint::new()),
        (false, _) => {}
    }
    present
}

/// One PUT, or an upload in parts.
async fn store(
    shared: &Shared,
    object: ObjectName<'_>,
    body: &View,
    deadline: Instant,
    facts: &Facts,
) -> kvtier_s3::Result<Written> {
    let ObjectName { key, name } = object;
    let transfer = &shared.transfer;
    let began = Instant::now();
    let client = shared.client.until(deadline);
    let crc = facts.sums.whole();
    let mut lens = ChunkLengths { raw: facts.raw_len, stored: facts.stored_len() };
    // Other names contain the key.
    let canonical = shared.names.is_own().then(|| key.canonical());
    let mut how = metadata::to_metadata(facts, canonical.as_deref(), shared.transfer.provider);
    how.crc32c = (client.checksum() == Checksum::Crc32c).then_some(crc);
    how.storage_class.clone_from(&transfer.storage_class);
    // A chunk that another node stored meanwhile stays as it is: it may be in use. A suspect object
    // must be overwritten, so its PUT is never conditional.
    // Learned, and expires: see `background::conditional_puts`.
    let is_possible = transfer.if_absent.load(Ordering::Relaxed)
        && !transfer.conditions.is_unsupported(Instant::now());
    how.if_absent = is_possible && !shared.catalog().index.is_suspect(key.digest());
    loop {
        add(&shared.counters.conditional_puts, how.if_absent.into());
        // A single PUT sends on one connection; parts use several.
        let parts = body.len() as u64 > transfer.multipart_above_bytes;
        add(&shared.counters.saves_in_parts, parts.into());
        let stored = match parts {
            true => {
                let parts = Multipart::new(transfer.part_bytes, transfer.parts_max);
                client.put_multipart(name, body, &how, parts).await
            }
            false => client.put(name, body, &how).await,
        };
        // An object that the store kept is checked: it is overwritten unless it is the chunk.
        let kept = how.if_absent && matches!(stored, Ok(Stored::Present));
        if kept {
            match kept_bytes(shared, &client, object, lens.raw).await? {
                // Another node may encode in another way.
                Some(bytes) => lens.stored = bytes,
                // What the store kept is damaged, of another length, cannot be decoded here, or is
                // another program's: it is overwritten.
                None => {
                    how.if_absent = false;
                    continue;
                }
            }
        }
        match stored {
            Err(e) if how.if_absent && e.kind() == kvtier_s3::ErrorKind::Unsupported => {
                transfer.conditions.note_unsupported(began, Instant::now());
                how.if_absent = false;
            }
            stored => {
                if how.if_absent && stored.is_ok() {
                    transfer.conditions.note_supported();
                }
                return stored.map(|stored| Written { lens, stored, crc });
            }
        }
    }
}

/// The length of the object that the store kept, if it is the chunk of `raw_len` bytes by its
/// headers.
async fn kept_bytes(
    shared: &Shared,
    client: &Client,
    ObjectName { key, name }: ObjectName<'_>,
    raw_len: u64,
) -> kvtier_s3::Result<Option<u64>> {
    add(&shared.counters.heads, 1);
    let Some(object) = client.head(name).await? else { return Ok(None) };
    let facts = metadata::parse(|name| object.header(name), Some(object.total()), key);
    // `intact` is assumed: a HEAD has no bytes. A damaged body is found by the next load.
    let read = ReadObject {
        facts: Some(facts),
        len: object.total(),
        intact: true,
        ..ReadObject::default()
    };
    let is_the_chunk = read.raw_len() == raw_len
        && matches!(
            classify(shared, key, &read, Some(raw_len)),
            ObjectState::Verified | ObjectState::Unverified
        );
    Ok(is_the_chunk.then_some(read.len))
}

/// A PUT whose answer did not arrive.
struct InvalidateOnDrop<'a>(&'a Shared, &'a Digest);

impl Drop for InvalidateOnDrop<'_> {
    fn drop(&mut self) {
        self.0.catalog().invalidate(self.1);
    }
}

/// The chunk in one piece; copied if it has several.
async fn whole(shared: &Shared, from: &[View], len: u64) -> Option<View> {
    if let [one] = from {
        return Some(one.clone());
    }
    let mut lease = loop {
        // Created before the attempt, so that memory which returns in between is not missed.
        let freed = shared.freed.notified();
        match shared.bounce.lease(usize::try_from(len).ok()?) {
            Ok(lease) => break lease,
            // Other saves use it, and end soon.
            Err(_) => drop(tokio::time::timeout(Duration::from_millis(10), freed).await),
        }
    };
    let mut at = 0;
    for view in from {
        lease.write_at(at, view.as_host()?).ok()?;
        at += view.len();
    }
    add(&shared.counters.copied_bounce_bytes, len);
    Some(lease.freeze())
}

/// The payload's checksums: cached by a view that was summed before, else one pass.
fn sums(shared: &Shared, from: &[View]) -> BlockSums {
    let sum = |view: &View| {
        add(&shared.counters.summed_save_bytes, view.len() as u64);
        BlockSums::from_bytes(view.as_host().unwrap_or_default())
    };
    match from {
        // A stack saves one view into several tiers; the first pass over the bytes serves all of
        // them.
        [one] => one.memo(|| sum(one)).cloned().unwrap_or_else(|| sum(one)),
        many => {
            add(
                &shared.counters.summed_save_bytes,
                many.iter().map(|view| view.len() as u64).sum(),
            );
            let pieces: Vec<&[u8]> = many.iter().filter_map(View::as_host).collect();
            BlockSums::from_pieces(pieces.iter().copied())
        }
    }
}

/// Why a save can never succeed here.
pub fn refusal(op: &Save, bounce_bytes: u64) -> Option<Error> {
    let key = &op.key;
    let from = &op.from;
    let invalid = |what: String| {
        Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest()))
    };
    let len: u64 = from.iter().map(|v| v.len() as u64).sum();
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if let Some(view) = from.iter().find(|v| v.as_host().is_none()) {
        return invalid(format!(
            "memory at {:?} cannot be read by the CPU; use a tier that can",
            view.place()
        ));
    }
    if from.len() > 1 && len > bounce_bytes {
        return invalid(format!(
            "a chunk of {len} bytes in several pieces does not fit the {bounce_bytes} bytes that join them; give one piece, or raise \
             bounce_bytes"
        ));
    }
    None
}

/// The checksum of the client, or the one that facts contain where it is as good.
pub fn checksum_for_facts(checksum: Checksum) -> Checksum {
    if checksum == Checksum::Crc64Nvme { Checksum::Crc32c } else { checksum }
}
