//! Lets the faults of a schedule happen: processes end or stand still, the machine and the medium fail,
//! others harm the directory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;

use super::medium::Faults;
use super::process::{SimProcess, Stop};
use super::schedule::What;
use super::{CAP_BYTES, FAULTS, PROCESSES, Scheduler};
use crate::schedule::{Edge, Moment, between_ms};

/// About one of this number of chunks is deleted.
const DELETED_ONE_IN: u64 = 3;

impl Scheduler {
    /// When something goes wrong or ends next.
    pub fn next_fault(&self) -> Duration {
        let next = self.moments.front().map_or(Duration::MAX, |moment| moment.at);
        if self.shared.calm_since().is_some() { next } else { next.min(FAULTS) }
    }

    /// Lets something go wrong, or end, if it is time.
    pub fn fail(&mut self) {
        let now = self.elapsed();
        let is_due = |moment: &mut Moment<What>| moment.at <= now;
        if let Some(moment) = self.moments.pop_front_if(is_due) {
            match moment.edge {
                Edge::Begin => self.begin(&moment.what),
                Edge::End => self.end(&moment.what),
            }
        } else if now >= FAULTS && self.shared.calm_since().is_none() {
            self.calm_down();
        }
    }

    fn calm_down(&mut self) {
        let now = self.elapsed();
        self.shared.world.event(format_args!("the last fault has ended"));
        for (process, _) in &self.processes {
            let mut state = process.state();
            (state.stopped_until, state.stop) = (now, None);
        }
        self.shared.calm_since_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    fn begin(&mut self, what: &What) {
        match what {
            What::Killed { place, calls } => self.kill(*place, *calls),
            What::Stopped { place, time, calls } => self.stop(*place, *time, *calls),
            What::Closed { place } => {
                let Some(process) = self.process(*place) else { return };
                self.shared.world.event(format_args!("close {}", process.name()));
                process.state().shall_close = true;
            }
            What::Crash { draws } => self.crash(&mut Rng::with_seed(*draws)),
            What::Medium(faults) => {
                self.shared.is_log_doubtful.fetch_or(faults.errors_on_reads, Ordering::Relaxed);
                self.change_medium(*faults);
            }
            What::Clock { ahead_ms } => {
                self.shared.world.set_wall(*ahead_ms);
                self.shared.world.event(format_args!("the time of day is {ahead_ms} ms ahead"));
            }
            What::Deleted { draws } => {
                let rng = &mut Rng::with_seed(*draws);
                let mut count = 0;
                self.shared.chunk_files.note_deleted(self.elapsed(), || {
                    let deleted = self.shared.medium.delete_chunks(rng, DELETED_ONE_IN);
                    count = deleted.expect("files of the simulation");
                });
                self.shared.world.event(format_args!("from outside: {count} chunks deleted"));
            }
            What::Damaged { draws } => {
                self.shared.is_log_doubtful.store(true, Ordering::Relaxed);
                let damaged = self.shared.medium.damage(&mut Rng::with_seed(*draws));
                let said = damaged.expect("files of the simulation");
                self.shared.world.event(format_args!("from outside: {said}"));
            }
        }
    }

    fn end(&self, what: &What) {
        if matches!(what, What::Medium(_)) {
            self.change_medium(Faults::default());
        }
    }

    /// The process at this place of those that run.
    fn process(&self, place: usize) -> Option<Arc<SimProcess>> {
        let n = place.checked_rem(self.processes.len())?;
        Some(Arc::clone(&self.processes[n].0))
    }

    fn kill(&self, place: usize, calls: u64) {
        let Some(process) = self.process(place) else { return };
        self.shared.world.event(format_args!("kill {} in {calls} calls", process.name()));
        process.state().calls_left = Some(calls);
    }

    fn stop(&self, place: usize, time: Duration, calls: Option<u64>) {
        let Some(process) = self.process(place) else { return };
        if let Some(calls_left) = calls {
            let said = format_args!("stop {} for {time:?} in {calls_left} calls", process.name());
            self.shared.world.event(said);
            process.state().stop = Some(Stop { calls_left, time });
            return;
        }
        self.shared.world.event(format_args!("stop {} for {time:?}", process.name()));
        let now = self.elapsed();
        let mut state = process.state();
        state.stopped_until = now + time;
        state.lost += time;
    }

    fn change_medium(&self, faults: Faults) {
        self.shared.world.event(format_args!("{faults:?}"));
        self.shared.medium.set_faults(faults);
        self.shared.was_full.fetch_or(faults.is_full, Ordering::Relaxed);
        let is_failing = faults.is_full || faults.errors_per_mille > 0;
        self.shared.log_delay().set_failing(is_failing, self.elapsed());
    }

    /// The machine loses power and comes back.
    fn crash(&mut self, rng: &mut Rng) {
        self.end_all();
        let must_stay = self.shared.chunk_files.before_crash();
        match self.shared.medium.crash(&self.shared.world, rng) {
            Ok(kept) => self.shared.world.event(format_args!("crash: kept {kept}")),
            Err(e) => panic!("the simulated crash failed: {e}"),
        }
        for n in self.shared.chunk_files.after_crash(must_stay) {
            let at = self.shared.chunk_files.path(n).display().to_string();
            let what = format!("the crash lost {n} at {at}, whose save was answered as durable");
            self.shared.world.finding("lost", what);
        }
        self.shared.model().forget_removed();
        let most = match self.shared.setup.is_counted_late() {
            true => u64::MAX,
            false => self.shared.medium.chunk_bytes().max(CAP_BYTES),
        };
        self.shared.bytes_max.store(most, Ordering::Relaxed);
        self.shared.is_counted.store(false, Ordering::Relaxed);
        self.restarts.clear();
        for _ in 0..PROCESSES {
            let again = self.elapsed() + between_ms(rng, 10, 1500);
            self.restarts.push(again);
        }
    }
}
