//! A tier's directory: its manifest, its 256 shards, the staging directory of this process, and the
//! quarantine.
//!
//! # The registration lock
//!
//! Processes come and go while others have the directory open. Whatever depends on which processes
//! live happens under one lock, the file `.kvtier/lock`: a process registers (creates its staging
//! directory), removes those of dead processes, writes the manifest, creates the change log, or acts
//! because it is alone. Without the lock, one process could take a staging directory that is being
//! created for an abandoned one.
//!
//! The lock is held for a few file operations. A process that is stopped with it must not stop the
//! others, so each wait is bounded; what could not be done is tried again later. Time in which the
//! waiting thread itself did not run does not count as waiting.
//!
//! The lock is released by an explicit unlock, not only by closing the file: a child that this
//! process forked meanwhile has the file open too.
//!
//! Earlier builds locked a file of another name. They refuse a directory of this build's format,
//! and this build refuses theirs, before either registers: [`upgrade`].

mod cap_agreement;
mod earlier_lock;
mod file_system;
mod files;
mod format;
mod full_at_open;
pub mod internal_files;
mod layout_detection;
pub mod manifest;
mod process_identity;
pub mod quarantine;
mod recreate;
mod scratch;
mod shards;
mod staging;
mod upgrade;
pub mod usage_scan;

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Error, ErrorKind};

pub use file_system::{is_local, is_read_only, sizes};
pub use files::{Draft, FileId, is_full};
pub use internal_files::open_rw;
pub use manifest::Manifest;
pub use process_identity::Process;
pub use recreate::Recovered;
pub use scratch::Scratch;
pub use staging::{RemovedStale, StagingDir, draft_name, live_names};
pub use upgrade::Upgrade;

use self::full_at_open::Deleted;
use self::manifest::Found;
use self::shards::make_shards;
use crate::layout::{Foreign, Layout};

/// The registration lock's file below `.kvtier`.
const LOCK: &str = "lock";
/// How long a process waits for the registration lock.
pub const REGISTRATION_WAIT_MAX: Duration = Duration::from_secs(3);
/// The same when the directory is opened, which fails after that. Several processes may open it at
/// once, each of which creates files and directories on a medium that may be busy. Only a stopped
/// process holds the lock longer.
pub const OPEN_WAIT_MAX: Duration = Duration::from_secs(15);
/// The most reports of damage that are kept for the status.
const DAMAGE_MAX: usize = 16;
/// The pauses between two tries to lock. Each is twice as long as the last.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(3);

/// An open directory, and this process's registration in it.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    /// The root, open: paths are relative to it, so that each call resolves a short name.
    dir: RwLock<Arc<OwnedFd>>,
    /// `None` while the directory has been read-only since it was opened.
    staging: RwLock<Option<Arc<StagingDir>>>,
    read_only: AtomicBool,
    /// The manifest as read or written last, to write it again after it was deleted.
    last_manifest: Mutex<Manifest>,
    /// The cap with which this process registered.
    cap: OnceLock<u64>,
    /// What dead processes left, removed when the directory was opened. The ledger may count it.
    pub removed_stale: RemovedStale,
    /// Whether files that the ledger counts were deleted so that the directory could be opened.
    has_freed_space: bool,
    /// The state of a foreign layout; `None` for layout `kvtier`.
    foreign: Option<Arc<Foreign>>,
    /// Damage that was found and repaired, for the status.
    damage: Mutex<Vec<String>>,
}

/// The directory's manifest, or what takes its place.
struct StoredManifest {
    manifest: Manifest,
    /// Whether the file has it.
    is_written: bool,
    /// Locks out earlier builds while it is written anew.
    _earlier: Option<RegistrationLock>,
}

impl DataDir {
    /// Opens or creates the directory, removes the unfinished files of dead processes, and registers
    /// this process. Where the device has no space for that, it [deletes](full_at_open) a little in
    /// layout `kvtier`.
    pub fn open(root: &Path, foreign: Option<Foreign>) -> Result<Self, Error> {
        let mut deleted = Deleted::default();
        if foreign.is_some() {
            return Self::open_once(root, foreign, &mut deleted);
        }
        loop {
            let opened = Self::open_once(root, None, &mut deleted);
            let is_full = opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::Full);
            if !is_full || !deleted.delete_one(root) {
                if let Some(said) = deleted.describe(root) {
                    match &opened {
                        Ok(data_dir) => data_dir.note_damage(said),
                        Err(_) => tracing::warn!("{said}"),
                    }
                }
                let has_freed_space = deleted.has_files();
                return opened.map(|data_dir| DataDir { has_freed_space, ..data_dir });
            }
        }
    }

    /// Tries to open it once. Adds to `deleted` what it removed of dead processes.
    fn open_once(
        root: &Path,
        foreign: Option<Foreign>,
        deleted: &mut Deleted,
    ) -> Result<Self, Error> {
        let at = |what: &str, path: &Path| {
            let what = format!("cannot {what} {}", path.display());
            move |e: io::Error| {
                Error::new(kind_of(&e), what)
                    .with_cause(e, "check the path, its permissions and free space")
            }
        };
        let own = root.join(".kvtier");
        internal_files::make_root(root).map_err(at("create", root))?;
        let layout = foreign.as_ref().map_or(Layout::Kvtier, |foreign| foreign.layout);
        if is_read_only(root) {
            return Self::open_read_only(root, layout, foreign);
        }
        if !layout.is_foreign() {
            manifest::refuse_foreign(root, &own)?;
        }
        // Before anything is made or locked, and again under the lock.
        manifest::refuse_other_formats(root)?;
        scratch::sweep(root);
        internal_files::make_own(&own).map_err(at("create", &own))?;
        let mut damage = repair_within(&own, OPEN_WAIT_MAX).map_err(at("create", &own))?;
        let registration =
            lock_registration_within(&own, OPEN_WAIT_MAX).map_err(at("lock", &own.join(LOCK)))?;
        damage.extend(manifest::agree(root, &own, layout)?);
        earlier_lock::remove_unused_earlier_lock(&own);
        let last_manifest = Manifest::read(root, layout)?;
        if !layout.is_foreign() {
            damage.extend(
                make_shards(root, &own).map_err(at("create the 256 directories of", root))?,
            );
        }
        deleted
            .stale
            .add(staging::remove_stale(&own.join("tmp")).map_err(at("clear", &own.join("tmp")))?);
        let staging =
            StagingDir::create(&own.join("tmp")).map_err(at("write to", &own.join("tmp")))?;
        let dir = File::open(root).map_err(at("open", root))?;
        drop(registration);
        let data_dir = DataDir::new(root, dir.into(), last_manifest, foreign);
        *data_dir.staging.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(staging));
        damage.into_iter().for_each(|found| data_dir.note_damage(found));
        Ok(DataDir { removed_stale: deleted.stale, ..data_dir })
    }

    /// Opens a directory that can only be read: creates nothing and registers no process.
    fn open_read_only(
        root: &Path,
        layout: Layout,
        foreign: Option<Foreign>,
    ) -> Result<Self, Error> {
        let failed = |e: io::Error| {
            Error::new(kind_of(&e), format!("cannot open {}", root.display())).with_source(e)
        };
        // The files of another program need no manifest.
        let last_manifest = if layout.is_foreign()
            && !internal_files::exists(&root.join(".kvtier/manifest")).map_err(failed)?
        {
            Manifest { layout, ..Manifest::default() }
        } else {
            Manifest::read(root, layout)?
        };
        manifest::refuse_layout(root, last_manifest.layout, layout)?;
        let dir = File::open(root).map_err(failed)?;
        tracing::warn!(
            "{} is mounted read-only: chunks are loaded from it and none are saved",
            root.display()
        );
        let data_dir = DataDir::new(root, dir.into(), last_manifest, foreign);
        Ok(DataDir { read_only: AtomicBool::new(true), ..data_dir })
    }

    fn new(root: &Path, dir: OwnedFd, last_manifest: Manifest, foreign: Option<Foreign>) -> Self {
        DataDir {
            root: root.to_owned(),
            dir: RwLock::new(Arc::new(dir)),
            staging: RwLock::new(None),
            read_only: AtomicBool::new(false),
            last_manifest: Mutex::new(last_manifest),
            cap: OnceLock::new(),
            removed_stale: RemovedStale::default(),
            has_freed_space: false,
            foreign: foreign.map(Arc::new),
            damage: Mutex::default(),
        }
    }

    /// Reports damage and its repair, in the log and the status.
    pub fn note_damage(&self, found: String) {
        tracing::warn!("{found}");
        let mut damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if damage.len() < DAMAGE_MAX {
            damage.push(found);
        }
    }

    /// The damage found since the directory was opened.
    pub fn damage(&self) -> Vec<String> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the directory can only be read, as noted last.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Notes whether the directory can only be read.
    pub fn set_read_only(&self, read_only: bool) {
        if self.read_only.swap(read_only, Ordering::Relaxed) != read_only {
            let now = if read_only {
                "read-only: saves are shed"
            } else {
                "writable: chunks are saved again"
            };
            tracing::warn!("{} is now {now}", self.root.display());
        }
    }

    /// Whether files were removed when the directory was opened: those of dead processes, or others
    /// for space. The ledger may count them, and peers may have listed them.
    pub fn has_removed_files(&self) -> bool {
        self.removed_stale.dirs > 0 || self.has_freed_space
    }

    /// The directory, open.
    fn dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.dir.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The state of a foreign layout; `None` for layout `kvtier`.
    pub fn foreign(&self) -> Option<&Foreign> {
        self.foreign.as_deref()
    }

    /// The directory `.kvtier`.
    pub fn own(&self) -> PathBuf {
        self.root.join(".kvtier")
    }

    /// Whether no other process has a staging directory, alive or dead. The caller holds the
    /// registration lock.
    pub fn has_only_own_staging(&self) -> io::Result<bool> {
        Ok(staging::staging_dirs(&self.own().join("tmp"))?.len() <= 1)
    }

    /// Removes the staging directories of processes that died since.
    pub fn remove_stale(&self) -> io::Result<RemovedStale> {
        let _registration = lock_registration(&self.own())?;
        staging::remove_stale(&self.own().join("tmp"))
    }

    /// Runs `work` under the registration lock.
    pub fn with_registration_lock<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _registration = lock_registration(&self.own())?;
        work()
    }

    /// The same while the directory is being opened, with a longer wait. `work` gets whether this
    /// process is alone.
    pub fn with_registration_lock_at_open<T>(
        &self,
        work: impl FnOnce(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let _registration = lock_registration_within(&self.own(), OPEN_WAIT_MAX)?;
        work(live_names(&self.own().join("tmp"))?.len() == 1)
    }

    /// Runs `work` under the registration lock if no peer has the directory open. Returns whether it
    /// ran.
    pub fn if_alone(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        let _registration = lock_registration(&self.own())?;
        let is_alone = live_names(&self.own().join("tmp"))?.len() <= 1;
        if is_alone { work().map(|()| true) } else { Ok(false) }
    }

    /// Writes `capacity_bytes` into the manifest as the directory's cap.
    ///
    /// # Errors
    /// `Invalid` for a cap below both the noted one and the `used` bytes, unless `shrink` allows that
    /// chunks are deleted.
    pub fn agree_on_cap(
        &self,
        capacity_bytes: u64,
        used: u64,
        shrink: bool,
    ) -> Result<Manifest, Error> {
        self.edit_manifest(OPEN_WAIT_MAX, |manifest| {
            let smaller = manifest.capacity_bytes.is_none_or(|noted| capacity_bytes < noted);
            if smaller && used > capacity_bytes && !shrink {
                let noted = manifest.capacity_bytes.map_or("no cap".into(), |bytes| format!("a cap of {bytes} bytes"));
                let what = format!(
                    "{} notes {noted} and holds {used} bytes, this opens it with a cap of {capacity_bytes}: that would delete chunks; \
                     raise the cap, or allow it with `shrink: true` (--shrink)",
                    self.root.display()
                );
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            manifest.capacity_bytes = Some(capacity_bytes);
            Ok(())
        })
    }

    /// Changes the manifest in one step, under the registration lock, for which it waits at most
    /// `most`. Returns the new manifest.
    pub fn edit_manifest(
        &self,
        most: Duration,
        edit: impl FnOnce(&mut Manifest) -> Result<(), Error>,
    ) -> Result<Manifest, Error> {
        let own = self.own();
        let fail = |e: io::Error| {
            let what = format!("cannot write {}", own.display());
            Error::new(kind_of(&e), what).with_cause(e, "check its permissions and free space")
        };
        if self.is_read_only() {
            // The same errors; nothing is written.
            let mut manifest =
                self.last_manifest.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return edit(&mut manifest).map(|()| manifest);
        }
        let _registration = lock_registration_within(&own, most).map_err(fail)?;
        let StoredManifest { mut manifest, is_written, _earlier } =
            self.manifest_or_last(&own, most)?;
        let before = manifest.clone();
        edit(&mut manifest)?;
        if manifest != before || !is_written {
            manifest.write(&own).map_err(fail)?;
        }
        *self.last_manifest.lock().unwrap_or_else(PoisonError::into_inner) = manifest.clone();
        Ok(manifest)
    }

    /// The stored manifest; where it was lost or damaged since, the last one. Waits at most `most`
    /// for processes of earlier builds. The caller holds the registration lock.
    fn manifest_or_last(&self, own: &Path, most: Duration) -> Result<StoredManifest, Error> {
        let why = match Manifest::find(&self.root)? {
            Found::Whole(manifest) => {
                return Ok(StoredManifest { manifest, is_written: true, _earlier: None });
            }
            Found::Older { format, .. } => return Err(manifest::older(&self.root, format)),
            Found::Nothing => "was deleted".to_owned(),
            Found::Damaged(why) => why,
        };
        // The path may name a directory of an earlier build now.
        let _earlier = earlier_lock::exclude_earlier_builds(&self.root, own, most)?;
        let path = own.join("manifest");
        // Where it cannot be renamed, the new manifest may still replace it.
        let renamed = internal_files::rename_damaged_because(own, &path, &why);
        self.note_damage(
            renamed.unwrap_or_else(|_| format!("{} {why}; it is written again", path.display())),
        );
        let manifest = self.last_manifest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(StoredManifest { manifest, is_written: false, _earlier })
    }

    /// This process's staging directory.
    ///
    /// # Errors
    /// `ReadOnlyFilesystem` where none could be created yet.
    pub fn staging(&self) -> io::Result<Arc<StagingDir>> {
        let staging = self.staging.read().unwrap_or_else(PoisonError::into_inner);
        staging.clone().ok_or_else(|| Io::ReadOnlyFilesystem.into())
    }

    /// Whether this process could ever write here.
    pub fn has_staging_dir(&self) -> bool {
        self.staging.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Repairs `.kvtier`, one process at a time: a renamed file may be the one that peers have locked,
/// or are about to lock. Waits at most `most` for them.
fn repair_within(own: &Path, most: Duration) -> io::Result<Vec<String>> {
    let dir = File::open(own)?;
    match lock_within(&dir, most) {
        Err(e) if e.kind() == Io::WouldBlock => {
            let what =
                format!("another process keeps {} locked: find it with `fuser`", own.display());
            return Err(io::Error::new(Io::WouldBlock, what));
        }
        // Network file systems lock no directories. There each name is only checked just before it
        // is renamed.
        _ => {}
    }
    let repaired = internal_files::repair(own);
    // Also where a child that this process forked has it open too.
    let _ = dir.unlock();
    repaired
}

/// Registers a process that opens no tier: creates its staging directory.
///
/// # Errors
/// Those of the file system, and `Other` for a directory of another format.
pub fn register(own: &Path) -> io::Result<StagingDir> {
    refuse_other_formats(own)?;
    let _registration = lock_registration(own)?;
    refuse_other_formats(own)?;
    StagingDir::create(&own.join("tmp"))
}

/// Refuses the directory of this `.kvtier` if it has another format.
///
/// # Errors
/// `Other`, and those of the file system.
pub fn refuse_other_formats(own: &Path) -> io::Result<()> {
    manifest::refuse_other_formats(own.parent().unwrap_or(own)).map_err(io::Error::other)
}

/// The kind of a failed system call's error.
pub fn kind_of(e: &io::Error) -> ErrorKind {
    match e.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        Io::NotADirectory | Io::InvalidInput | Io::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}

/// The held registration lock; see the [module](self).
#[derive(Debug)]
pub struct RegistrationLock(File);

impl Drop for RegistrationLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Takes the registration lock. Waits at most [`REGISTRATION_WAIT_MAX`].
fn lock_registration(own: &Path) -> io::Result<RegistrationLock> {
    lock_registration_within(own, REGISTRATION_WAIT_MAX)
}

/// The same, with a wait of at most `most`.
pub fn lock_registration_within(own: &Path, most: Duration) -> io::Result<RegistrationLock> {
    lock_file_within(&own.join(LOCK), most)
}

/// Locks the file `path` in the same way, and creates it where it is missing.
fn lock_file_within(path: &Path, most: Duration) -> io::Result<RegistrationLock> {
    let registration = open_rw(path)?;
    lock_within(&registration, most).map_err(|e| match e.kind() {
        Io::WouldBlock => {
            let path = path.display();
            let most = most.as_secs();
            io::Error::new(
                Io::WouldBlock,
                format!("another process keeps {path} locked for more than {most} s: find it with `fuser`"),
            )
        }
        _ => e,
    })?;
    Ok(RegistrationLock(registration))
}

/// Locks a file. Waits at most `most` for the process that holds the lock.
pub fn lock_within(file: &File, most: Duration) -> io::Result<()> {
    let began = Instant::now();
    lock_by(file, most, || began.elapsed(), std::thread::sleep)
}

/// The same by this clock. Time in which the waiting thread itself did not run does not count: an
/// eighth of the time must be pauses that a try followed.
fn lock_by(
    file: &File,
    most: Duration,
    elapsed: impl Fn() -> Duration,
    mut sleep: impl FnMut(Duration),
) -> io::Result<()> {
    let mut pause = LOCK_PAUSE_MIN;
    let mut paused = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(e),
            Err(TryLockError::WouldBlock) if elapsed() > most && paused >= most / 8 => {
                return Err(TryLockError::WouldBlock.into());
            }
            Err(TryLockError::WouldBlock) => sleep(pause),
        }
        paused += pause;
        pause = (2 * pause).min(LOCK_PAUSE_MAX);
    }
}

fn ignore_existing(e: io::Error) -> io::Result<()> {
    if e.kind() == Io::AlreadyExists { Ok(()) } else { Err(e) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn one_process_at_a_time_repairs() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        internal_files::make_dirs(&own).unwrap();
        std::fs::create_dir(own.join("lock")).unwrap();
        let other = File::open(&own).unwrap();
        other.lock().unwrap();
        let e = repair_within(&own, Duration::from_millis(5)).unwrap_err();
        assert_eq!((e.kind(), own.join("lock").is_dir()), (Io::WouldBlock, true));
        other.unlock().unwrap();
        assert_eq!(repair_within(&own, Duration::from_millis(5)).unwrap().len(), 1);
        other.try_lock().unwrap();
        assert!(!own.join("lock").exists());
    }

    #[test]
    fn a_thread_that_did_not_run_has_not_waited_for_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let ours = open_rw(&dir.path().join("lock")).unwrap();
        let theirs = open_rw(&dir.path().join("lock")).unwrap();
        let most = Duration::from_secs(1);
        let clock = Cell::new(Duration::ZERO);
        let pauses = Cell::new(0);
        theirs.lock().unwrap();
        let passes = |time| clock.set(clock.get() + time);
        // Ten seconds pass at the first pause, and the lock is free at the third.
        let stands_still = |pause| {
            passes(pause + 10 * most);
            pauses.set(pauses.get() + 1);
            if pauses.get() == 3 {
                theirs.unlock().unwrap();
            }
        };
        lock_by(&ours, most, || clock.get(), stands_still).unwrap();
        ours.unlock().unwrap();
        theirs.lock().unwrap();
        clock.set(Duration::ZERO);
        let e = lock_by(&ours, most, || clock.get(), passes).unwrap_err();
        assert_eq!(e.kind(), Io::WouldBlock);
        assert!(clock.get() > most && clock.get() < 2 * most, "{:?}", clock.get());
    }
}
