use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind, Event, Load, Loaded, MissReason, Slot};
use kvtier_key::{BlockSums, Key, PieceSums};
use kvtier_mem::Lease;

use crate::counters::add;
use crate::data_dir::FileId;
use crate::footer;
use crate::layout;
use crate::load_buffers::{LoadBuffers, scatter};
use crate::mover::{Moved, Mover, Part, Transfer};
use crate::name::{PAGE, file_len};
use crate::pool::{Lane, Pool};
use crate::readers::Reading;
use crate::save::not_aligned;
use crate::shared::Shared;
use crate::wait_queue::{QueueEntry, WaitToken};
use crate::workers::Workers;

pub type Answer = Slot<Load, Loaded>;

/// A load, first half: find the file and start reading it.
pub fn begin<M: Mover>(
    shared: &Arc<Shared<M>>,
    workers: &Workers,
    (mut op, slot): (Load, Answer),
    token: Option<WaitToken>,
) {
    if let Some(over) = slot.is_over() {
        return slot.finish(op, Err(Error::new(over, "ended before it began").with_op("load")));
    }
    op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
    if let Some(foreign) = shared.data_dir.foreign() {
        return layout::begin_load((shared, foreign), workers, (op, slot), token);
    }
    let room = op.into.iter().map(|l| l.len() as u64).sum();
    let known = shared.index().get(op.key.digest()).map(|e| e.chunk.len);
    let known = known.or_else(|| {
        shared.follow_changes();
        shared.known_len(op.key.digest())
    });
    let Some(len) = known.or_else(|| shared.find_on_disk(&op.key, Some(room))) else {
        return miss(shared, op, slot, MissReason::Absent);
    };
    if len > room {
        return miss(shared, op, slot, MissReason::Length);
    }
    let reading = shared.readers.enter(*op.key.digest());
    match open(shared, &op, len) {
        Ok((file, seen, true)) => {
            read((shared, workers, token), (op, slot, reading), file, (len, seen))
        }
        Ok((file, seen, false)) => {
            drop((reading, file));
            miss_corrupt(shared, op, slot, (len, seen));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            shared.forget_missing(op.key.digest(), len);
            miss(shared, op, slot, MissReason::Absent);
        }
        Err(e) => {
            // A file that we may not read, while others may: it stays, and our next save of the
            // chunk takes its place.
            if e.kind() == io::ErrorKind::PermissionDenied {
                let one = shared.name(op.key.digest());
                match shared.data_dir.find(op.key.digest(), len) {
                    Ok(Some(file)) => _ = shared.mark_corrupt(op.key.digest(), file),
                    _ => drop(shared.forget(op.key.digest(), true)),
                }
                drop(one);
                shared.listeners.notify();
            }
            // A link is nothing of ours, nor of anybody's who shares the directory.
            if e.raw_os_error() == Some(nix::libc::ELOOP)
                && let Ok(Some(seen)) = shared.data_dir.find(op.key.digest(), len)
            {
                drop(reading);
                return miss_corrupt(shared, op, slot, (len, seen));
            }
            let error = shared.io_error("load", &op.key, "cannot open the chunk's file", e);
            slot.finish(op, Err(error));
        }
    }
}

/// Opens the chunk's file and says whether it has the length that its name says, padding and footer
/// included.
fn open<M: Mover>(shared: &Shared<M>, op: &Load, len: u64) -> io::Result<(File, FileId, bool)> {
    let file = shared.data_dir.open_chunk(op.key.digest(), len)?;
    let meta = file.metadata()?;
    Ok((file, FileId::of(&meta), meta.len() == file_len(len) && meta.is_file()))
}

fn read<M: Mover>(
    (shared, workers, token): (&Arc<Shared<M>>, &Workers, Option<WaitToken>),
    (op, slot, reading): (Load, Answer, Reading),
    file: File,
    (len, seen): (u64, FileId),
) {
    let Load { key, into } = op;
    let releases = Some(shared.memory_queue.releases());
    let planned = match shared.tails.lease(2 * PAGE as usize) {
        Ok(tail) => {
            LoadBuffers::plan(into, len as usize, (&shared.bounce, shared.bounce_bytes), tail)
        }
        Err(_) => Err((into, None)),
    };
    let (buffers, parts) = match planned {
        Ok(planned) => planned,
        Err((into, Some(error))) => {
            return slot.finish(Load { key, into }, Err(error.with_op("load")));
        }
        Err((into, None)) => {
            // Our own buffers are all in use. From the start when some are free: by then the file
            // may be another.
            let (shared2, workers2, op) = (Arc::clone(shared), workers.clone(), Load { key, into });
            let again = move |token| begin(&shared2, &workers2, (op, slot), Some(token));
            return workers.wait(
                &shared.memory_queue,
                QueueEntry { token, releases },
                Lane::Read,
                again,
            );
        }
    };
    let sums = Arc::new(Mutex::new(PieceSums::new(len)));
    // The page pair comes last, and is looked at in the end.
    let (watch, told) = watch(&sums, &parts[..parts.len() - 1]);
    let transfer = Transfer { file: Arc::new(file.into()), watch: Some(watch), sums: told, parts };
    let (theirs, pool) = (Arc::clone(shared), Arc::clone(&workers.pool));
    let ours = Arc::new(Mutex::new(Some((buffers, key, slot, reading))));
    let held = Arc::clone(&ours);
    let done = Box::new(move |moved: Moved| {
        if let Some((buffers, key, slot, reading)) =
            held.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            finish(&theirs, &pool, (buffers, key, slot, reading), moved, (len, seen, sums));
        }
    });
    if let Err(refused) = shared.mover.submit(transfer, done)
        && let Some((buffers, key, slot, reading)) =
            ours.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        let Transfer { file, parts, .. } = refused.transfer;
        drop((reading, file));
        let (into, ..) = buffers.unpack(parts);
        let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("load");
        slot.finish(
            Load { key, into },
            if refused.closed { Err(closed) } else { Ok(Loaded::Throttled) },
        );
    }
}

/// Sums the payload's whole pages as they arrive; where the CPU does not look, it may be told their
/// sums. What `parts` has beyond `payload` is no part of it.
pub fn watch(
    sums: &Arc<Mutex<PieceSums>>,
    payload: &[Part],
) -> (crate::Watch, Option<crate::Sums>) {
    let starts = payload
        .iter()
        .map(|part| if let Part::Read { at, .. } = part { *at } else { 0 })
        .collect::<Arc<[u64]>>();
    let is_far = |part: &Part| matches!(part, Part::Read { into, .. } if !into.place().is_host());
    let told = payload.iter().any(is_far).then(|| (Arc::clone(&starts), Arc::clone(sums)));
    let told = told.map(|(starts, sums)| -> crate::Sums {
        Box::new(move |part, offset, unit, crcs| {
            if let Some(start) = starts.get(part) {
                sums.lock().unwrap_or_else(PoisonError::into_inner).units(
                    start + offset,
                    unit,
                    crcs,
                );
            }
        })
    });
    let sums = Arc::clone(sums);
    let watch = move |part: usize, offset, bytes: &[u8]| {
        if let Some(start) = starts.get(part) {
            sums.lock().unwrap_or_else(PoisonError::into_inner).piece(start + offset, bytes);
        }
    };
    (Box::new(watch), told)
}

/// A load, second half, on the mover's thread: prove the bytes and answer.
fn finish<M: Mover>(
    shared: &Arc<Shared<M>>,
    pool: &Arc<Pool>,
    (buffers, key, slot, reading): (LoadBuffers, Key, Answer, Reading),
    moved: Moved,
    (len, seen, sums): (u64, FileId, Arc<Mutex<PieceSums>>),
) {
    let Moved { transfer: Transfer { file, parts, .. }, result, unseen } = moved;
    // Before the answer: a chunk that goes after it leaves its room on the medium at once.
    drop((reading, file));
    let bounced = buffers.is_bounced();
    let (mut into, bounce, tail) = buffers.unpack(parts);
    let sums = std::mem::replace(
        &mut *sums.lock().unwrap_or_else(PoisonError::into_inner),
        PieceSums::new(0),
    );
    let sums = if unseen { None } else { Some(sums) };
    let bounce = bounce.filter(|_| bounced);
    let landed = result.and_then(|_| {
        let is_still = !unseen || shared.is_still(key.digest(), len, seen);
        match tail.as_ref().filter(|_| is_still).and_then(|tail| prove(&key, len, tail, sums)) {
            Some(end) => {
                copy_remaining(shared, &mut into, bounce.as_ref(), (len, end)).map(|()| true)
            }
            None => Ok(false),
        }
    });
    drop((bounce, tail));
    answer(shared, pool, (Load { key, into }, slot), landed, (len, len, seen));
}

/// Brings what did not arrive in the caller's leases by itself there: what is in bounce memory, and
/// the payload's last partial page. A failure says nothing of the file.
pub fn copy_remaining<M: Mover>(
    shared: &Shared<M>,
    into: &mut [Lease],
    bounce: Option<&Lease>,
    (len, end): (u64, &[u8]),
) -> io::Result<()> {
    let bounce = bounce.and_then(Lease::as_host).unwrap_or_default();
    add(&shared.counters.copied_bounce_bytes, bounce.len() as u64);
    add(&shared.counters.copied_tail_bytes, end.len() as u64);
    let near = |lease: &mut Lease, at: usize, bytes: &[u8]| {
        lease.write_at(at, bytes).map_err(io::Error::other)
    };
    let write = |lease: &mut Lease, at: usize, bytes: &[u8]| {
        if lease.place().is_host() {
            near(lease, at, bytes)
        } else {
            shared.mover.put(lease, at, bytes)
        }
    };
    let landed = scatter(into, 0, bounce, write)
        .and_then(|()| scatter(into, len as usize - end.len(), end, write));
    landed.map_err(|e| {
        io::Error::other(format!(
            "its bytes are right, and cannot be copied to where they belong: {e}"
        ))
    })
}

/// Answers a load whose file was read: with a hit only if its bytes were proven and landed. The
/// file, of `bytes` as its name or itself says, goes out of the way if they were not.
pub fn answer<M: Mover>(
    shared: &Arc<Shared<M>>,
    pool: &Arc<Pool>,
    (mut op, slot): (Load, Answer),
    landed: io::Result<bool>,
    (len, bytes, seen): (u64, u64, FileId),
) {
    shared.memory_queue.notify();
    if !matches!(landed, Ok(true)) {
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
    }
    match landed {
        Ok(true) => {
            add(&shared.counters.hits, 1);
            add(&shared.counters.loaded_bytes, len);
            shared.listeners.push(Event::Touched { key: *op.key.digest() });
            shared.listeners.notify();
            slot.finish(op, Ok(Loaded::Hit { len }));
        }
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
            let error = shared.io_error("load", &op.key, "cannot read the chunk's file", e);
            slot.finish(op, Err(error));
        }
        _ => {
            // Renaming blocks: not on the mover's thread. The answer waits for it, so that a save
            // that follows is not `Present`.
            let theirs = Arc::clone(shared);
            pool.push(Lane::Read, move || miss_corrupt(&theirs, op, slot, (bytes, seen)));
        }
    }
}

/// Checks key, namespace, lengths and every byte's checksum against the footer; without sums, all
/// but those. Gives the payload's last partial page.
fn prove<'a>(key: &Key, len: u64, pair: &'a Lease, sums: Option<PieceSums>) -> Option<&'a [u8]> {
    let pair = pair.as_host()?;
    let (padded, page) = pair.split_at_checked(pair.len().checked_sub(PAGE as usize)?)?;
    let (facts, name) = footer::decode(page).ok()?;
    let (tail, padding) = padded.split_at_checked((len % PAGE) as usize)?;
    let found = |mut sums: PieceSums| -> Option<BlockSums> {
        sums.piece(len - tail.len() as u64, tail);
        sums.finish()
    };
    let right = sums.is_none_or(|sums| found(sums).is_some_and(|found| found == facts.sums));
    let same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && facts.raw_len == len
        && facts.codec.0 == 0
        && facts.key_id == 0
        // A writer that has only the key's digest leaves the key out: the digest covers all of it.
        && (name.is_empty() || name == key.canonical())
        && facts.sums.len() == len
        && right
        && padding.iter().all(|b| *b == 0);
    same.then_some(tail)
}

/// Answers a miss and counts it.
pub fn miss<M: Mover>(shared: &Shared<M>, op: Load, slot: Answer, reason: MissReason) {
    let counter = match reason {
        MissReason::Length => &shared.counters.misses_length,
        MissReason::Unverified => &shared.counters.misses_unverified,
        _ => &shared.counters.misses_absent,
    };
    add(counter, 1);
    slot.finish(op, Ok(Loaded::Miss(reason)));
}

/// Answers for a file that failed a check: it is corrupt if the chunk still is that file; else
/// another process took the chunk away or wrote it anew while we read, and it is a miss like any
/// other.
pub fn miss_corrupt<M: Mover>(
    shared: &Shared<M>,
    op: Load,
    slot: Answer,
    (len, seen): (u64, FileId),
) {
    if !shared.quarantine_corrupt(op.key.digest(), len, seen) {
        return miss(shared, op, slot, MissReason::Absent);
    }
    add(&shared.counters.misses_corrupt, 1);
    slot.finish(op, Ok(Loaded::Miss(MissReason::Corrupt)));
}

/// Why a load can never succeed here, whatever the state of the tier.
pub fn refusal(op: &Load, mover: &impl Mover, bounce_bytes: usize) -> Option<Error> {
    let invalid = |what: String| {
        Some(Error::new(ErrorKind::Invalid, what).with_op("load").with_key(*op.key.digest()))
    };
    if let Some(lease) = op.into.iter().find(|l| !mover.reaches(l.place())) {
        return invalid(format!(
            "this tier does not reach memory at {:?}; use one that does",
            lease.place()
        ));
    }
    let far = op.into.iter().filter(|l| !l.place().is_host()).count();
    if far > 0 {
        return (far < op.into.len())
            .then(|| invalid("leases of host and GPU memory in one load".into()))
            .flatten();
    }
    if bounce_bytes == 0 && op.into.iter().any(|l| !(l.addr() as u64).is_multiple_of(PAGE)) {
        return invalid(not_aligned(bounce_bytes));
    }
    None
}
