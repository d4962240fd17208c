//! The schedule of both engines, without any I/O.
//!
//! It decides which piece is requested next and what each completion means. Jobs are served in
//! order, reads before writes, with a bounded number of pieces in flight.
//!
//! Memory is safe because of one rule: a job stays in `jobs`, and with it its memory, from its
//! first piece until its last piece has ended. A piece is in flight from `next` to `completed`, or
//! to `shown` if a watch reads its bytes. Pieces have numbers that are never reused
//! ([`GenerationSlab`]), so a late completion of a piece that is gone finds nothing.
//!
//! An interrupted or short request is repeated for the rest, a limited number of times. `close`
//! cuts no further pieces; `abandon`, for an engine that died, leaks the memory that the kernel may
//! still use, and ends every job.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::config::EngineConfig;
use crate::job::OnDone;
use crate::running::{EndedJob, PartRange, PieceRequest, RunningJob, Show};
use crate::slab::GenerationSlab;
use crate::stats::EngineCounts;
use crate::{Error, ErrorKind, Job, JobClass, RefusalReason, RefusedJob};

/// How often one piece is requested again after an interruption.
const RETRIES_MAX: u32 = 16;
/// After this many pieces of reads in a row, a waiting write gets one.
const READS_IN_A_ROW: u32 = 3;

/// The jobs, and their pieces in flight.
pub struct Scheduler {
    jobs: GenerationSlab<RunningJob>,
    pieces: GenerationSlab<Piece>,
    /// Jobs with pieces to cut, in order.
    reads: VecDeque<u64>,
    writes: VecDeque<u64>,
    /// Pieces to continue.
    again: VecDeque<u64>,
    /// Jobs that were over when the engine closed, to be answered on its thread.
    over: Vec<EndedJob>,
    queued: usize,
    /// Pieces in flight, a long one counting for several; of writes alone.
    inflight: usize,
    writes_inflight: usize,
    reads_in_a_row: u32,
    closed: bool,
    queue_max: usize,
    pieces_max: usize,
    piece_bytes: usize,
    write_bytes: usize,
    /// How many bytes count for one piece.
    unit_bytes: usize,
    counts: Arc<EngineCounts>,
}

struct Piece {
    job: u64,
    class: JobClass,
    /// How many it counts for.
    units: usize,
    part: usize,
    offset: usize,
    len: usize,
    done: usize,
    retries: u32,
}

/// What to do after a completion.
pub enum NextStep {
    /// Nothing to do now but to ask for the next request.
    Nothing,
    /// Show the bytes to the watch, then call [`Scheduler::shown`].
    Show(Show),
    /// Answer this job.
    Ended(EndedJob),
}

impl Scheduler {
    /// This many pieces at once, each of this many bytes.
    pub fn new(
        config: &EngineConfig,
        pieces_max: usize,
        unit_bytes: usize,
        counts: Arc<EngineCounts>,
    ) -> Self {
        Scheduler {
            jobs: GenerationSlab::new(),
            pieces: GenerationSlab::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            again: VecDeque::new(),
            over: Vec::new(),
            queued: 0,
            inflight: 0,
            writes_inflight: 0,
            reads_in_a_row: 0,
            closed: false,
            queue_max: config.queue_max,
            pieces_max,
            piece_bytes: config.piece_bytes,
            write_bytes: config.write_bytes.max(config.piece_bytes),
            unit_bytes,
            counts,
        }
    }

    pub fn push(&mut self, job: Job, done: OnDone) -> Result<(), RefusedJob> {
        if self.closed {
            return Err(RefusedJob { job, why: RefusalReason::Closed });
        }
        if self.queued >= self.queue_max {
            return Err(RefusedJob { job, why: RefusalReason::Full });
        }
        let running = RunningJob::new(job, done);
        let class = running.class();
        let number = self.jobs.insert(running);
        self.order(class).push_back(number);
        self.queued += 1;
        Ok(())
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Nothing is in flight and nothing is left to cut.
    pub fn is_idle(&self) -> bool {
        self.jobs.len() == 0 && self.over.is_empty()
    }

    /// The numbers of the pieces in flight.
    pub fn inflight(&self) -> Vec<u64> {
        self.pieces.numbers()
    }

    /// The next request, if there is one. Jobs that end without another request go to `ended`.
    pub fn next(&mut self, ended: &mut Vec<EndedJob>) -> Option<PieceRequest> {
        // Jobs that ended inside `close` could not be answered there: `close` runs under the lock
        // of `Shared`, and an answer calls code of the caller. They go out with the next request.
        ended.append(&mut self.over);
        // A piece to continue goes first, and without a new check of the limit: it already counts
        // in `inflight`. To put it behind new pieces would only hold its memory for longer.
        if let Some(number) = self.again.pop_front() {
            return self.request(number);
        }
        while self.inflight < self.pieces_max {
            let class = self.turn()?;
            let job = *self.order(class).front()?;
            let piece_bytes = self.piece_bytes(class);
            let running = self.jobs.get(job)?;
            // `queued` counts jobs that no piece was cut of. The limit on the queue is about
            // waiting jobs, so a job leaves the count with its first piece and not with its last.
            let begins = !std::mem::replace(&mut running.begun, true);
            let cut = running.cut(piece_bytes);
            running.inflight += usize::from(cut.is_some());
            let is_cut = running.is_cut();
            self.queued -= usize::from(begins);
            if is_cut {
                self.order(class).pop_front();
            }
            // A job without bytes, or one that failed while it waited, has nothing to cut. It ends
            // here unless earlier pieces of it are still in flight; then the last of those ends it.
            let Some((part, offset, len)) = cut else {
                ended.extend(self.end_if_idle(job));
                continue;
            };
            let units = len.div_ceil(self.unit_bytes);
            self.count(class, units);
            let number = self.pieces.insert(Piece {
                job,
                class,
                units,
                part,
                offset,
                len,
                done: 0,
                retries: 0,
            });
            return self.request(number);
        }
        None
    }

    /// Whether another thread could make a request too.
    pub fn has_more(&self) -> bool {
        !self.again.is_empty() || self.inflight < self.pieces_max && self.turn().is_some()
    }

    /// The kernel's result for a piece: done, partly done, interrupted, or failed (a negative error
    /// number).
    pub fn completed(&mut self, number: u64, result: i32) -> NextStep {
        // The generation in the number is wrong: the piece ended before. Its memory may belong to
        // another job by now, so nothing may be concluded from this completion.
        let Some(piece) = self.pieces.get(number) else {
            tracing::error!(number, "a completion for a piece that is not there");
            return NextStep::Nothing;
        };
        let Some(running) = self.jobs.get(piece.job) else { return NextStep::Nothing };
        let request = running.request(number, piece.range());
        // A job that failed, or an engine that closes, gets no further requests. The result of this
        // piece still counts: it is the proof that the kernel is done with the memory.
        let stopping = self.closed || running.failed();
        match piece.verdict(result, &request, stopping) {
            Verdict::Short => self.counts.short(),
            Verdict::Retry => self.counts.retry(),
            Verdict::Failed(e) => return self.end_piece(number, Some(e)),
            Verdict::Whole => {
                return match running.show(number, piece.range()) {
                    Some(show) => NextStep::Show(show),
                    None => self.end_piece(number, None),
                };
            }
        }
        // The piece stays in flight: it keeps its units, and its job keeps the memory.
        self.again.push_back(number);
        NextStep::Nothing
    }

    /// A piece was shown to its job's watch, which survived or not.
    pub fn shown(&mut self, number: u64, survived: bool) -> NextStep {
        let panicked = || Error::new(ErrorKind::Invalid, "the watch of an I/O job panicked");
        self.end_piece(number, (!survived).then(panicked))
    }

    /// Accepts no more jobs and begins no more pieces. Jobs with pieces in flight end with those;
    /// the others end now.
    pub fn close(&mut self) {
        self.closed = true;
        // Jobs that wait for their first piece, and the rest of jobs of which pieces are in flight.
        // The latter fail, but end only with the last completion: until then the kernel writes into
        // their memory.
        let left: Vec<u64> = self.reads.drain(..).chain(self.writes.drain(..)).collect();
        for number in left {
            if let Some(running) = self.jobs.get(number) {
                running.fail(Error::closed());
            }
            let ended = self.end_if_idle(number);
            self.over.extend(ended);
        }
        // Pieces to continue are not with the kernel, so they can end at once.
        for number in std::mem::take(&mut self.again) {
            if let NextStep::Ended(ended) = self.end_piece(number, Some(Error::closed())) {
                self.over.push(ended);
            }
        }
    }

    /// The engine is dead: leaks memory that the kernel may still use, and ends every job.
    pub fn abandon(&mut self) -> Vec<EndedJob> {
        // The order matters. `close` ends every job that has nothing in flight, with its memory.
        // What is left has pieces that the kernel may still work on: no completion will ever report
        // their end, so their memory must not be freed.
        self.close();
        let left: Vec<RunningJob> =
            self.jobs.numbers().into_iter().filter_map(|n| self.jobs.remove(n)).collect();
        self.over.drain(..).chain(left.into_iter().map(RunningJob::abandon)).collect()
    }

    /// Reads go first. While they wait, writes get one piece in four, and no larger share of the
    /// pieces in flight.
    fn turn(&self) -> Option<JobClass> {
        let share = (self.pieces_max / (READS_IN_A_ROW as usize + 1)).max(1);
        // Both conditions are needed. By turns alone, writes that take longer than reads would pile
        // up until they fill the limit; the share bounds them. By the share alone, a stream of
        // reads would leave none of it free.
        let owed = self.reads_in_a_row >= READS_IN_A_ROW && self.writes_inflight < share;
        match (self.reads.is_empty(), self.writes.is_empty()) {
            (true, true) => None,
            (_, false) if owed || self.reads.is_empty() => Some(JobClass::Write),
            _ => Some(JobClass::Read),
        }
    }

    /// The length of the next piece of a class: up to the free units, and while reads wait no
    /// longer than theirs.
    fn piece_bytes(&self, class: JobClass) -> usize {
        match class {
            // A large write costs fewer requests, but the device works on it while a read waits. So
            // writes are large only while no read waits.
            JobClass::Write if self.reads.is_empty() => self
                .write_bytes
                .min(self.unit_bytes.saturating_mul(self.pieces_max - self.inflight)),
            _ => self.piece_bytes,
        }
    }

    fn count(&mut self, class: JobClass, units: usize) {
        self.inflight += units;
        match class {
            JobClass::Read => self.reads_in_a_row = self.reads_in_a_row.saturating_add(1),
            JobClass::Write => {
                (self.reads_in_a_row, self.writes_inflight) = (0, self.writes_inflight + units)
            }
        }
    }

    fn order(&mut self, class: JobClass) -> &mut VecDeque<u64> {
        match class {
            JobClass::Read => &mut self.reads,
            JobClass::Write => &mut self.writes,
        }
    }

    fn request(&mut self, number: u64) -> Option<PieceRequest> {
        let piece = self.pieces.get(number)?;
        Some(self.jobs.get(piece.job)?.request(number, piece.remaining()))
    }

    fn end_piece(&mut self, number: u64, failed: Option<Error>) -> NextStep {
        let Some(piece) = self.pieces.remove(number) else { return NextStep::Nothing };
        // First the units are released, then the job is looked up. A piece whose job is gone must
        // not keep its share of the limit for ever.
        self.inflight -= piece.units;
        self.writes_inflight -= if piece.class == JobClass::Write { piece.units } else { 0 };
        let Some(running) = self.jobs.get(piece.job) else { return NextStep::Nothing };
        running.inflight -= 1;
        match failed {
            Some(e) => {
                // A lease counts as filled up to its first gap. Bytes of this piece that did arrive
                // are before the gap.
                running.lost(piece.part, piece.offset + piece.done);
                running.fail(e);
            }
            None => self.counts.piece(piece.len),
        }
        self.end_if_idle(piece.job).map_or(NextStep::Nothing, NextStep::Ended)
    }

    /// Ends a job that has nothing in flight and nothing left to cut.
    fn end_if_idle(&mut self, number: u64) -> Option<EndedJob> {
        self.jobs.get(number).filter(|r| r.inflight == 0 && r.is_cut())?;
        let running = self.jobs.remove(number)?;
        self.queued -= usize::from(!running.begun);
        let class = running.job.class;
        self.order(class).retain(|n| *n != number);
        Some(running.end())
    }
}

/// What one completion means for its piece.
enum Verdict {
    Whole,
    Short,
    Retry,
    Failed(Error),
}

impl Piece {
    fn range(&self) -> PartRange {
        PartRange { part: self.part, offset: self.offset, len: self.len }
    }

    /// What the kernel has not done yet.
    fn remaining(&self) -> PartRange {
        let PartRange { part, offset, len } = self.range();
        PartRange { part, offset: offset + self.done, len: len - self.done }
    }

    fn verdict(&mut self, result: i32, whole: &PieceRequest, stopping: bool) -> Verdict {
        let left = self.len - self.done;
        match usize::try_from(result) {
            // No progress is the end of the file for a read. To repeat the request would loop: it
            // is never a short read that could be continued.
            Ok(0) if whole.read => Verdict::Failed(Error::short_read(0)),
            Ok(0) => Verdict::Failed(Error::new(ErrorKind::Io, "a write moved nothing")),
            // The kernel does not do that. If it did, bytes behind the piece were overwritten, and
            // the chunk must not pass as loaded.
            Ok(n) if n > left => Verdict::Failed(Error::new(
                ErrorKind::Io,
                "the kernel moved more than it was asked",
            )),
            Ok(n) => {
                self.done += n;
                match (n == left, stopping) {
                    (true, _) => Verdict::Whole,
                    // Part of the piece moved, and the rest will not be requested: the piece failed
                    // as a whole.
                    (_, true) => Verdict::Failed(Error::closed()),
                    _ => Verdict::Short,
                }
            }
            Err(_) if stopping => Verdict::Failed(Error::closed()),
            Err(_) => self.refused(-result, whole),
        }
    }

    fn refused(&mut self, code: i32, whole: &PieceRequest) -> Verdict {
        let what = if whole.read { "read failed" } else { "write failed" };
        let failed = Error::io(what, std::io::Error::from_raw_os_error(code));
        match code {
            // Both mean that nothing happened. The limit is for a device or a filter that answers
            // so for ever: the job then fails with the kernel's own error.
            libc::EINTR | libc::EAGAIN if self.retries < RETRIES_MAX => {
                self.retries += 1;
                Verdict::Retry
            }
            // Direct I/O may refuse to go on from the odd end of a file instead of saying that it
            // is the end.
            libc::EINVAL
                if whole.read && self.done > 0 && is_end(whole.fd, whole.at + self.done as u64) =>
            {
                Verdict::Failed(Error::short_read(0))
            }
            _ => Verdict::Failed(failed),
        }
    }
}

fn is_end(fd: RawFd, at: u64) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the descriptor is the job's, which is still here; the kernel fills `stat`, whose
    // zeroes are a valid value anyway.
    let stat = unsafe {
        if libc::fstat(fd, stat.as_mut_ptr()) != 0 {
            return false;
        }
        stat.assume_init()
    };
    at >= stat.st_size as u64
}

#[cfg(test)]
mod tests {
    use kvtier_mem::{Arena, ArenaConfig};

    use super::*;
    use crate::Part;

    /// A schedule of 4 pieces of 4 KiB in flight, and a function that pushes jobs of this many pieces.
    fn sched() -> (Scheduler, impl Fn(&mut Scheduler, JobClass, usize)) {
        let config = EngineConfig::default().with_piece_bytes(4096);
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let file: Arc<std::os::fd::OwnedFd> = Arc::new(tempfile::tempfile().unwrap().into());
        let push = move |sched: &mut Scheduler, class, pieces: usize| {
            let len = pieces * 4096;
            let mut job = Job::read(Arc::clone(&file)).with_part(Part::Read {
                at: 0,
                into: arena.lease(len).unwrap(),
                len,
            });
            job.class = class;
            sched.push(job, Box::new(|_| {})).unwrap();
        };
        (Scheduler::new(&config, 4, 4096, Arc::default()), push)
    }

    fn classes(sched: &mut Scheduler, pieces: usize) -> Vec<JobClass> {
        let mut done = Vec::new();
        for _ in 0..pieces {
            let request = sched.next(&mut Vec::new()).unwrap();
            done.push(sched.pieces.get(request.number).unwrap().class);
            let _ = sched.completed(request.number, request.len as i32);
        }
        done
    }

    #[test]
    fn reads_go_first_and_writes_do_not_starve() {
        use JobClass::{Read, Write};
        let (mut sched, push) = sched();
        push(&mut sched, Write, 4);
        push(&mut sched, Read, 9);
        let expected =
            [Read, Read, Read, Write, Read, Read, Read, Write, Read, Read, Read, Write, Write];
        assert_eq!(classes(&mut sched, 13), expected);
        assert!(sched.is_idle());
    }

    #[test]
    fn while_reads_wait_writes_hold_a_part_of_the_pieces_in_flight() {
        let (mut sched, push) = sched();
        push(&mut sched, JobClass::Write, 8);
        push(&mut sched, JobClass::Read, 40);
        let mut ended = Vec::new();
        let mut flying: VecDeque<PieceRequest> = VecDeque::new();
        for _ in 0..30 {
            flying.extend(std::iter::from_fn(|| sched.next(&mut ended)));
            assert_eq!(flying.len(), 4);
            assert!(sched.writes_inflight <= 1);
            // Reads complete, the write does not.
            let at = flying
                .iter()
                .position(|r| sched.pieces.get(r.number).unwrap().class == JobClass::Read)
                .unwrap();
            let read = flying.remove(at).unwrap();
            let _ = sched.completed(read.number, 4096);
        }
    }

    #[test]
    fn writes_are_long_where_no_read_waits_and_count_for_what_they_are() {
        let config = EngineConfig::default().with_piece_bytes(4096).with_write_bytes(3 * 4096);
        let mut sched = Scheduler::new(&config, 4, 4096, Arc::default());
        let file: Arc<std::os::fd::OwnedFd> = Arc::new(tempfile::tempfile().unwrap().into());
        let write = |pages: usize| {
            let from = kvtier_mem::View::from(vec![0; pages * 4096]);
            Job::write(Arc::clone(&file)).with_part(Part::Write { at: 0, from, len: pages * 4096 })
        };
        sched.push(write(8), Box::new(|_| {})).unwrap();
        let mut ended = Vec::new();
        let mut next = |sched: &mut Scheduler| {
            sched.next(&mut ended).map(|request| (request.number, request.len / 4096))
        };
        let first = next(&mut sched).unwrap();
        let second = next(&mut sched).unwrap();
        assert_eq!((first.1, second.1, sched.inflight), (3, 1, 4), "as many as fit");
        assert!(next(&mut sched).is_none() && !sched.has_more());
        let _ = sched.completed(first.0, 3 * 4096);
        assert_eq!((sched.inflight, sched.writes_inflight), (1, 1));
        let lease = kvtier_mem::Lease::from(vec![0; 4 * 4096]);
        let read = Job::read(Arc::clone(&file)).with_part(Part::Read {
            at: 0,
            into: lease,
            len: 4 * 4096,
        });
        sched.push(read, Box::new(|_| {})).unwrap();
        assert_eq!(
            [(); 3].map(|()| next(&mut sched).unwrap().1),
            [1; 3],
            "reads go first, and what is beside them is short"
        );
    }

    #[test]
    fn a_late_completion_changes_nothing() {
        let (mut sched, push) = sched();
        push(&mut sched, JobClass::Read, 2);
        let first = sched.next(&mut Vec::new()).unwrap();
        assert!(matches!(sched.completed(first.number, 4096), NextStep::Nothing));
        let second = sched.next(&mut Vec::new()).unwrap();
        assert!(matches!(sched.completed(first.number, 4096), NextStep::Nothing));
        assert_eq!(sched.inflight(), [second.number]);
        assert!(matches!(sched.completed(second.number, 4096), NextStep::Ended(_)));
    }

    #[test]
    fn interruptions_are_retried_a_limited_number_of_times() {
        let (mut sched, push) = sched();
        push(&mut sched, JobClass::Read, 1);
        for _ in 0..RETRIES_MAX {
            let request = sched.next(&mut Vec::new()).unwrap();
            assert!(matches!(sched.completed(request.number, -libc::EINTR), NextStep::Nothing));
        }
        let request = sched.next(&mut Vec::new()).unwrap();
        assert!(matches!(sched.completed(request.number, -libc::EINTR), NextStep::Ended(_)));
        assert_eq!(sched.counts.stats(0).retries, u64::from(RETRIES_MAX));
    }

    #[test]
    fn a_short_request_continues_where_it_stopped() {
        let (mut sched, push) = sched();
        push(&mut sched, JobClass::Read, 1);
        let first = sched.next(&mut Vec::new()).unwrap();
        assert!(matches!(sched.completed(first.number, 1000), NextStep::Nothing));
        let rest = sched.next(&mut Vec::new()).unwrap();
        assert_eq!((rest.at, rest.addr, rest.len), (1000, first.addr + 1000, 3096));
        assert!(matches!(sched.completed(rest.number, 3096), NextStep::Ended(_)));
        assert_eq!(sched.counts.stats(0).short_ios, 1);
    }

    #[test]
    fn closing_ends_what_has_not_begun_and_lets_the_rest_land() {
        let (mut sched, push) = sched();
        push(&mut sched, JobClass::Read, 2);
        push(&mut sched, JobClass::Write, 1);
        let first = sched.next(&mut Vec::new()).unwrap();
        sched.close();
        let mut ended = Vec::new();
        assert!(sched.next(&mut ended).is_none());
        assert_eq!((ended.len(), sched.queued(), sched.is_idle()), (1, 0, false));
        assert!(matches!(sched.completed(first.number, -libc::ECANCELED), NextStep::Ended(_)));
        assert!(sched.is_idle());
    }
}
