//! A simulated process: one stack, which runs only when it has the turn. Others may run at each of its calls;
//! there it may be stopped, killed, or get an error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kvtier_core::TimeSource;
use kvtier_os::simulated::{Arrived, Call, Identity, Job, KnownName, Name, Process, Write};

use super::chunk_files::ChunkFiles;
use super::device::HANG_STEP;
use super::medium::{Medium, Paths};
use super::record::{Record, kind};
use super::turn;
use crate::world::World;

/// What unwinds a killed process.
#[derive(Debug)]
pub struct Killed;

/// A process, as the scheduler and its own stack see it.
#[derive(Debug)]
pub struct SimProcess {
    pub number: u64,
    pub world: Arc<World>,
    pub medium: Arc<Medium>,
    /// Its place among those that run now.
    pub place: usize,
    /// Those that it may not take away while it holds them.
    chunk_files: Option<Arc<ChunkFiles>>,
    started_ms: u64,
    state: Mutex<ProcessState>,
}

/// A stop in the middle of what a process does.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub calls_left: u64,
    pub time: Duration,
}

/// What changes of a process.
#[derive(Default)]
pub struct ProcessState {
    /// When it can go on, unless it is stopped.
    pub ready_at: Duration,
    /// Until when it is stopped.
    pub stopped_until: Duration,
    /// How many calls it makes until it is stopped, and for how long.
    pub stop: Option<Stop>,
    /// How many calls it makes until it is killed.
    pub calls_left: Option<u64>,
    /// It was killed: its calls fail.
    pub is_dead: bool,
    /// It closes its tier and ends.
    pub shall_close: bool,
    /// For how long it slept in calls or was stopped.
    pub lost: Duration,
    jobs: BTreeMap<(Duration, u64), Job>,
    next_job: u64,
}

impl std::fmt::Debug for ProcessState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProcessState(ready at {:?}, {} jobs)", self.ready_at, self.jobs.len())
    }
}

impl SimProcess {
    pub fn new(number: u64, place: usize, world: &Arc<World>, medium: &Arc<Medium>) -> Self {
        SimProcess {
            number,
            place,
            chunk_files: None,
            started_ms: world.wall_ms(),
            world: Arc::clone(world),
            medium: Arc::clone(medium),
            state: Mutex::default(),
        }
    }

    /// The same with a watch over the files of chunks.
    pub fn watched(self, chunk_files: &Arc<ChunkFiles>) -> Self {
        SimProcess { chunk_files: Some(Arc::clone(chunk_files)), ..self }
    }

    /// Notes which names have other files after a call. None may be one that the process holds.
    fn note_names(&self, call: Call<'_>, paths: &Paths) {
        let Some(files) = &self.chunk_files else { return };
        let (from, to) = match (call, paths) {
            (Call::Remove(_), Paths::One(from)) => (from, &None),
            (Call::Rename(..) | Call::Exchange(..), Paths::Two(from, to)) => (from, to),
            (Call::Link(..), Paths::Two(_, to)) => (&None, to),
            _ => return,
        };
        let now = self.world.elapsed();
        if let Some(to) = to {
            files.got_name(to, now);
        }
        let lost = from.as_ref().and_then(|from| files.lost_name(from, self.number, now));
        if let Some(n) = lost {
            let what = format!("{} takes the file of {n} away and holds it", self.name());
            self.world.finding("hold", what);
        }
    }

    pub fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn name(&self) -> String {
        format!("p{}", self.number)
    }

    /// When it can run next.
    pub fn runs_at(&self) -> Duration {
        let state = self.state();
        state.ready_at.max(state.stopped_until)
    }

    /// Lets others run until `ready_at`, or longer where it is stopped.
    pub fn wait_until(&self, ready_at: Duration) {
        if std::thread::panicking() {
            // All processes are on this thread: others would take the panic for their own.
            return self.world.advance(ready_at.saturating_sub(self.world.elapsed()));
        }
        self.state().ready_at = ready_at;
        turn::pause(self.place);
    }

    /// The next job that is due.
    pub fn pop_job(&self) -> Option<Job> {
        let now = self.world.elapsed();
        let mut state = self.state();
        let first = state.jobs.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// When the next job is due.
    pub fn next_job_at(&self) -> Option<Duration> {
        self.state().jobs.first_key_value().map(|(at, _)| at.0)
    }

    /// Drops what it would have run.
    pub fn drop_jobs(&self) {
        let jobs = std::mem::take(&mut self.state().jobs);
        drop(jobs);
    }

    /// Stops, where the process is to be stopped at this call. The scheduler may end that earlier.
    fn stop_here(&self) {
        let now = self.world.elapsed();
        let stops = {
            let mut state = self.state();
            match &mut state.stop {
                None => false,
                Some(Stop { calls_left: 0, time }) => {
                    let time = *time;
                    state.stop = None;
                    state.stopped_until = now + time;
                    state.lost += time;
                    true
                }
                Some(stop) => {
                    stop.calls_left -= 1;
                    false
                }
            }
        };
        if stops {
            self.world.event(format_args!("{} stops", self.name()));
            self.wait_until(now);
        }
    }

    /// Waits while the device delays a call, or lets it hang. All of the process waits: it has one stack.
    fn wait_for_device(&self, call: Call<'_>) -> Result<(), nix::Error> {
        let mut delay = self.medium.delay(&self.world, call);
        let hangs = delay.is_none();
        if hangs {
            self.world.event(format_args!("{} hangs in {}", self.name(), kind(call)));
        }
        while delay != Some(Duration::ZERO) {
            let wait = delay.unwrap_or(HANG_STEP);
            self.state().lost += wait;
            self.wait_until(self.world.elapsed() + wait);
            self.die_here(call);
            if self.state().is_dead {
                return Err(nix::Error::EIO);
            }
            let still_hangs = hangs && self.medium.faults().names_hang;
            delay = (!still_hangs).then_some(Duration::ZERO);
        }
        Ok(())
    }

    /// Unwinds, where the process is to be killed at this call.
    fn die_here(&self, call: Call<'_>) {
        let dies = {
            let mut state = self.state();
            match &mut state.calls_left {
                None => false,
                Some(0) => !std::mem::replace(&mut state.is_dead, true),
                Some(left) => {
                    *left -= 1;
                    false
                }
            }
        };
        if dies && !std::thread::panicking() {
            self.world.event(format_args!("{} is killed before {}", self.name(), kind(call)));
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

/// The process on its own stack.
#[derive(Debug)]
pub struct OnStack(pub Arc<SimProcess>);

/// The name of the process with this number.
pub struct Named(u64);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl OnStack {
    fn record(&self) -> Record<'_, Named> {
        Record { world: &self.0.world, medium: &self.0.medium, process: Named(self.0.number) }
    }
}

impl Process for OnStack {
    fn before(&self, call: Call<'_>) -> Result<(), nix::Error> {
        let process = &self.0;
        if process.state().is_dead {
            return Err(nix::Error::EIO);
        }
        process.stop_here();
        process.die_here(call);
        let is_look = matches!(call, Call::Look(_));
        let (others_run, takes) = {
            let mut world = process.world.lock();
            (world.rng.u8(..) < if is_look { 8 } else { 80 }, world.rng.u64(500..8000))
        };
        process.world.advance(Duration::from_nanos(takes));
        if others_run {
            process.wait_until(process.world.elapsed());
            process.die_here(call);
        }
        process.wait_for_device(call)?;
        let done = process.medium.before(&process.world, call);
        done.inspect_err(|error| self.record().refused(call, *error))
    }

    fn after(&self, call: Call<'_>) {
        let paths = self.record().made(call);
        self.0.note_names(call, &paths);
    }

    fn failed(&self, call: Call<'_>, error: nix::Error) {
        self.record().failed(call, error);
    }

    fn written(&self, write: Write<'_>) -> Arrived {
        self.0.medium.arrived(&self.0.world, write)
    }

    fn read_len(&self, bytes: usize) -> usize {
        self.0.medium.read_len(&self.0.world, bytes)
    }

    fn names_in(&self, dir: Name<'_>) -> Option<Vec<KnownName>> {
        self.0.medium.names_in(dir)
    }

    fn attribute(&self, inode: u64) -> Option<Vec<u8>> {
        self.0.medium.attribute(inode)
    }

    fn identity(&self) -> Identity {
        Identity {
            host: "machine".into(),
            pid: 1000 + self.0.number as u32,
            started_ms: self.0.started_ms,
            booted_s: self.0.medium.booted_s(),
        }
    }

    fn random_bytes(&self) -> [u8; 32] {
        std::array::from_fn(|_| fastrand::u8(..))
    }

    fn now(&self) -> Instant {
        self.0.world.now()
    }

    fn wall(&self) -> SystemTime {
        self.0.world.wall()
    }

    fn sizes(&self) -> (u64, u64) {
        self.0.medium.sizes()
    }

    fn sleep(&self, time: Duration) {
        let process = &self.0;
        if process.state().is_dead {
            return;
        }
        process.state().lost += time;
        process.wait_until(process.world.elapsed() + time);
    }

    fn later(&self, after: Duration, job: Job) {
        let at = self.0.world.elapsed() + after;
        let mut state = self.0.state();
        if state.is_dead {
            drop(state);
            return drop(job);
        }
        let number = state.next_job;
        state.next_job += 1;
        state.jobs.insert((at, number), job);
    }
}

/// The clock of a process.
#[derive(Debug)]
pub struct ProcessTime(pub Arc<World>);

impl TimeSource for ProcessTime {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wall(&self) -> SystemTime {
        self.0.wall()
    }
}
