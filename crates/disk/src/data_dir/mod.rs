//! A tier's directory on disk: its manifest, its 256 shards, this process's own corner for
//! unfinished files, and the quarantine.

pub mod byte_count;
mod file_system;
mod files;
pub mod internal_files;
mod layout_detection;
pub mod manifest;
mod peers;
mod process;
pub mod quarantine;
mod recovery;
mod scratch;
mod shards;
mod staging;

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Error, ErrorKind};

pub use file_system::{is_local, is_read_only, sizes};
pub use files::{Draft, FileId, is_full, is_head_of_hash};
pub use internal_files::open_rw;
pub use manifest::Manifest;
pub use process::Process;
pub use recovery::Recovered;
pub use scratch::Scratch;
pub use staging::{RemovedStale, StagingDir, draft_name, live_names};

use self::manifest::Found;
use self::shards::make_shards;
use crate::layout::{Foreign, Layout};

/// How long somebody may register or clear before the others give up waiting for it.
pub const REGISTRATION_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long who opens the directory waits, which else is refused: several may come at once, each of
/// which makes files and directories on a medium that may be busy. Only who is frozen keeps the
/// door longer.
pub const OPEN_WAIT_MAX: Duration = Duration::from_secs(15);
/// The most reports of damage that are kept for the status.
const DAMAGE_MAX: usize = 16;
/// The pauses between two tries to lock: each is twice as long as the one before.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(3);

/// A directory that is open, and this process's place in it.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    /// The root, open: names are short and the way to them is not walked again for each chunk.
    dir: RwLock<Arc<OwnedFd>>,
    /// `None` while the directory has been read-only since it was opened.
    staging: RwLock<Option<Arc<StagingDir>>>,
    read_only: AtomicBool,
    /// What the manifest said last, to write it again should somebody delete it.
    said: Mutex<Manifest>,
    /// The cap with which this process has it open, once it said so.
    cap: OnceLock<u64>,
    /// What dead processes had left here; the ledger may count it.
    pub removed_stale: RemovedStale,
    /// What a foreign layout needs; `None` for ours.
    foreign: Option<Arc<Foreign>>,
    /// What was found damaged here and repaired, for the status.
    damage: Mutex<Vec<String>>,
}

impl DataDir {
    /// Opens or creates the directory, clears what dead processes left unfinished, and registers
    /// this process.
    pub fn open(root: &Path, foreign: Option<Foreign>) -> Result<Self, Error> {
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
        scratch::sweep(root);
        internal_files::make_own(&own).map_err(at("create", &own))?;
        let mut damage = repair_within(&own, OPEN_WAIT_MAX).map_err(at("create", &own))?;
        // One process at a time registers or clears, so that nobody takes a corner being made for
        // an abandoned one.
        let registration =
            lock_registration_within(&own, OPEN_WAIT_MAX).map_err(at("lock", &own.join("door")))?;
        damage.extend(manifest::agree(root, &own, layout)?);
        let said = Manifest::read(root, layout)?;
        if !layout.is_foreign() {
            damage.extend(
                make_shards(root, &own).map_err(at("create the 256 directories of", root))?,
            );
        }
        let removed_stale =
            staging::remove_stale(&own.join("tmp")).map_err(at("clear", &own.join("tmp")))?;
        let staging =
            StagingDir::create(&own.join("tmp")).map_err(at("write to", &own.join("tmp")))?;
        let dir = File::open(root).map_err(at("open", root))?;
        drop(registration);
        let data_dir = DataDir::new(root, dir.into(), said, foreign);
        *data_dir.staging.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(staging));
        damage.into_iter().for_each(|found| data_dir.note_damage(found));
        Ok(DataDir { removed_stale, ..data_dir })
    }

    /// Opens a directory that can only be read: nothing is made, nobody registers.
    fn open_read_only(
        root: &Path,
        layout: Layout,
        foreign: Option<Foreign>,
    ) -> Result<Self, Error> {
        let failed = |e: io::Error| {
            Error::new(kind_of(&e), format!("cannot open {}", root.display())).with_source(e)
        };
        // Files of another program may lie there without a manifest of ours.
        let said = if layout.is_foreign()
            && !internal_files::exists(&root.join(".kvtier/manifest")).map_err(failed)?
        {
            Manifest { layout, ..Manifest::default() }
        } else {
            Manifest::read(root, layout)?
        };
        manifest::refuse_layout(root, said.layout, layout)?;
        let dir = File::open(root).map_err(failed)?;
        tracing::warn!(
            "{} is mounted read-only: chunks are loaded from it and none are saved",
            root.display()
        );
        let data_dir = DataDir::new(root, dir.into(), said, foreign);
        Ok(DataDir { read_only: AtomicBool::new(true), ..data_dir })
    }

    fn new(root: &Path, dir: OwnedFd, said: Manifest, foreign: Option<Foreign>) -> Self {
        DataDir {
            root: root.to_owned(),
            dir: RwLock::new(Arc::new(dir)),
            staging: RwLock::new(None),
            read_only: AtomicBool::new(false),
            said: Mutex::new(said),
            cap: OnceLock::new(),
            removed_stale: RemovedStale::default(),
            foreign: foreign.map(Arc::new),
            damage: Mutex::default(),
        }
    }

    /// Notes for log and status that something was damaged, and what was done about it.
    pub fn note_damage(&self, found: String) {
        tracing::warn!("{found}");
        let mut damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if damage.len() < DAMAGE_MAX {
            damage.push(found);
        }
    }

    /// What was found damaged since the directory was opened.
    pub fn damage(&self) -> Vec<String> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the directory can only be read, as of the last look.
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

    /// The directory, open.
    fn dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.dir.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What a foreign layout needs; `None` for ours.
    pub fn foreign(&self) -> Option<&Foreign> {
        self.foreign.as_deref()
    }

    /// The directory's own affairs.
    pub fn own(&self) -> PathBuf {
        self.root.join(".kvtier")
    }

    /// Clears what processes that died since left unfinished.
    pub fn remove_stale(&self) -> io::Result<RemovedStale> {
        let _registration = lock_registration(&self.own())?;
        staging::remove_stale(&self.own().join("tmp"))
    }

    /// Does something while no other process registers or clears.
    pub fn with_registration_lock<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _registration = lock_registration(&self.own())?;
        work()
    }

    /// Does something for which nobody may come meanwhile; told whether nobody else is there.
    pub fn with_registration_lock_at_open<T>(
        &self,
        work: impl FnOnce(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let _registration = lock_registration_within(&self.own(), OPEN_WAIT_MAX)?;
        work(live_names(&self.own().join("tmp"))?.len() == 1)
    }

    /// Does something if no other process has the directory open, and while none can open it.
    /// Answers whether it was done.
    pub fn if_alone(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        let _registration = lock_registration(&self.own())?;
        let is_alone = live_names(&self.own().join("tmp"))?.len() <= 1;
        if is_alone { work().map(|()| true) } else { Ok(false) }
    }

    /// Takes `capacity_bytes` for the directory's cap and writes it down. `Invalid` for one below
    /// what is noted there, and below the `used` bytes that lie there, unless `shrink` says
    /// that they may be deleted.
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

    /// Changes the manifest in one step, while nobody else does; waits at most `most` for those.
    /// Answers what it says then.
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
            // The same refusals; nobody writes it down.
            let mut manifest = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return edit(&mut manifest).map(|()| manifest);
        }
        let _registration = lock_registration_within(&own, most).map_err(fail)?;
        let (mut manifest, is_written) = self.manifest_or_last(&own)?;
        let before = manifest.clone();
        edit(&mut manifest)?;
        if manifest != before || !is_written {
            manifest.write(&own).map_err(fail)?;
        }
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = manifest.clone();
        Ok(manifest)
    }

    /// What the manifest says and `true`; where it was lost or damaged since, what it said last and
    /// `false`. The door is locked.
    fn manifest_or_last(&self, own: &Path) -> Result<(Manifest, bool), Error> {
        let why = match Manifest::find(&self.root)? {
            Found::Whole(manifest) => return Ok((manifest, true)),
            Found::Nothing => "was deleted".to_owned(),
            Found::Damaged(why) => why,
        };
        let path = own.join("manifest");
        // Where it cannot be put away, the one that is written in its place may still replace it.
        let renamed = internal_files::rename_damaged_because(own, &path, &why);
        self.note_damage(
            renamed.unwrap_or_else(|_| format!("{} {why}; it is written again", path.display())),
        );
        Ok((self.said.lock().unwrap_or_else(PoisonError::into_inner).clone(), false))
    }

    /// This process's corner.
    ///
    /// # Errors
    /// `ReadOnlyFilesystem` where none could be made yet.
    pub fn staging(&self) -> io::Result<Arc<StagingDir>> {
        let staging = self.staging.read().unwrap_or_else(PoisonError::into_inner);
        staging.clone().ok_or_else(|| Io::ReadOnlyFilesystem.into())
    }

    /// Whether this process ever could write here.
    pub fn has_staging_dir(&self) -> bool {
        self.staging.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Repairs `.kvtier`, one process at a time: what is renamed may be the file that the others have
/// locked, or are about to lock. Waits at most `most` for those.
fn repair_within(own: &Path, most: Duration) -> io::Result<Vec<String>> {
    let dir = File::open(own)?;
    match lock_within(&dir, most) {
        Err(e) if e.kind() == Io::WouldBlock => {
            let what =
                format!("another process keeps {} locked: see who has it open", own.display());
            return Err(io::Error::new(Io::WouldBlock, what));
        }
        // Network file systems lock no directories. There each name is looked at just before it is
        // renamed, and no more.
        _ => {}
    }
    let repaired = internal_files::repair(own);
    // Also where a child that this process forked has it open too.
    let _ = dir.unlock();
    repaired
}

/// A corner for somebody who opens no tier.
pub fn register(own: &Path) -> io::Result<StagingDir> {
    let _registration = lock_registration(own)?;
    StagingDir::create(&own.join("tmp"))
}

/// The kind of error a failed system call is to the caller.
pub fn kind_of(e: &io::Error) -> ErrorKind {
    match e.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        Io::NotADirectory | Io::InvalidInput | Io::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}

/// The door's lock. Unlocked when this is dropped, not only closed: a child that this process
/// forked meanwhile has the file open too.
#[derive(Debug)]
pub struct RegistrationLock(File);

impl Drop for RegistrationLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Waits until no other process registers or clears, but not for one that is frozen while it does.
fn lock_registration(own: &Path) -> io::Result<RegistrationLock> {
    lock_registration_within(own, REGISTRATION_WAIT_MAX)
}

/// The same, but waits no longer than `most`.
pub fn lock_registration_within(own: &Path, most: Duration) -> io::Result<RegistrationLock> {
    let path = own.join("door");
    let registration = open_rw(&path)?;
    lock_within(&registration, most).map_err(|e| match e.kind() {
        Io::WouldBlock => {
            let (path, most) = (path.display(), most.as_secs());
            io::Error::new(
                Io::WouldBlock,
                format!("another process keeps {path} locked for more than {most} s: see who has it open"),
            )
        }
        _ => e,
    })?;
    Ok(RegistrationLock(registration))
}

/// Locks a file, but waits no longer than `most` for whoever has it: a process that is frozen with
/// the lock must not stop the others.
pub fn lock_within(file: &File, most: Duration) -> io::Result<()> {
    let began = Instant::now();
    lock_by(file, most, || began.elapsed(), std::thread::sleep)
}

/// The same by this clock. Time in which our own thread stood still is no time in which another
/// kept the lock: some of it must be pauses after which it was tried again.
fn lock_by(
    file: &File,
    most: Duration,
    elapsed: impl Fn() -> Duration,
    mut sleep: impl FnMut(Duration),
) -> io::Result<()> {
    let (mut pause, mut paused) = (LOCK_PAUSE_MIN, Duration::ZERO);
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

fn exists_is_fine(e: io::Error) -> io::Result<()> {
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
        std::fs::create_dir(own.join("door")).unwrap();
        let other = File::open(&own).unwrap();
        other.lock().unwrap();
        let e = repair_within(&own, Duration::from_millis(5)).unwrap_err();
        assert_eq!((e.kind(), own.join("door").is_dir()), (Io::WouldBlock, true));
        other.unlock().unwrap();
        assert_eq!(repair_within(&own, Duration::from_millis(5)).unwrap().len(), 1);
        other.try_lock().unwrap();
        assert!(!own.join("door").exists());
    }

    #[test]
    fn who_stood_still_has_not_waited_for_a_lock_and_who_has_gives_up() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (
            open_rw(&dir.path().join("lock")).unwrap(),
            open_rw(&dir.path().join("lock")).unwrap(),
        );
        let (most, clock, pauses) =
            (Duration::from_secs(1), Cell::new(Duration::ZERO), Cell::new(0));
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
