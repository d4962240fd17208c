//! The process of the machine: all of it runs on the runtime's thread. What a tier runs later is a
//! task of the runtime. A killed process goes on without effect until its operations have ended: its
//! calls fail, and its connections are cut.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kvtier_disk::inspect::ledger_bytes;
use kvtier_os::simulated::{Arrived, Call, Identity, Job, KnownName, Name, Process, Write};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::DIR_BYTES;
use crate::directory::medium::{Medium, Paths};
use crate::directory::record::{Record, kind};
use crate::host::Host;
use crate::world::World;

/// How many calls pass between two checks of the ledger, which reads it by calls of its own. The cap is checked then,
/// too, and after each call that changed something.
const CALLS_A_CHECK: u64 = 8;

/// So long after the medium failed last the ledger counts no more than the cap again.
const RECOUNTED_WITHIN: Duration = Duration::from_secs(6);

/// A process.
#[derive(Debug)]
pub struct StackProcess {
    number: u64,
    pub host: Arc<Host>,
    pub medium: Arc<Medium>,
    started_ms: u64,
    jobs: Mutex<Jobs>,
    /// Another job is the first.
    changed: Notify,
    is_dead: AtomicBool,
    calls: AtomicU64,
    /// After how many calls it is killed.
    dies_at: AtomicU64,
    /// The most bytes that the directory may have.
    pub bytes_max: AtomicU64,
    /// The most bytes that its ledger may count while the medium is well. A file that a crash cut counts as its name
    /// says until a load finds it, so the first count may be above the cap.
    counted_max: AtomicU64,
    /// It has opened the directory, and counted it.
    pub is_open: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    due: BTreeMap<(Duration, u64), Job>,
    next: u64,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Jobs({})", self.due.len())
    }
}

impl StackProcess {
    pub fn new(number: u64, host: &Arc<Host>, medium: &Arc<Medium>, bytes_max: u64) -> Self {
        StackProcess {
            number,
            started_ms: host.world.wall_ms(),
            host: Arc::clone(host),
            medium: Arc::clone(medium),
            jobs: Mutex::default(),
            changed: Notify::new(),
            is_dead: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            dies_at: AtomicU64::new(u64::MAX),
            bytes_max: AtomicU64::new(bytes_max),
            counted_max: AtomicU64::new(u64::MAX),
            is_open: AtomicBool::new(false),
        }
    }

    fn world(&self) -> &World {
        &self.host.world
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Kills it when it has made this number of calls from now on.
    pub fn kill_in(&self, calls: u64) {
        let at = self.calls.load(Ordering::Relaxed) + calls;
        self.dies_at.store(at, Ordering::Relaxed);
    }

    /// Kills it: none of its calls has an effect from now on.
    pub fn kill(&self, at: &str) {
        if !self.is_dead.swap(true, Ordering::Relaxed) {
            self.host.kill();
            self.world().event(format_args!("{} is killed {at}", self.host.name()));
        }
    }

    /// Runs what is due, for ever.
    pub async fn run_jobs(self: Arc<Self>) {
        loop {
            // A process that is stopped runs none of them.
            self.host.runs().await;
            let now = self.world().elapsed();
            let (due, next) = {
                let mut jobs = self.jobs();
                let due = jobs.due.first_entry().filter(|first| first.key().0 <= now);
                let due = due.map(|first| first.remove());
                (due, jobs.due.first_key_value().map(|(at, _)| at.0))
            };
            match due {
                Some(job) => {
                    job();
                    // The requests of other tasks come in between.
                    tokio::task::yield_now().await;
                }
                None => {
                    let wait = next.map_or(Duration::from_secs(3600), |at| at.saturating_sub(now));
                    drop(timeout(wait, self.changed.notified()).await);
                }
            }
        }
    }

    fn check_cap(&self) {
        let bytes = self.medium.chunk_bytes();
        let most = self.bytes_max.load(Ordering::Relaxed);
        if bytes > most {
            let what = format!("{bytes} bytes in the directory, {most} are allowed");
            self.world().finding("cap", what);
        }
        if self.is_open.load(Ordering::Relaxed) {
            // What could not be deleted becomes less only.
            self.bytes_max.fetch_min(bytes.max(DIR_BYTES), Ordering::Relaxed);
        }
    }

    fn check_ledger(&self) {
        let bytes = self.medium.chunk_bytes();
        let is_open = self.is_open.load(Ordering::Relaxed);
        if is_open && let Ok(Some(counted)) = ledger_bytes(self.medium.root()) {
            if counted < bytes {
                let what = format!("the ledger counts {counted} bytes, {bytes} are there");
                self.world().finding("ledger", what);
            }
            // Where calls fail it may count too much for a while.
            let (now, failed_until) =
                (self.world().elapsed(), self.world().lock().failed_until.medium);
            if now < failed_until.saturating_add(RECOUNTED_WITHIN) {
                return;
            }
            let most = self.counted_max.fetch_min(counted.max(DIR_BYTES), Ordering::Relaxed);
            if counted > most {
                let left = self.medium.leftovers();
                let what = format!(
                    "the ledger counts {counted} bytes of {bytes}, {most} are allowed, {left:?}"
                );
                self.world().finding("ledger", what);
            }
        }
    }
}

/// The process as its thread has it.
#[derive(Debug)]
pub struct OnRuntime(pub Arc<StackProcess>);

impl OnRuntime {
    fn record(&self) -> Record<'_, &str> {
        let StackProcess { host, medium, .. } = &*self.0;
        Record { world: &host.world, medium, process: host.name() }
    }
}

impl Process for OnRuntime {
    fn before(&self, call: Call<'_>) -> Result<(), nix::Error> {
        let process = &self.0;
        let calls = process.calls.fetch_add(1, Ordering::Relaxed);
        if calls >= process.dies_at.load(Ordering::Relaxed) {
            process.kill(&format!("before {}", kind(call)));
        }
        if process.is_dead() {
            return Err(nix::Error::EIO);
        }
        let is_due = calls.is_multiple_of(CALLS_A_CHECK);
        if process.medium.take_changed() || is_due {
            process.check_cap();
        }
        if is_due {
            process.check_ledger();
        }
        let done = process.medium.before(process.world(), call);
        done.inspect_err(|error| self.record().refused(call, *error))
    }

    fn after(&self, call: Call<'_>) {
        let paths = self.record().made(call);
        if let (Call::Rename(..) | Call::Link(..), Paths::Two(_, Some(to))) = (call, &paths) {
            self.0.world().lock().torn.remove(to);
        }
    }

    fn failed(&self, call: Call<'_>, error: nix::Error) {
        self.record().failed(call, error);
    }

    fn written(&self, write: Write<'_>) -> Arrived {
        self.0.medium.arrived(self.0.world(), write)
    }

    fn read_len(&self, bytes: usize) -> usize {
        self.0.medium.read_len(self.0.world(), bytes)
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
        self.0.world().now()
    }

    fn wall(&self) -> SystemTime {
        self.0.world().wall()
    }

    fn sizes(&self) -> (u64, u64) {
        self.0.medium.sizes()
    }

    /// Only who waits for the lock of another process pauses, and there is none.
    fn sleep(&self, time: Duration) {
        panic!("a pause of {time:?}, and no process to wait for");
    }

    fn later(&self, after: Duration, job: Job) {
        let at = self.0.world().elapsed() + after;
        let mut jobs = self.0.jobs();
        let number = jobs.next;
        jobs.next += 1;
        jobs.due.insert((at, number), job);
        drop(jobs);
        self.0.changed.notify_one();
    }
}
