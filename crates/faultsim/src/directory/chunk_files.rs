//! The files of chunks: those that a crash must keep, those that must be hits, and those that a process may not
//! take away because it holds them.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::HoldId;
use kvtier_key::Digest;

use super::KEYS;
use super::medium::Medium;
use super::setup::Setup;
use crate::fleet::model;

/// For how long a save that failed may still get its name.
const LATE_NAME_MAX: Duration = Duration::from_secs(10);

/// The files of all chunks of a run.
#[derive(Debug)]
pub struct ChunkFiles {
    medium: Arc<Medium>,
    /// Below the root, by number.
    paths: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    has_sidecars: bool,
    /// A crash must keep a chunk whose save was answered.
    is_durable: bool,
    state: Mutex<Vec<Known>>,
}

/// What is known about the files of one chunk.
#[derive(Debug, Default)]
struct Known {
    /// Saves in flight.
    saving: u32,
    /// Its name got a file since the first of these began.
    is_named: bool,
    /// Until when a save that failed may publish its file.
    late_until: Duration,
    /// What the files of answered saves had.
    whole: BTreeSet<Digest>,
    /// The file that a crash must keep.
    durable: Option<u64>,
    /// When its name got or lost a file.
    changed_at: Duration,
    /// Another program deleted its file.
    is_deleted_outside: bool,
    holds: Vec<HeldFile>,
}

/// A file that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// The number of the process.
    pub process: u64,
    pub hold: HoldId,
    /// The number of the file.
    pub file: u64,
    /// The hold does not end before this.
    pub until: Duration,
}

/// A chunk that the crash that comes next must keep.
#[derive(Debug)]
pub struct MustStay {
    number: u64,
    content: Digest,
}

impl ChunkFiles {
    pub fn new(setup: &Setup, medium: &Arc<Medium>) -> Self {
        let paths: Vec<PathBuf> = (0..KEYS).map(|n| setup.chunk_path(n)).collect();
        let numbers = paths.iter().cloned().zip(0..).collect();
        ChunkFiles {
            medium: Arc::clone(medium),
            paths,
            numbers,
            has_sidecars: setup.sidecar_bytes() > 0,
            is_durable: setup.is_durable(),
            state: Mutex::new((0..KEYS).map(|_| Known::default()).collect()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the file that a chunk has now.
    pub fn file_of(&self, n: u64) -> Option<u64> {
        let at = self.medium.root().join(&self.paths[n as usize]);
        fs::symlink_metadata(at).ok().filter(fs::Metadata::is_file).map(|meta| meta.ino())
    }

    /// What the files of a chunk have now.
    fn content(&self, n: u64) -> Option<Digest> {
        let at = self.medium.root().join(&self.paths[n as usize]);
        let mut all = fs::read(&at).ok()?;
        let file = self.file_of(n)?;
        all.extend((all.len() as u64).to_le_bytes());
        all.extend(self.medium.attribute(file).unwrap_or_default());
        if self.has_sidecars {
            let mut beside = at.into_os_string();
            beside.push(".metadata");
            all.extend(fs::read(beside).ok()?);
        }
        Some(Digest::derive("kvtier faultsim files", &all))
    }

    /// Whether a chunk has this file, as an answered save left it.
    pub fn is_whole(&self, n: u64, file: u64) -> bool {
        self.file_of(n) == Some(file)
            && self.content(n).is_some_and(|has| self.lock()[n as usize].whole.contains(&has))
    }

    pub fn save_begins(&self, n: u64) {
        let known = &mut self.lock()[n as usize];
        known.is_named &= known.saving > 0;
        known.saving += 1;
    }

    /// Whether the name of a chunk got a file since the first of the saves in flight began.
    pub fn is_named(&self, n: u64) -> bool {
        self.lock()[n as usize].is_named
    }

    /// A save ended: as stored, or in another way after which its file may still get its name.
    pub fn save_ended(&self, n: u64, is_stored: bool, now: Duration) {
        let content = if is_stored { self.content(n) } else { None };
        let file = self.file_of(n);
        let known = &mut self.lock()[n as usize];
        known.saving -= 1;
        if !is_stored {
            known.late_until = now + LATE_NAME_MAX;
        } else if known.saving == 0
            && now >= known.late_until
            && let Some(content) = content
        {
            // It is the file of this save and of no other one.
            known.whole.insert(content);
            known.durable = file.filter(|_| self.is_durable);
        }
    }

    /// A process holds a chunk that was a hit. Its file was this one before the lookup.
    pub fn hold(&self, n: u64, held: HeldFile) {
        if self.is_whole(n, held.file) {
            self.lock()[n as usize].holds.push(held);
        }
    }

    pub fn release(&self, numbers: &[u64], process: u64, hold: HoldId) {
        let mut state = self.lock();
        for n in numbers {
            state[*n as usize].holds.retain(|held| held.process != process || held.hold != hold);
        }
    }

    /// Whether a process holds the file of a chunk.
    pub fn is_held(&self, n: u64, process: u64, now: Duration) -> bool {
        self.lock()[n as usize].is_held(process, now)
    }

    /// The file of a name has another name now, or none. Returns the number of its chunk, where this
    /// process holds it.
    pub fn lost_name(&self, path: &Path, process: u64, now: Duration) -> Option<u64> {
        let n = *self.numbers.get(path)?;
        let known = &mut self.lock()[n as usize];
        let is_held = known.is_held(process, now);
        known.changed(now);
        is_held.then_some(n)
    }

    /// A name belongs to another file now.
    pub fn got_name(&self, path: &Path, now: Duration) {
        if let Some(n) = self.numbers.get(path) {
            let known = &mut self.lock()[*n as usize];
            known.is_named = true;
            known.changed(now);
        }
    }

    /// When the name of a chunk got or lost a file last.
    pub fn changed_at(&self, n: u64) -> Duration {
        self.lock()[n as usize].changed_at
    }

    /// Whether another program deleted the file of a chunk, which has had none since.
    pub fn is_deleted_outside(&self, n: u64) -> bool {
        self.lock()[n as usize].is_deleted_outside
    }

    /// Another program may delete files.
    pub fn note_deleted(&self, now: Duration, delete: impl FnOnce()) {
        let there: Vec<u64> = (0..KEYS).filter(|n| self.file_of(*n).is_some()).collect();
        delete();
        for n in there.into_iter().filter(|n| self.file_of(*n).is_none()) {
            let known = &mut self.lock()[n as usize];
            known.changed(now);
            known.is_deleted_outside = true;
        }
    }

    /// The chunks that a crash at this moment must keep. All processes have ended.
    pub fn before_crash(&self) -> Vec<MustStay> {
        let mut must_stay = Vec::new();
        for number in 0..KEYS {
            let durable = {
                let known = &mut self.lock()[number as usize];
                known.saving = 0;
                known.late_until = Duration::ZERO;
                known.holds.clear();
                known.durable.take()
            };
            if let Some(file) = durable
                && self.is_whole(number, file)
                && let Some(content) = self.content(number)
            {
                must_stay.push(MustStay { number, content });
            }
        }
        must_stay
    }

    /// The chunks of these that the crash did not keep. All others stay durable.
    pub fn after_crash(&self, must_stay: Vec<MustStay>) -> Vec<u64> {
        let mut lost = Vec::new();
        for MustStay { number, content } in must_stay {
            if self.content(number) == Some(content) {
                let file = self.file_of(number);
                self.lock()[number as usize].durable = file;
            } else {
                lost.push(number);
            }
        }
        lost
    }

    /// Where the files of a chunk are.
    pub fn path(&self, n: u64) -> &Path {
        &self.paths[n as usize]
    }

    /// The length that a lookup of a chunk answers.
    pub fn len(n: u64) -> u64 {
        model::len(n) as u64
    }
}

impl Known {
    fn is_held(&self, process: u64, now: Duration) -> bool {
        self.holds.iter().any(|held| held.process == process && now < held.until)
    }

    /// Its name has another file: no hold binds that, and it is durable only once a save says so.
    fn changed(&mut self, now: Duration) {
        self.changed_at = now;
        self.is_deleted_outside = false;
        self.holds.clear();
        self.durable = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::medium::Journal;

    const NOW: Duration = Duration::from_secs(20);

    /// The files of a durable directory in which chunk 0 has these bytes.
    fn files_with(bytes: &[u8]) -> ChunkFiles {
        let medium = Arc::new(Medium::new(Journal::Ordered).unwrap());
        let mut setups = (0..).map(|seed| Setup::directory(&mut fastrand::Rng::with_seed(seed)));
        let setup = setups.find(Setup::is_durable).unwrap();
        let files = ChunkFiles::new(&setup, &medium);
        write(&files, bytes);
        files
    }

    fn write(files: &ChunkFiles, bytes: &[u8]) {
        let at = files.medium.root().join(files.path(0));
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, bytes).unwrap();
    }

    #[test]
    fn a_file_is_whole_as_an_answered_save_left_it_and_a_crash_must_keep_that() {
        let files = files_with(b"chunk");
        let file = files.file_of(0).unwrap();
        assert!(!files.is_whole(0, file) && files.before_crash().is_empty());
        files.save_begins(0);
        files.save_ended(0, true, NOW);
        assert!(files.is_whole(0, file));
        let must_stay = files.before_crash();
        assert!(must_stay.len() == 1 && files.after_crash(must_stay).is_empty());
        let must_stay = files.before_crash();
        write(&files, b"torn");
        assert!(!files.is_whole(0, file) && files.after_crash(must_stay) == [0]);
    }

    #[test]
    fn what_another_save_may_replace_is_not_certain_and_what_is_replaced_not_durable() {
        let files = files_with(b"chunk");
        (0..2).for_each(|_| files.save_begins(0));
        files.save_ended(0, true, NOW);
        assert!(files.before_crash().is_empty(), "another save is in flight");
        files.save_begins(0);
        files.save_ended(0, false, NOW);
        files.save_begins(0);
        files.save_ended(0, true, NOW);
        assert!(files.before_crash().is_empty(), "the one that failed may still arrive");
        files.save_begins(0);
        files.save_ended(0, true, NOW + LATE_NAME_MAX);
        files.got_name(files.path(0), NOW);
        assert!(files.before_crash().is_empty());
    }

    #[test]
    fn a_name_that_got_a_file_is_noted_until_no_save_is_in_flight() {
        let files = files_with(b"chunk");
        files.got_name(files.path(0), NOW);
        files.save_begins(0);
        assert!(!files.is_named(0), "it was there before");
        files.got_name(files.path(0), NOW);
        files.save_begins(0);
        assert!(files.is_named(0), "the first save is in flight");
        (0..2).for_each(|_| files.save_ended(0, true, NOW));
        files.save_begins(0);
        assert!(!files.is_named(0));
    }

    #[test]
    fn a_hold_binds_its_process_until_it_ends_or_the_file_changes() {
        let files = files_with(b"chunk");
        files.save_begins(0);
        files.save_ended(0, true, NOW);
        let file = files.file_of(0).unwrap();
        let hold = HoldId(7);
        let held = || {
            files.hold(0, HeldFile { process: 1, hold, file, until: NOW });
            assert!(files.is_held(0, 1, Duration::ZERO) && !files.is_held(0, 2, Duration::ZERO));
        };
        held();
        assert_eq!(files.lost_name(files.path(0), 1, Duration::ZERO), Some(0));
        held();
        assert_eq!(files.lost_name(files.path(0), 1, NOW), None, "it has ended");
        held();
        assert_eq!(files.lost_name(files.path(0), 2, Duration::ZERO), None, "another may");
        assert!(!files.is_held(0, 1, Duration::ZERO));
        held();
        files.release(&[0], 1, hold);
        assert!(!files.is_held(0, 1, Duration::ZERO));
    }
}
