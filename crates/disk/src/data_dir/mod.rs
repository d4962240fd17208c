//! A tier's directory: its manifest, its 256 shards, the staging directory of this process, and the
//! quarantine.
//!
//! Earlier builds locked a file of another name. They refuse a directory of this build's format,
//! and this build refuses theirs, before either registers: [`upgrade`].

mod cap_agreement;
mod chunk_files;
mod earlier_lock;
mod edit_manifest;
mod encoded_chunks;
mod file_system_properties;
mod format;
mod full_at_open;
pub mod internal_files;
mod layout_detection;
mod listing;
mod liveness;
pub mod manifest;
mod open;
mod process_identity;
mod publish_by_rename;
pub mod quarantine;
mod recreate_deleted;
mod registration_lock;
pub mod repair;
mod scratch;
mod shards;
mod staging;
mod undeleted;
mod upgrade;
pub mod usage_scan;

use std::io::{self, ErrorKind as Io};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use kvtier_core::ErrorKind;

pub use chunk_files::{Draft, FileId, is_full};
pub use encoded_chunks::begin_to_encode;
pub use file_system_properties::{is_local, is_read_only, sizes};
pub use internal_files::open_rw;
pub use listing::Listed;
pub use liveness::live_names;
pub use manifest::Manifest;
pub use process_identity::Process;
pub use recreate_deleted::Recovered;
pub use registration_lock::{
    OPEN_WAIT_MAX, REGISTRATION_WAIT_MAX, lock_registration_within, lock_within,
};
pub use scratch::Scratch;
pub use staging::{RemovedStale, StagingDir, draft_name};
pub use upgrade::Upgrade;
pub use usage_scan::CountedChunk;

use self::registration_lock::lock_registration;
use self::undeleted::UndeletedFiles;
use crate::layout::Foreign;

/// The most reports of damage that are kept for the status.
const DAMAGE_MAX: usize = 16;
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
    /// Chunks may be encoded, so that names do not show the lengths of files. It only becomes true.
    has_encoded: AtomicBool,
    /// A file had another length than its name states, and the ledger may count more for it.
    is_count_uncertain: AtomicBool,
    /// What dead processes left, removed when the directory was opened. The ledger may count it.
    pub removed_stale: RemovedStale,
    /// Whether files that the ledger counts were deleted so that the directory could be opened.
    has_freed_space: bool,
    /// The state of a foreign layout; `None` for layout `kvtier`.
    foreign: Option<Arc<Foreign>>,
    /// Unfinished files that could not be deleted.
    undeleted: UndeletedFiles,
    /// Damage that was found and repaired, for the status.
    damage: Mutex<Vec<String>>,
}

impl DataDir {
    fn new(root: &Path, dir: OwnedFd, last_manifest: Manifest, foreign: Option<Foreign>) -> Self {
        DataDir {
            root: root.to_owned(),
            dir: RwLock::new(Arc::new(dir)),
            staging: RwLock::new(None),
            read_only: AtomicBool::new(false),
            has_encoded: AtomicBool::new(last_manifest.has_encoded),
            is_count_uncertain: AtomicBool::new(false),
            last_manifest: Mutex::new(last_manifest),
            cap: OnceLock::new(),
            removed_stale: RemovedStale::default(),
            has_freed_space: false,
            foreign: foreign.map(Arc::new),
            undeleted: UndeletedFiles::default(),
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

    /// Notes whether the directory can only be read. Answers what was noted before.
    pub fn set_read_only(&self, read_only: bool) -> bool {
        let before = self.read_only.swap(read_only, Ordering::Relaxed);
        if before != read_only {
            let now = if read_only {
                "read-only: saves are shed"
            } else {
                "writable: chunks are saved again"
            };
            tracing::warn!("{} is now {now}", self.root.display());
        }
        before
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
        Ok(liveness::staging_dirs(&self.own().join("tmp"))?.len() <= 1)
    }

    /// Removes the staging directories of processes that died since. Calls `removed` under the
    /// registration lock if there were any.
    pub fn remove_stale(&self, removed: impl FnOnce()) -> io::Result<RemovedStale> {
        let _registration = lock_registration(&self.own())?;
        let stale = staging::remove_stale(&self.own().join("tmp"));
        // Also where it failed after the first.
        if stale.as_ref().map_or(true, |stale| stale.dirs > 0) {
            removed();
        }
        stale
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

    /// Whether this process can be found by others: `.kvtier` may have been deleted.
    pub fn is_registered(&self) -> bool {
        let staging = self.staging.read().unwrap_or_else(PoisonError::into_inner);
        staging.as_ref().is_some_and(|staging| staging.exists())
    }
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

/// The same for one that writes chunks. Where no tier lives, it must count first.
///
/// # Errors
/// Those of [`register`].
pub fn register_to_write(own: &Path) -> io::Result<StagingDir> {
    refuse_other_formats(own)?;
    let _registration = lock_registration(own)?;
    refuse_other_formats(own)?;
    open::mark_uncounted_if_first(own)?;
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

fn ignore_existing(e: io::Error) -> io::Result<()> {
    if e.kind() == Io::AlreadyExists { Ok(()) } else { Err(e) }
}
