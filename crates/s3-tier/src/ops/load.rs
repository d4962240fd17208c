//! Loads: one GET each, verified while the bytes land.

use std::sync::Arc;

use kvtier_core::{Class, Error, ErrorKind, Event, Key, Load, Loaded, MissReason, Slot};
use kvtier_key::BlockSums;
use kvtier_mem::Lease;
use kvtier_s3::{BodyBuffer, Client};
use tokio::time::Instant;

use crate::ops::metadata::{Proof, Told, told};
use crate::state::counters::add;
use crate::state::key_locks::Look;
use crate::state::scheduler::Lane;
use crate::state::shared::{Shared, Sight};
use crate::{Layout, Verify};

/// A load: one GET into the leases, its bytes proven while they land.
pub async fn load(shared: Arc<Shared>, mut op: Load, slot: Slot<Load, Loaded>, class: Class) {
    empty(&mut op);
    let deadline = Instant::from_std(slot.deadline());
    let late = || Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("load"));
    let work = async {
        let _go = shared.lanes.turn(Lane::of_load(class)).await;
        match slot.is_over() {
            Some(over) => Err(Error::new(over, "ended before it began").with_op("load")),
            None => fill(&shared, &mut op, deadline).await,
        }
    };
    let result = tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| late());
    if !matches!(result, Ok(Loaded::Hit { .. })) {
        empty(&mut op);
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

fn empty(op: &mut Load) {
    op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
}

async fn fill(shared: &Shared, op: &mut Load, deadline: Instant) -> Result<Loaded, Error> {
    let (name, digest) = (shared.name_of(&op.key)?, *op.key.digest());
    // On its way out, too.
    if shared.books().index.is_hidden(&digest) {
        return Ok(Loaded::Miss(MissReason::Absent));
    }
    let look = shared.turns.look(&digest);
    let mut damaged = None;
    for name in std::iter::once(name.clone()).chain(shared.names_but(&op.key, &name)) {
        match get(shared, op, (&name, &look), deadline).await? {
            None => {}
            // What lies under another name may be whole.
            Some(miss @ Loaded::Miss(_)) => damaged = damaged.or(Some(miss)),
            Some(loaded) => return Ok(loaded),
        }
    }
    if let Some(miss) = damaged {
        return Ok(miss);
    }
    // Only now: it may have had another name.
    shared.vanished(&digest, &look);
    Ok(Loaded::Miss(MissReason::Absent))
}

/// What one object gives; `None` if there is none.
async fn get(
    shared: &Shared,
    op: &mut Load,
    (name, look): (&str, &Look<'_>),
    deadline: Instant,
) -> Result<Option<Loaded>, Error> {
    let room = op.into.iter().map(|lease| lease.len() as u64).sum::<u64>();
    if room == 0 {
        return Ok(Some(Loaded::Miss(MissReason::Length)));
    }
    let client = shared.client.until(deadline);
    let (mut by_ranges, mut again) = (is_for_ranges(shared, op, room), true);
    let got = loop {
        let (answer, mut got) = match by_ranges {
            true => ranges(shared, &client, op, name).await,
            false => whole(&client, op, name).await,
        };
        match answer {
            Ok(None) => return Ok(None),
            // Of another length than was known, or the store knows no ranges: in one piece it
            // tells.
            Err(e) if by_ranges && is_of_ranges(&e) => by_ranges = false,
            // Replaced while it was read, or spoiled on the way: what is there now is read from its
            // start, once.
            Err(e) if e.kind() == kvtier_s3::ErrorKind::Conflict && again => again = false,
            Ok(Some(())) if !got.sound && matches!(got.told, Some(Told::Facts(_))) && again => {
                again = false
            }
            Err(e) if e.kind() != kvtier_s3::ErrorKind::Corrupt => {
                return Err(shared.error("load", Some(&op.key), e));
            }
            answer
                if let Some(e) =
                    not_the_stores(shared, &op.key, &got).or_else(|| spoiled(shared, op, &got)) =>
            {
                if !std::mem::take(&mut again) {
                    return Err(shared.error("load", Some(&op.key), e));
                }
                drop(answer);
            }
            // Longer than the memory, or not what the store keeps a checksum of.
            Err(e) => {
                got.sound = false;
                got.misfit = !e.is_retryable();
                break got;
            }
            Ok(Some(())) => break got,
        }
    };
    Ok(Some(settle(shared, &op.key, &got, Target { name, look, room })))
}

/// Where a load looked, and for how much it has memory.
struct Target<'a> {
    name: &'a str,
    look: &'a Look<'a>,
    room: u64,
}

/// What came is judged, and the index learns of it.
fn settle(shared: &Shared, key: &Key, got: &Got, target: Target<'_>) -> Loaded {
    let Target { name, look, room } = target;
    let verdict = judge(shared, key, got, Some(room));
    let etag = got.etag.as_deref();
    let sight = Sight { key, name, len: got.len, etag, proven: verdict == Verdict::Proven };
    match verdict {
        Verdict::Proven | Verdict::Unverified => {
            add(&shared.counters.unverified, u64::from(verdict == Verdict::Unverified));
            if sight.proven {
                shared.geometry.learn(key, got.len);
            }
            let found = shared.found(sight, look);
            if let (Some(Told::Facts(facts)), Some(etag)) = (&got.told, &got.etag) {
                shared.note_facts(key, etag, facts.sums.whole());
            }
            match found {
                true => Loaded::Hit { len: got.len },
                false => Loaded::Miss(MissReason::Absent),
            }
        }
        Verdict::Miss(reason) => Loaded::Miss(reason),
        Verdict::Condemned(reason) => {
            shared.condemn(sight, look);
            Loaded::Miss(reason)
        }
    }
}

/// Why an answer without facts is not the store's, as far as can be told: it has another length
/// than listings and saves told. Where nothing is listed, nobody knows; nor in LMCache's layouts,
/// where programs that keep no facts replace objects.
pub fn not_the_stores(shared: &Shared, key: &Key, got: &Got) -> Option<kvtier_s3::Error> {
    if !matches!(got.told, Some(Told::Nothing)) || shared.layout != Layout::Kvtier {
        return None;
    }
    let listed = shared.capacity_bytes.and_then(|_| shared.books().listed_len(key.digest()));
    let what = "the answer has no facts and another length than the store lists: a proxy may have sent it, or another program replaced the \
                object, which the next listing tells";
    listed
        .filter(|len| *len != got.len)
        .map(|_| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

/// Why bytes that came without facts are not the object's: this very version had facts when this
/// process wrote or read it, and other bytes.
fn spoiled(shared: &Shared, op: &Load, got: &Got) -> Option<kvtier_s3::Error> {
    let etag =
        got.etag.as_deref().filter(|_| matches!(got.told, Some(Told::Nothing)) && got.sound)?;
    let known = shared.books().crc_of(op.key.digest(), etag)?;
    let (mut pieces, mut left) = (Vec::new(), usize::try_from(got.len).unwrap_or(usize::MAX));
    for bytes in op.into.iter().filter_map(Lease::as_host) {
        let here = left.min(bytes.len());
        pieces.push(&bytes[..here]);
        left -= here;
    }
    let what = "the answer has neither the facts nor the bytes that this version of the object had: something before the store changes answers";
    let is_same = BlockSums::from_pieces(pieces).whole() == known;
    (!is_same).then(|| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

/// What an answer showed of an object.
#[derive(Debug, Default)]
pub struct Got {
    pub told: Option<Told>,
    /// Its length.
    pub len: u64,
    pub etag: Option<String>,
    /// Its bytes are what its facts say.
    pub sound: bool,
    /// It is longer than the memory.
    pub misfit: bool,
}

/// What becomes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the chunk.
    Proven,
    /// Nothing speaks against it, and nothing proves it.
    Unverified,
    /// Nothing is wrong with it, but it is no use here.
    Miss(MissReason),
    /// It can never be a hit: a miss until it is written over.
    Condemned(MissReason),
}

/// Judges an object by its head and, for a load into `room` bytes, by what landed.
pub fn judge(shared: &Shared, key: &Key, got: &Got, room: Option<u64>) -> Verdict {
    match &got.told {
        Some(Told::Facts(_)) if got.misfit => Verdict::Miss(MissReason::Length),
        Some(Told::Facts(_)) if got.sound => Verdict::Proven,
        Some(Told::Facts(_) | Told::Wrong) => Verdict::Condemned(MissReason::Corrupt),
        Some(Told::Nothing) if shared.layout == Layout::Kvtier => {
            Verdict::Condemned(MissReason::Corrupt)
        }
        Some(Told::Nothing) if shared.verify == Verify::Strict => {
            Verdict::Condemned(MissReason::Unverified)
        }
        Some(Told::Nothing) => foreign(shared, key, got, room),
        None => Verdict::Miss(MissReason::Corrupt),
    }
}

/// An object of another program is served if its length is exactly right: that of a full chunk, or
/// where it may be shorter, or nobody said how long it is, that of the memory.
fn foreign(shared: &Shared, key: &Key, got: &Got, room: Option<u64>) -> Verdict {
    let fits_room = room.is_none_or(|room| room == got.len);
    match shared.geometry.full(key) {
        _ if got.len == 0 => Verdict::Condemned(MissReason::Length),
        Some(full)
            if shared.geometry.is_too_long(key, got.len)
                || (got.len < full && !shared.geometry.allows_partial(key)) =>
        {
            Verdict::Condemned(MissReason::Length)
        }
        // Full chunks were longer than was learned; that is for who asks for just this length to
        // say.
        Some(full) if got.len > full && room != Some(got.len) => Verdict::Miss(MissReason::Length),
        Some(full) if got.len < full && !fits_room => Verdict::Miss(MissReason::Length),
        None if !fits_room => Verdict::Miss(MissReason::Length),
        _ if got.misfit => Verdict::Miss(MissReason::Length),
        // The store's own checksum failed.
        _ if room.is_some() && !got.sound => Verdict::Condemned(MissReason::Corrupt),
        _ => Verdict::Unverified,
    }
}

/// One GET of all of it.
async fn whole(client: &Client, op: &mut Load, name: &str) -> (kvtier_s3::Result<Option<()>>, Got) {
    let mut proof = Proof::of(&op.key);
    let Some(landing) = landing(&mut op.into) else { return (Err(far()), Got::default()) };
    let answer = client.get_observed(name, &mut landing.observed_by(&mut proof)).await;
    let holds = proof.holds();
    let Proof { told, total, etag, .. } = proof;
    let mut got = Got { told, len: total.unwrap_or(0), etag, sound: holds, misfit: false };
    if let Ok(Some(object)) = &answer {
        got.len = object.len();
        got.sound |= matches!(got.told, Some(Told::Nothing));
        fill_in(&mut op.into, object.len());
    }
    (answer.map(|object| object.map(drop)), got)
}

/// Several ranges at once; proven when all have landed.
async fn ranges(
    shared: &Shared,
    client: &Client,
    op: &mut Load,
    name: &str,
) -> (kvtier_s3::Result<Option<()>>, Got) {
    let [lease] = &mut op.into[..] else { return (Err(far()), Got::default()) };
    add(&shared.counters.loads_in_ranges, 1);
    let answer =
        client.get_parallel(name, lease, shared.manner.part_bytes, shared.manner.parts_max).await;
    let Ok(Some(object)) = &answer else { return (answer.map(|_| None), Got::default()) };
    let told = told(|name| object.header(name), Some(object.total()), &op.key);
    let sound = match (&told, lease.as_host()) {
        (Told::Facts(facts), Some(bytes)) => BlockSums::from_bytes(bytes) == facts.sums,
        (told, _) => matches!(told, Told::Nothing),
    };
    let got = Got {
        told: Some(told),
        len: object.len(),
        etag: object.etag().map(str::to_owned),
        sound,
        misfit: false,
    };
    (Ok(Some(())), got)
}

fn is_for_ranges(shared: &Shared, op: &Load, room: u64) -> bool {
    room >= shared.manner.ranges_above_bytes
        && op.into.len() == 1
        && !shared.client.ignores_ranges()
        && shared.books().index.get(op.key.digest()).is_some_and(|entry| entry.chunk.len == room)
}

/// Whether an error may come of the ranges, and not of the object or the store.
fn is_of_ranges(error: &kvtier_s3::Error) -> bool {
    use kvtier_s3::ErrorKind::{Conflict, Corrupt, Invalid, Unsupported};
    matches!(error.kind(), Conflict | Corrupt | Invalid | Unsupported)
}

/// All memory of a load, in order.
fn landing(into: &mut [Lease]) -> Option<BodyBuffer<'_>> {
    let mut pieces = into.iter_mut().map(Lease::as_host_mut);
    let first = BodyBuffer::new(pieces.next()??);
    if pieces.len() == 0 {
        return Some(first);
    }
    Some(first.then(pieces.collect::<Option<Vec<_>>>()?))
}

/// `len` bytes landed.
fn fill_in(into: &mut [Lease], len: u64) {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    for lease in into {
        let here = left.min(lease.len());
        lease.assume_filled(here);
        left -= here;
    }
}

fn far() -> kvtier_s3::Error {
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
