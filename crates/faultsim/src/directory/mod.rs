//! Four real directory tiers, each in a process of its own, over one directory with a cap: the
//! scheduler, the faults, and what must hold.

mod callers;
mod chunk_files;
pub mod device;
mod expected;
mod harm;
mod log_delay;
pub mod medium;
mod nemesis;
pub mod process;
pub mod record;
mod results;
mod run_process;
mod schedule;
mod setup;
mod turn;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_mem::{Arena, ArenaConfig};

use self::chunk_files::ChunkFiles;
use self::log_delay::LogDelay;
use self::medium::{Journal, Medium};
use self::process::SimProcess;
use self::schedule::What;
use self::setup::Setup;
use self::turn::Running;
use crate::fleet::model::Model;
use crate::schedule::{Moment, Plan, moments, setup_rng};
use crate::shorten;
use crate::wall_clock::draw_drift;
use crate::world::World;
use crate::{InvalidFaults, Report, Scope, SomeFaults};

/// How many processes there are.
const PROCESSES: usize = 4;
/// How many keys the workload uses.
const KEYS: u64 = 60;
/// The cap: about half of what all keys have.
const CAP_BYTES: u64 = 300 << 10;
/// Memory of the callers.
const ARENA_BYTES: usize = 3 << 19;
/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(12);
/// How long the run goes on after the last fault.
const CALM: Duration = Duration::from_secs(12);
/// Within this time after the last fault all is well again.
const BACK_MAX: Duration = Duration::from_secs(2);
/// So long after the last fault all that a crash brought back above the cap is evicted.
const EVICTED_WITHIN: Duration = Duration::from_secs(6);
/// When a process closes and another opens the directory, after the last fault.
const REOPEN: Duration = Duration::from_secs(3);
/// When another program may delete chunks of processes that go on.
const LATE_DELETION: Duration = Duration::from_secs(6);
/// How long no caller does anything at the end: all processes count the same then.
const QUIET: Duration = Duration::from_secs(10);
/// For how long the status speaks of a full medium after it was full last.
const FULL_REPORTED: Duration = Duration::from_secs(30);
/// How long closing may take.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How many turns pass at most between two checks of the medium; each turn that changed something is followed by one.
const TURNS_A_CHECK: u64 = 16;

/// What the parts of the run share.
#[derive(Debug)]
struct Shared {
    world: Arc<World>,
    medium: Arc<Medium>,
    arena: Arena,
    model: Mutex<Model>,
    setup: Setup,
    chunk_files: Arc<ChunkFiles>,
    /// Since when no fault happens, in nanoseconds; 0 before that.
    calm_since_ns: AtomicU64,
    /// Something damaged a file of `.kvtier`, or reads failed: processes may lack changes of others.
    is_log_doubtful: AtomicBool,
    /// When records may have waited for the change log, since the medium was full or failed.
    log_delay: Mutex<LogDelay>,
    /// Callers begin nothing more.
    is_quiet: AtomicBool,
    /// The most bytes that the directory may have: the cap, or what a crash left until the directory
    /// is open again, because deleted names may come back.
    bytes_max: AtomicU64,
    /// A process counted the directory since the last crash.
    is_counted: AtomicBool,
    /// The medium was full at some time.
    was_full: AtomicBool,
    /// It is full below the cap all the time.
    has_quota: bool,
}

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_delay(&self) -> MutexGuard<'_, LogDelay> {
        self.log_delay.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A process counted the directory: from now on the cap holds again.
    fn set_counted(&self) {
        self.bytes_max.store(self.medium.allowed_bytes(CAP_BYTES), Ordering::Relaxed);
        self.is_counted.store(true, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }
}

/// The scheduler: gives turns to processes, and lets things go wrong.
struct Scheduler {
    shared: Arc<Shared>,
    processes: Vec<(Arc<SimProcess>, Running)>,
    started: u64,
    /// When processes that ended start again.
    restarts: Vec<Duration>,
    /// What goes wrong from now on.
    moments: VecDeque<Moment<What>>,
    turns: u64,
    /// Since when the ledger counts more than is allowed.
    excess_since: Option<Duration>,
}

/// Runs the simulation of this seed.
pub fn run(scope: Scope, seed: u64, traced: bool) -> Report {
    run_plan(scope, Plan::of_seed(seed, &schedule::of_seed(scope, seed), traced))
}

/// The same, and the shortest schedule with a finding of the kind of the first.
pub fn run_and_shorten(scope: Scope, seed: u64) -> Report {
    let whole = schedule::of_seed(scope, seed);
    shorten::run_and_shorten(seed, &whole, |plan| run_plan(scope, plan))
}

/// The same with some of its faults alone.
pub fn run_some(scope: Scope, seed: u64, some: &SomeFaults) -> Result<Report, InvalidFaults> {
    let whole = schedule::of_seed(scope, seed);
    shorten::run_some(seed, &whole, some, |plan| run_plan(scope, plan))
}

fn run_plan(scope: Scope, plan: Plan<'_, What>) -> Report {
    run_over(Medium::new, scope, plan)
}

/// Runs over a medium that this makes.
fn run_over(
    medium: impl FnOnce(Journal) -> io::Result<Medium>,
    scope: Scope,
    plan: Plan<'_, What>,
) -> Report {
    let world = Arc::new(World::with_own_time(plan.draws, plan.traced));
    let rng = &mut setup_rng(plan.seed);
    let journal = if rng.bool() { Journal::Ordered } else { Journal::None };
    let setup = match scope {
        Scope::Layouts => Setup::layouts(rng, journal),
        _ => Setup::directory(rng),
    };
    let medium = Arc::new(medium(journal).expect("a directory for the simulation"));
    let has_quota = scope == Scope::Directory && rng.u64(..4) == 0;
    let quota = has_quota.then_some(harm::QUOTA_BYTES);
    medium.set_quota(quota);
    let shared = Arc::new(Shared {
        chunk_files: Arc::new(ChunkFiles::new(&setup, &medium)),
        medium,
        arena: Arena::new(ArenaConfig::heap(ARENA_BYTES)).expect("memory for the callers"),
        model: Mutex::new(Model::with_ids(|n| setup.key_id(n))),
        setup,
        calm_since_ns: AtomicU64::new(0),
        is_log_doubtful: AtomicBool::new(false),
        log_delay: Mutex::default(),
        is_quiet: AtomicBool::new(false),
        bytes_max: AtomicU64::new(CAP_BYTES),
        is_counted: AtomicBool::new(false),
        was_full: AtomicBool::new(false),
        has_quota,
        world: Arc::clone(&world),
    });
    let drift_ppm = draw_drift(rng);
    world.set_wall_drift(drift_ppm);
    let setup = &shared.setup;
    world.event(format_args!(
        "journal {journal:?}, {setup}, quota {quota:?}, drift {drift_ppm} millionths"
    ));
    Scheduler::new(shared, moments(plan.faults)).run();
    world.report(scope, plan.seed)
}

impl Scheduler {
    fn new(shared: Arc<Shared>, moments: Vec<Moment<What>>) -> Self {
        Scheduler {
            shared,
            moments: moments.into(),
            processes: Vec::new(),
            started: 0,
            restarts: vec![Duration::ZERO; PROCESSES],
            turns: 0,
            excess_since: None,
        }
    }

    fn run(mut self) {
        self.run_until(FAULTS + CALM);
        self.shared.is_quiet.store(true, Ordering::Relaxed);
        self.shared.world.event(format_args!("callers begin nothing more"));
        let quiet_until = self.quiet_until();
        self.run_until(quiet_until);
        self.check_ledger();
        self.check_journals();
        self.restarts.clear();
        for (process, _) in &self.processes {
            process.state().shall_close = true;
        }
        self.run_until(quiet_until + CLOSE_MAX);
        for (process, _) in &self.processes {
            let what = format!("{} is not closed after {CLOSE_MAX:?}", process.name());
            self.shared.world.finding("close", what);
        }
        self.end_all();
    }

    /// Until when no caller does anything: all count the same then, and no status speaks of a full medium.
    fn quiet_until(&self) -> Duration {
        let until = FAULTS + CALM + QUIET;
        match self.shared.was_full.load(Ordering::Relaxed) {
            true => until.max(FAULTS + FULL_REPORTED + BACK_MAX),
            false => until,
        }
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
            let process = SimProcess::new(self.started, self.free_place(), world, medium);
            let process = Arc::new(process.watched(&self.shared.chunk_files));
            process.state().ready_at = now;
            let running = run_process::start(&self.shared, &process);
            self.processes.push((process, running.expect("memory for a stack")));
        }
    }

    /// A place that no process has now.
    fn free_place(&self) -> usize {
        let is_free = |place: &usize| self.processes.iter().all(|(other, _)| other.place != *place);
        (0..PROCESSES).find(is_free).expect("a process starts only where another has ended")
    }

    /// Gives the turn to one process that can run, or lets time pass.
    fn run_one(&mut self, end: Duration) {
        let now = self.elapsed();
        let runs_at: Vec<_> = self.processes.iter().map(|(process, _)| process.runs_at()).collect();
        let ready: Vec<usize> = (0..runs_at.len()).filter(|n| runs_at[*n] <= now).collect();
        if ready.is_empty() {
            let next = runs_at.into_iter().chain(self.restarts.iter().copied()).min();
            let next = next.unwrap_or(end).min(self.next_fault().max(now)).min(end);
            let wait = next.saturating_sub(now).max(Duration::from_nanos(1));
            return self.shared.world.advance(wait);
        }
        let chosen = ready[self.shared.world.below(ready.len() as u64) as usize];
        self.let_run(chosen);
        self.turns += 1;
        if self.shared.medium.take_changed() || self.turns.is_multiple_of(TURNS_A_CHECK) {
            self.check_cap();
        }
        if self.turns.is_multiple_of(TURNS_A_CHECK) {
            self.check_journals();
        }
    }

    fn let_run(&mut self, place: usize) {
        let (process, running) = &mut self.processes[place];
        let process = Arc::clone(process);
        running.go_on();
        if running.has_ended() {
            self.processes.remove(place);
            self.shared.world.event(format_args!("{} has ended", process.name()));
            if !self.shared.is_quiet() {
                let again = self.elapsed() + self.shared.world.between_ms(10, 1500);
                self.restarts.push(again);
            }
        }
    }

    fn check_cap(&mut self) {
        let bytes = self.shared.medium.chunk_bytes();
        let most = self.shared.bytes_max.load(Ordering::Relaxed);
        let is_counted = self.shared.is_counted.load(Ordering::Relaxed);
        let is_evicted =
            self.shared.calm_since().is_some_and(|since| self.elapsed() > since + EVICTED_WITHIN);
        if is_counted {
            let next = if is_evicted { CAP_BYTES } else { bytes.max(CAP_BYTES) };
            self.shared.bytes_max.fetch_min(next, Ordering::Relaxed);
        }
        if bytes > most {
            let what = format!("{bytes} bytes in the directory, {most} are allowed");
            self.shared.world.finding("cap", what);
        }
        // After a crash the total is that of an earlier moment.
        let counted = self.shared.medium.ledger_bytes().filter(|_| is_counted);
        if let Some(counted) = counted.filter(|counted| *counted < bytes) {
            let what = format!("the ledger counts {counted} bytes, {bytes} are there");
            self.shared.world.finding("ledger", what);
        }
        // Where calls fail it may count too much for a while.
        let Some(counted) = counted.filter(|counted| is_evicted && *counted > most) else {
            self.excess_since = None;
            return;
        };
        let since = *self.excess_since.get_or_insert(self.elapsed());
        if self.elapsed() >= since + self.excess_max() {
            let what = format!("the ledger counts {counted} bytes, {most} are allowed");
            self.shared.world.finding("ledger", what);
        }
    }

    /// How long the ledger may count more than is allowed. A count beside a save of two files may count
    /// the second one twice; what is above the cap then is evicted.
    fn excess_max(&self) -> Duration {
        if self.shared.setup.sidecar_bytes() > 0 { BACK_MAX } else { Duration::ZERO }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::medium::Faults;
    use crate::directory::schedule::Fault;

    /// What shows in the events of a run is found among all faults, by real runs.
    #[test]
    fn a_run_shrinks_to_the_fault_that_shows_in_its_events() {
        let is_crash = |fault: &Fault| matches!(fault.what, What::Crash { .. });
        let is_medium = |fault: &Fault| matches!(fault.what, What::Medium(_));
        for scope in [Scope::Directory, Scope::Layouts] {
            let of_seed = |seed| schedule::of_seed(scope, seed);
            let (seed, whole) = shorten::tests::short_schedule(of_seed, &[&is_crash, &is_medium]);
            for (event, fault) in
                [("crash: kept", "the machine loses power"), ("Faults {", "s, for ")]
            {
                let shortest =
                    shorten::tests::by_event(seed, &whole, event, |plan| run_plan(scope, plan));
                assert!(shortest.len() == 1 && shortest[0].contains(fault), "{shortest:?}");
            }
        }
    }

    /// Other file systems list names in other orders, and not each has direct I/O.
    #[test]
    fn a_run_is_the_same_over_another_file_system() {
        for (scope, seed) in [(Scope::Directory, 1), (Scope::Layouts, 1), (Scope::Layouts, 3)] {
            let faults = schedule::of_seed(scope, seed);
            let on_disk = |journal| Medium::below(&std::env::temp_dir(), journal);
            let one = run_plan(scope, Plan::of_seed(seed, &faults, false));
            let other = run_over(on_disk, scope, Plan::of_seed(seed, &faults, false));
            assert_eq!((one.events, one.digest), (other.events, other.digest), "{scope:?} {seed}");
        }
    }

    /// Processes wait in calls while these hang or are slow, are killed there, and all goes on afterwards.
    #[test]
    fn calls_that_hang_end_with_the_fault_or_the_process() {
        let at = |ms, lasts, what| {
            let [at, lasts] = [ms, lasts].map(Duration::from_millis);
            Fault { at, lasts, what }
        };
        let hang = What::Medium(Faults { names_hang: true, ..Faults::default() });
        let slow_names = Duration::from_millis(20);
        let slow = What::Medium(Faults { slow_names, ..Faults::default() });
        let faults = [
            at(2000, 3000, hang.clone()),
            at(5500, 2000, slow),
            at(8000, 2000, hang),
            at(9000, 0, What::Crash { draws: 1 }),
        ];
        let report = run_plan(Scope::Directory, Plan::of_seed(1, &faults, true));
        let count = |what: &str| report.trace.iter().filter(|event| event.contains(what)).count();
        assert!(count("hangs in") >= 2 * PROCESSES, "{report}");
        // They make no other call meanwhile.
        let place = |what: &str| report.trace.iter().position(|event| event.contains(what));
        let crash = place("crash: kept").unwrap();
        let dies = |event: &&String| event.contains("is killed before");
        let dead = report.trace[..crash].iter().rev().take(20).filter(dies).count();
        assert!(dead >= PROCESSES - 1, "{dead}");
        assert!(report.findings.is_empty(), "{report}");
    }

    /// Operations end by their deadlines, processes close or are killed, and all goes on afterwards.
    #[test]
    fn a_medium_that_hangs_keeps_no_operation_and_no_process() {
        let at = |seconds, lasts, what| {
            let [at, lasts] = [seconds, lasts].map(Duration::from_secs);
            Fault { at, lasts, what }
        };
        let hang = What::Medium(Faults { hangs: true, ..Faults::default() });
        let faults = [
            at(2, 7, hang),
            at(5, 0, What::Closed { place: 1 }),
            at(6, 0, What::Crash { draws: 1 }),
        ];
        let report = run_plan(Scope::Directory, Plan::of_seed(1, &faults, true));
        let place = |what: &str| report.trace.iter().position(|event| event.contains(what));
        let (hangs, crash) = (place("hangs: true").unwrap(), place("crash: kept").unwrap());
        let during = &report.trace[hangs..crash];
        assert!(during.iter().any(|event| event.contains("Timeout")), "{during:#?}");
        assert!(report.findings.is_empty(), "{report}");
    }
}
