//! The medium below the directory: what a crash of the machine keeps of it, and what it refuses.
//!
//! The files are real ones, in memory where the machine has a directory there. Beside them this keeps
//! what is durable: the names and bytes that were synced. A crash ends all processes and leaves any
//! state that the file system may leave: synced names and bytes, and of all others some.

mod harm;

use std::collections::{BTreeMap, btree_map};
use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use kvtier_os::simulated::{Call, Name};

use crate::world::{EPOCH_S, World};

/// The size of the simulated file system.
const SIZE_BYTES: u64 = 64 << 20;
/// The unit in which bytes reach the device.
const BLOCK: usize = 4096;

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
    /// Each change of a name becomes durable by itself.
    None,
}

#[derive(Debug)]
struct MediumState {
    journal: Journal,
    booted: Duration,
    /// The names, by path below the root.
    names: BTreeMap<PathBuf, Entry>,
    durable_names: BTreeMap<PathBuf, Entry>,
    /// What is not durable yet, in order.
    changes: Vec<Change>,
    files: BTreeMap<u64, FileState>,
    /// The attributes of files, by their numbers.
    attributes: BTreeMap<u64, Vec<u8>>,
    durable_attributes: BTreeMap<u64, Vec<u8>>,
    faults: Faults,
    /// The most bytes that chunks may have.
    quota_bytes: Option<u64>,
}

/// What goes wrong at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The device has no free space.
    pub is_full: bool,
    /// Of a thousand calls that change something, this number fails with `EIO`.
    pub errors_per_mille: u64,
    /// How much longer transfers take.
    pub slow: Duration,
}

impl Faults {
    /// Whether nothing goes wrong.
    pub fn are_none(&self) -> bool {
        *self == Faults::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Dir,
    File(u64),
}

/// A change beside the bytes of files, in one step.
#[derive(Clone, Debug)]
enum Change {
    /// Of one or more names.
    Names(Vec<(PathBuf, Option<Entry>)>),
    /// Of the attribute of a file.
    Attribute(u64, Vec<u8>),
}

/// What a crash keeps beside the bytes of files.
struct Kept {
    names: BTreeMap<PathBuf, Entry>,
    attributes: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug)]
struct FileState {
    /// Keeps the file readable after its last name is gone, and its number unused.
    open: File,
    durable: Option<Vec<u8>>,
    is_dirty: bool,
}

impl Medium {
    pub fn new(journal: Journal) -> io::Result<Self> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let state = MediumState {
            journal,
            booted: Duration::ZERO,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            files: BTreeMap::new(),
            attributes: BTreeMap::new(),
            durable_attributes: BTreeMap::new(),
            faults: Faults::default(),
            quota_bytes: None,
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
        let used = self.bytes(|_| true);
        let free = if self.faults().is_full { 0 } else { SIZE_BYTES.saturating_sub(used) };
        (SIZE_BYTES, free)
    }

    /// The bytes of the files of chunks, unfinished and quarantined ones included.
    pub fn chunk_bytes(&self) -> u64 {
        self.bytes(|path| {
            let Ok(own) = path.strip_prefix(".kvtier") else {
                return !path.ends_with("config.json");
            };
            let is_staged = own.starts_with("tmp") && !own.ends_with("alive");
            is_staged || own.starts_with("quarantine")
        })
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
        let left = state.names.iter().filter(|(path, entry)| {
            matches!(entry, Entry::File(_)) && is_left(path) && !path.ends_with("alive")
        });
        left.map(|(path, _)| path.display().to_string()).collect()
    }

    /// How many journals of the order of use each process has, by its name in the directory.
    pub fn journals(&self) -> BTreeMap<String, usize> {
        let mut journals = BTreeMap::new();
        for (path, entry) in &self.lock().names {
            let name = path.strip_prefix(".kvtier/journal").ok().and_then(Path::to_str);
            let process = name.and_then(|name| name.rsplit_once('.')).map(|(process, _)| process);
            if let (Some(process), Entry::File(_)) = (process, entry) {
                *journals.entry(process.to_owned()).or_default() += 1;
            }
        }
        journals
    }

    fn bytes(&self, counts: impl Fn(&Path) -> bool) -> u64 {
        let state = self.lock();
        let bytes = |number: &u64| {
            let meta = state.files.get(number).and_then(|file| file.open.metadata().ok());
            meta.map_or(0, |meta| meta.len())
        };
        let files = state.names.iter().filter_map(|(path, entry)| match entry {
            Entry::File(number) if counts(path) => Some(bytes(number)),
            _ => None,
        });
        files.sum()
    }

    /// Fails a call that the device refuses.
    pub fn before(&self, world: &World, call: Call<'_>) -> Result<(), nix::Error> {
        let faults = self.faults();
        if let Call::Write(file) = call {
            self.lock().dirty(file);
        }
        let takes_space = matches!(call, Call::Allocate(..) | Call::CreateDir(_));
        if faults.is_full && takes_space {
            return Err(nix::Error::ENOSPC);
        }
        if let Call::Allocate(file, bytes) = call
            && self.exceeds_quota(file, bytes)
        {
            return Err(nix::Error::EDQUOT);
        }
        let can_fail = !matches!(call, Call::Look(_) | Call::Lock(_));
        if can_fail && faults.errors_per_mille > 0 && world.below(1000) < faults.errors_per_mille {
            return Err(nix::Error::EIO);
        }
        Ok(())
    }

    /// How many bytes of a write arrive before it fails; `None` for all.
    pub fn torn(&self, world: &World, bytes: usize) -> Option<(usize, nix::Error)> {
        let faults = self.faults();
        let chance = if faults.is_full { 300 } else { faults.errors_per_mille };
        if chance == 0 || world.below(1000) >= chance {
            return None;
        }
        let error = if faults.is_full { nix::Error::ENOSPC } else { nix::Error::EIO };
        Some((world.below(bytes as u64) as usize, error))
    }

    /// Notes a call that succeeded.
    pub fn after(&self, world: &World, call: Call<'_>) {
        let mut state = self.lock();
        let path = |name: Name<'_>| below(self.root(), name);
        match call {
            Call::Open(name) => state.opened(self.root(), path(name), world),
            Call::CreateDir(name) => state.made_dirs(self.root(), path(name)),
            Call::Link(from, to) => {
                let entry = path(from).and_then(|from| state.names.get(&from).copied());
                state.change(path(to).map(|to| (to, entry)).into_iter().collect());
            }
            Call::Rename(from, to) => state.moved(path(from), path(to), false),
            Call::Exchange(from, to) => state.moved(path(from), path(to), true),
            Call::Remove(name) => {
                state.change(path(name).map(|name| (name, None)).into_iter().collect())
            }
            Call::RemoveTree(name) => state.removed_tree(path(name)),
            Call::Write(file) | Call::SetLen(file) | Call::Allocate(file, _) => {
                state.dirty(file);
                set_time(file, world);
            }
            Call::SetAttribute(file, value) => state.set_attribute(file, value),
            Call::Sync(file) => state.synced(file),
            Call::SyncAll => state.sync_all(),
            _ => {}
        }
    }

    /// The attribute of the file with this number.
    pub fn attribute(&self, number: u64) -> Option<Vec<u8>> {
        self.lock().attributes.get(&number).cloned()
    }

    /// The names of a call.
    pub fn describe(&self, call: Call<'_>) -> String {
        let path = |name: Name<'_>| {
            below(self.root(), name).map_or_else(String::new, |path| path.display().to_string())
        };
        match call {
            Call::Open(name) | Call::CreateDir(name) | Call::Remove(name) => path(name),
            Call::RemoveTree(name) | Call::Look(name) => path(name),
            Call::Link(from, to) | Call::Rename(from, to) | Call::Exchange(from, to) => {
                format!("{} to {}", path(from), path(to))
            }
            _ => String::new(),
        }
    }

    /// The machine loses power. All processes have ended. Returns what of the unsynced was kept, in
    /// words.
    pub fn crash(&self, world: &World, rng: &mut Rng) -> io::Result<String> {
        let mut state = self.lock();
        let Kept { names: kept, attributes } = state.kept(rng);
        let mut contents = BTreeMap::new();
        for entry in kept.values() {
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
        (state.names, state.durable_names, state.changes) = Default::default();
        (state.attributes, state.durable_attributes) = Default::default();
        state.files.clear();
        for entry in fs::read_dir(self.root())? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        let mut places = BTreeMap::<u64, PathBuf>::new();
        for (path, entry) in kept {
            let at = self.root().join(&path);
            // A name whose directory was lost is lost with it.
            if !at.parent().is_some_and(Path::is_dir) {
                continue;
            }
            match entry {
                Entry::Dir => fs::create_dir(&at)?,
                Entry::File(number) => match places.get(&number) {
                    Some(first) => fs::hard_link(first, &at)?,
                    None => {
                        fs::write(&at, &contents[&number])?;
                        fs::set_permissions(&at, fs::Permissions::from_mode(0o600))?;
                        File::options().write(true).open(&at)?.set_modified(world.wall())?;
                        places.insert(number, at.clone());
                    }
                },
            }
            let entry = match entry {
                Entry::Dir => Entry::Dir,
                Entry::File(number) => state.learn_with(&at, attributes.get(&number))?,
            };
            state.names.insert(path.clone(), entry);
            state.durable_names.insert(path, entry);
        }
        state.sync_all();
        Ok(said)
    }
}

impl MediumState {
    /// Enters a file that has this path now.
    fn learn(&mut self, at: &Path) -> io::Result<Entry> {
        let open = File::open(at)?;
        let number = open.metadata()?.ino();
        let file = FileState { open, durable: None, is_dirty: true };
        if let btree_map::Entry::Vacant(new) = self.files.entry(number) {
            new.insert(file);
            // An earlier file may have had this number.
            self.attributes.remove(&number);
            self.durable_attributes.remove(&number);
        }
        Ok(Entry::File(number))
    }

    /// The same for a file that a crash left with this attribute.
    fn learn_with(&mut self, at: &Path, attribute: Option<&Vec<u8>>) -> io::Result<Entry> {
        let entry = self.learn(at)?;
        if let (Entry::File(number), Some(value)) = (entry, attribute) {
            self.attributes.insert(number, value.clone());
            self.durable_attributes.insert(number, value.clone());
        }
        Ok(entry)
    }

    fn set_attribute(&mut self, file: BorrowedFd<'_>, value: &[u8]) {
        let Some(number) = Self::number(file) else { return };
        self.attributes.insert(number, value.to_vec());
        self.changes.push(Change::Attribute(number, value.to_vec()));
    }

    fn chunks_without_sidecar(&self) -> u64 {
        let is_alone = |path: &Path| {
            let mut beside = path.as_os_str().to_owned();
            beside.push(".metadata");
            let is_chunk =
                !path.starts_with(".kvtier") && !path.to_string_lossy().ends_with(".metadata");
            is_chunk && !self.names.contains_key(Path::new(&beside))
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

    fn opened(&mut self, root: &Path, path: Option<PathBuf>, world: &World) {
        let Some(path) = path else { return };
        if matches!(self.names.get(&path), Some(Entry::File(_))) {
            return;
        }
        let at = root.join(&path);
        if !fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_file()) {
            return;
        }
        // A new file of this moment.
        let _ =
            File::options().write(true).open(&at).and_then(|file| file.set_modified(world.wall()));
        if let Ok(entry) = self.learn(&at) {
            self.change(vec![(path, Some(entry))]);
        }
    }

    fn made_dirs(&mut self, root: &Path, path: Option<PathBuf>) {
        let Some(path) = path else { return };
        let mut above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
        above.reverse();
        for dir in above {
            let is_new = !dir.as_os_str().is_empty() && !self.names.contains_key(&dir);
            if is_new && root.join(&dir).is_dir() {
                self.change(vec![(dir, Some(Entry::Dir))]);
            }
        }
    }

    fn moved(&mut self, from: Option<PathBuf>, to: Option<PathBuf>, exchanged: bool) {
        let (Some(from), Some(to)) = (from, to) else { return };
        let old = self.names.get(&to).copied().filter(|_| exchanged);
        let mut names = vec![(to.clone(), self.names.get(&from).copied()), (from.clone(), old)];
        let inside: Vec<_> = self
            .names
            .iter()
            .filter(|(path, _)| path.starts_with(&from) && **path != from)
            .map(|(path, entry)| (path.clone(), *entry))
            .collect();
        for (path, entry) in inside {
            let moved = path.strip_prefix(&from).map(|rest| to.join(rest)).unwrap_or_default();
            names.push((moved, Some(entry)));
            names.push((path, None));
        }
        self.change(names);
    }

    fn removed_tree(&mut self, path: Option<PathBuf>) {
        let Some(path) = path else { return };
        // From the leaves on: a crash may keep a part.
        let mut gone: Vec<_> =
            self.names.keys().filter(|name| name.starts_with(&path)).cloned().collect();
        gone.reverse();
        gone.into_iter().for_each(|name| self.change(vec![(name, None)]));
    }

    fn number(file: BorrowedFd<'_>) -> Option<u64> {
        nix::sys::stat::fstat(file).ok().map(|stat| stat.st_ino)
    }

    fn dirty(&mut self, file: BorrowedFd<'_>) {
        if let Some(file) = Self::number(file).and_then(|number| self.files.get_mut(&number)) {
            file.is_dirty = true;
        }
    }

    fn synced(&mut self, file: BorrowedFd<'_>) {
        let Some(number) = Self::number(file) else { return };
        match self.files.get_mut(&number) {
            Some(file) => {
                file.sync();
                match self.journal {
                    Journal::Ordered => self.sync_names(),
                    Journal::None => self.sync_attribute(number),
                }
            }
            // A directory: without its path, all names are synced. That is less than a crash may
            // take.
            None => self.sync_names(),
        }
    }

    fn sync_names(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Names(names) => apply(&mut self.durable_names, &names),
                // Without a journal, an attribute is synced with its file.
                Change::Attribute(..) if self.journal == Journal::None => self.changes.push(change),
                Change::Attribute(number, value) => {
                    self.durable_attributes.insert(number, value);
                }
            }
        }
        let named: std::collections::BTreeSet<u64> = self
            .names
            .values()
            .filter_map(|entry| if let Entry::File(number) = entry { Some(*number) } else { None })
            .collect();
        self.files.retain(|number, _| named.contains(number));
    }

    fn sync_attribute(&mut self, number: u64) {
        self.changes.retain(|change| !matches!(change, Change::Attribute(of, _) if *of == number));
        if let Some(value) = self.attributes.get(&number) {
            self.durable_attributes.insert(number, value.clone());
        }
    }

    fn sync_all(&mut self) {
        self.sync_names();
        self.changes.clear();
        self.durable_attributes = self.attributes.clone();
        self.files.values_mut().for_each(FileState::sync);
    }

    /// The names and attributes after a crash.
    fn kept(&self, rng: &mut Rng) -> Kept {
        let (names, attributes) = (self.durable_names.clone(), self.durable_attributes.clone());
        let mut kept = Kept { names, attributes };
        match self.journal {
            Journal::Ordered => {
                let first = rng.usize(..=self.changes.len());
                self.changes[..first].iter().for_each(|change| kept.apply(change));
            }
            Journal::None => {
                let chosen = self.changes.iter().filter(|_| rng.bool());
                chosen.for_each(|change| kept.apply(change));
            }
        }
        kept
    }

    /// The bytes of a file after a crash.
    fn kept_bytes(&self, number: u64, rng: &mut Rng) -> io::Result<Vec<u8>> {
        let Some(file) = self.files.get(&number) else { return Ok(Vec::new()) };
        let durable = file.durable.clone().unwrap_or_default();
        if !file.is_dirty {
            return Ok(durable);
        }
        let now = file.bytes()?;
        Ok(match rng.u64(..4) {
            0 => durable,
            1 => now,
            // The length arrived before the bytes.
            2 => mixed(&durable, &now, now.len(), rng),
            _ => {
                let len = rng.usize(..=now.len());
                mixed(&durable, &now, len, rng)
            }
        })
    }
}

impl Kept {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Names(names) => apply(&mut self.names, names),
            Change::Attribute(number, value) => {
                self.attributes.insert(*number, value.clone());
            }
        }
    }
}

impl FileState {
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.open.metadata()?.len() as usize];
        self.open.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn sync(&mut self) {
        if self.is_dirty
            && let Ok(bytes) = self.bytes()
        {
            self.durable = Some(bytes);
            self.is_dirty = false;
        }
    }
}

fn apply(names: &mut BTreeMap<PathBuf, Entry>, change: &[(PathBuf, Option<Entry>)]) {
    for (path, entry) in change {
        match entry {
            Some(entry) => drop(names.insert(path.clone(), *entry)),
            None => drop(names.remove(path)),
        }
    }
}

/// A file of this length, whose blocks are old or new.
fn mixed(old: &[u8], new: &[u8], len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (n, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let from = if rng.bool() { old } else { new };
        let from = from.get(n * BLOCK..).unwrap_or_default();
        let known = from.len().min(block.len());
        block[..known].copy_from_slice(&from[..known]);
    }
    bytes
}

/// The path below the root; `None` for another one.
fn below(root: &Path, name: Name<'_>) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let whole = match name.dir {
        None => name.path.to_owned(),
        Some(dir) => {
            let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
            fs::read_link(link).ok()?.join(name.path)
        }
    };
    whole.strip_prefix(root).ok().map(Path::to_owned)
}

/// Sets a file's time of the last write to virtual time.
fn set_time(file: BorrowedFd<'_>, world: &World) {
    if let Ok(file) = file.try_clone_to_owned() {
        let _ = File::from(file).set_modified(world.wall());
    }
}
