//! A save's file is written: bytes, padding, footer.

use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Key, Saved, ShedReason};
use kvtier_key::{BlockSums, Facts};
use kvtier_mem::View;

use super::{Saving, Unanswered};
use crate::counters::add;
use crate::direct_io::PAGE;
use crate::footer;
use crate::layout;
use crate::mover::{Moved, Mover, Part, Refused, Transfer};
use crate::shared::Shared;
use crate::space::SpaceReservation;
use crate::submit_transfer::{Submitted, submit};
use crate::thread_pool::Lane;
use crate::wait_queue::{QueueEntry, WaitToken};

/// How often a save evicts for a device that is full while the file is written.
const DEVICE_FULL_MAX: u32 = 4;

/// Why the writes cannot be submitted now.
enum Unprepared {
    /// The save ends with this error.
    Failed(Error),
    /// The tier's own buffers are all in use.
    NoMemory,
}

impl From<Error> for Unprepared {
    fn from(error: Error) -> Self {
        Unprepared::Failed(error)
    }
}

impl<M: Mover> Saving<M> {
    /// Writes the file, or waits for memory.
    pub(super) fn write(mut self, token: Option<WaitToken>) {
        if let Some(error) = self.ended("ended while it waited for memory") {
            return self.end(Err(error));
        }
        // Checksums need the bytes in memory that the CPU reads. The fetch comes back here with
        // them.
        if self.is_far() {
            return self.fetch(|save| save.write(None));
        }
        // As for space: the count of releases is read before the attempt.
        let queue = self.shared.memory.queue.clone();
        let releases = Some(queue.releases());
        match self.prepare() {
            Ok(transfer) => self.submit(transfer),
            Err(Unprepared::Failed(error)) => self.end(Err(error)),
            Err(Unprepared::NoMemory) => {
                let threads = self.threads.clone();
                let entry = QueueEntry { token, releases };
                threads.wait(&queue, entry, Lane::Write, move |token| self.write(Some(token)));
            }
        }
    }

    /// Whether the bytes are still in memory that the CPU cannot reach.
    pub(super) fn is_far(&self) -> bool {
        let is_far =
            |answer: &Unanswered| answer.op.from.iter().any(|view| !view.place().is_host());
        self.fetched.is_none() && self.encoded.is_none() && self.answer.as_ref().is_some_and(is_far)
    }

    /// Brings the bytes into memory that the CPU can reach, and goes on with `then`.
    pub(super) fn fetch(mut self, then: fn(Self)) {
        let Some(Unanswered { op, .. }) = &self.answer else { return };
        let from = op.from.clone();
        let shared = Arc::clone(&self.shared);
        let pool = Arc::clone(&self.threads.pool);
        let done = move |fetched| {
            pool.push(Lane::Write, move || match fetched {
                Ok(views) => {
                    self.fetched = Some(views);
                    then(self);
                }
                Err(e) => {
                    let what = "cannot read the chunk from the GPU";
                    let error = match self.key() {
                        Some(key) => self.shared.io_error("save", &key, what, e),
                        None => already_ended(),
                    };
                    self.end(Err(error));
                }
            });
        };
        shared.mover.fetch(from, Box::new(done));
    }

    /// Computes checksums and footer, and plans the writes.
    fn prepare(&mut self) -> Result<Transfer, Unprepared> {
        if self.encoded.is_some() {
            return self.prepare_encoded();
        }
        let Some(Unanswered { op, .. }) = &self.answer else { return Err(already_ended().into()) };
        let shared = Arc::clone(&self.shared);
        let from = self.fetched.as_ref().unwrap_or(&op.from);
        // The last partial page and the footer share one page pair, and so one write.
        let Ok(mut tail) = shared.memory.tails.lease(2 * PAGE as usize) else {
            return Err(Unprepared::NoMemory);
        };
        let namespace = op.key.namespace().digest();
        // Before the bytes are written: a file is published only with the checksums of what the
        // caller gave.
        let facts = Facts::plain(*op.key.digest(), namespace, sums(&shared, from));
        let page = self.last_page(&facts, &op.key)?;
        let whole = (self.len - self.len % PAGE) as usize;
        let Ok(mut parts) = self.payload(from, whole) else { return Err(Unprepared::NoMemory) };
        let mut pair = last_bytes(from, whole);
        add(&shared.counters.copied_tail_bytes, pair.len() as u64);
        // Direct I/O writes whole pages. The padding is zero, and loads check that.
        pair.resize(pair.len().next_multiple_of(PAGE as usize), 0);
        let last = pair.len();
        pair.extend_from_slice(&page);
        tail.write_at(0, &pair)
            .map_err(|e| Error::new(ErrorKind::Invalid, "page pair too small").with_source(e))?;
        let pair = tail.freeze();
        // A footer follows the payload; a header precedes it.
        let payload_end = if self.header.is_some() { last } else { pair.len() };
        if payload_end > 0 {
            parts.push(Part::Write { at: whole as u64, from: pair.slice(0..payload_end) });
        }
        // Offsets so far count from the payload's begin.
        layout::behind(shared.data_dir.head_bytes(), &mut parts);
        if payload_end < pair.len() {
            parts.push(Part::Write { at: 0, from: pair.slice(payload_end..pair.len()) });
        }
        self.facts = shared.data_dir.foreign().map(|_| facts);
        self.transfer(parts)
    }

    /// The same for an encoded chunk, whose memory holds its padding too.
    fn prepare_encoded(&mut self) -> Result<Transfer, Unprepared> {
        let (Some(encoded), Some(Unanswered { op, .. })) = (&self.encoded, &self.answer) else {
            return Err(already_ended().into());
        };
        let Ok(mut page) = self.shared.memory.tails.lease(PAGE as usize) else {
            return Err(Unprepared::NoMemory);
        };
        let footer = self.last_page(&encoded.facts(&op.key), &op.key)?;
        page.write_at(0, &footer)
            .map_err(|e| Error::new(ErrorKind::Invalid, "page too small").with_source(e))?;
        let payload = encoded.padded();
        let at = payload.len() as u64;
        let parts =
            vec![Part::Write { at: 0, from: payload }, Part::Write { at, from: page.freeze() }];
        self.transfer(parts)
    }

    fn transfer(&mut self, parts: Vec<Part>) -> Result<Transfer, Unprepared> {
        let file = self.space.as_mut().and_then(SpaceReservation::take_file);
        let file = file.ok_or_else(already_ended)?;
        Ok(Transfer { file: Arc::new(file.into()), parts, watch: None, sums: None })
    }

    /// The footer, or a foreign layout's header, where it has one.
    fn last_page(&self, facts: &Facts, key: &Key) -> Result<Vec<u8>, Error> {
        if self.shared.data_dir.foreign().is_some() {
            return Ok(self.header.clone().unwrap_or_default());
        }
        footer::encode(facts, key).map(Vec::from).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the key is too long for a footer")
                .with_key(*key.digest())
        })
    }

    /// The writes of the first `whole` bytes: straight from the views where they are aligned, else
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
        // The usual case: no byte is copied.
        if parts.iter().all(aligned) {
            return Ok(parts);
        }
        // One unaligned piece is enough: then all of the payload passes through bounce memory, in
        // one write.
        let mut bounce = self.shared.memory.bounce().arena.lease(whole)?;
        let mut at = 0;
        for part in &parts {
            let Part::Write { from, .. } = part else { continue };
            bounce.write_at(at, from.as_ref())?;
            at += from.len();
        }
        add(&self.shared.counters.copied_bounce_bytes, whole as u64);
        Ok(vec![Part::Write { at: 0, from: bounce.freeze() }])
    }

    pub(super) fn submit(self, transfer: Transfer) {
        let shared = Arc::clone(&self.shared);
        submit(&shared.mover, transfer, self);
    }

    /// Evicts for a device that is full. Returns whether to write again.
    pub(super) fn evict_for_device(&mut self) -> bool {
        add(&self.shared.counters.device_full, 1);
        self.device_full += 1;
        // Bounded: where other programs take the freed space again and again, the save is shed.
        self.device_full <= DEVICE_FULL_MAX
            && self.space.as_ref().is_some_and(SpaceReservation::evict_for_device)
    }
}

pub(super) fn already_ended() -> Error {
    Error::new(ErrorKind::Closed, "already ended")
}

/// The payload's checksums: those that a view keeps from an earlier pass, else computed now.
fn sums<M: Mover>(shared: &Shared<M>, from: &[View]) -> BlockSums {
    let sum = |bytes: &[u8]| {
        add(&shared.counters.summed_save_bytes, bytes.len() as u64);
        BlockSums::from_bytes(bytes)
    };
    match from {
        // A chunk that goes to several tiers is summed once: the view keeps the result.
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

impl<M: Mover> Submitted for Saving<M> {
    /// Publishes on the pool: a rename may take long.
    fn finish(self, moved: Moved) {
        let pool = Arc::clone(&self.threads.pool);
        pool.push(Lane::Write, move || self.publish(moved));
    }

    fn refused(self, refused: Refused) {
        // Memory and file first, then the answer.
        drop(refused.transfer);
        let closed = Error::new(ErrorKind::Closed, "the tier is closed").with_op("save");
        self.end(if refused.closed { Err(closed) } else { Ok(Saved::Shed(ShedReason::Throttled)) });
    }
}
