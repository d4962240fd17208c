//! Four real directory tiers, each in a process of its own, over one directory with a cap: the
//! scheduler, the faults, and what must hold.

mod callers;
pub mod device;
mod harm;
pub mod medium;
pub mod process;
mod run_process;
mod setup;
mod turn;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kvtier_mem::{Arena, ArenaConfig};

use self::medium::{Faults, Journal, Medium};
use self::process::{SimProcess, Stop};
use self::setup::Setup;
use self::turn::Turn;
use crate::fleet::model::Model;
use crate::world::World;
use crate::{Report, Scope};

/// How many processes there are.
const PROCESSES: usize = 4;
/// How many keys the workload uses.
const KEYS: u64 = 60;
/// The cap: about half of what all keys have.
const CAP_BYTES: u64 = 300 << 10;
/// Memory of the callers.
const ARENA_BYTES: usize = 4 << 20;
/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(12);
/// How long the run goes on after the last fault.
const CALM: Duration = Duration::from_secs(12);
/// Within this time after the last fault all is well again.
const BACK_MAX: Duration = Duration::from_secs(2);
/// When a process closes and another opens the directory, after the last fault.
const REOPEN: Duration = Duration::from_secs(3);
/// When another program may delete chunks of processes that go on.
const LATE_DELETION: Duration = Duration::from_secs(6);
/// How long no caller does anything at the end: all processes count the same then.
const QUIET: Duration = Duration::from_secs(10);
/// How long closing may take.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How many turns pass between two checks of the medium.
const TURNS_A_CHECK: u64 = 16;

/// What the parts of the run share.
#[derive(Debug)]
struct Shared {
    world: Arc<World>,
    medium: Arc<Medium>,
    arena: Arena,
    model: Mutex<Model>,
    setup: Setup,
    /// Since when no fault happens, in nanoseconds; 0 before that.
    calm_since_ns: AtomicU64,
    /// Callers begin nothing more.
    is_quiet: AtomicBool,
    /// The most bytes that the directory may have: the cap, or what a crash left until the directory
    /// is open again, because deleted names may come back.
    bytes_max: AtomicU64,
}

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when no fault happens.
    fn calm_since(&self) -> Option<Duration> {
        let since = self.calm_since_ns.load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos(since))
    }

    /// Whether the last fault was so long before `at` that all must be well again.
    fn is_well(&self, at: Duration) -> bool {
        self.calm_since().is_some_and(|since| at >= since + BACK_MAX)
    }

    /// Whether others harm the directory too: in scope `directory` alone.
    fn is_harmed(&self) -> bool {
        self.setup.scope == Scope::Directory
    }

    fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }
}

/// The scheduler: gives turns to processes, and lets things go wrong.
struct Scheduler {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
    processes: Vec<(Arc<SimProcess>, JoinHandle<()>)>,
    started: u64,
    /// When processes that ended start again.
    restarts: Vec<Duration>,
    next_fault: Duration,
    faults_end: Duration,
    turns: u64,
}

/// Runs the simulation of this seed.
pub fn run(scope: Scope, seed: u64, traced: bool) -> Report {
    let world = Arc::new(World::with_own_time(seed, traced));
    let journal = if world.below(2) == 0 { Journal::Ordered } else { Journal::None };
    let setup = match scope {
        Scope::Layouts => Setup::layouts(&world, journal),
        _ => Setup::directory(&world),
    };
    let medium = Arc::new(Medium::new(journal).expect("a directory for the simulation"));
    let shared = Arc::new(Shared {
        medium,
        arena: Arena::new(ArenaConfig::heap(ARENA_BYTES)).expect("memory for the callers"),
        model: Mutex::new(Model::with_ids(|n| setup.key_id(n))),
        setup,
        calm_since_ns: AtomicU64::new(0),
        is_quiet: AtomicBool::new(false),
        bytes_max: AtomicU64::new(CAP_BYTES),
        world: Arc::clone(&world),
    });
    let quota = shared.is_harmed() && world.below(4) == 0;
    let quota = quota.then_some(harm::QUOTA_BYTES);
    shared.medium.set_quota(quota);
    world.event(format_args!("journal {journal:?}, {}, quota {quota:?}", shared.setup));
    Scheduler::new(shared).run();
    let (events, findings) = {
        let state = world.lock();
        (state.events, state.findings.clone())
    };
    let (digest, trace) = (world.digest(), world.take_trace());
    let virtual_time = world.elapsed();
    let schedule = None;
    Report { seed, scope, events, virtual_time, digest, findings, schedule, trace }
}

impl Scheduler {
    fn new(shared: Arc<Shared>) -> Self {
        Scheduler {
            shared,
            turn: Arc::default(),
            processes: Vec::new(),
            started: 0,
            restarts: vec![Duration::ZERO; PROCESSES],
            next_fault: Duration::from_secs(1),
            faults_end: FAULTS,
            turns: 0,
        }
    }

    fn run(mut self) {
        if self.shared.is_harmed() {
            self.run_until(FAULTS + REOPEN);
            // What was damaged must not keep a new process away.
            self.close_one();
            self.run_until(FAULTS + LATE_DELETION);
            // Without a start, which counts anew.
            self.delete_late();
        }
        self.run_until(FAULTS + CALM);
        self.shared.is_quiet.store(true, Ordering::Relaxed);
        self.shared.world.event(format_args!("callers begin nothing more"));
        self.run_until(FAULTS + CALM + QUIET);
        if self.shared.is_harmed() {
            self.check_ledger();
        }
        self.restarts.clear();
        for (process, _) in &self.processes {
            process.state().shall_close = true;
        }
        self.run_until(FAULTS + CALM + QUIET + CLOSE_MAX);
        for (process, _) in &self.processes {
            let what = format!("{} is not closed after {CLOSE_MAX:?}", process.name());
            self.shared.world.finding("close", what);
        }
        self.end_all();
    }

    fn run_until(&mut self, end: Duration) {
        while self.shared.world.elapsed() < end {
            self.restart();
            self.fail();
            self.run_one(end);
        }
    }

    fn elapsed(&self) -> Duration {
        self.shared.world.elapsed()
    }

    /// Starts the processes that are due.
    fn restart(&mut self) {
        let now = self.elapsed();
        let due = self.restarts.iter().filter(|at| **at <= now).count();
        self.restarts.retain(|at| *at > now);
        for _ in 0..due {
            self.started += 1;
            let (world, medium) = (&self.shared.world, &self.shared.medium);
            let process = Arc::new(SimProcess::new(self.started, world, medium, &self.turn));
            process.state().ready_at = now;
            let thread = run_process::start(&self.shared, &process);
            self.processes.push((process, thread));
        }
    }

    /// Gives the turn to one process that can run, or lets time pass.
    fn run_one(&mut self, end: Duration) {
        let now = self.elapsed();
        let runs_at: Vec<_> = self.processes.iter().map(|(process, _)| process.runs_at()).collect();
        let ready: Vec<usize> =
            (0..runs_at.len()).filter(|n| runs_at[*n].is_some_and(|at| at <= now)).collect();
        if ready.is_empty() {
            let next = runs_at.into_iter().flatten().chain(self.restarts.iter().copied()).min();
            let next = next.unwrap_or(end).min(self.next_fault.max(now)).min(end);
            let wait = next.saturating_sub(now).max(Duration::from_nanos(1));
            return self.shared.world.advance(wait);
        }
        let chosen = ready[self.shared.world.below(ready.len() as u64) as usize];
        self.let_run(chosen);
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_A_CHECK) {
            self.check_cap();
        }
    }

    fn let_run(&mut self, place: usize) {
        let process = Arc::clone(&self.processes[place].0);
        self.turn.give(process.number);
        if process.state().has_ended {
            let (_, thread) = self.processes.remove(place);
            let _ = thread.join();
            self.shared.world.event(format_args!("{} has ended", process.name()));
            if !self.shared.is_quiet() {
                let again = self.elapsed() + self.shared.world.between_ms(10, 1500);
                self.restarts.push(again);
            }
        }
    }

    fn check_cap(&self) {
        let bytes = self.shared.medium.chunk_bytes();
        let most = self.shared.bytes_max.load(Ordering::Relaxed);
        if bytes > most {
            let what = format!("{bytes} bytes in the directory, {most} are allowed");
            self.shared.world.finding("cap", what);
        }
    }

    /// Lets something go wrong, if it is time.
    fn fail(&mut self) {
        let now = self.elapsed();
        if now < self.next_fault || self.shared.calm_since().is_some() {
            return;
        }
        if now >= self.faults_end {
            self.shared.world.event(format_args!("the last fault has ended"));
            self.shared.medium.set_faults(Faults::default());
            for (process, _) in &self.processes {
                let mut state = process.state();
                (state.stopped_until, state.stop) = (now, None);
            }
            self.next_fault = Duration::MAX;
            return self.shared.calm_since_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
        }
        let world = Arc::clone(&self.shared.world);
        self.next_fault = now + world.between_ms(50, 1500);
        match world.below(if self.shared.is_harmed() { 12 } else { 10 }) {
            10.. => self.harm(),
            0..3 => self.kill_one(),
            3..6 => self.stop_one(),
            6 => self.crash(),
            7 => self.close_one(),
            _ => self.change_medium(),
        }
    }

    fn one(&self) -> Option<Arc<SimProcess>> {
        let n = self.shared.world.below(self.processes.len() as u64) as usize;
        self.processes.get(n).map(|(process, _)| Arc::clone(process))
    }

    fn kill_one(&self) {
        let Some(process) = self.one() else { return };
        let calls = self.shared.world.below(60);
        self.shared.world.event(format_args!("kill {} in {calls} calls", process.name()));
        process.state().calls_left = Some(calls);
    }

    fn stop_one(&self) {
        let Some(process) = self.one() else { return };
        let time = self.shared.world.between_ms(10, 6000);
        if self.shared.is_harmed() && self.shared.world.below(2) == 0 {
            let calls_left = self.shared.world.below(60);
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

    fn close_one(&self) {
        let Some(process) = self.one() else { return };
        self.shared.world.event(format_args!("close {}", process.name()));
        process.state().shall_close = true;
    }

    fn change_medium(&self) {
        let world = &self.shared.world;
        let mut faults = Faults::default();
        match world.below(5) {
            0 => faults.is_full = true,
            1 => faults.errors_per_mille = world.below(100),
            2 => faults.slow = world.between_ms(1, 300),
            _ => {}
        }
        world.event(format_args!("{faults:?}"));
        self.shared.medium.set_faults(faults);
    }

    /// The machine loses power and comes back.
    fn crash(&mut self) {
        self.end_all();
        match self.shared.medium.crash(&self.shared.world) {
            Ok(kept) => self.shared.world.event(format_args!("crash: kept {kept}")),
            Err(e) => panic!("the simulated crash failed: {e}"),
        }
        let most = match self.shared.setup.is_counted_late() {
            true => u64::MAX,
            false => self.shared.medium.chunk_bytes().max(CAP_BYTES),
        };
        self.shared.bytes_max.store(most, Ordering::Relaxed);
        self.restarts.clear();
        for _ in 0..PROCESSES {
            let again = self.elapsed() + self.shared.world.between_ms(10, 1500);
            self.restarts.push(again);
        }
    }

    /// Kills all processes at once.
    fn end_all(&mut self) {
        for (process, _) in &self.processes {
            let mut state = process.state();
            state.calls_left = Some(0);
            state.stopped_until = Duration::ZERO;
        }
        while !self.processes.is_empty() {
            self.let_run(0);
        }
    }
}
