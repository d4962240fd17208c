//! Loads from a foreign layout: the file's length is the payload's, and facts may be missing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind, Load, Loaded, MissReason};
use kvtier_key::{BlockSums, Key, PieceSums};
use kvtier_mem::Lease;

use super::facts::{FactsOwner, Known, owner_of};
use super::find::{Found, is_allowed, is_padded};
use super::headers::{self, ParsedHeader};
use super::{Foreign, Verify};
use crate::counters::add;
use crate::data_dir::FileId;
use crate::load::{Answer, answer, copy_remaining, miss, miss_corrupt, watch};
use crate::load_buffers::LoadBuffers;
use crate::mover::{Moved, Mover, Part, Transfer};
use crate::name::PAGE;
use crate::pool::{Lane, Pool};
use crate::readers::Reading;
use crate::shared::Shared;
use crate::wait_queue::{QueueEntry, WaitToken};
use crate::workers::Workers;

/// What was found out before the bytes are read.
struct Plan {
    file: File,
    seen: FileId,
    /// Length of the payload, and of all that the file has behind its head.
    len: u64,
    bytes: u64,
    /// What the bytes must sum to; `None`: there are no facts.
    sums: Option<BlockSums>,
}

/// Why no bytes are read.
enum No {
    Miss(MissReason),
    Corrupt(u64, FileId),
}

/// A load, first half: find the file, read its facts, start reading its bytes.
pub fn begin<M: Mover>(
    (shared, foreign): (&Arc<Shared<M>>, &Foreign),
    workers: &Workers,
    (op, slot): (Load, Answer),
    token: Option<WaitToken>,
) {
    let index = shared.index();
    let (is_suspect, is_hidden) =
        (index.is_suspect(op.key.digest()), index.is_hidden(op.key.digest()));
    drop(index);
    let is_suspect = is_suspect && {
        let _one = shared.name(op.key.digest());
        shared.is_still_suspect(foreign, &op.key)
    };
    if is_suspect || is_hidden {
        return miss(shared, op, slot, MissReason::Absent);
    }
    let room = op.into.iter().map(|l| l.len() as u64).sum();
    let reading = shared.readers.enter(*op.key.digest());
    match plan(shared, foreign, &op.key, room) {
        Ok(Ok(plan)) => read((shared, workers, token), (op, slot, reading), plan),
        Ok(Err(No::Miss(reason))) => miss(shared, op, slot, reason),
        Ok(Err(No::Corrupt(bytes, seen))) => {
            drop(reading);
            // It may be the first time that anybody hears of it.
            foreign.learn(&op.key);
            miss_corrupt(shared, op, slot, (bytes, seen));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            shared.forget_missing(op.key.digest(), 0);
            miss(shared, op, slot, MissReason::Absent);
        }
        Err(e) => {
            let error = shared.io_error("load", &op.key, "cannot open the chunk's file", e);
            slot.finish(op, Err(error));
        }
    }
}

fn plan<M: Mover>(
    shared: &Shared<M>,
    foreign: &Foreign,
    key: &Key,
    room: u64,
) -> io::Result<Result<Plan, No>> {
    let Ok(name) = foreign.layout.file_name(key.id()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let file = shared.data_dir.open_at(&name)?;
    let meta = file.metadata()?;
    let (bytes, seen) = (meta.len().saturating_sub(foreign.layout.head_bytes()), FileId::of(&meta));
    let bytes_on_disk = meta.len() + foreign.layout.head_bytes();
    if !meta.is_file() {
        return Ok(Err(No::Miss(MissReason::Absent)));
    }
    let (len, sums) = match Known::of(&file)? {
        Known::Junk => return Ok(Err(No::Corrupt(bytes, seen))),
        Known::Facts(facts) => match owner_of(&facts, key) {
            FactsOwner::Ours if facts.raw_len == bytes && bytes > 0 => (bytes, Some(facts.sums)),
            FactsOwner::Ours | FactsOwner::Wrong => return Ok(Err(No::Corrupt(bytes, seen))),
            FactsOwner::AnotherNamespace => {
                shared.invalidate(key.digest(), bytes_on_disk);
                return Ok(Err(No::Miss(MissReason::Absent)));
            }
        },
        Known::Unverified => {
            add(&shared.counters.unverified, 1);
            match unverified_len(shared, foreign, (key, room), (&file, &name, meta.len()))? {
                Ok(len) => (len, None),
                Err(MissReason::Corrupt) => return Ok(Err(No::Corrupt(bytes, seen))),
                Err(MissReason::Length) => return Ok(Err(No::Miss(MissReason::Length))),
                Err(reason) => {
                    shared.invalidate(key.digest(), bytes_on_disk);
                    return Ok(Err(No::Miss(reason)));
                }
            }
        }
    };
    if len > room || len == 0 {
        return Ok(Err(No::Miss(MissReason::Length)));
    }
    let known = shared.index().get(key.digest()).map(|e| (e.chunk.len, e.chunk.bytes));
    if known != Some((len, bytes_on_disk)) {
        let one = shared.name(key.digest());
        shared.found(key, Found { len: Some(len), bytes: bytes_on_disk });
        drop(one);
        shared.listeners.notify();
    }
    Ok(Ok(Plan { file, seen, len, bytes, sums }))
}

/// The payload's length in a file without facts, if its bytes are to be believed: what its headers
/// say, or, where there are none, what is asked for.
fn unverified_len<M: Mover>(
    shared: &Shared<M>,
    foreign: &Foreign,
    (key, room): (&Key, u64),
    (file, name, file_bytes): (&File, &str, u64),
) -> io::Result<Result<u64, MissReason>> {
    if foreign.verify == Verify::Strict {
        return Ok(Err(MissReason::Unverified));
    }
    if !foreign.layout.has_headers() {
        let exact = file_bytes == room || is_padded(file_bytes, room);
        return Ok(if exact && is_allowed(key, room) { Ok(room) } else { Err(MissReason::Length) });
    }
    Ok(match headers::parse(file, &shared.data_dir.root().join(name), file_bytes)? {
        ParsedHeader::Payload(len) => Ok(len),
        ParsedHeader::Invalid => Err(MissReason::Corrupt),
        ParsedHeader::NoSidecar | ParsedHeader::UnknownVersion => Err(MissReason::Absent),
    })
}

/// Reads the last partial page here, `wanted` bytes at `at`, as far as the file goes: for the
/// engines a file that ends within a request is one that lost its end.
fn read_tail(file: &File, (at, wanted): (u64, usize), tail: &mut Lease) -> io::Result<usize> {
    if wanted == 0 {
        return Ok(0);
    }
    tail.assume_filled(0);
    let page = tail.as_host_mut().and_then(|memory| memory.get_mut(..PAGE as usize));
    let page = page.ok_or_else(|| io::Error::other("no memory for a page"))?;
    let got = file.read_at(page, at)?;
    tail.assume_filled(got);
    if got == wanted { Ok(got) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read<M: Mover>(
    (shared, workers, token): (&Arc<Shared<M>>, &Workers, Option<WaitToken>),
    (op, slot, reading): (Load, Answer, Reading),
    plan: Plan,
) {
    let Load { key, into } = op;
    let Plan { file, seen, len, bytes, sums } = plan;
    let (head, whole) = (shared.data_dir.head_bytes(), len - len % PAGE);
    let releases = Some(shared.memory_queue.releases());
    let planned = match shared.tails.lease(2 * PAGE as usize) {
        Ok(tail) => {
            LoadBuffers::plan(into, len as usize, (&shared.bounce, shared.bounce_bytes), tail)
        }
        Err(_) => Err((into, None)),
    };
    let (buffers, mut parts) = match planned {
        Ok(planned) => planned,
        Err((into, Some(error))) => {
            return slot.finish(Load { key, into }, Err(error.with_op("load")));
        }
        Err((into, None)) => {
            // Our own buffers are all in use. From the start when some are free: by then the file
            // may be another.
            let (shared2, workers2, op) = (Arc::clone(shared), workers.clone(), Load { key, into });
            let again =
                move |token| crate::load::begin(&shared2, &workers2, (op, slot), Some(token));
            return workers.wait(
                &shared.memory_queue,
                QueueEntry { token, releases },
                Lane::Read,
                again,
            );
        }
    };
    let mut pair = parts.pop();
    let tail = match &mut pair {
        Some(Part::Read { into, .. }) => {
            read_tail(&file, (head + whole, (bytes - whole) as usize), into)
        }
        _ => Err(io::Error::other("no memory for a page")),
    };
    let first = Arc::new(Mutex::new(PieceSums::new(len)));
    let ours = Landed { buffers, pair, key, slot, reading, len, bytes, seen, sums, tail };
    if parts.is_empty() || ours.tail.is_err() {
        let transfer = Transfer { file: Arc::new(file.into()), parts, watch: None, sums: None };
        let moved = Moved { transfer, result: Ok(0), unseen: false };
        return finish(shared, &workers.pool, ours, moved, first);
    }
    let (watch, told) = ours.sums.is_some().then(|| watch(&first, &parts)).unzip();
    behind(head, &mut parts);
    let transfer = Transfer { file: Arc::new(file.into()), watch, sums: told.flatten(), parts };
    let (theirs, pool) = (Arc::clone(shared), Arc::clone(&workers.pool));
    let ours = Arc::new(Mutex::new(Some(ours)));
    let held = Arc::clone(&ours);
    let done = Box::new(move |moved: Moved| {
        if let Some(ours) = held.lock().unwrap_or_else(PoisonError::into_inner).take() {
            finish(&theirs, &pool, ours, moved, first);
        }
    });
    if let Err(refused) = shared.mover.submit(transfer, done)
        && let Some(ours) = ours.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        let Transfer { file, mut parts, .. } = refused.transfer;
        parts.extend(ours.pair);
        let (into, ..) = ours.buffers.unpack(parts);
        drop((ours.reading, file));
        let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("load");
        ours.slot.finish(
            Load { key: ours.key, into },
            if refused.closed { Err(closed) } else { Ok(Loaded::Throttled) },
        );
    }
}

/// Moves parts of the payload to where they lie in the file, behind its head.
pub fn behind(head: u64, parts: &mut [Part]) {
    for part in parts {
        match part {
            Part::Read { at, .. } | Part::Write { at, .. } => *at += head,
        }
    }
}

/// A load under way.
struct Landed {
    buffers: LoadBuffers,
    /// The page of the payload's end.
    pair: Option<Part>,
    key: Key,
    slot: Answer,
    reading: Reading,
    len: u64,
    bytes: u64,
    seen: FileId,
    sums: Option<BlockSums>,
    /// How many bytes of the file the page holds.
    tail: io::Result<usize>,
}

/// A load, second half: prove the bytes, if there is something to prove them by, and answer.
fn finish<M: Mover>(
    shared: &Arc<Shared<M>>,
    pool: &Arc<Pool>,
    ours: Landed,
    moved: Moved,
    sums: Arc<Mutex<PieceSums>>,
) {
    let Landed { buffers, pair, key, slot, reading, len, bytes, seen, sums: wanted, tail } = ours;
    let Moved { transfer: Transfer { file, mut parts, .. }, result, unseen } = moved;
    // Before the answer: a chunk that goes after it leaves its room on the medium at once.
    drop((reading, file));
    let bounced = buffers.is_bounced();
    parts.extend(pair);
    let (mut into, bounce, page) = buffers.unpack(parts);
    let got = tail.as_ref().ok().copied();
    let end = page.as_ref().and_then(Lease::as_host).and_then(|page| page.get(..got?));
    let mut sums = std::mem::replace(
        &mut *sums.lock().unwrap_or_else(PoisonError::into_inner),
        PieceSums::new(0),
    );
    let unverified = wanted.is_none();
    // An end that is not there proves nothing.
    let payload = end.and_then(|end| end.split_at_checked((len % PAGE) as usize)).and_then(
        |(payload, padding)| {
            let right = match wanted {
                Some(_) if unseen => shared.is_still(key.digest(), bytes, seen),
                Some(wanted) => {
                    sums.piece(len - payload.len() as u64, payload);
                    sums.finish().is_some_and(|found| found == wanted)
                }
                None => padding.iter().all(|byte| *byte == 0),
            };
            right.then_some(payload)
        },
    );
    let bounce = bounce.filter(|_| bounced);
    let landed = result.and(tail).and_then(|_| match payload {
        Some(end) => copy_remaining(shared, &mut into, bounce.as_ref(), (len, end)).map(|()| true),
        None => Ok(false),
    });
    drop((bounce, page));
    if matches!(landed, Ok(false)) && unverified {
        // Longer than what was asked for, by more than zeros: fine for others, perhaps.
        into.iter_mut().for_each(|lease| lease.assume_filled(0));
        return miss(shared, Load { key, into }, slot, MissReason::Length);
    }
    answer(shared, pool, (Load { key, into }, slot), landed, (len, bytes, seen));
}
