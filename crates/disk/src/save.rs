use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier_core::{Error, ErrorKind, Event, Key, Save, Saved, ShedReason, Slot};
use kvtier_index::{Inserted, Refusal, Reservation, Reserve};
use kvtier_key::{BlockSums, Facts};
use kvtier_mem::View;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::O_DIRECT;

use crate::counters::add;
use crate::mover::{Moved, Mover, Part, Transfer};
use crate::name::{PAGE, file_len};
use crate::shared::Shared;
use crate::{footer, pool::Pool};

/// How long a save waits for room that others are freeing before it is shed.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// A save under way: the duty to answer, the room claimed, the unfinished file. Whatever ends it gives all three back.
struct Saving<M: Mover> {
    shared: Arc<Shared<M>>,
    op: Option<(Save, Slot<Save, Saved>)>,
    room: Option<Reservation>,
    draft: Option<PathBuf>,
    len: u64,
}

/// A save, first half: claim room, make the file, start writing it.
pub fn begin<M: Mover>(shared: &Arc<Shared<M>>, pool: &Arc<Pool>, op: Save, slot: Slot<Save, Saved>) {
    if let Some(over) = slot.is_over() {
        return slot.finish(op, Err(Error::new(over, "ended before it began").with_op("save")));
    }
    let len = op.from.iter().map(|v| v.len() as u64).sum();
    let known = shared.index().get(op.key.digest()).map(|e| e.chunk.len);
    if known == Some(len) {
        shared.index().touch_batch(&[*op.key.digest()]);
        add(&shared.counters.present, 1);
        return slot.finish(op, Ok(Saved::Present));
    }
    let deadline = slot.deadline();
    let mut saving = Saving { shared: Arc::clone(shared), op: Some((op, slot)), room: None, draft: None, len };
    match claim(shared, file_len(len), deadline) {
        Ok(room) => saving.room = Some(room),
        Err(reason) => {
            add(&shared.counters.shed, 1);
            return saving.end(Ok(Saved::Shed(reason)));
        }
    }
    match saving.prepare() {
        Ok(transfer) => saving.submit(pool, transfer),
        Err(end) => saving.end(end),
    }
}

/// Claims room for a file, deleting what the index chooses.
fn claim<M: Mover>(shared: &Shared<M>, bytes: u64, deadline: Instant) -> Result<Reservation, ShedReason> {
    let patience = deadline.min(Instant::now() + ROOM_WAIT_MAX);
    let mut index = shared.index();
    loop {
        match index.reserve(shared.now_ms(), bytes) {
            Reserve::Granted(room) => return Ok(room),
            Reserve::Evict(victims) => {
                drop(index);
                shared.evict(victims);
                index = shared.index();
            }
            Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
            Reserve::Full(_) => return Err(ShedReason::Full),
            _ => {
                let left = patience.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ShedReason::Full);
                }
                index = shared.room_freed.wait_timeout(index, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl<M: Mover> Saving<M> {
    /// Makes the unfinished file and all that goes into it.
    fn prepare(&mut self) -> Result<Transfer, Result<Saved, Error>> {
        let Some((op, _)) = &self.op else { return Err(Err(Error::new(ErrorKind::Closed, "already ended"))) };
        let (shared, len, key) = (&self.shared, self.len, &op.key);
        let fail = |what, e: io::Error| Err(shared.io_error("save", key, what, e));
        let throttled = || Err(Ok(Saved::Shed(ShedReason::Throttled)));
        let Ok(mut tail) = shared.tails.lease(2 * PAGE as usize) else { return throttled() };
        let sums = sums(shared, &op.from);
        let facts = Facts::plain(*key.digest(), key.namespace().digest(), sums);
        let Ok(page) = footer::encode(&facts, key) else {
            return Err(
                Err(Error::new(ErrorKind::Invalid, "the key is too long for a footer").with_key(*key.digest())),
            );
        };
        let whole = (len - len % PAGE) as usize;
        let Ok(mut parts) = self.payload(&op.from, whole) else { return throttled() };
        let mut pair = last_bytes(&op.from, whole);
        add(&shared.counters.copied_tail_bytes, pair.len() as u64);
        pair.resize(pair.len().next_multiple_of(PAGE as usize), 0);
        pair.extend_from_slice(&page);
        if let Err(e) = tail.write_at(0, &pair) {
            return Err(Err(Error::new(ErrorKind::Invalid, "page pair too small").with_source(e)));
        }
        parts.push(Part::Write { at: whole as u64, from: tail.freeze() });
        let draft = shared.home.unfinished();
        let file = create(&draft).map_err(|e| fail("cannot create a file", e))?;
        self.draft = Some(draft);
        // Without this, direct writes that grow a file wait for one another. Where it is not supported, they just do.
        match fallocate(&file, FallocateFlags::empty(), 0, file_len(len) as i64) {
            Ok(()) | Err(nix::errno::Errno::EOPNOTSUPP) => {}
            Err(e) => return Err(fail("cannot allocate a file", e.into())),
        }
        Ok(Transfer { file: Arc::new(file.into()), parts, watch: None })
    }

    /// The payload's whole pages: the caller's views where they are aligned, else a copy in bounce memory.
    fn payload(&self, from: &[View], whole: usize) -> Result<Vec<Part>, kvtier_mem::Error> {
        let (page, mut at, mut parts) = (PAGE as usize, 0, Vec::with_capacity(from.len() + 1));
        for view in from {
            let n = view.len().min(whole - at);
            if n > 0 {
                parts.push(Part::Write { at: at as u64, from: view.slice(0..n) });
                at += n;
            }
        }
        let aligned =
            |p: &Part| matches!(p, Part::Write { from, .. } if from.addr() % page == 0 && from.len() % page == 0);
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

    fn submit(self, pool: &Arc<Pool>, transfer: Transfer) {
        let shared = Arc::clone(&self.shared);
        let ours = Arc::new(Mutex::new(Some(self)));
        let (held, pool) = (Arc::clone(&ours), Arc::clone(pool));
        let done = Box::new(move |moved: Moved| {
            // Publishing renames: not on the mover's thread.
            if let Some(saving) = held.lock().unwrap_or_else(PoisonError::into_inner).take() {
                pool.push(move || saving.publish(moved));
            }
        });
        if let Err(refused) = shared.mover.submit(transfer, done)
            && let Some(saving) = ours.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            drop(refused.transfer);
            let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("save");
            saving.end(if refused.closed { Err(closed) } else { Ok(Saved::Shed(ShedReason::Throttled)) });
        }
    }

    /// A save, second half: make the file visible under its name, at once and whole.
    fn publish(mut self, moved: Moved) {
        let Some(key) = self.op.as_ref().map(|(op, _)| op.key.clone()) else { return };
        let shared = Arc::clone(&self.shared);
        drop(moved.transfer);
        if let Err(e) = moved.result {
            let error = shared.io_error("save", &key, "cannot write the chunk's file", e);
            return self.end(Err(error));
        }
        if let Err(end) = self.name_it(&key) {
            return self.end(end);
        }
        shared.learn_length(self.len);
        add(&shared.counters.stored, 1);
        add(&shared.counters.saved_bytes, self.len);
        shared.tell(&[Event::Stored { key: *key.digest(), len: self.len }]);
        self.end(Ok(Saved::Stored));
        let victims = shared.index().victims(shared.now_ms(), 0);
        shared.evict(victims);
    }

    /// Gives the file its name and tells the index: in one step, as far as anybody can see.
    fn name_it(&mut self, key: &Key) -> Result<(), Result<Saved, Error>> {
        let (Some(draft), Some(room)) = (self.draft.take(), self.room.take()) else { return Ok(()) };
        let (shared, digest, len) = (&self.shared, key.digest(), self.len);
        let _one = shared.name(digest);
        let path = shared.home.chunk(digest, len);
        if let Err(e) = fs::rename(&draft, &path) {
            (self.draft, self.room) = (Some(draft), Some(room));
            return Err(Err(shared.io_error("save", key, "cannot publish the chunk's file", e)));
        }
        let inserted = shared.index().commit(room, shared.chunk(key, len));
        // What nobody counts must not lie there: a chunk the index cannot take, or one of this key with another length.
        match inserted {
            Inserted::Refused(_) => {
                let _ = fs::remove_file(path);
                return Err(Ok(Saved::Shed(ShedReason::Full)));
            }
            Inserted::Replaced { old } if old.len != len => {
                let _ = fs::remove_file(shared.home.chunk(digest, old.len));
            }
            _ => {}
        }
        Ok(())
    }

    fn end(mut self, result: Result<Saved, Error>) {
        let op = self.op.take();
        drop(self);
        if let Some((op, slot)) = op {
            slot.finish(op, result);
        }
    }
}

impl<M: Mover> Drop for Saving<M> {
    /// Gives back room and unfinished file however the save ended; the slot, dropped last, answers `Closed` if nobody did.
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            let _ = fs::remove_file(draft);
        }
        if let Some(room) = self.room.take() {
            self.shared.index().cancel(room);
            self.shared.room_freed.notify_all();
        }
    }
}

fn create(path: &std::path::Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    match options.clone().custom_flags(O_DIRECT).open(path) {
        // A file system without direct I/O: write through the page cache.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let _ = fs::remove_file(path);
            options.open(path)
        }
        other => other,
    }
}

/// The payload's sums: remembered by a view that has been summed before, else one pass.
fn sums<M: Mover>(shared: &Shared<M>, from: &[View]) -> BlockSums {
    let sum = |bytes: &[u8]| {
        add(&shared.counters.summed_save_bytes, bytes.len() as u64);
        BlockSums::of(bytes)
    };
    match from {
        [one] => one.memo(|| sum(one.as_ref())).cloned().unwrap_or_else(|| sum(one.as_ref())),
        many => {
            add(&shared.counters.summed_save_bytes, many.iter().map(|v| v.len() as u64).sum());
            BlockSums::of_pieces(many.iter().map(View::as_ref))
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

/// Why a save can never succeed here, whatever the state of the tier.
pub fn refusal(key: &Key, from: &[View], bounce: bool) -> Option<Error> {
    let invalid = |what: String| Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest()));
    let len: u64 = from.iter().map(|v| v.len() as u64).sum();
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if let Some(view) = from.iter().find(|v| v.as_host().is_none()) {
        return invalid(format!("memory at {:?} cannot be read by the CPU; use a tier that can", view.place()));
    }
    if !bounce && from.iter().any(|v| !(v.addr() as u64).is_multiple_of(PAGE)) {
        return invalid("memory not aligned to 4096 bytes; align it or allow bounce memory".into());
    }
    let kvtier_key::KeyId::Object(id) = key.id() else { return None };
    match key.namespace().chunk_bytes(id.group) {
        Some(full) if len > full || (len < full && !key.namespace().allow_partial()) => invalid(format!(
            "the namespace has chunks of {full} bytes, this one has {len}; fix the layout or allow partial chunks"
        )),
        _ => None,
    }
}
