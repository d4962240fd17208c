//! The medium below the directory: what a crash of the machine keeps of it, and what it refuses.
//!
//! The files are real ones, in memory where the machine has a directory there. Beside them this keeps
//! what is durable: the names and bytes that were synced. A crash ends all processes and leaves any
//! state that the file system may leave: synced names and bytes, and of all others some.

mod durable;
mod file_state;
mod harm;
mod ledger;
mod names;
mod paths;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeMap, HashSet, btree_map};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use kvtier_os::simulated::{Arrived, Call, KnownName, Name, Write as Written};
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat};

use self::durable::{Change, Kept, apply};
use self::file_state::FileState;
use self::ledger::CountedBytes;
use self::names::{Entry, Names};
use self::paths::OpenDirs;
pub use self::paths::Paths;
use self::times::set_time;
use crate::world::{EPOCH_S, World};

/// The size of the simulated file system.
const SIZE_BYTES: u64 = 64 << 20;

/// Most looks are answered from memory: one of this number is delayed.
const LOOKS_A_DELAY: u64 = 16;

/// The directory and its medium.
#[derive(Debug)]
pub struct Medium {
    dir: tempfile::TempDir,
    state: Mutex<MediumState>,
}

/// How a file system orders what a crash keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// Changes of names become durable in their order, and with each sync of a file.
    Ordered,
    /// Each change of a name becomes durable by itself, or with a sync of its directory.
    None,
}

#[derive(Debug)]
struct MediumState {
    journal: Journal,
    booted: Duration,
    names: Names,
    durable_names: Names,
    dirs: OpenDirs,
    /// What is not durable yet, in order.
    changes: Vec<Change>,
    files: BTreeMap<u64, FileState>,
    /// How many files there were so far.
    learned: u64,
    /// The attributes of files, by their numbers.
    attributes: BTreeMap<u64, Vec<u8>>,
    durable_attributes: BTreeMap<u64, Vec<u8>>,
    faults: Faults,
    /// The most bytes that chunks may have.
    quota_bytes: Option<u64>,
    /// When batches of the change log arrived in part.
    cut_batches: Vec<Duration>,
    /// A call changed something since that was asked last, or failed at it.
    is_changed: bool,
    /// What the ledger counted when it was read last.
    counted: Option<CountedBytes>,
}

/// What goes wrong at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The device has no free space.
    pub is_full: bool,
    /// Of a thousand calls that change something, this number fails with `EIO`.
    pub errors_per_mille: u64,
    /// As many of a thousand reads of chunks, listings and looks at names fail.
    pub errors_on_reads: bool,
    /// How much longer transfers take.
    pub slow: Duration,
    /// No transfer ends.
    pub hangs: bool,
    /// How much longer calls take that change or list names, or lock a file.
    pub slow_names: Duration,
    /// None of these calls ends.
    pub names_hang: bool,
    /// Half of the reads and writes move fewer bytes than they could, without an error.
    pub short_transfers: bool,
}

impl Faults {
    /// Whether nothing goes wrong.
    pub fn are_none(&self) -> bool {
        *self == Faults::default()
    }
}

impl Medium {
    pub fn new(journal: Journal) -> io::Result<Self> {
        Self::in_memory(journal).or_else(|_| Self::below(&std::env::temp_dir(), journal))
    }

    /// One whose files are in memory.
    pub fn in_memory(journal: Journal) -> io::Result<Self> {
        Self::below(Path::new("/dev/shm"), journal)
    }

    /// One whose files are below this directory. A run is the same over any file system.
    pub fn below(parent: &Path, journal: Journal) -> io::Result<Self> {
        let dir = tempfile::tempdir_in(parent)?;
        let state = MediumState {
            journal,
            booted: Duration::ZERO,
            names: Names::default(),
            durable_names: Names::default(),
            dirs: OpenDirs::default(),
            changes: Vec::new(),
            files: BTreeMap::new(),
            learned: 0,
            attributes: BTreeMap::new(),
            durable_attributes: BTreeMap::new(),
            faults: Faults::default(),
            quota_bytes: None,
            cut_batches: Vec::new(),
            is_changed: true,
            counted: None,
        };
        Ok(Medium { dir, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, MediumState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    pub fn faults(&self) -> Faults {
        self.lock().faults
    }

    /// When the machine started, in Unix seconds.
    pub fn booted_s(&self) -> u64 {
        EPOCH_S + self.lock().booted.as_secs()
    }

    /// All and free bytes.
    pub fn sizes(&self) -> (u64, u64) {
        let used = self.bytes(false);
        let free = if self.faults().is_full { 0 } else { SIZE_BYTES.saturating_sub(used) };
        (SIZE_BYTES, free)
    }

    /// The bytes of the files of chunks, unfinished and quarantined ones included.
    pub fn chunk_bytes(&self) -> u64 {
        self.bytes(true)
    }

    /// The most bytes that chunks may have once a process has counted them: the cap. Where calls fail, some of what a
    /// crash brought back cannot be deleted.
    pub fn allowed_bytes(&self, cap_bytes: u64) -> u64 {
        match self.faults().errors_per_mille {
            0 => cap_bytes,
            _ => self.chunk_bytes().max(cap_bytes),
        }
    }

    /// The bytes that the tiers count: of a chunk without its second file, as much as with it.
    pub fn counted_bytes(&self, sidecar_bytes: u64) -> u64 {
        let missing = match sidecar_bytes {
            0 => 0,
            _ => self.lock().chunks_without_sidecar(),
        };
        self.chunk_bytes() + missing * sidecar_bytes
    }

    /// The unfinished and quarantined files.
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.lock();
        let is_left = |path: &Path| {
            let own = path.strip_prefix(".kvtier").ok();
            own.is_some_and(|own| own.starts_with("tmp") || own.starts_with("quarantine"))
        };
        let left = state.names.sorted(|path, entry| {
            matches!(entry, Entry::File(_)) && is_left(path) && !path.ends_with("alive")
        });
        left.iter().map(|(path, _)| path.display().to_string()).collect()
    }

    /// How many journals of the order of use each process has, by its name in the directory.
    pub fn journals(&self) -> BTreeMap<String, usize> {
        let mut journals = BTreeMap::new();
        for (path, entry) in self.lock().names.iter() {
            let name = path.to_str().and_then(|path| path.strip_prefix(".kvtier/journal/"));
            let process = name.and_then(|name| name.rsplit_once('.')).map(|(process, _)| process);
            if let (Some(process), Entry::File(_)) = (process, entry) {
                *journals.entry(process.to_owned()).or_default() += 1;
            }
        }
        journals
    }

    /// The bytes of files, for each name once: for those that count for the cap, or for all.
    fn bytes(&self, only_counted: bool) -> u64 {
        let state = self.lock();
        let files = state.names.numbers(only_counted).filter(|(_, names)| *names > 0);
        let bytes = files
            .map(|(number, names)| state.files.get(&number).map_or(0, |file| names * file.len()));
        bytes.sum()
    }

    /// The names in a directory.
    pub fn names_in(&self, dir: Name<'_>) -> Option<Vec<KnownName>> {
        let state = &mut *self.lock();
        let path = state.dirs.below(self.root(), dir)?;
        state.names.names_in(&path)
    }

    /// Whether anything changed since this was asked last.
    pub fn take_changed(&self) -> bool {
        std::mem::take(&mut self.lock().is_changed)
    }

    /// Fails a call that the device refuses.
    pub fn before(&self, world: &World, call: Call<'_>) -> Result<(), nix::Error> {
        let mut state = self.lock();
        let faults = state.faults;
        state.is_changed |= changes(call);
        if !matches!(call, Call::Look(_)) {
            state.dirs.forget_looked_in();
        }
        match call {
            Call::Write(write) => state.changes(write.file),
            // A part of it may be done.
            Call::RemoveTree(_) => state.dirs.forget(),
            _ => {}
        }
        drop(state);
        let takes_space = matches!(call, Call::Allocate(..) | Call::CreateDir(_));
        if faults.is_full && takes_space {
            return Err(nix::Error::ENOSPC);
        }
        if let Call::Allocate(file, bytes) = call
            && self.exceeds_quota(file, bytes)
        {
            return Err(nix::Error::EDQUOT);
        }
        let can_fail = match call {
            Call::Look(_) => faults.errors_on_reads,
            Call::Lock(_) => false,
            _ => true,
        };
        if can_fail && faults.errors_per_mille > 0 && world.below(1000) < faults.errors_per_mille {
            return Err(nix::Error::EIO);
        }
        Ok(())
    }

    /// How long a call waits before the device looks at it; `None` where it hangs.
    pub fn delay(&self, world: &World, call: Call<'_>) -> Option<Duration> {
        let faults = self.faults();
        let is_slow = faults.names_hang || !faults.slow_names.is_zero();
        let is_affected = is_slow
            && match call {
                Call::Rename(..) | Call::Exchange(..) | Call::Link(..) => true,
                Call::Remove(_) | Call::RemoveTree(_) | Call::Lock(_) => true,
                Call::Look(_) => world.below(LOOKS_A_DELAY) == 0,
                _ => false,
            };
        match is_affected {
            true if faults.names_hang => None,
            true => Some(faults.slow_names),
            false => Some(Duration::ZERO),
        }
    }

    /// Fails a read of bytes that the device refuses.
    pub fn before_read(&self, world: &World) -> Result<(), nix::Error> {
        let faults = self.faults();
        if faults.errors_on_reads && world.below(1000) < faults.errors_per_mille {
            return Err(nix::Error::EIO);
        }
        Ok(())
    }

    /// How many of these bytes a read answers at most.
    pub fn read_len(&self, world: &World, bytes: usize) -> usize {
        self.short_len(world, bytes).unwrap_or(bytes)
    }

    /// What of a write arrives.
    pub fn arrived(&self, world: &World, write: Written<'_>) -> Arrived {
        let (faults, bytes) = (self.faults(), write.bytes.len());
        let chance = if faults.is_full { 300 } else { faults.errors_per_mille };
        if chance > 0 && world.below(1000) < chance {
            let error = if faults.is_full { nix::Error::ENOSPC } else { nix::Error::EIO };
            return Arrived { bytes: world.below(bytes as u64) as usize, error: Some(error) };
        }
        let arrives = self.short_len(world, bytes).unwrap_or(bytes);
        if arrives < bytes && self.is_change_log(write.file) {
            self.lock().cut_batches.push(world.elapsed());
        }
        Arrived { bytes: arrives, error: None }
    }

    /// When batches of the change log arrived in part, without an error.
    pub fn cut_batches(&self) -> Vec<Duration> {
        self.lock().cut_batches.clone()
    }

    /// Whether an open file is a segment of the change log, and has a name still.
    fn is_change_log(&self, file: BorrowedFd<'_>) -> bool {
        let Ok(file) = fstat(file) else { return false };
        let is_segment = |(path, entry): (&Path, Entry)| {
            entry == Entry::File(file.st_ino)
                && path.as_os_str().as_bytes().starts_with(b".kvtier/changes.")
        };
        self.lock().names.iter().any(is_segment)
    }

    /// How many of these bytes a call moves that moves too few: one at least.
    fn short_len(&self, world: &World, bytes: usize) -> Option<usize> {
        let is_short = self.faults().short_transfers && world.below(2) == 0;
        is_short.then(|| 1 + world.below(bytes as u64) as usize)
    }

    /// Notes a call that succeeded. Returns the names that it has.
    pub fn after(&self, world: &World, call: Call<'_>) -> Paths {
        let mut state = self.lock();
        let (root, state) = (self.root(), &mut *state);
        let file = stat_of(call);
        let paths = state.paths(root, call, file.as_ref());
        state.is_changed |= changes(call);
        match (call, &paths) {
            (Call::Open(_), Paths::One(Some(path))) => state.opened(root, path, world),
            (Call::CreateDir(_), Paths::One(Some(path))) => state.made_dirs(root, path, world),
            (Call::Remove(_), Paths::One(Some(path))) => state.removed(path),
            (Call::RemoveTree(_), Paths::One(Some(path))) => state.removed_tree(path),
            (Call::Link(..), Paths::Two(from, Some(to))) => {
                let entry = from.as_ref().and_then(|from| state.names.get(from));
                state.change(vec![(to.clone(), entry)]);
            }
            (Call::Rename(..), Paths::Two(Some(from), Some(to))) => state.moved(from, to, false),
            (Call::Exchange(..), Paths::Two(Some(from), Some(to))) => state.moved(from, to, true),
            (
                Call::Write(Written { file: open, .. })
                | Call::SetLen(open)
                | Call::Allocate(open, _),
                _,
            ) => {
                if let Some(file) = &file {
                    state.changed(file);
                }
                set_time(open, world);
            }
            (Call::SetAttribute(_, value), _) => {
                if let Some(file) = &file {
                    state.set_attribute(file.st_ino, value);
                }
            }
            (Call::Sync(_), Paths::One(Some(path))) => state.synced_dir(path),
            (Call::Sync(_), _) => {
                if let Some(file) = &file {
                    state.synced(file.st_ino);
                }
            }
            (Call::SyncAll, _) => state.sync_all(),
            _ => {}
        }
        times::set_dir_times(root, call, &paths, world);
        paths
    }

    /// The names of a call that failed.
    pub fn paths(&self, call: Call<'_>) -> Paths {
        self.lock().paths(self.root(), call, stat_of(call).as_ref())
    }

    /// Which file of the run this is.
    pub fn file(&self, file: BorrowedFd<'_>) -> Paths {
        Paths::File(fstat(file).ok().and_then(|file| self.lock().place(file.st_ino)))
    }

    /// The attribute of the file with this number.
    pub fn attribute(&self, number: u64) -> Option<Vec<u8>> {
        self.lock().attributes.get(&number).cloned()
    }

    /// The machine loses power. All processes have ended. Returns what of the unsynced was kept, in
    /// words.
    pub fn crash(&self, world: &World, rng: &mut Rng) -> io::Result<String> {
        let mut state = self.lock();
        let Kept { names: kept, attributes } = state.kept(rng);
        let kept = kept.sorted(|_, _| true);
        let mut contents = BTreeMap::new();
        for (_, entry) in &kept {
            if let Entry::File(number) = entry
                && !contents.contains_key(number)
            {
                contents.insert(*number, state.kept_bytes(*number, rng)?);
            }
        }
        let said = format!(
            "{} of {} names and {} changes of names",
            kept.len(),
            state.names.len(),
            state.changes.len()
        );
        state.booted = world.elapsed();
        state.remove_all(self.root())?;
        let mut places = BTreeMap::<u64, (PathBuf, Entry)>::new();
        let mut dirs = HashSet::from([PathBuf::new()]);
        for (path, entry) in kept {
            let at = self.root().join(&path);
            // A name whose directory was lost is lost with it.
            if !path.parent().is_some_and(|above| dirs.contains(above)) {
                continue;
            }
            let entry = match entry {
                Entry::Dir => {
                    fs::create_dir(&at)?;
                    dirs.insert(path.clone());
                    Entry::Dir
                }
                Entry::File(number) => match places.get(&number) {
                    Some((first, entry)) => {
                        fs::hard_link(first, &at)?;
                        *entry
                    }
                    None => {
                        let file = create(&at, &contents[&number], world)?;
                        let entry = state.learn_with(file, attributes.get(&number))?;
                        places.insert(number, (at, entry));
                        entry
                    }
                },
            };
            state.names.set(&path, Some(entry));
            state.durable_names.set(&path, Some(entry));
        }
        // No tier asks for the times of others.
        let own = dirs.iter().filter(|dir| dir.starts_with(".kvtier"));
        own.for_each(|dir| times::set_dir_time(&self.root().join(dir), world));
        state.sync_all();
        Ok(said)
    }
}

impl MediumState {
    /// The names of a call, or which file it is of.
    fn paths(&mut self, root: &Path, call: Call<'_>, file: Option<&FileStat>) -> Paths {
        let Some(open) = open_file(call) else { return self.dirs.paths(root, call) };
        match (file.and_then(|file| self.place(file.st_ino)), file, call) {
            (None, Some(dir), Call::Sync(_)) => {
                Paths::One(self.dirs.opened_at(root, open, dir).map(Path::to_owned))
            }
            (place, ..) => Paths::File(place),
        }
    }

    fn place(&self, number: u64) -> Option<u64> {
        self.files.get(&number).map(|file| file.place)
    }

    /// Removes everything.
    fn remove_all(&mut self, root: &Path) -> io::Result<()> {
        (self.durable_names, self.changes) = Default::default();
        (self.attributes, self.durable_attributes) = Default::default();
        self.files.clear();
        self.dirs.forget();
        // What is known is removed by its name, which costs less than to look what is there.
        for (path, entry) in std::mem::take(&mut self.names).sorted(|_, _| true).iter().rev() {
            let at = root.join(path);
            // Another program may have been faster.
            let _ = if *entry == Entry::Dir { fs::remove_dir(at) } else { fs::remove_file(at) };
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    fn learn_open(&mut self, open: File, number: u64) -> Entry {
        match self.files.entry(number) {
            btree_map::Entry::Occupied(mut known) => known.get_mut().changes(),
            btree_map::Entry::Vacant(new) => {
                self.learned += 1;
                new.insert(FileState::new(self.learned, open));
                // An earlier file may have had this number.
                self.attributes.remove(&number);
                self.durable_attributes.remove(&number);
            }
        }
        Entry::File(number)
    }

    /// The same for a file that a crash left with this attribute.
    fn learn_with(&mut self, file: File, attribute: Option<&Vec<u8>>) -> io::Result<Entry> {
        let number = file.metadata()?.ino();
        let entry = self.learn_open(file, number);
        if let Some(value) = attribute {
            self.attributes.insert(number, value.clone());
            self.durable_attributes.insert(number, value.clone());
        }
        Ok(entry)
    }

    fn set_attribute(&mut self, number: u64, value: &[u8]) {
        self.attributes.insert(number, value.to_vec());
        self.changes.push(Change::Attribute(number, value.to_vec()));
    }

    fn chunks_without_sidecar(&self) -> u64 {
        let is_alone = |path: &Path| {
            let mut beside = path.as_os_str().to_owned();
            beside.push(".metadata");
            let is_chunk =
                !path.starts_with(".kvtier") && !path.to_string_lossy().ends_with(".metadata");
            is_chunk && !self.names.has(Path::new(&beside))
        };
        let files = self.names.iter().filter(|(_, entry)| matches!(entry, Entry::File(_)));
        files.filter(|(path, _)| is_alone(path)).count() as u64
    }

    fn change(&mut self, names: Vec<(PathBuf, Option<Entry>)>) {
        apply(&mut self.names, &names);
        if !names.is_empty() {
            self.changes.push(Change::Names(names));
        }
    }

    fn opened(&mut self, root: &Path, path: &Path, world: &World) {
        if let Some(Entry::File(number)) = self.names.get(path) {
            if let Some(file) = self.files.get_mut(&number) {
                file.opened(world);
            }
            return;
        }
        let open =
            File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(root.join(path));
        let Ok(open) = open else { return };
        let Ok(meta) = open.metadata() else { return };
        if !meta.is_file() {
            return;
        }
        // A new file of this moment.
        set_time(open.as_fd(), world);
        times::set_dir_time(&root.join(path.parent().unwrap_or(Path::new(""))), world);
        let entry = self.learn_open(open, meta.ino());
        self.change(vec![(path.to_owned(), Some(entry))]);
    }

    fn made_dirs(&mut self, root: &Path, path: &Path, world: &World) {
        let mut above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
        above.reverse();
        for dir in above {
            let is_new = !dir.as_os_str().is_empty() && !self.names.has(&dir);
            if is_new && root.join(&dir).is_dir() {
                times::set_dir_time(&root.join(&dir), world);
                self.change(vec![(dir, Some(Entry::Dir))]);
            }
        }
    }

    fn removed(&mut self, path: &Path) {
        if !matches!(self.names.get(path), Some(Entry::File(_))) {
            self.dirs.forget();
        }
        self.change(vec![(path.to_owned(), None)]);
    }

    fn moved(&mut self, from: &Path, to: &Path, exchanged: bool) {
        let (entry, before) = (self.names.get(from), self.names.get(to));
        let mut names =
            vec![(to.to_owned(), entry), (from.to_owned(), before.filter(|_| exchanged))];
        if !matches!(entry, Some(Entry::File(_))) || (exchanged && before == Some(Entry::Dir)) {
            self.dirs.forget();
            let inside = self.names.sorted(|path, _| path.starts_with(from) && path != from);
            for (path, entry) in inside {
                let moved = path.strip_prefix(from).map(|rest| to.join(rest)).unwrap_or_default();
                names.push((moved, Some(entry)));
                names.push((path, None));
            }
        }
        self.change(names);
    }

    fn removed_tree(&mut self, path: &Path) {
        self.dirs.forget();
        // From the leaves on: a crash may keep a part.
        let gone = self.names.sorted(|name, _| name.starts_with(path));
        gone.into_iter().rev().for_each(|(name, _)| self.change(vec![(name, None)]));
    }

    /// The bytes of a file are about to change.
    fn changes(&mut self, file: BorrowedFd<'_>) {
        let number = fstat(file).ok().map(|file| file.st_ino);
        if let Some(file) = number.and_then(|number| self.files.get_mut(&number)) {
            file.is_dirty = true;
            file.changes();
        }
    }

    /// The bytes of a file have changed.
    fn changed(&mut self, now: &FileStat) {
        if let Some(file) = self.files.get_mut(&now.st_ino) {
            file.is_dirty = true;
            file.changed_to(now.st_size.cast_unsigned());
        }
    }
}

/// The open file of a call.
fn open_file(call: Call<'_>) -> Option<BorrowedFd<'_>> {
    match call {
        Call::Write(Written { file, .. })
        | Call::SetLen(file)
        | Call::Allocate(file, _)
        | Call::SetAttribute(file, _)
        | Call::Sync(file)
        | Call::Lock(file) => Some(file),
        _ => None,
    }
}

fn stat_of(call: Call<'_>) -> Option<FileStat> {
    open_file(call).and_then(|file| fstat(file).ok())
}

/// Whether a call may change the bytes that files take.
fn changes(call: Call<'_>) -> bool {
    !matches!(call, Call::Look(_) | Call::Lock(_) | Call::Sync(_) | Call::SyncAll)
}

/// Creates a file of this moment.
fn create(at: &Path, bytes: &[u8], world: &World) -> io::Result<File> {
    let mut file = File::options().read(true).write(true).create_new(true).mode(0o600).open(at)?;
    file.write_all(bytes)?;
    file.set_modified(world.wall())?;
    Ok(file)
}
