//! Loads from a foreign layout: the file's length is the payload's, and facts may be missing.
//!
//! The states are those of `load.rs`, with two differences. `plan` reads the facts before the
//! bytes, since they say how many there are. And the payload's end is read here with a plain
//! `pread`: for the engines, a file that ends within a request has lost its end.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use kvtier_core::{Load, MissReason};
use kvtier_key::{BlockSums, Key, PieceSums};
use kvtier_mem::Lease;

use super::find_chunk::FoundChunk;
use super::headers::{self, ParsedHeader};
use super::lengths::{is_allowed, is_padded};
use super::xattr_facts::{FactsOwner, Known, owner_of};
use super::{Foreign, Verify};
use crate::active_reads;
use crate::counters::add;
use crate::data_dir::FileId;
use crate::direct_io::PAGE;
use crate::load::{
    BufferedLoad, LoadFile, LoadOp, LoadSlot, copy_remaining, finish_refused, take_sums, watch,
};
use crate::load_buffers::{LoadBuffers, LoadMemory};
use crate::mover::{Moved, Mover, Part, Refused, Transfer};
use crate::op_threads::OpThreads;
use crate::shared::Shared;
use crate::submit_transfer::{Submitted, submit};
use crate::wait_queue::WaitToken;

/// What is settled before the bytes are read.
struct ReadPlan {
    file: File,
    /// `named_len` is the length of all that follows the file's header.
    found: LoadFile,
    /// The checksums of the bytes; `None` without facts.
    wanted: Option<BlockSums>,
}

/// Why no bytes are read.
enum Rejected {
    Miss(MissReason),
    Corrupt { named_len: u64, id: FileId },
}

/// Finds the file, reads its facts, and begins to read its bytes.
pub fn begin<M: Mover>(load: LoadOp<M>, token: Option<WaitToken>) {
    if is_known_miss(&load.shared, &load.op.key) {
        return load.miss(MissReason::Absent);
    }
    let digest = *load.op.key.digest();
    // As in `load.rs`: before the file is opened.
    let reading = load.shared.readers.enter(digest);
    match plan(&load.shared, &load.op.key, load.capacity()) {
        Ok(Ok(plan)) => read(load, reading, plan, token),
        Ok(Err(Rejected::Miss(reason))) => load.miss(reason),
        Ok(Err(Rejected::Corrupt { named_len, id })) => {
            // The file is about to be moved away, and this load reads it no more.
            drop(reading);
            // No operation may have used the chunk before.
            let foreign = load.shared.data_dir.foreign();
            foreign.into_iter().for_each(|foreign| foreign.learn(&load.op.key));
            load.miss_corrupt(named_len, id);
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            load.shared.forget_missing(&digest, 0);
            load.miss(MissReason::Absent);
        }
        Err(e) => {
            let key = &load.op.key;
            let error = load.shared.io_error("load", key, "cannot open the chunk's file", e);
            load.fail(error);
        }
    }
}

/// Whether the chunk is a miss without a look at its file: the file failed its checks before, or
/// another chunk of its atomic set is missing.
fn is_known_miss<M: Mover>(shared: &Shared<M>, key: &Key) -> bool {
    let index = shared.index();
    let is_suspect = index.is_suspect(key.digest());
    let is_hidden = index.is_hidden(key.digest());
    drop(index);
    // Another program may have written the file again, which clears the mark. The index is unlocked
    // for that look.
    let is_suspect = is_suspect
        && shared.data_dir.foreign().is_some_and(|foreign| {
            let name = shared.name(key.digest());
            let is_still_suspect = shared.is_still_suspect(foreign, key);
            drop(name);
            shared.listeners.notify();
            is_still_suspect
        });
    is_suspect || is_hidden
}

fn plan<M: Mover>(
    shared: &Shared<M>,
    key: &Key,
    capacity: u64,
) -> io::Result<Result<ReadPlan, Rejected>> {
    let not_found = || io::Error::from(io::ErrorKind::NotFound);
    let foreign = shared.data_dir.foreign().ok_or_else(not_found)?;
    // Computed from the key, so a chunk that no listing showed is found too.
    let name = foreign.layout.file_name(key.id()).map_err(|_| not_found())?;
    let file = shared.data_dir.open_at(&name)?;
    let meta = file.metadata()?;
    // Of the open file: no name or index entry states a length that can be trusted here.
    let named_len = meta.len().saturating_sub(foreign.layout.head_bytes());
    let id = FileId::of(&meta);
    let bytes_on_disk = foreign.layout.counted_bytes(meta.len());
    let miss = |reason| Ok(Err(Rejected::Miss(reason)));
    let corrupt = Rejected::Corrupt { named_len, id };
    if !meta.is_file() {
        return miss(MissReason::Absent);
    }
    let (len, wanted) = match Known::of(&file)? {
        Known::Junk => return Ok(Err(corrupt)),
        Known::Facts(facts) => match owner_of(&facts, key) {
            FactsOwner::Ours if facts.raw_len == named_len && named_len > 0 => {
                (named_len, Some(facts.sums))
            }
            FactsOwner::Ours | FactsOwner::Wrong => return Ok(Err(corrupt)),
            // A valid chunk of another namespace with the same file name. It stays, for those whose
            // it is.
            FactsOwner::AnotherNamespace => {
                shared.invalidate(key, id, bytes_on_disk);
                return miss(MissReason::Absent);
            }
        },
        Known::Unverified => {
            add(&shared.counters.unverified, 1);
            let candidate =
                UnverifiedFile { file: &file, name: &name, bytes: meta.len(), capacity };
            match unverified_len(shared, foreign, key, candidate)? {
                Ok(len) => (len, None),
                Err(MissReason::Corrupt) => return Ok(Err(corrupt)),
                Err(MissReason::Length) => return miss(MissReason::Length),
                Err(reason) => {
                    shared.invalidate(key, id, bytes_on_disk);
                    return miss(reason);
                }
            }
        }
    };
    if len > capacity || len == 0 {
        return miss(MissReason::Length);
    }
    shared.found_open(key, id, FoundChunk { len: Some(len), bytes: bytes_on_disk });
    Ok(Ok(ReadPlan { file, found: LoadFile { len, named_len, id }, wanted }))
}

/// A file without facts.
struct UnverifiedFile<'a> {
    file: &'a File,
    name: &'a str,
    bytes: u64,
    /// Bytes of the caller's memory.
    capacity: u64,
}

/// The payload's length in a file without facts, if its bytes are accepted: the length in its
/// headers, or without headers that of the caller's memory.
fn unverified_len<M: Mover>(
    shared: &Shared<M>,
    foreign: &Foreign,
    key: &Key,
    candidate: UnverifiedFile<'_>,
) -> io::Result<Result<u64, MissReason>> {
    let UnverifiedFile { file, name, bytes, capacity } = candidate;
    if foreign.verify == Verify::Strict {
        return Ok(Err(MissReason::Unverified));
    }
    if !foreign.layout.has_headers() {
        let is_exact = bytes == capacity || is_padded(bytes, capacity);
        let is_accepted = is_exact && is_allowed(key, capacity);
        return Ok(if is_accepted { Ok(capacity) } else { Err(MissReason::Length) });
    }
    Ok(match headers::parse(file, &shared.data_dir.root().join(name), bytes)? {
        ParsedHeader::Payload(len) => Ok(len),
        ParsedHeader::Invalid => Err(MissReason::Corrupt),
        ParsedHeader::NoSidecar | ParsedHeader::UnknownVersion => Err(MissReason::Absent),
    })
}

fn read<M: Mover>(
    load: LoadOp<M>,
    reading: active_reads::ReadMark,
    plan: ReadPlan,
    token: Option<WaitToken>,
) {
    let ReadPlan { file, found, wanted } = plan;
    let Some(load) = load.take_buffers(found.len, token) else { return };
    let BufferedLoad { shared, threads, key, slot, buffers, mut parts } = load;
    let head = shared.data_dir.head_bytes();
    let whole = found.len - found.len % PAGE;
    // The last part is the page pair. Its first page gets the payload's end here, its second is not
    // used.
    let mut page = parts.pop();
    let tail = match &mut page {
        Some(Part::Read { into, .. }) => {
            read_tail(&file, head + whole, (found.named_len - whole) as usize, into)
        }
        _ => Err(io::Error::other("no memory for a page")),
    };
    let sums = Arc::new(Mutex::new(PieceSums::new(found.len)));
    let (watch, reported) = wanted.is_some().then(|| watch(&sums, &parts)).unzip();
    let load = ForeignRead {
        shared,
        threads,
        key,
        slot,
        reading,
        buffers,
        page,
        found,
        wanted,
        tail,
        sums,
    };
    let file = Arc::new(file.into());
    // A payload of less than a page has been read already, and one whose end cannot be read is no
    // hit: no transfer is needed.
    if parts.is_empty() || load.tail.is_err() {
        let transfer = Transfer { file, parts, watch: None, sums: None };
        return load.finish(Moved { transfer, result: Ok(0), unseen: false });
    }
    // Checksums go by offsets in the payload, transfers by offsets in the file.
    behind(head, &mut parts);
    load.submit(Transfer { file, watch, sums: reported.flatten(), parts });
}

/// Reads the last partial page, `wanted` bytes at `at`, as far as the file goes.
fn read_tail(file: &File, at: u64, wanted: usize, tail: &mut Lease) -> io::Result<usize> {
    if wanted == 0 {
        return Ok(0);
    }
    tail.assume_filled(0);
    let page = tail.as_host_mut().and_then(|memory| memory.get_mut(..PAGE as usize));
    let page = page.ok_or_else(|| io::Error::other("no memory for a page"))?;
    let got = kvtier_os::read_at_least(file, page, at, wanted)?;
    tail.assume_filled(got);
    if got == wanted { Ok(got) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Moves parts of the payload behind the file's header.
pub fn behind(head: u64, parts: &mut [Part]) {
    for part in parts {
        match part {
            Part::Read { at, .. } | Part::Write { at, .. } => *at += head,
        }
    }
}

/// A load whose file is being read.
struct ForeignRead<M: Mover> {
    shared: Arc<Shared<M>>,
    threads: OpThreads,
    key: Key,
    reading: active_reads::ReadMark,
    buffers: LoadBuffers,
    /// The page with the payload's end, read already.
    page: Option<Part>,
    found: LoadFile,
    wanted: Option<BlockSums>,
    /// How many bytes of the file the page holds.
    tail: io::Result<usize>,
    /// Checksums of the bytes that arrived.
    sums: Arc<Mutex<PieceSums>>,
    /// The last field: where the load is dropped, `Closed` is answered after its memory and its
    /// reader are released.
    slot: LoadSlot,
}

impl<M: Mover> ForeignRead<M> {
    fn submit(self, transfer: Transfer) {
        let shared = Arc::clone(&self.shared);
        submit(&shared.mover, transfer, self);
    }
}

impl<M: Mover> Submitted for ForeignRead<M> {
    /// Verifies the bytes, if there are facts, and answers.
    fn finish(self, moved: Moved) {
        let ForeignRead { shared, threads, key, slot, reading, buffers, page, found, .. } = self;
        let Moved { transfer: Transfer { file, mut parts, .. }, result, unseen } = moved;
        // Before the answer: a chunk that is deleted after it frees its space at once.
        drop((reading, file));
        let is_bounced = buffers.is_bounced();
        parts.extend(page);
        let LoadMemory { mut leases, bounce, page_pair } = buffers.unpack(parts);
        // How much of the last page the file has; the rest of the page is not the file's.
        let got = self.tail.as_ref().ok().copied();
        let end = page_pair.as_ref().and_then(Lease::as_host).and_then(|page| page.get(..got?));
        let mut sums = take_sums(&self.sums);
        let is_unverified = self.wanted.is_none();
        // Without the file's end, nothing is verified.
        let split = end.and_then(|end| end.split_at_checked((found.len % PAGE) as usize));
        let payload = split.and_then(|(payload, padding)| {
            let is_right = match self.wanted {
                // No checksums of these bytes exist. At least the file must be the one whose facts
                // were read.
                Some(_) if unseen => shared.is_still(key.digest(), found.named_len, found.id),
                Some(wanted) => {
                    sums.piece(found.len - payload.len() as u64, payload);
                    sums.finish().is_some_and(|sums| sums == wanted)
                }
                // Without facts, a writer of whole pages is recognised by zeros behind the payload.
                None => padding.iter().all(|byte| *byte == 0),
            };
            is_right.then_some(payload)
        });
        let bounce = bounce.filter(|_| is_bounced);
        let loaded = result.and(self.tail).and_then(|_| match payload {
            Some(end) => {
                copy_remaining(&shared, &mut leases, bounce.as_ref(), found.len, end)?;
                Ok(true)
            }
            None => Ok(false),
        });
        drop((bounce, page_pair));
        let mut load = LoadOp { shared, threads, op: Load { key, into: leases }, slot };
        if matches!(loaded, Ok(false)) && is_unverified {
            // The file is longer than the caller's memory by more than padding. Another caller may
            // load it.
            load.op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
            return load.miss(MissReason::Length);
        }
        load.answer(loaded, found);
    }

    fn refused(self, refused: Refused) {
        let Transfer { file, mut parts, .. } = refused.transfer;
        parts.extend(self.page);
        let into = self.buffers.unpack(parts).leases;
        drop((self.reading, file));
        finish_refused(self.slot, Load { key: self.key, into }, refused.closed);
    }
}
