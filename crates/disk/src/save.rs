//! Saves, top to bottom.
//!
//! A save is a [`SaveRequest`] until the tier decides to write it, and a [`Saving`] from then on. It
//! walks through these states, each of which either ends it or passes it on:
//!
//! 1. [`begin`](SaveRequest::begin), on the pool: a chunk that is stored already is `Present`. The
//!    medium is asked, since a peer may have evicted the file.
//! 2. `encode` (`save/encode.rs`), in a tier that encodes: encodes the chunk into memory, or waits for
//!    memory.
//! 3. `reserve`: reserves space and creates the unfinished file, or waits in the space queue.
//! 4. `write` (`save/write.rs`): brings bytes from the GPU, computes checksums and the footer, and
//!    submits the writes; or waits in the memory queue. A device that is full below the cap is freed
//!    by eviction, a few times.
//! 5. `publish` (`save/publish.rs`): completes the file, gives it its name and enters it into the
//!    index, in one step for all observers. Then waits for the device as `durability` demands.
//! 6. `end`: releases what the save still holds, and answers.
//!
//! A `Saving` owns the duty to answer, the reserved space and the unfinished files. Whatever ends
//! it, a drop included, releases all of them. The space goes before the answer, so that a caller
//! that saves again finds it.

mod encode;
mod publish;
mod write;

use std::io;
use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Key, Save, Saved, ShedReason, Slot};
use kvtier_evict::EvictionHint;
use kvtier_index::ReserveRequest;
use kvtier_key::{ChunkShape, Facts};
use kvtier_mem::View;

use crate::counters::add;
use crate::data_dir::DataDir;
use crate::direct_io::PAGE;
use crate::inspect;
use crate::layout::Unshaped;
use crate::load_buffers::not_aligned;
use crate::mover::Mover;
use crate::op_threads::OpThreads;
use crate::save_batch::PendingChunk;
use crate::shared::Shared;
use crate::space::{FileSize, ReserveError, ReserveOutcome, SpaceReservation};
use crate::thread_pool::Lane;
use crate::wait_queue::{QueueEntry, WaitToken};
use encode::EncodedChunk;

/// A save that was admitted.
pub struct SaveRequest<M: Mover> {
    pub shared: Arc<Shared<M>>,
    pub threads: OpThreads,
    pub op: Save,
    pub pending: PendingChunk<M>,
    /// The tensor that a full chunk of the batch is, where the caller states it.
    pub shape: Option<Arc<ChunkShape>>,
    /// The last field, as in [`Saving`].
    pub slot: Slot<Save, Saved>,
}

/// A save under way; see the [module](self).
struct Saving<M: Mover> {
    shared: Arc<Shared<M>>,
    threads: OpThreads,
    /// Dropped before the answer is given.
    pending: PendingChunk<M>,
    space: Option<SpaceReservation<M>>,
    /// The facts of a foreign layout's file, for its attribute.
    facts: Option<Facts>,
    /// The header of a foreign layout's file, where it has one.
    header: Option<Vec<u8>>,
    len: u64,
    /// The chunk's bytes, where the CPU cannot reach the caller's.
    fetched: Option<Vec<View>>,
    /// The encoded chunk, which is written instead of the caller's bytes.
    encoded: Option<EncodedChunk>,
    /// How often the device was full while the file was written.
    device_full: u32,
    /// The operation, until it is answered. The last field: an unanswered slot that is dropped
    /// answers `Closed`, after all that the save holds is released.
    answer: Option<Unanswered>,
}

/// An operation and the slot that answers it.
struct Unanswered {
    op: Save,
    slot: Slot<Save, Saved>,
}

impl<M: Mover> SaveRequest<M> {
    /// Begins the save, unless the chunk is stored already or cannot be saved now.
    pub fn begin(self) {
        // The pool may have been busy past the deadline. Nothing was reserved so far, so nothing
        // has to be released.
        if let Some(over) = self.slot.is_over() {
            let error = Error::new(over, "ended before it began").with_op("save");
            return self.slot.finish(self.op, Err(error));
        }
        let len = self.op.from.iter().map(|view| view.len() as u64).sum();
        if self.is_present(len) {
            return self.answer_present();
        }
        if let Some(error) = self.shared.misfit(&self.op.key, Some(len)) {
            return self.refuse(error);
        }
        // Layouts with headers need the tensor's shape, which the caller, the configuration or
        // earlier files state.
        let shape = self.shape.as_deref();
        let foreign = self.shared.data_dir.foreign();
        let header = foreign.map(|foreign| foreign.header(&self.op.key, len, shape));
        match header.unwrap_or(Ok(None)) {
            Ok(header) => self.into_saving(len, header).begin_write(),
            // No chunk has shown the shape so far. A later save may succeed, so this is no error.
            Err(Unshaped::Yet) => {
                add(&self.shared.counters.shed, 1);
                self.slot.finish(self.op, Ok(Saved::Shed(ShedReason::Throttled)));
            }
            Err(Unshaped::Never(error)) => self.refuse(error),
        }
    }

    /// Whether the chunk is stored with this length.
    fn is_present(&self, len: u64) -> bool {
        let shared = &self.shared;
        let digest = self.op.key.digest();
        // A peer may have saved the chunk since. Its record costs a read of a log; without it the
        // same bytes would be written twice.
        let known = shared.known_len(digest).or_else(|| match shared.data_dir.foreign() {
            Some(_) => shared.find_on_disk(&self.op.key, None),
            None => {
                shared.follow_changes();
                shared.known_len(digest)
            }
        });
        // Another length is another content: it is saved, and replaces what is stored.
        if known != Some(len) {
            return false;
        }
        // A peer may have evicted the file, and a caller that gets `Present` does not save again.
        let Ok(Some(file)) = shared.data_dir.find(digest, len) else {
            shared.forget_missing(digest, len);
            return false;
        };
        // Where encryption was turned on, what is stored in clear is saved again, compressed or not.
        if !shared.takes_plain && inspect::is_in_clear(shared.data_dir.root(), digest, len) {
            shared.set_unusable(digest, len, file);
            return false;
        }
        true
    }

    fn answer_present(self) {
        let shared = self.shared;
        let digest = *self.op.key.digest();
        // A batch of many counts as one use of its chain, which its end reports; the journal still
        // needs each chunk.
        if self.pending.batch().has_many() {
            shared.note_use(&[digest]);
        } else {
            shared.used(&[digest], &EvictionHint::new());
        }
        // Before the answer: the next save of the chain must not find this one still pending.
        drop(self.pending);
        add(&shared.counters.present, 1);
        self.slot.finish(self.op, Ok(Saved::Present));
    }

    fn refuse(self, error: Error) {
        let error = error.with_op("save").with_tier(self.shared.caps.name.clone());
        self.slot.finish(self.op, Err(error));
    }

    fn into_saving(self, len: u64, header: Option<Vec<u8>>) -> Saving<M> {
        let SaveRequest { shared, threads, op, slot, pending, .. } = self;
        Saving {
            shared,
            threads,
            pending,
            answer: Some(Unanswered { op, slot }),
            space: None,
            facts: None,
            header,
            len,
            fetched: None,
            encoded: None,
            device_full: 0,
        }
    }
}

/// The sizes of the files of a chunk of `len` bytes. In a foreign layout the last page is written
/// whole, and cut before the file is published. A second sidecar is claimed too: a peer that evicts
/// the chunk before its sidecar has its name releases both, and the sidecar is there until the save
/// deletes it.
pub fn size_of(data_dir: &DataDir, len: u64) -> FileSize {
    let published = data_dir.file_len(len);
    let data = data_dir.data_len(len);
    let allocated = data.next_multiple_of(PAGE);
    let claimed = published + (allocated - data) + data_dir.head_bytes();
    FileSize { claimed, published, allocated }
}

/// The size of the file of a chunk that is stored in `bytes`.
fn size_of_encoded(bytes: u64) -> FileSize {
    FileSize { claimed: bytes, published: bytes, allocated: bytes }
}

impl<M: Mover> Saving<M> {
    /// Encodes the chunk, in a tier that does so, and reserves space.
    fn begin_write(self) {
        if self.shared.encoding.is_on() { self.encode(None) } else { self.begin_reserve() }
    }

    /// Begins to reserve space for the chunk, encoded or not.
    fn begin_reserve(mut self) {
        let Some(Unanswered { op, slot }) = &self.answer else { return };
        let shared = &self.shared;
        let size = match &self.encoded {
            Some(encoded) => size_of_encoded(encoded.file_len()),
            None => size_of(&shared.data_dir, self.len),
        };
        let request = ReserveRequest::new(size.claimed)
            .with_place(self.pending.place())
            .with_tenant(shared.tenants.id(op.key.namespace().tenant()))
            .with_digest(op.key.digest());
        self.space = Some(SpaceReservation::new(shared, request, size, slot.deadline()));
        self.reserve(None);
    }

    /// Reserves space, or waits for it.
    fn reserve(mut self, token: Option<WaitToken>) {
        if let Some(error) = self.ended("ended while it waited for space") {
            return self.end(Err(error));
        }
        // The clone shares the queue: the save moves into the callback that the queue keeps.
        let queue = self.shared.space.queue.clone();
        // The count is read before the attempt. Space that is released in between changes it, and
        // the wait below then ends at once.
        let releases = (token.is_some() || queue.is_empty()).then(|| queue.releases());
        let reserved = match (&mut self.space, releases) {
            (Some(space), Some(_)) => space.reserve(),
            // Saves that wait already go first.
            (Some(_), None) => Ok(ReserveOutcome::Wait),
            (None, _) => return,
        };
        match reserved {
            Ok(ReserveOutcome::Wait) => {
                let threads = self.threads.clone();
                let entry = QueueEntry { token, releases };
                threads.wait(&queue, entry, Lane::Write, move |token| self.reserve(Some(token)));
            }
            // The token goes first, so that the next save in the queue tries while this one writes.
            Ok(ReserveOutcome::Reserved) => {
                drop(token);
                self.write(None);
            }
            // A save that is shed costs a later miss. Callers expect that of a cache, and continue.
            Err(ReserveError::Shed(reason)) => self.end(Ok(Saved::Shed(reason))),
            Err(ReserveError::Failed(e)) => self.end_without_file(e),
        }
    }

    fn end_without_file(self, e: io::Error) {
        let Some(key) = self.key() else { return };
        let what = match e.kind() {
            io::ErrorKind::NotFound => {
                "the directory's `.kvtier` was deleted and cannot be created again; check the path and its permissions"
            }
            _ => "cannot create a file",
        };
        let error = self.shared.io_error("save", &key, what, e);
        self.end(Err(error));
    }

    /// The error of a save whose caller does not wait any more.
    fn ended(&self, what: &'static str) -> Option<Error> {
        let over = self.answer.as_ref().and_then(|answer| answer.slot.is_over())?;
        Some(Error::new(over, what).with_op("save"))
    }

    fn key(&self) -> Option<Key> {
        self.answer.as_ref().map(|answer| answer.op.key.clone())
    }

    /// Releases what the save holds, and answers.
    fn end(mut self, result: Result<Saved, Error>) {
        if matches!(result, Ok(Saved::Shed(_))) {
            add(&self.shared.counters.shed, 1);
        }
        // Taken out, so that the drop of all other fields comes before the answer: space, files,
        // and the place in the chain.
        let answer = self.answer.take();
        drop(self);
        if let Some(Unanswered { op, slot }) = answer {
            slot.finish(op, result);
        }
    }
}

impl<M: Mover> Drop for Saving<M> {
    /// Returns the memory of the encoded chunk.
    fn drop(&mut self) {
        self.release_encoded();
    }
}

/// Why a save can never succeed here, whatever the state of the tier.
pub fn refusal(key: &Key, from: &[View], mover: &impl Mover, bounce_bytes: usize) -> Option<Error> {
    let invalid = |what: String| {
        Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest()))
    };
    let len: u64 = from.iter().map(|v| v.len() as u64).sum();
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if let Some(view) = from.iter().find(|v| !mover.reaches(v.place())) {
        return invalid(format!(
            "this tier does not reach memory at {:?}; use one that does",
            view.place()
        ));
    }
    // Such a chunk is fetched into staging memory as a whole, before it is written.
    let far = from.iter().any(|v| !v.place().is_host());
    if far && len > mover.fetch_bytes_max() {
        let most = mover.fetch_bytes_max();
        return invalid(format!(
            "{len} bytes of GPU memory, more than the {most} of staging memory; raise staging_bytes"
        ));
    }
    let aligned = |v: &View| (v.addr() as u64).is_multiple_of(PAGE);
    let pieces_aligned = |v: &View| (v.len() as u64).is_multiple_of(PAGE);
    let all_aligned = || from.iter().all(aligned) && from.iter().rev().skip(1).all(pieces_aligned);
    if !far && len > bounce_bytes as u64 && !all_aligned() {
        return invalid(not_aligned(bounce_bytes));
    }
    match key.full_bytes() {
        Some(full) if len > full || (len < full && !key.namespace().allow_partial()) => {
            invalid(format!(
                "the namespace has chunks of {full} bytes, this one has {len}; fix the layout or allow partial chunks"
            ))
        }
        _ => None,
    }
}
