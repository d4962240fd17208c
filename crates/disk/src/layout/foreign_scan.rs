//! The scan of a foreign directory; it deletes no chunk. At the start, names show which chunks are
//! stored. In the background and every `sweep_every`, each file shows its length, since other
//! programs write and delete there.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvtier_index::{Chunk, DigestTag, InsertOutcome, SlotCursor};
use kvtier_key::{Digest, Key};

use super::Foreign;
use super::find_chunk::FoundChunk;
use super::scan_requests::ScanRequests;
use crate::mover::Mover;
use crate::shared::Shared;
use crate::use_order;

/// How many chunks are entered or compared while the index is locked.
const PAGE_CHUNKS: usize = 1024;
/// When a scan that failed is tried again first. Each failure doubles the time, up to `sweep_every`, but
/// not before the first scan: until then nothing is evicted, and saves find no space in a full directory.
/// So it is with the cap that could not be agreed on.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a simulated process, which has no thread that a request could wake, looks for one.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The thread that scans.
pub struct ForeignScanner<M: Mover> {
    shared: Arc<Shared<M>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<M: Mover> ForeignScanner<M> {
    /// Starts the thread. `listed`: the names were listed already.
    pub fn start(shared: &Arc<Shared<M>>, every: Duration, listed: bool) -> io::Result<Self> {
        let rounds = Rounds::new(every, listed, shared.clock.now());
        if kvtier_os::is_simulated() {
            let due = shared.clock.now();
            look_later(Arc::downgrade(shared), rounds, due, Duration::ZERO);
            return Ok(ForeignScanner { shared: Arc::clone(shared), thread: Mutex::default() });
        }
        let theirs = Arc::clone(shared);
        let name = format!("{}-sweeper", shared.caps.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(foreign) = theirs.data_dir.foreign() {
                run(&theirs, foreign, rounds);
            }
        })?;
        Ok(ForeignScanner { shared: Arc::clone(shared), thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread. A listener may drop the tier on this very thread: then it ends after this
    /// returns.
    pub fn close(&self) {
        if let Some(foreign) = self.shared.data_dir.foreign() {
            foreign.scan_requests.change(|request| request.stop = true);
        }
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl<M: Mover> Drop for ForeignScanner<M> {
    /// Ends the thread of a tier whose open failed. It keeps the tier's state alive.
    fn drop(&mut self) {
        self.close();
    }
}

impl<M: Mover> fmt::Debug for ForeignScanner<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForeignScanner")
    }
}

fn run<M: Mover>(shared: &Shared<M>, foreign: &Foreign, mut rounds: Rounds) {
    let ScanRequests { request, wake } = &foreign.scan_requests;
    let mut is_requested = false;
    loop {
        let next = rounds.next(shared, foreign, is_requested);
        let mut requested = request.lock().unwrap_or_else(PoisonError::into_inner);
        let due = shared.clock.now() + next;
        while !requested.stop && !requested.now && shared.clock.now() < due {
            requested = shared.clock.wait_until(wake, requested, due);
        }
        if requested.stop {
            return;
        }
        is_requested = std::mem::take(&mut requested.now);
    }
}

/// The scans of a tier, one after another.
struct Rounds {
    every: Duration,
    /// The names, and the order of use, are in the index.
    listed: bool,
    /// When to try again if the next scan fails.
    retry: Duration,
    /// When the next scan is due.
    due: Instant,
}

impl Rounds {
    fn new(every: Duration, listed: bool, due: Instant) -> Self {
        Rounds { every, listed, retry: RETRY_AFTER, due }
    }

    /// Does what is due. Answers after which time to come again.
    fn next<M: Mover>(
        &mut self,
        shared: &Shared<M>,
        foreign: &Foreign,
        is_requested: bool,
    ) -> Duration {
        if is_requested || shared.clock.now() >= self.due {
            let next = self.scan(shared, foreign);
            self.due = shared.clock.now() + next;
        } else if shared.must_agree(foreign) {
            shared.agree_on_cap_of(foreign);
            shared.evict_to_cap();
            shared.evict_ledger_excess();
        }
        let next = self.due.saturating_duration_since(shared.clock.now());
        if shared.must_agree(foreign) { next.min(RETRY_AFTER) } else { next }
    }

    /// Scans, and evicts what is above the cap. Answers when the next scan is due.
    fn scan<M: Mover>(&mut self, shared: &Shared<M>, foreign: &Foreign) -> Duration {
        if foreign.namespace().is_none() {
            return self.every;
        }
        if !self.listed {
            let listed = shared.list_foreign(foreign);
            self.listed = listed.is_ok();
            shared.report_failure(listed, "list the directory");
        }
        let scanned = shared.scan_foreign(foreign);
        let is_counted = scanned.is_ok();
        shared.report_failure(scanned, "sweep the directory");
        shared.evict_to_cap();
        if is_counted {
            shared.evict_ledger_excess();
        }
        if is_counted && self.listed {
            return self.after_success();
        }
        match foreign.is_scanned() || shared.data_dir.is_read_only() {
            true => self.after_failure(),
            false => self.before_first(),
        }
    }

    fn after_success(&mut self) -> Duration {
        self.retry = RETRY_AFTER;
        self.every
    }

    fn after_failure(&mut self) -> Duration {
        let next = self.retry.min(self.every);
        self.retry = next * 2;
        next
    }

    /// Also after a first scan that took long: the medium may be fast again.
    fn before_first(&self) -> Duration {
        RETRY_AFTER.min(self.every)
    }
}

/// Scans in a simulated process after this time, if that is `due` or requested then, and so on while
/// the tier is open.
fn look_later<M: Mover>(
    shared: Weak<Shared<M>>,
    mut rounds: Rounds,
    mut due: Instant,
    after: Duration,
) {
    kvtier_os::later(after, move || {
        let Some(running) = shared.upgrade() else { return };
        let Some(foreign) = running.data_dir.foreign() else { return };
        let request = foreign.scan_requests.take();
        if request.stop {
            return;
        }
        if request.now || running.clock.now() >= due {
            let next = rounds.next(&running, foreign, request.now);
            due = running.clock.now() + next;
        }
        look_later(shared, rounds, due, LOOK_EVERY);
    });
}

impl<M: Mover> Shared<M> {
    fn report_failure(&self, done: io::Result<()>, what: &str) {
        if let Err(e) = done {
            self.fault(format!("cannot {what}: {e}"));
        }
    }

    /// Whether eviction may choose: not before the sizes of a foreign layout's files are known.
    pub fn may_evict(&self) -> bool {
        !self.data_dir.is_read_only() && self.data_dir.foreign().is_none_or(Foreign::may_evict)
    }

    /// Enters all names with unknown lengths, in the journaled order of use. No file is opened.
    pub fn list_foreign(&self, foreign: &Foreign) -> io::Result<()> {
        let mut keys = Vec::with_capacity(PAGE_CHUNKS);
        self.data_dir.foreign_names(|name| {
            if let Some(key) = foreign.key_of(name) {
                foreign.learn_as(*key.digest(), name);
                keys.push(key);
            }
            if keys.len() == PAGE_CHUNKS {
                self.enter(&mut keys);
            }
            Ok(())
        })?;
        self.enter(&mut keys);
        // Damage was reported when the directory was opened.
        let known = use_order::read(&self.data_dir.own())?;
        for records in known.records.chunks(PAGE_CHUNKS) {
            let mut index = self.index();
            records.iter().for_each(|record| use_order::apply(&mut index, record));
        }
        Ok(())
    }

    /// Enters and reports them; their lengths are unknown.
    fn enter(&self, keys: &mut Vec<Key>) {
        let mut index = self.index();
        for key in keys.drain(..) {
            if !index.is_known(key.digest()) {
                let tenant = self.tenants.id(key.namespace().tenant());
                let chunk = Chunk::new(*key.digest(), 0, 0).with_tenant(tenant);
                if !matches!(index.insert(chunk), InsertOutcome::Refused(_)) {
                    self.report_stored(&index, &chunk);
                }
            }
        }
        drop(index);
        self.listeners.notify();
    }

    /// Checks every file: enters new chunks, drops missing ones, corrects lengths, and recounts the
    /// ledger.
    pub fn scan_foreign(&self, foreign: &Foreign) -> io::Result<()> {
        // No file is a chunk yet. The first key requests a scan.
        if foreign.namespace().is_none() {
            return Ok(());
        }
        // The thread's scan, and those that a full ledger or a missed record asks for, run one
        // after the other.
        let _one = foreign.one_scan.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = HashSet::new();
        let mut first_error = None;
        let mut errors = 0_u64;
        let listed = self.data_dir.foreign_names(|name| {
            let Some(key) = foreign.key_of(name) else {
                self.delete_if_lone_sidecar(foreign, name);
                return Ok(());
            };
            // A file that cannot be read must not end the scan, and with it eviction.
            let there = self.scan_one(foreign, &key, name).unwrap_or_else(|e| {
                errors += 1;
                first_error.get_or_insert_with(|| format!("cannot read {name}: {e}"));
                true
            });
            if there {
                // Tags instead of digests: a directory may have millions of files. Two chunks with
                // one tag cost at most one late removal.
                seen.insert(DigestTag::from_digest(key.digest()).as_u64());
            }
            Ok(())
        });
        // Also of what was found before an error.
        self.listeners.notify();
        listed?;
        if let Some(what) = first_error {
            self.fault(format!(
                "{what}; {errors} such files in all, which are counted and not loaded"
            ));
        }
        self.forget_all_but(&seen);
        // Names of deleted files would fill the memory over time.
        foreign.learned().iter().for_each(|digest| self.unlearn_if_gone(foreign, digest));
        let may_count = !self.data_dir.is_read_only();
        if may_count {
            // Before the count, not after it: a chunk that is found during the count may be counted
            // or not, and stays noted.
            let uncounted = foreign.take_uncounted();
            self.recount(true).inspect_err(|_| foreign.note_all_uncounted(uncounted))?;
            foreign.set_counted();
        }
        foreign.set_scanned();
        // Only now the bytes are known, so the cap is compared with them as at the start of layout
        // `kvtier`.
        if may_count {
            self.agree_on_cap_of(foreign);
        }
        self.space.queue.notify();
        Ok(())
    }

    /// Whether the medium failed when the cap was to be agreed on, and can be written to now.
    fn must_agree(&self, foreign: &Foreign) -> bool {
        foreign.must_agree() && !self.data_dir.is_read_only()
    }

    /// Agrees on the cap of a foreign layout, unless that was done. Before it nothing is evicted.
    fn agree_on_cap_of(&self, foreign: &Foreign) {
        if foreign.may_evict() {
            return;
        }
        let used = self.index().usage().used;
        let agreed = self.data_dir.agree_on_cap(self.limits.capacity_bytes, used, foreign.shrink);
        if let (true, Err(e)) = (foreign.note_agreement(&agreed), agreed) {
            self.fault(e.report());
        }
        self.space.queue.notify();
    }

    /// Checks one file; `false` when it is no chunk. A chunk whose facts cannot be read is entered as
    /// unverified.
    fn scan_one(&self, foreign: &Foreign, key: &Key, name: &str) -> io::Result<bool> {
        foreign.learn_as(*key.digest(), name);
        let _one = self.name(key.digest());
        let Some(bytes) = self.data_dir.bytes_on_disk(key.digest(), 0)?.filter(|bytes| *bytes > 0)
        else {
            return Ok(false);
        };
        let known = self.index().known(key.digest()).map(|entry| entry.chunk);
        // A file of unchanged length is not read again.
        if known.is_none_or(|known| known.bytes != bytes) {
            match self.inspect_file(foreign, key) {
                Ok(None) => return Ok(false),
                Ok(Some(found)) => self.found(key, found),
                // A file that cannot be read takes its space all the same.
                Err(e) => {
                    self.found(key, FoundChunk { len: None, bytes });
                    return Err(e);
                }
            }
        }
        Ok(true)
    }

    /// Drops the remembered file name of a missing chunk. Names are learned only while the chunk's
    /// [name](Shared::name) is locked.
    fn unlearn_if_gone(&self, foreign: &Foreign, digest: &Digest) {
        let _one = self.name(digest);
        let index = self.index();
        if !index.is_known(digest) {
            drop(index);
            foreign.unlearn(digest);
        }
    }

    /// Drops chunks that the scan did not see, if their files are missing.
    fn forget_all_but(&self, seen: &HashSet<u64>) {
        let mut cursor = Some(SlotCursor::default());
        let mut gone = Vec::<Digest>::new();
        while let Some(from) = cursor {
            let page = self.index().keys_page(from, PAGE_CHUNKS);
            let digests = page.chunks.iter().map(|chunk| chunk.digest);
            gone.extend(
                digests.filter(|digest| !seen.contains(&DigestTag::from_digest(digest).as_u64())),
            );
            cursor = page.next;
        }
        gone.iter().for_each(|digest| self.forget_missing(digest, 0));
    }
}

#[cfg(all(test, feature = "simulate"))]
mod first_scan_tests;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_fails_is_tried_again_soon_and_then_less_often() {
        let mut rounds = Rounds::new(Duration::from_secs(5), true, Instant::now());
        let mut next = |succeeds: &[bool]| -> Vec<u64> {
            let next = |succeeds: &bool| match succeeds {
                true => rounds.after_success(),
                false => rounds.after_failure(),
            };
            succeeds.iter().map(next).map(|next| next.as_secs()).collect()
        };
        assert_eq!(next(&[true, false, false, false, false, false]), [5, 1, 2, 4, 5, 5]);
        assert_eq!(next(&[true, false, true]), [5, 1, 5]);
    }
}
