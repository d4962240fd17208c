//! A deterministic fault simulator: real tiers of kvtier run on simulated machines, in virtual time
//! and in one thread, while faults happen around them. The same seed gives the same run, to the
//! last event.
//!
//! ```
//! let report = kvtier_faultsim::run(kvtier_faultsim::Scope::Fleet, 7);
//! assert!(report.findings.is_empty(), "{report}");
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bucket;
mod caller;
mod chunk_times;
mod conditions;
mod directory;
mod end_in_time;
mod fleet;
mod holds;
mod host;
mod key_events;
mod network;
mod open_operations;
mod open_requests;
mod own_objects;
mod panics;
mod queues;
mod report;
pub mod scale;
mod schedule;
mod service;
mod shorten;
mod simulation;
mod some_faults;
mod stack;
mod stripped_answers;
mod wall_clock;
mod world;

pub use report::{Finding, Report};
pub use simulation::{Conditions, Machine, Outcome, Simulation};
pub use some_faults::{InvalidFaults, SomeFaults};

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scope {
    /// Five nodes on one bucket with a cap.
    Fleet,
    /// Four processes on one directory with a cap.
    Directory,
    /// The same over each layout and encoding that a directory may have, without harm by other programs.
    Layouts,
    /// Host memory over a directory over a bucket, as one stack on one machine.
    Stack,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 4] = [Scope::Fleet, Scope::Directory, Scope::Layouts, Scope::Stack];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Fleet => "fleet",
            Scope::Directory => "directory",
            Scope::Layouts => "layouts",
            Scope::Stack => "stack",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Scope::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// Runs a simulation on the calling thread, which must not be one of a tokio runtime.
pub fn run(scope: Scope, seed: u64) -> Report {
    match scope {
        Scope::Fleet => fleet::run(seed, false),
        Scope::Directory | Scope::Layouts => directory::run(scope, seed, false),
        Scope::Stack => stack::run(seed, false),
    }
}

/// As [`run`]; and if a promise is broken, the report has the shortest schedule of faults that breaks
/// it, as far as it was found, and in [`Report::trace`] the first event, which names what the seed chose, and
/// the last events before the finding. This takes up to 452 runs.
pub fn run_and_shorten(scope: Scope, seed: u64) -> Report {
    match scope {
        Scope::Fleet => fleet::run_and_shorten(seed),
        Scope::Directory | Scope::Layouts => directory::run_and_shorten(scope, seed),
        Scope::Stack => stack::run_and_shorten(seed),
    }
}

/// As [`run`], with some faults of the seed alone: a shortened schedule, [`Report::some_faults`], as a test. If they
/// break a promise, the report has schedule and events as that of [`run_and_shorten`].
///
/// ```
/// use kvtier_faultsim::{Scope, run_some};
///
/// let report = run_some(Scope::Stack, 3, &"0,2".parse()?)?;
/// assert!(report.findings.is_empty(), "{report}");
/// # Ok::<(), kvtier_faultsim::InvalidFaults>(())
/// ```
///
/// # Errors
/// The seed has no fault of such a number.
pub fn run_some(scope: Scope, seed: u64, some: &SomeFaults) -> Result<Report, InvalidFaults> {
    match scope {
        Scope::Fleet => fleet::run_some(seed, some),
        Scope::Directory | Scope::Layouts => directory::run_some(scope, seed, some),
        Scope::Stack => stack::run_some(seed, some),
    }
}

/// As [`run`], and [`Report::trace`] has every event.
pub fn run_traced(scope: Scope, seed: u64) -> Report {
    match scope {
        Scope::Fleet => fleet::run(seed, true),
        Scope::Directory | Scope::Layouts => directory::run(scope, seed, true),
        Scope::Stack => stack::run(seed, true),
    }
}
