use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind, Event, Hint, Key, Save, Saved, ShedReason, Slot};
use kvtier_index::journal::Record;
use kvtier_index::{InsertOutcome, ReserveRequest};
use kvtier_key::{BlockSums, ChunkShape, Facts};
use kvtier_mem::View;

use crate::batch::{PendingChunk, SaveBatch};
use crate::config::Durability;
use crate::counters::add;
use crate::data_dir::{DataDir, Draft, is_full};
use crate::footer;
use crate::layout::{self, Unshaped};
use crate::mover::{Moved, Mover, Part, Transfer};
use crate::name::PAGE;
use crate::pool::Lane;
use crate::shared::Shared;
use crate::space::{FileSize, ReserveError, ReserveOutcome, SpaceReservation};
use crate::wait_queue::{QueueEntry, WaitToken};
use crate::workers::Workers;

/// How often a save evicts for a medium that is full while it writes.
const SQUEEZES_MAX: u32 = 4;

/// A save under way: the duty to answer, the room claimed, the unfinished file. Whatever ends it
/// gives all three back.
pub struct Saving<M: Mover> {
    shared: Arc<Shared<M>>,
    pending: PendingChunk<M>,
    /// Dropped before the answer is given.
    _batch: Arc<SaveBatch<M>>,
    op: Option<(Save, Slot<Save, Saved>)>,
    room: Option<SpaceReservation<M>>,
    /// What lies beside the file in a foreign layout: facts as its attribute, in some a header in
    /// a file of its own too.
    facts: Option<Facts>,
    header: Option<Vec<u8>>,
    sidecar: Option<Draft>,
    len: u64,
    /// The chunk's bytes, where the caller's are out of the CPU's reach.
    fetched: Option<Vec<View>>,
    /// How often the medium was found full while the file was written.
    squeezed: u32,
}

/// Why a save cannot go on now.
enum Stop {
    /// It has ended so.
    End(Result<Saved, Error>),
    /// The tier's own buffers are all in use.
    NoMemory,
}

/// A save that was let in.
pub struct Asked<M: Mover> {
    pub op: Save,
    pub slot: Slot<Save, Saved>,
    pub pending: PendingChunk<M>,
    /// The batch that it is part of.
    pub batch: Arc<SaveBatch<M>>,
    /// The tensor that a full chunk of the batch is, where the caller states it.
    pub shape: Option<Arc<ChunkShape>>,
}

/// A save, first half: claim room, make the file, start writing it.
pub fn begin<M: Mover>(shared: &Arc<Shared<M>>, workers: &Workers, asked: Asked<M>) {
    let Asked { op, slot, pending, batch, shape } = asked;
    if let Some(over) = slot.is_over() {
        return slot.finish(op, Err(Error::new(over, "ended before it began").with_op("save")));
    }
    let len = op.from.iter().map(|v| v.len() as u64).sum();
    let mut known = shared.known_len(op.key.digest());
    if known.is_none() {
        known = match shared.data_dir.foreign() {
            Some(_) => shared.find_on_disk(&op.key, None),
            None => {
                shared.follow_changes();
                shared.known_len(op.key.digest())
            }
        };
    }
    // Asked for: a neighbour may have evicted it, and whoever is told `Present` will not save it
    // again.
    if known == Some(len)
        && !shared.data_dir.find(op.key.digest(), len).is_ok_and(|there| there.is_some())
    {
        shared.forget_missing(op.key.digest(), len);
        known = None;
    }
    if known == Some(len) {
        if batch.has_many() {
            shared.note_use(&[*op.key.digest()]);
        } else {
            shared.used(&[*op.key.digest()], &Hint::default());
        }
        drop(batch);
        add(&shared.counters.present, 1);
        return slot.finish(op, Ok(Saved::Present));
    }
    if let Some(error) = shared.misfit(&op.key, Some(len)) {
        return slot.finish(op, Err(error.with_op("save").with_tier(shared.caps.name.clone())));
    }
    let header =
        shared.data_dir.foreign().map(|foreign| foreign.header(&op.key, len, shape.as_deref()));
    let header = match header.unwrap_or(Ok(None)) {
        Ok(header) => header,
        Err(Unshaped::Yet) => return shed(shared, op, slot, ShedReason::Throttled),
        Err(Unshaped::Never(error)) => {
            return slot.finish(op, Err(error.with_op("save").with_tier(shared.caps.name.clone())));
        }
    };
    let tenant = shared.tenants.id(op.key.namespace().tenant());
    let size = size_of(&shared.data_dir, len);
    let want = ReserveRequest::new(size.claimed)
        .with_place(pending.place())
        .with_tenant(tenant)
        .with_digest(op.key.digest());
    let room = Some(SpaceReservation::new(shared, want, size, slot.deadline()));
    let (op, shared, _batch) = (Some((op, slot)), Arc::clone(shared), batch);
    let (sidecar, facts, fetched, squeezed) = (None, None, None, 0);
    let saving = Saving {
        shared,
        pending,
        _batch,
        op,
        room,
        facts,
        header,
        sidecar,
        len,
        fetched,
        squeezed,
    };
    saving.claim(workers, None);
}

/// How large the files of a chunk of `len` bytes are, at most and at last: in a foreign layout the
/// last page is written whole, and cut before it is published.
fn size_of(data_dir: &DataDir, len: u64) -> FileSize {
    let (published, data) = (data_dir.file_len(len), data_dir.data_len(len));
    let allocated = data.next_multiple_of(PAGE);
    FileSize { claimed: published + (allocated - data), published, allocated }
}

/// Answers a save that cannot be taken now.
fn shed<M: Mover>(shared: &Shared<M>, op: Save, slot: Slot<Save, Saved>, reason: ShedReason) {
    add(&shared.counters.shed, 1);
    slot.finish(op, Ok(Saved::Shed(reason)));
}

impl<M: Mover> Saving<M> {
    /// Claims room, or waits in line for it.
    fn claim(mut self, workers: &Workers, token: Option<WaitToken>) {
        if let Some(over) = self.op.as_ref().and_then(|(_, slot)| slot.is_over()) {
            return self
                .end(Err(Error::new(over, "ended while it waited for room").with_op("save")));
        }
        let queue = self.shared.space_queue.clone();
        let workers2 = workers.clone();
        let tried = (token.is_some() || queue.is_empty()).then(|| queue.releases());
        let claimed = if tried.is_some() {
            self.room.as_mut().map(SpaceReservation::reserve)
        } else {
            Some(Ok(ReserveOutcome::Wait))
        };
        match claimed {
            Some(Ok(ReserveOutcome::Wait)) => {
                workers.wait(
                    &queue,
                    QueueEntry { token, releases: tried },
                    Lane::Write,
                    move |token| self.claim(&workers2, Some(token)),
                );
            }
            Some(Err(ReserveError::Shed(reason))) => self.end(Ok(Saved::Shed(reason))),
            Some(Err(ReserveError::Failed(e))) => self.not_made(e),
            Some(Ok(ReserveOutcome::Reserved)) | None => {
                drop(token);
                self.start(workers, None);
            }
        }
    }

    /// Ends a save whose file cannot be made.
    fn not_made(self, e: io::Error) {
        let Some(key) = self.op.as_ref().map(|(op, _)| op.key.clone()) else { return };
        let what = match e.kind() {
            io::ErrorKind::NotFound => {
                "the directory's `.kvtier` was deleted and cannot be made again; check the path and its permissions"
            }
            _ => "cannot create a file",
        };
        let error = self.shared.io_error("save", &key, what, e);
        self.end(Err(error));
    }

    /// Starts to write, or waits in line for memory.
    fn start(mut self, workers: &Workers, token: Option<WaitToken>) {
        if let Some(over) = self.op.as_ref().and_then(|(_, slot)| slot.is_over()) {
            return self
                .end(Err(Error::new(over, "ended while it waited for memory").with_op("save")));
        }
        if self.is_far() {
            return self.fetch(workers);
        }
        let queue = self.shared.memory_queue.clone();
        let workers2 = workers.clone();
        let releases = queue.releases();
        match self.prepare() {
            Ok(transfer) => self.submit(workers, transfer),
            Err(Stop::End(end)) => self.end(end),
            Err(Stop::NoMemory) => {
                workers.wait(
                    &queue,
                    QueueEntry { token, releases: Some(releases) },
                    Lane::Write,
                    move |token| self.start(&workers2, Some(token)),
                );
            }
        }
    }

    /// Whether the bytes still have to be brought to where the CPU reaches them.
    fn is_far(&self) -> bool {
        let far = |(op, _): &(Save, Slot<Save, Saved>)| {
            op.from.iter().any(|view| !view.place().is_host())
        };
        self.fetched.is_none() && self.op.as_ref().is_some_and(far)
    }

    /// Brings the bytes to where the CPU reaches them, then starts.
    fn fetch(mut self, workers: &Workers) {
        let Some((op, _)) = &self.op else { return };
        let (from, shared, workers) = (op.from.clone(), Arc::clone(&self.shared), workers.clone());
        shared.mover.fetch(
            from,
            Box::new(move |fetched| {
                let pool = Arc::clone(&workers.pool);
                pool.push(Lane::Write, move || match fetched {
                    Ok(views) => {
                        self.fetched = Some(views);
                        self.start(&workers, None);
                    }
                    Err(e) => {
                        let key = self.op.as_ref().map(|(op, _)| op.key.clone());
                        let error = |key: Key| {
                            self.shared.io_error(
                                "save",
                                &key,
                                "cannot read the chunk from the GPU",
                                e,
                            )
                        };
                        let error = key
                            .map_or_else(|| Error::new(ErrorKind::Closed, "already ended"), error);
                        self.end(Err(error));
                    }
                });
            }),
        );
    }

    /// Makes the unfinished file and all that goes into it.
    fn prepare(&mut self) -> Result<Transfer, Stop> {
        let failed = |error: Error| Stop::End(Err(error));
        let Some((op, _)) = &self.op else {
            return Err(failed(Error::new(ErrorKind::Closed, "already ended")));
        };
        let (shared, len, key) = (Arc::clone(&self.shared), self.len, op.key.clone());
        let from = self.fetched.as_ref().unwrap_or(&op.from);
        let Ok(mut tail) = shared.tails.lease(2 * PAGE as usize) else {
            return Err(Stop::NoMemory);
        };
        let facts = Facts::plain(*key.digest(), key.namespace().digest(), sums(&shared, from));
        let foreign = shared.data_dir.foreign();
        let page = match (foreign, &self.header) {
            (None, _) => footer::encode(&facts, &key).map(Vec::from),
            (Some(_), header) => Ok(header.clone().unwrap_or_default()),
        };
        let Ok(page) = page else {
            let error = Error::new(ErrorKind::Invalid, "the key is too long for a footer");
            return Err(failed(error.with_key(*key.digest())));
        };
        self.facts = foreign.map(|_| facts);
        let whole = (len - len % PAGE) as usize;
        let Ok(mut parts) = self.payload(from, whole) else { return Err(Stop::NoMemory) };
        let mut pair = last_bytes(from, whole);
        add(&shared.counters.copied_tail_bytes, pair.len() as u64);
        pair.resize(pair.len().next_multiple_of(PAGE as usize), 0);
        let last = pair.len();
        pair.extend_from_slice(&page);
        if let Err(e) = tail.write_at(0, &pair) {
            return Err(failed(
                Error::new(ErrorKind::Invalid, "page pair too small").with_source(e),
            ));
        }
        let pair = tail.freeze();
        // A footer follows the payload, a header stands before it.
        let behind = if self.header.is_some() { last } else { pair.len() };
        if behind > 0 {
            parts.push(Part::Write { at: whole as u64, from: pair.slice(0..behind) });
        }
        layout::behind(shared.data_dir.head_bytes(), &mut parts);
        if behind < pair.len() {
            parts.push(Part::Write { at: 0, from: pair.slice(behind..pair.len()) });
        }
        let Some(file) = self.room.as_mut().and_then(SpaceReservation::take_file) else {
            return Err(failed(Error::new(ErrorKind::Closed, "already ended")));
        };
        Ok(Transfer { file: Arc::new(file.into()), parts, watch: None, sums: None })
    }

    /// Evicts for a medium that says it is full; answers whether to try again.
    fn squeeze(&mut self) -> bool {
        add(&self.shared.counters.device_full, 1);
        self.squeezed += 1;
        self.squeezed <= SQUEEZES_MAX
            && self.room.as_ref().is_some_and(SpaceReservation::evict_for_device)
    }

    /// The writes of the first `whole` bytes: straight from the views where they allow it, else
    /// through bounce memory.
    fn payload(&self, from: &[View], whole: usize) -> Result<Vec<Part>, kvtier_mem::Error> {
        let mut parts = Vec::with_capacity(from.len() + 1);
        let mut at = 0;
        for view in from {
            let n = view.len().min(whole - at);
            if n > 0 {
                parts.push(Part::Write { at: at as u64, from: view.slice(0..n) });
                at += n;
            }
        }
        let aligned = |part: &Part| match part {
            Part::Write { from, .. } => (from.addr() | from.len()).is_multiple_of(PAGE as usize),
            Part::Read { .. } => false,
        };
        if parts.iter().all(aligned) {
            return Ok(parts);
        }
        let mut bounce = self.shared.bounce.lease(whole)?;
        let mut at = 0;
        for part in &parts {
            let Part::Write { from, .. } = part else { continue };
            bounce.write_at(at, from.as_ref())?;
            at += from.len();
        }
        add(&self.shared.counters.copied_bounce_bytes, whole as u64);
        Ok(vec![Part::Write { at: 0, from: bounce.freeze() }])
    }

    fn submit(self, workers: &Workers, transfer: Transfer) {
        let shared = Arc::clone(&self.shared);
        let ours = Arc::new(Mutex::new(Some(self)));
        let (held, workers) = (Arc::clone(&ours), workers.clone());
        let done = Box::new(move |moved: Moved| {
            // Publishing renames: not on the mover's thread.
            if let Some(saving) = held.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let pool = Arc::clone(&workers.pool);
                pool.push(Lane::Write, move || saving.publish(&workers, moved));
            }
        });
        if let Err(refused) = shared.mover.submit(transfer, done)
            && let Some(saving) = ours.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            drop(refused.transfer);
            let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("save");
            saving.end(if refused.closed {
                Err(closed)
            } else {
                Ok(Saved::Shed(ShedReason::Throttled))
            });
        }
    }

    /// A save, second half: make the file visible under its name, at once and whole, and answer
    /// when it is as durable as asked.
    fn publish(mut self, workers: &Workers, moved: Moved) {
        let Some(key) = self.op.as_ref().map(|(op, _)| op.key.clone()) else { return };
        let shared = Arc::clone(&self.shared);
        let Moved { transfer, result, .. } = moved;
        let written = match result {
            Err(e) if is_full(&e) && self.squeeze() => return self.submit(workers, transfer),
            Err(e) if is_full(&e) => Err(shared.shed_by_device()),
            Err(e) => Err(shared.end_of_save(&key, "cannot write the chunk's file", e)),
            Ok(_) => self.finish_files(&key, &transfer.file),
        };
        // Before the answer, however it went: who hears it may want its memory for itself.
        drop(transfer);
        shared.memory_queue.notify();
        if let Err(end) = written {
            return self.end(end);
        }
        // Whoever was told that it took too long may have removed the key since: it must not appear
        // after that.
        if let Some(over) = self.op.as_ref().and_then(|(_, slot)| slot.is_over()) {
            return self.end(Err(Error::new(over, "ended before it was published")
                .with_op("save")
                .with_key(*key.digest())));
        }
        let named = self.name_it(&key);
        shared.listeners.notify();
        if let Err(end) = named {
            return self.end(end);
        }
        match shared.durability {
            Durability::None => self.stored(&key, Ok(())),
            Durability::Fdatasync => self.stored(&key, shared.data_dir.sync_name(key.digest())),
            Durability::Syncfs => {
                workers.syncer.after_sync(Box::new(move |synced| self.stored(&key, synced)))
            }
        }
    }

    /// What is left to write when the bytes are in the file, and all of it brought to the device if
    /// it must be there.
    fn finish_files(&mut self, key: &Key, file: &OwnedFd) -> Result<(), Result<Saved, Error>> {
        let shared = Arc::clone(&self.shared);
        self.fetched = None;
        let failed = |what: &'static str, e: io::Error| Err(shared.end_of_save(key, what, e));
        if let Some(facts) = self.facts.take()
            && let Err(e) =
                layout::finish_file(&shared, file, &facts, shared.data_dir.data_len(self.len))
        {
            return failed("cannot finish the chunk's file", e);
        }
        let is_durable = shared.durability == Durability::Fdatasync;
        if is_durable && let Err(e) = nix::unistd::fdatasync(file) {
            return failed("cannot bring the chunk to the device", e.into());
        }
        if let Some(header) = self.header.take() {
            let mut made = shared.data_dir.create_small(&header, is_durable);
            if made.as_ref().is_err_and(is_full) && self.squeeze() {
                made = shared.data_dir.create_small(&header, is_durable);
            }
            match made {
                Ok(sidecar) => self.sidecar = Some(sidecar),
                Err(e) if is_full(&e) => return Err(shared.shed_by_device()),
                Err(e) => return failed("cannot write the file beside the chunk's", e),
            }
        }
        Ok(())
    }

    fn stored(self, key: &Key, synced: io::Result<()>) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = synced {
            let error = shared.io_error("save", key, "cannot bring the chunk to the device", e);
            return self.end(Err(error));
        }
        shared.learn_length(self.len);
        add(&shared.counters.stored, 1);
        add(&shared.counters.saved_bytes, self.len);
        self.end(Ok(Saved::Stored));
    }

    /// Gives the file its name and tells the index: in one step, as far as anybody can see.
    fn name_it(&mut self, key: &Key) -> Result<(), Result<Saved, Error>> {
        let Some(room) = self.room.take() else { return Ok(()) };
        let (shared, digest, len) = (&self.shared, key.digest(), self.len);
        // Now that there is such a chunk; one that could not be saved says nothing of the others.
        if let Err(error) = shared.learn_geometry(key, len) {
            self.room = Some(room);
            return Err(Err(error.with_tier(shared.caps.name.clone())));
        }
        let _one = shared.name(digest);
        let (_moving, since) = (shared.ledger_check.moving(), shared.ledger.generation());
        let mut replaced_bytes = shared.data_dir.file_len(len);
        if let Some(foreign) = shared.data_dir.foreign() {
            foreign.learn(key);
            // One name for all lengths. What another program wrote there since the last sweep is
            // not counted.
            let is_counted = !foreign.is_uncounted(digest);
            let there =
                shared.data_dir.bytes_on_disk(digest, len).ok().flatten().filter(|_| is_counted);
            replaced_bytes = there.unwrap_or(0);
        }
        let Some(draft) = room.draft() else { return Ok(()) };
        match shared.data_dir.publish(draft, digest, len) {
            Ok(false) => {}
            Ok(true) => shared.uncount(replaced_bytes, since),
            Err(e) => {
                self.room = Some(room);
                return Err(shared.end_of_save(key, "cannot publish the chunk's file", e));
            }
        }
        if let Some(sidecar) = self.sidecar.take()
            && let Err(e) = shared.data_dir.publish_sidecar(&sidecar, digest)
        {
            // What LMCache does not see is not there.
            let _ = shared.data_dir.delete(digest, len);
            shared.forget(digest, false);
            room.release_deleted(since);
            self.sidecar = Some(sidecar);
            return Err(shared.end_of_save(key, "cannot publish the file beside the chunk's", e));
        }
        let Some(reservation) = room.into_published(since) else { return Ok(()) };
        let chunk = shared.chunk(key, len).with_place(self.pending.place());
        let inserted = shared.index().commit(reservation, chunk);
        // What nobody counts must not lie there: a chunk the index cannot take, or one of this key
        // with another length.
        let superfluous = match inserted {
            InsertOutcome::Refused(_) => Some(len),
            InsertOutcome::Replaced { old } if shared.data_dir.foreign().is_none() => {
                Some(old.len).filter(|old| *old != len)
            }
            _ => None,
        };
        if let Some(superfluous) = superfluous
            && shared.data_dir.delete(digest, superfluous).is_ok_and(|there| there)
        {
            shared.uncount(shared.data_dir.file_len(superfluous), since);
        }
        if matches!(inserted, InsertOutcome::Refused(_)) {
            // Other processes may have the chunk whose file was replaced in their index.
            shared.append_change(Record::Remove(*digest));
            return Err(Ok(Saved::Shed(ShedReason::Full)));
        }
        shared.journal.note([Record::Insert(chunk)]);
        shared.append_change(Record::Insert(chunk));
        shared.listeners.push(Event::Stored { key: *digest, len });
        Ok(())
    }

    fn end(mut self, result: Result<Saved, Error>) {
        if matches!(result, Ok(Saved::Shed(_))) {
            add(&self.shared.counters.shed, 1);
        }
        let op = self.op.take();
        drop(self);
        if let Some((op, slot)) = op {
            slot.finish(op, result);
        }
    }
}

impl<M: Mover> Shared<M> {
    /// How a save ends whose system call or transfer failed.
    fn end_of_save(&self, key: &Key, what: &'static str, e: io::Error) -> Result<Saved, Error> {
        if self.note_read_only(&e) {
            return Ok(Saved::Shed(ShedReason::ReadOnly));
        }
        Err(self.io_error("save", key, what, e))
    }

    /// How a save ends for which the medium has no room, whatever was evicted.
    fn shed_by_device(&self) -> Result<Saved, Error> {
        self.full_device.note_shed(&self.clock);
        Ok(Saved::Shed(ShedReason::DeviceFull))
    }
}

impl<M: Mover> Drop for Saving<M> {
    /// Deletes the unfinished file beside the chunk's before its room is given back; the slot,
    /// dropped last, answers `Closed` if nobody did.
    fn drop(&mut self) {
        if let Some(sidecar) = self.sidecar.take() {
            let _ = self.shared.data_dir.unlink_draft(&sidecar);
        }
    }
}

/// The payload's sums: remembered by a view that has been summed before, else one pass.
fn sums<M: Mover>(shared: &Shared<M>, from: &[View]) -> BlockSums {
    let sum = |bytes: &[u8]| {
        add(&shared.counters.summed_save_bytes, bytes.len() as u64);
        BlockSums::from_bytes(bytes)
    };
    match from {
        [one] => one.memo(|| sum(one.as_ref())).cloned().unwrap_or_else(|| sum(one.as_ref())),
        many => {
            add(&shared.counters.summed_save_bytes, many.iter().map(|v| v.len() as u64).sum());
            BlockSums::from_pieces(many.iter().map(View::as_ref))
        }
    }
}

/// The bytes from `whole` on: the last partial page.
fn last_bytes(from: &[View], mut whole: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * PAGE as usize);
    for view in from {
        let skip = whole.min(view.len());
        whole -= skip;
        out.extend_from_slice(&view.as_ref()[skip..]);
    }
    out
}

/// What is wrong with memory that has to go through bounce memory, where there is not enough of it.
pub fn not_aligned(bounce_bytes: usize) -> String {
    let page = PAGE;
    format!(
        "memory not aligned to {page} bytes, and more than the {bounce_bytes} bytes of bounce memory; align it or raise bounce_bytes"
    )
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
