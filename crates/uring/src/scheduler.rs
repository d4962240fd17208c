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

mod piece;

use std::collections::VecDeque;
use std::sync::Arc;

use self::piece::{Piece, Verdict};
use crate::config::EngineConfig;
use crate::generation_slab::GenerationSlab;
use crate::job::OnDone;
use crate::running::{EndedJob, PieceRequest, RunningJob, Show};
use crate::stats::EngineCounts;
use crate::{Error, ErrorKind, Job, JobClass, RefusalReason, RefusedJob};

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

#[cfg(test)]
mod tests;
