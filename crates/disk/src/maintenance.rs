//! Background maintenance, on a thread of its own: flushes the journal, shares the ledger, applies
//! changes of peers, takes snapshots, keeps space free, and cleans up.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::counters::add;
use crate::data_dir::{StagingDir, live_names};
use crate::index_age::FOLLOW_EVERY;
use crate::mover::Mover;
use crate::shared::Shared;
use crate::snapshot_leader::Leadership;
use crate::use_order::{self, Reader};

/// The interval of maintenance rounds: free space is checked, and the ledger of a file system with
/// slow locks is shared.
const TICK: Duration = Duration::from_secs(1);
/// The same on a network mount, where changes of peers are read only in a round: two intervals are
/// less than a second.
const NETWORK_TICK: Duration = Duration::from_millis(400);
/// How often the quarantine and the peers are checked.
const CLEAN_UP_EVERY: Duration = Duration::from_secs(5);
/// How soon the ledger is compared with the directory again while it may be wrong.
const CHECK_AGAIN_EVERY: Duration = Duration::from_secs(2);
/// The maintenance thread; [`close`](Maintenance::close) runs a last full round.
pub struct Maintenance {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The last round of a simulated process, which has no threads.
    last_round: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Maintenance {
    /// Starts the thread.
    pub fn start<M: Mover>(mut tasks: MaintenanceTasks<M>) -> io::Result<Self> {
        if kvtier_os::is_simulated() {
            return Ok(Maintenance::without_thread(tasks));
        }
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let theirs = Arc::clone(&stop);
        let name = format!("{}-maint", tasks.shared.caps.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let (stop, wake) = &*theirs;
            let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            // The last round begins after the stop was requested, also where that happens during
            // another round.
            let mut last = false;
            while !last {
                let due = tasks.shared.clock.now() + tasks.tick;
                let mut follow_at = tasks.shared.clock.now() + FOLLOW_EVERY;
                while !*stopped && tasks.shared.clock.now() < due {
                    stopped = tasks.shared.clock.wait_until(wake, stopped, due.min(follow_at));
                    if *stopped || tasks.shared.clock.now() < follow_at {
                        continue;
                    }
                    follow_at = tasks.shared.clock.now() + FOLLOW_EVERY;
                    // Between the rounds as well, where lookups in memory depend on it.
                    if tasks.shared.index_age.is_wanted() {
                        drop(stopped);
                        tasks.shared.follow_for_lookups();
                        stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
                    }
                }
                last = *stopped;
                // Not held during a round, so that `close` can request the stop at any time.
                drop(stopped);
                tasks.round(last);
                stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            }
        })?;
        Ok(Maintenance { stop, thread: Mutex::new(Some(thread)), last_round: Mutex::default() })
    }

    /// The same for a simulated process, which runs each round later.
    fn without_thread<M: Mover>(tasks: MaintenanceTasks<M>) -> Self {
        let tick = tasks.tick;
        let tasks = Arc::new(Mutex::new(tasks));
        round_later(Arc::downgrade(&tasks), tick);
        let last_round = move || tasks.lock().unwrap_or_else(PoisonError::into_inner).round(true);
        let last_round = Mutex::new(Some(Box::new(last_round) as Box<dyn FnOnce() + Send>));
        Maintenance { stop: Arc::default(), thread: Mutex::default(), last_round }
    }

    /// Runs a last full round and ends the thread. A listener may drop the tier on this very thread:
    /// then both happen after this returns.
    pub fn close(&self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        let last_round = self.last_round.lock().unwrap_or_else(PoisonError::into_inner).take();
        last_round.into_iter().for_each(|round| round());
    }
}

/// Runs a round after this time, and so on while the tier is open.
fn round_later<M: Mover>(tasks: Weak<Mutex<MaintenanceTasks<M>>>, after: Duration) {
    kvtier_os::later(after, move || {
        let Some(running) = tasks.upgrade() else { return };
        running.lock().unwrap_or_else(PoisonError::into_inner).round(false);
        round_later(tasks, after);
    });
}

/// The tasks of a tier, and when they ran last.
pub struct MaintenanceTasks<M: Mover> {
    shared: Arc<Shared<M>>,
    reader: Reader,
    tick: Duration,
    flush_every: Duration,
    flushed: Instant,
    cleaned_up: Instant,
    free_min_bytes: u64,
    /// When free space was checked last.
    space_checked: Instant,
    /// The leading process merges journals and takes snapshots. `None` while the directory has been
    /// read-only since it was opened.
    leadership: Option<Leadership>,
    /// This process's staging directory in the last round.
    staging: Option<Arc<StagingDir>>,
    /// Journals of dead processes wait to be merged into a snapshot.
    inherited: bool,
}

impl<M: Mover> MaintenanceTasks<M> {
    /// The tasks of a tier that was just opened.
    pub fn new(
        shared: &Arc<Shared<M>>,
        reader: Reader,
        flush_every: Duration,
        free_min_bytes: u64,
    ) -> io::Result<Self> {
        let may_write = !shared.data_dir.is_read_only();
        let leadership = may_write.then(|| Leadership::open(&shared.data_dir.own())).transpose()?;
        let flushed = shared.clock.now();
        let inherited = reader.others() > 0;
        let shared = Arc::clone(shared);
        let staging = shared.data_dir.staging().ok();
        let tick = if shared.changes.is_prompt() { TICK } else { NETWORK_TICK };
        let tick = tick.min(flush_every);
        Ok(MaintenanceTasks {
            shared,
            reader,
            tick,
            flush_every,
            flushed,
            cleaned_up: flushed,
            free_min_bytes,
            space_checked: flushed,
            leadership,
            staging,
            inherited,
        })
    }

    /// Runs the tasks that are due; in the `last` round, all of them.
    fn round(&mut self, last: bool) {
        // First of all: every task below writes into `.kvtier`.
        self.shared.restore_data_dir();
        // Chunks are still served, so changes of peers are still followed; nothing can be written.
        if self.shared.data_dir.is_read_only() {
            return self.follow();
        }
        let staging = self.shared.data_dir.staging().ok();
        if staging.as_ref().map(Arc::as_ptr) != self.staging.as_ref().map(Arc::as_ptr) {
            self.staging = staging;
            self.run_task("create `.kvtier/evictor` again", MaintenanceTasks::recreate_leadership);
        }
        self.shared.delete_undeleted();
        self.run_task("share the ledger", |tasks| tasks.shared.share_ledger());
        self.run_task("share what was changed", |tasks| tasks.shared.changes.flush());
        self.run_task("clean up the change log", |tasks| tasks.shared.changes.delete_strays());
        self.follow();
        if last || self.shared.clock.elapsed(self.flushed) >= self.flush_every {
            // Set before the work, so that a task that fails is not tried in every round.
            self.flushed = self.shared.clock.now();
            self.run_task("write the journal", |tasks| {
                // Hosts that cannot see this process's lock go by the age of this file.
                tasks.shared.data_dir.staging()?.heartbeat(&tasks.shared.clock)?;
                tasks.shared.journal.flush()
            });
            self.run_task("take a snapshot", |tasks| {
                // One process of the directory is enough: snapshots hold the order of use of all.
                let leads = match &mut tasks.leadership {
                    Some(leadership) => leadership.lead(&tasks.shared.data_dir)?,
                    None => false,
                };
                if leads && tasks.needs_snapshot(last)? { tasks.snapshot() } else { Ok(()) }
            });
        }
        self.evict_as_lmcache_does();
        self.run_task("keep space free", MaintenanceTasks::keep_space_free);
        let every =
            if self.shared.is_ledger_suspect() { CHECK_AGAIN_EVERY } else { CLEAN_UP_EVERY };
        if self.shared.clock.elapsed(self.cleaned_up) >= every {
            self.cleaned_up = self.shared.clock.now();
            self.run_task("clean up the directory", MaintenanceTasks::clean_up);
        }
    }

    /// Applies changes of peers to the index.
    fn follow(&mut self) {
        self.shared.follow_changes();
        if self.shared.changes.has_missed() {
            self.shared.relist();
        }
    }

    /// `.kvtier` was deleted and created again: joins the leadership in the new one, and merges its
    /// journals.
    fn recreate_leadership(&mut self) -> io::Result<()> {
        self.leadership = Some(Leadership::open(&self.shared.data_dir.own())?);
        self.inherited = true;
        Ok(())
    }

    fn run_task(&mut self, what: &str, task: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(e) = task(self) {
            self.shared.failed(&format!("cannot {what}"), &e);
        }
    }

    /// Whether a snapshot is due: peers may journal much while this process is idle.
    fn needs_snapshot(&mut self, last: bool) -> io::Result<bool> {
        let staging = self.shared.data_dir.staging()?;
        let new =
            self.shared.journal.since_snapshot() + self.reader.unread_bytes(staging.name())?;
        Ok(last || new >= use_order::SNAPSHOT_AFTER_BYTES || std::mem::take(&mut self.inherited))
    }

    /// Merges the journals of all processes and writes a snapshot of the order of use.
    fn snapshot(&mut self) -> io::Result<()> {
        let shared = &self.shared;
        let at_ms = self.shared.clock.unix_ms();
        let own = shared.data_dir.own();
        let staging = shared.data_dir.staging()?;
        let name = staging.name();
        shared.journal.flush()?;
        // Before the journals are read: one whose process dies after this is kept until the next
        // snapshot.
        let living: BTreeSet<String> = live_names(&own.join("tmp"))?;
        let merged = self.reader.read(Some(name))?;
        self.reader.take_damage().into_iter().for_each(|found| shared.data_dir.note_damage(found));
        // In slices, so that lookups are not held up by a long journal.
        for records in merged.chunks(4096) {
            let mut index = shared.index();
            records.iter().for_each(|record| use_order::apply(&mut index, record));
        }
        // Records from here on go to a new file: the snapshot below has all of the old ones.
        let number = shared.journal.begin_anew();
        use_order::write_snapshot(&own, shared.chunks.index_mutex(), at_ms)?;
        self.reader.merged(at_ms);
        // Only after the snapshot is in place: until then the journals are the only copy.
        self.reader.forget(&living, name, number)
    }

    /// Trims the quarantine, removes what dead processes left, and compares a ledger that may be
    /// wrong with the directory.
    fn clean_up(&mut self) -> io::Result<()> {
        let shared = &self.shared;
        if shared.data_dir.repair_shards().unwrap_or_else(|e| {
            shared.failed("cannot repair the directories of chunks", &e);
            false
        }) {
            // Chunks behind a link are no longer in the directory.
            shared.space.ledger_validity.suspect();
        }
        shared.move_unmoved();
        shared.evict_again();
        shared.trim_quarantine();
        shared.remove_stale();
        shared.detect_peers()?;
        if shared.is_ledger_suspect() {
            shared.space.relist_throttle.run(&shared.clock, || {
                shared.check_ledger();
                true
            });
        }
        Ok(())
    }

    fn evict_as_lmcache_does(&self) {
        while self.shared.may_evict() {
            let victims = self.shared.index().compat_victims(self.shared.now_ms());
            // Victims that cannot be deleted are chosen again: the next round tries once more.
            if victims.is_empty() || self.shared.evict(victims) == 0 {
                return;
            }
        }
    }

    /// Evicts the oldest chunks before other programs fill the device, at most
    /// `deletes_per_second_max` in a second.
    fn keep_space_free(&mut self) -> io::Result<()> {
        let shared = &self.shared;
        let now = shared.clock.now();
        // The budget of deletes covers the time since the last check; at most one interval, so that
        // a tier that slept does not delete in a burst.
        let since = now
            .saturating_duration_since(std::mem::replace(&mut self.space_checked, now))
            .min(TICK);
        let free = shared.data_dir.free_bytes()?;
        let mut short = self.free_min_bytes.saturating_sub(free);
        if short == 0 || !shared.may_evict() {
            return Ok(());
        }
        add(&shared.counters.device_full, 1);
        short = short.saturating_sub(shared.free_quarantined(short));
        let due =
            (f64::from(shared.limits.deletes_per_second_max) * since.as_secs_f64()).ceil() as u64;
        for _ in 0..due {
            if short == 0 {
                break;
            }
            // One by one: chunks that are not due yet stay hits.
            let victims = shared.index().evict_bytes(shared.now_ms(), 1);
            let bytes = victims.iter().map(|victim| victim.chunk.bytes).sum::<u64>();
            if shared.evict(victims) == 0 {
                break;
            }
            short = short.saturating_sub(bytes);
        }
        Ok(())
    }
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maintenance")
    }
}
