//! What has to be done now and then, on a thread of its own: flush the journal, share the ledger,
//! take snapshots, tidy up.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::counters::add;
use crate::data_dir::{StagingDir, live_names};
use crate::history::{self, Reader};
use crate::leadership::Leadership;
use crate::mover::Mover;
use crate::shared::Shared;

/// How often free space is looked at, the ledger of a file system with slow locks is shared, and
/// anything is done at all.
const TICK: Duration = Duration::from_secs(1);
/// The same on a network mount, where what others did is learned only then: two such pauses are
/// less than a second.
const NETWORK_TICK: Duration = Duration::from_millis(400);
/// How often the quarantine and the neighbours are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon the ledger is compared with the directory again while it seems to be wrong.
const CHECK_AGAIN_EVERY: Duration = Duration::from_secs(2);
/// A snapshot is taken when all processes journaled so much since the last one.
const SNAPSHOT_AFTER_BYTES: u64 = 4 << 20;

/// The thread; [`close`](Keeper::close) lets it do everything once more.
pub struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Starts the thread.
    pub fn start<M: Mover>(mut chores: Chores<M>) -> io::Result<Self> {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let theirs = Arc::clone(&stop);
        let name = format!("{}-keeper", chores.shared.caps.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let (stop, bell) = &*theirs;
            let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            // The last round comes after the word to stop, also when that comes in the middle of
            // another.
            let mut last = false;
            while !last {
                let due = chores.shared.clock.now() + chores.tick;
                while !*stopped && chores.shared.clock.now() < due {
                    stopped = chores.shared.clock.wait_until(bell, stopped, due);
                }
                last = *stopped;
                drop(stopped);
                chores.round(last);
                stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            }
        })?;
        Ok(Keeper { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Everything once more, then the end. A listener may drop the tier on this very thread: then
    /// that comes after this returns.
    pub fn close(&self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// What there is to do.
pub struct Chores<M: Mover> {
    shared: Arc<Shared<M>>,
    reader: Reader,
    tick: Duration,
    flush_every: Duration,
    flushed: Instant,
    looked: Instant,
    free_min_bytes: u64,
    /// When free space was looked at last.
    watched: Instant,
    /// Whoever leads merges journals and takes snapshots. `None` while the directory has been
    /// read-only since it was opened.
    leadership: Option<Leadership>,
    /// Our corner when we looked last.
    staging: Option<Arc<StagingDir>>,
    /// Journals of dead processes wait to be merged into a snapshot.
    inherited: bool,
}

impl<M: Mover> Chores<M> {
    /// The chores of a tier that was just opened.
    pub fn new(
        shared: &Arc<Shared<M>>,
        reader: Reader,
        flush_every: Duration,
        free_min_bytes: u64,
    ) -> io::Result<Self> {
        let may_write = !shared.data_dir.is_read_only();
        let leadership = may_write.then(|| Leadership::open(&shared.data_dir.own())).transpose()?;
        let (flushed, inherited) = (shared.clock.now(), reader.others() > 0);
        let (shared, staging) = (Arc::clone(shared), shared.data_dir.staging().ok());
        let tick = if shared.changes.is_prompt() { TICK } else { NETWORK_TICK };
        let tick = tick.min(flush_every);
        let looked = flushed;
        Ok(Chores {
            shared,
            reader,
            tick,
            flush_every,
            flushed,
            looked,
            free_min_bytes,
            watched: flushed,
            leadership,
            staging,
            inherited,
        })
    }

    /// One round; everything that is due, or in the `last` one everything.
    fn round(&mut self, last: bool) {
        self.shared.restore_data_dir();
        if self.shared.data_dir.is_read_only() {
            return self.follow();
        }
        let staging = self.shared.data_dir.staging().ok();
        if staging.as_ref().map(Arc::as_ptr) != self.staging.as_ref().map(Arc::as_ptr) {
            self.staging = staging;
            self.tell("make `.kvtier/evictor` again", Chores::begin_anew);
        }
        self.tell("share the ledger", |chores| chores.shared.share_ledger());
        self.tell("share what was changed", |chores| chores.shared.changes.flush());
        self.tell("tidy up the change log", |chores| chores.shared.changes.delete_strays());
        self.follow();
        if last || self.shared.clock.elapsed(self.flushed) >= self.flush_every {
            self.flushed = self.shared.clock.now();
            self.tell("write the journal", |chores| {
                chores.shared.data_dir.staging()?.heartbeat(&chores.shared.clock)?;
                chores.shared.journal.flush()
            });
            self.tell("take a snapshot", |chores| {
                let leads = match &mut chores.leadership {
                    Some(leadership) => leadership.lead(&chores.shared.data_dir)?,
                    None => false,
                };
                if leads && chores.needs_snapshot(last)? { chores.snapshot() } else { Ok(()) }
            });
        }
        self.evict_as_lmcache_does();
        self.tell("watch the free space", Chores::watch_free_space);
        let every = if self.shared.is_ledger_suspect() { CHECK_AGAIN_EVERY } else { LOOK_EVERY };
        if self.shared.clock.elapsed(self.looked) >= every {
            self.looked = self.shared.clock.now();
            self.tell("look after the directory", Chores::look_after);
        }
    }

    /// Takes over what others changed.
    fn follow(&mut self) {
        self.shared.follow_changes();
        if self.shared.changes.has_missed() {
            self.shared.relist();
        }
    }

    /// Somebody deleted `.kvtier`, and it is made again: what it held besides names is written
    /// again.
    fn begin_anew(&mut self) -> io::Result<()> {
        self.leadership = Some(Leadership::open(&self.shared.data_dir.own())?);
        self.inherited = true;
        Ok(())
    }

    fn tell(&mut self, what: &str, chore: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(e) = chore(self) {
            self.shared.failed(&format!("cannot {what}"), &e);
        }
    }

    /// Whether a snapshot is due: others may note much while we do nothing.
    fn needs_snapshot(&mut self, last: bool) -> io::Result<bool> {
        let staging = self.shared.data_dir.staging()?;
        let new =
            self.shared.journal.since_snapshot() + self.reader.unread_bytes(staging.name())?;
        Ok(last || new >= SNAPSHOT_AFTER_BYTES || std::mem::take(&mut self.inherited))
    }

    /// Merges what all processes noted, and writes down the order of use.
    fn snapshot(&mut self) -> io::Result<()> {
        let (shared, at_ms) = (&self.shared, self.shared.clock.unix_ms());
        let (own, staging) = (shared.data_dir.own(), shared.data_dir.staging()?);
        let name = staging.name();
        shared.journal.flush()?;
        let living: BTreeSet<String> = live_names(&own.join("tmp"))?;
        let merged = self.reader.read(Some(name))?;
        self.reader.take_damage().into_iter().for_each(|found| shared.data_dir.note_damage(found));
        for some in merged.chunks(4096) {
            let mut index = shared.index();
            some.iter().for_each(|record| history::apply(&mut index, record));
        }
        let number = shared.journal.begin_anew();
        history::write_snapshot(&own, &shared.index, at_ms)?;
        self.reader.merged(at_ms);
        self.reader.forget(&living, (name, number))
    }

    /// Old quarantine goes, what dead processes left goes, and a ledger that may be wrong is
    /// compared with the directory.
    fn look_after(&mut self) -> io::Result<()> {
        let shared = &self.shared;
        if shared.data_dir.repair_shards().unwrap_or_else(|e| {
            shared.failed("cannot repair the directories of chunks", &e);
            false
        }) {
            // Chunks behind a link are gone.
            shared.ledger_check.suspect();
        }
        shared.trim_aside();
        shared.remove_stale();
        shared.look_for_peers()?;
        if shared.is_ledger_suspect() {
            shared.looks.now_and_then(&shared.clock, || {
                shared.check_ledger();
                true
            });
        }
        Ok(())
    }

    fn evict_as_lmcache_does(&self) {
        while self.shared.may_evict() {
            let victims = self.shared.index().compat_victims(self.shared.now_ms());
            if victims.is_empty() || self.shared.evict(victims) == 0 {
                return;
            }
        }
    }

    /// A medium that others fill gets some of our room before it is full: the oldest chunks, so
    /// many a second.
    fn watch_free_space(&mut self) -> io::Result<()> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let since =
            now.saturating_duration_since(std::mem::replace(&mut self.watched, now)).min(TICK);
        let free = shared.data_dir.free_bytes()?;
        let mut short = self.free_min_bytes.saturating_sub(free);
        if short == 0 || !shared.may_evict() {
            return Ok(());
        }
        add(&shared.counters.device_full, 1);
        short = short.saturating_sub(shared.clear_aside(short));
        let due = (f64::from(shared.deletes_per_second_max) * since.as_secs_f64()).ceil() as u64;
        for _ in 0..due {
            if short == 0 {
                break;
            }
            // One by one: those that are not due yet stay hits.
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

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}
