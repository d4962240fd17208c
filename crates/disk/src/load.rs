//! Loads, top to bottom.
//!
//! A load is a [`LoadOp`]: an operation, the slot that answers it, and the tier. It walks through
//! these states, each of which either ends it or passes it on:
//!
//! 1. [`begin`](LoadOp::begin), on the pool: the index or the directory names the chunk's length.
//!    No chunk, or too little memory for it, is a miss. Foreign layouts branch off here
//!    (`layout/foreign_load.rs`).
//! 2. `open`: opens the file and compares its length with its name. A file that is encoded branches
//!    off here (`load/encoded.rs`).
//! 3. [`take_buffers`](LoadOp::take_buffers): leases the tier's own memory. Where all of it is in
//!    use, the load waits in the memory queue and begins again, since the file may be another then.
//! 4. `Reading::submit`: the mover reads. Checksums are computed while the bytes arrive.
//! 5. `Reading::finish`, on the mover's thread: compares every byte, the key and the lengths with
//!    the footer, and copies what did not arrive in the caller's leases by itself.
//! 6. [`answer`](LoadOp::answer): a hit only if the bytes were verified and are in place. A file
//!    that failed its checks is quarantined first, on the pool, because renaming blocks.

mod encoded;
mod verify;

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use kvtier_core::{Error, ErrorKind, Event, Load, Loaded, MissReason, Slot};
use kvtier_key::{Key, PieceSums};

use crate::active_reads;
use crate::chunk_file_name::file_len;
use crate::counters::add;
use crate::data_dir::FileId;
use crate::direct_io::PAGE;
use crate::layout;
use crate::load_buffers::{LoadBuffers, LoadMemory, NoBuffers, not_aligned};
use crate::mover::{Moved, Mover, Part, Refused, Transfer};
use crate::op_threads::OpThreads;
use crate::shared::Shared;
use crate::submit_transfer::{Submitted, submit};
use crate::thread_pool::Lane;
use crate::wait_queue::{QueueEntry, WaitToken};

pub use encoded::may_be_encoded;
use verify::verify;
pub use verify::{copy_remaining, take_sums, watch};

pub type LoadSlot = Slot<Load, Loaded>;

/// A load that was admitted and has not ended.
pub struct LoadOp<M: Mover> {
    pub shared: Arc<Shared<M>>,
    pub threads: OpThreads,
    pub op: Load,
    pub slot: LoadSlot,
}

/// The file of a chunk that is being loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadFile {
    /// Length of the payload.
    pub len: u64,
    /// The payload length by which the file is found again: that of its name, or in a foreign
    /// layout what follows the header.
    pub named_len: u64,
    pub id: FileId,
}

/// A load with memory to read into. The caller's leases are in `parts`, or kept by `buffers`.
pub struct BufferedLoad<M: Mover> {
    pub shared: Arc<Shared<M>>,
    pub threads: OpThreads,
    pub key: Key,
    pub buffers: LoadBuffers,
    pub parts: Vec<Part>,
    /// The last field: where the load is dropped, `Closed` is answered after its memory is released.
    pub slot: LoadSlot,
}

impl<M: Mover> LoadOp<M> {
    /// Finds the chunk's file and begins to read it. `token` is that of the memory queue, after a
    /// wait.
    pub fn begin(mut self, token: Option<WaitToken>) {
        // The pool or the memory queue may have been busy past the deadline.
        if let Some(over) = self.slot.is_over() {
            return self.fail(Error::new(over, "ended before it began").with_op("load"));
        }
        // Whatever the leases held before: until the bytes are verified, they hold none.
        self.op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        if self.shared.data_dir.foreign().is_some() {
            return layout::begin_load(self, token);
        }
        let capacity = self.capacity();
        let Some(len) = self.find_len(capacity) else { return self.miss(MissReason::Absent) };
        if len > capacity {
            return self.miss(MissReason::Length);
        }
        // Before the file is opened: from here on no save of this process writes over the file in
        // place. An eviction may still delete it, which the open file survives.
        let reading = self.shared.readers.enter(*self.op.key.digest());
        match open(&self.shared, &self.op, len) {
            Ok((file, id)) => {
                let found = LoadFile { len, named_len: len, id };
                self.read_opened(reading, file, found, token);
            }
            // A peer evicted it. That is an ordinary miss, and the index learns it now.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.shared.forget_missing(self.op.key.digest(), len);
                self.miss(MissReason::Absent);
            }
            Err(e) => self.on_open_failed(reading, len, e),
        }
    }

    /// Bytes of the caller's leases together.
    pub fn capacity(&self) -> u64 {
        self.op.into.iter().map(|lease| lease.len() as u64).sum()
    }

    /// The chunk's length: from the index, from changes of peers, or by a name on the medium.
    fn find_len(&self, capacity: u64) -> Option<u64> {
        let shared = &self.shared;
        let digest = self.op.key.digest();
        // The usual load needs neither the log of peers nor the directory.
        let known = shared.index().get(digest).map(|entry| entry.chunk.len);
        let known = known.or_else(|| {
            shared.follow_changes();
            shared.known_len(digest)
        });
        known.or_else(|| shared.find_on_disk(&self.op.key, Some(capacity)))
    }

    fn on_open_failed(self, reading: active_reads::ReadMark, len: u64, e: io::Error) {
        let shared = &self.shared;
        let digest = self.op.key.digest();
        // This process may not read the file, while others may: the file stays, and the next save
        // of the chunk replaces it.
        if e.kind() == io::ErrorKind::PermissionDenied {
            // The lock of the name: between the look and the mark no save of this process may
            // publish another file.
            let name = shared.name(digest);
            match shared.data_dir.find(digest, len) {
                Ok(Some(file)) => _ = shared.mark_corrupt(digest, file),
                _ => _ = shared.forget(digest, true),
            }
            drop(name);
            shared.listeners.notify();
        }
        // No process that shares the directory creates links.
        if e.raw_os_error() == Some(nix::libc::ELOOP)
            && let Ok(Some(id)) = shared.data_dir.find(digest, len)
        {
            drop(reading);
            return self.miss_corrupt(len, id);
        }
        let error = shared.io_error("load", &self.op.key, "cannot open the chunk's file", e);
        self.fail(error);
    }

    /// Reads the file as its length demands.
    fn read_opened(
        self,
        reading: active_reads::ReadMark,
        file: File,
        found: LoadFile,
        token: Option<WaitToken>,
    ) {
        match found.id.bytes() {
            Some(bytes) if bytes == file_len(found.len) => {
                if self.shared.takes_plain {
                    return self.read(reading, file, found, token);
                }
                drop((reading, file));
                self.miss_unusable(found, MissReason::Codec);
            }
            Some(bytes) if may_be_encoded(found.len, bytes) => {
                self.read_encoded(reading, file, found, token);
            }
            // A torn or extended file. This load no longer reads it, so its space is free as soon
            // as it is deleted.
            _ => {
                drop((reading, file));
                self.miss_corrupt(found.named_len, found.id);
            }
        }
    }

    fn read(
        self,
        reading: active_reads::ReadMark,
        file: File,
        found: LoadFile,
        token: Option<WaitToken>,
    ) {
        let Some(load) = self.take_buffers(found.len, token) else { return };
        let BufferedLoad { shared, threads, key, slot, buffers, parts } = load;
        let sums = Arc::new(Mutex::new(PieceSums::new(found.len)));
        // The page pair comes last, and is checked in the end.
        let (watch, reported) = watch(&sums, &parts[..parts.len() - 1]);
        let transfer =
            Transfer { file: Arc::new(file.into()), watch: Some(watch), sums: reported, parts };
        Reading { shared, threads, key, slot, reading, buffers, found, sums }.submit(transfer);
    }

    /// Takes memory for a payload of `len` bytes. `None` where the load ended, or waits for memory
    /// and begins again.
    pub fn take_buffers(self, len: u64, token: Option<WaitToken>) -> Option<BufferedLoad<M>> {
        let LoadOp { shared, threads, op: Load { key, into }, slot } = self;
        // Read before the attempt, as for space: memory that returns in between ends the wait at
        // once.
        let releases = Some(shared.memory.queue.releases());
        // Every load needs a page pair, and only unaligned ones bounce memory. So the pair is taken
        // first, and bounce memory is never held by a load that waits for a pair.
        let planned = match shared.memory.tails.lease(2 * PAGE as usize) {
            Ok(tail) => LoadBuffers::plan(into, len as usize, shared.memory.bounce(), tail),
            Err(_) => Err(NoBuffers { leases: into, error: None }),
        };
        match planned {
            Ok((buffers, parts)) => {
                Some(BufferedLoad { shared, threads, key, slot, buffers, parts })
            }
            Err(NoBuffers { leases, error: Some(error) }) => {
                slot.finish(Load { key, into: leases }, Err(error.with_op("load")));
                None
            }
            Err(NoBuffers { leases, error: None }) => {
                let queue = shared.memory.queue.clone();
                let entry = QueueEntry { token, releases };
                let op = Load { key, into: leases };
                let load = LoadOp { shared, threads: threads.clone(), op, slot };
                let resume = move |token| load.begin(Some(token));
                threads.wait(&queue, entry, Lane::Read, resume);
                None
            }
        }
    }

    /// Ends the load after its file was read: with a hit only if the bytes were verified and are in
    /// place (`Ok(true)`). A file that failed its checks is quarantined.
    pub fn answer(mut self, loaded: io::Result<bool>, found: LoadFile) {
        let shared = &self.shared;
        // The load's own memory is free by now. A load that waits for it must not wait for the
        // answer of this one.
        shared.memory.queue.notify();
        // The mover may have written bytes that are not the chunk's. A caller that ignores the
        // result must not find a filled lease.
        if !matches!(loaded, Ok(true)) {
            self.op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        }
        match loaded {
            Ok(true) => {
                add(&shared.counters.hits, 1);
                add(&shared.counters.loaded_bytes, found.len);
                // Before the answer: what the caller does next comes after this event.
                shared.listeners.push(Event::Touched { key: *self.op.key.digest() });
                shared.listeners.notify();
                self.slot.finish(self.op, Ok(Loaded::Hit { len: found.len }));
            }
            // The device failed to read, which says nothing about the bytes: an error, and the file
            // stays. A short file is damage.
            Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
                let error =
                    shared.io_error("load", &self.op.key, "cannot read the chunk's file", e);
                self.fail(error);
            }
            _ => {
                // Renaming blocks: not on the mover's thread. The answer waits for it, so that a
                // save that follows is not `Present`.
                let pool = Arc::clone(&self.threads.pool);
                pool.push(Lane::Read, move || self.miss_corrupt(found.named_len, found.id));
            }
        }
    }

    /// Ends the load with a miss and counts it.
    pub fn miss(self, reason: MissReason) {
        let counters = &self.shared.counters;
        let counter = match reason {
            MissReason::Length => &counters.misses_length,
            MissReason::Unverified => &counters.misses_unverified,
            MissReason::Codec => &counters.misses_codec,
            MissReason::KeyMissing => &counters.misses_key,
            MissReason::TooLarge => &counters.misses_too_large,
            _ => &counters.misses_absent,
        };
        add(counter, 1);
        self.slot.finish(self.op, Ok(Loaded::Miss(reason)));
    }

    /// Ends the load after its file failed a check. The chunk is corrupt if its name still means
    /// that file. Otherwise a peer removed or replaced the chunk during the load, and the load is
    /// an ordinary miss.
    pub fn miss_corrupt(self, named_len: u64, id: FileId) {
        if !self.shared.quarantine_corrupt(self.op.key.digest(), named_len, id) {
            return self.miss(MissReason::Absent);
        }
        add(&self.shared.counters.misses_corrupt, 1);
        self.slot.finish(self.op, Ok(Loaded::Miss(MissReason::Corrupt)));
    }

    /// Ends the load with an error.
    pub fn fail(self, error: Error) {
        self.slot.finish(self.op, Err(error));
    }
}

/// Opens the chunk's file.
fn open<M: Mover>(shared: &Shared<M>, op: &Load, len: u64) -> io::Result<(File, FileId)> {
    let file = shared.data_dir.open_chunk(op.key.digest(), len)?;
    // Of the open file, not of the name, which may mean another file by now.
    let meta = file.metadata()?;
    Ok((file, FileId::of(&meta)))
}

/// A load whose file is being read.
struct Reading<M: Mover> {
    shared: Arc<Shared<M>>,
    threads: OpThreads,
    key: Key,
    reading: active_reads::ReadMark,
    buffers: LoadBuffers,
    found: LoadFile,
    /// Checksums of the bytes that arrived.
    sums: Arc<Mutex<PieceSums>>,
    /// The last field: where the load is dropped, `Closed` is answered after its memory and its
    /// reader are released.
    slot: LoadSlot,
}

impl<M: Mover> Reading<M> {
    fn submit(self, transfer: Transfer) {
        let shared = Arc::clone(&self.shared);
        submit(&shared.mover, transfer, self);
    }
}

impl<M: Mover> Submitted for Reading<M> {
    /// Verifies the bytes, on the mover's thread.
    fn finish(self, moved: Moved) {
        let Reading { shared, threads, key, slot, reading, buffers, found, sums } = self;
        let Moved { transfer: Transfer { file, parts, .. }, result, unseen } = moved;
        // Before the answer: a chunk that is deleted after it frees its space at once.
        drop((reading, file));
        let is_bounced = buffers.is_bounced();
        let LoadMemory { mut leases, bounce, page_pair } = buffers.unpack(parts);
        // `unseen`: the bytes went to a GPU, and no checksums were reported for them.
        let sums = if unseen { None } else { Some(take_sums(&sums)) };
        let bounce = bounce.filter(|_| is_bounced);
        let loaded = result.and_then(|_| {
            // Bytes that were not checksummed are accepted only if the file was not replaced
            // meanwhile: a recycled file has a footer of other bytes.
            let is_current = !unseen || shared.is_still(key.digest(), found.len, found.id);
            let page_pair = page_pair.as_ref().filter(|_| is_current);
            match page_pair.and_then(|pair| verify(&key, found.len, pair, sums)) {
                Some(end) => {
                    copy_remaining(&shared, &mut leases, bounce.as_ref(), found.len, end)?;
                    Ok(true)
                }
                None => Ok(false),
            }
        });
        // Returned before the answer: a caller that loads again at once finds the memory free.
        drop((bounce, page_pair));
        let op = Load { key, into: leases };
        LoadOp { shared, threads, op, slot }.answer(loaded, found);
    }

    fn refused(self, refused: Refused) {
        let Transfer { file, parts, .. } = refused.transfer;
        drop((self.reading, file));
        let into = self.buffers.unpack(parts).leases;
        finish_refused(self.slot, Load { key: self.key, into }, refused.closed);
    }
}

/// Ends a load whose transfer the mover did not take.
pub fn finish_refused(slot: LoadSlot, op: Load, is_closed: bool) {
    let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("load");
    slot.finish(op, if is_closed { Err(closed) } else { Ok(Loaded::Throttled) });
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
    // Host and GPU memory do not mix in one transfer.
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
