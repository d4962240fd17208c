//! Recovery of an open tier whose directory, or `.kvtier` in it, was moved or deleted.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError};

use nix::sys::stat::fstat;

use kvtier_core::Error;

use super::earlier_lock::{EARLIER_LOCK, exclude_earlier_builds, remove_unused_earlier_lock};
use super::manifest::{Found, Manifest};
use super::open::mark_uncounted_if_first;
use super::{
    DataDir, REGISTRATION_WAIT_MAX, StagingDir, ignore_existing, internal_files, kind_of,
    lock_registration, manifest, open::repair_within, shards::make_shards,
};

/// What was created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Nothing.
    Nothing,
    /// `.kvtier`, or what this process needs in it.
    Bookkeeping,
    /// Everything: the path names another directory now, with chunks of its own or none.
    Directory,
}

impl DataDir {
    /// Creates `.kvtier` again where it, or what this process needs in it, was deleted; also for the
    /// first time, where it was read-only until now. Where the path names another directory, the
    /// tier continues there.
    pub fn restore(&self) -> io::Result<Recovered> {
        let is_moved = self.is_moved()?;
        let own = self.own();
        let mut staging = self.staging.write().unwrap_or_else(PoisonError::into_inner);
        let manifest = internal_files::exists(&own.join("manifest"))?;
        let has_staging_dir = staging.as_ref().is_some_and(|staging| staging.exists());
        if manifest && has_staging_dir && !is_moved {
            return Ok(Recovered::Nothing);
        }
        let root = if is_moved { Some(self.open_another()?) } else { None };
        // A directory of an earlier format is served while it is read-only, and never written.
        let refuse_other_formats =
            || manifest::refuse_other_formats(&self.root).map_err(io::Error::other);
        refuse_other_formats()?;
        internal_files::make_own(&own)?;
        repair_within(&own, REGISTRATION_WAIT_MAX)?
            .into_iter()
            .for_each(|found| self.note_damage(found));
        let _registration = lock_registration(&own)?;
        refuse_other_formats()?;
        let mut last = self.last_manifest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.has_encoded |= self.may_have_encoded();
        // A peer may have been faster.
        if !internal_files::exists(&own.join("manifest"))? {
            // The path may name a directory of an earlier build that lost its manifest.
            let _earlier = exclude_earlier_builds(&self.root, &own, REGISTRATION_WAIT_MAX)
                .map_err(io::Error::other)?;
            last.write(&own)?;
        }
        if root.is_some() {
            let damage =
                manifest::agree(&self.root, &own, last.layout).map_err(io::Error::other)?;
            damage.into_iter().for_each(|found| self.note_damage(found));
            if !last.layout.is_foreign() {
                make_shards(&self.root, &own)?
                    .into_iter()
                    .for_each(|found| self.note_damage(found));
            }
        }
        if !has_staging_dir {
            // This process may have found the directory read-only until now.
            if !last.layout.is_foreign() {
                mark_uncounted_if_first(&own)?;
            }
            let anew = StagingDir::create(&own.join("tmp"))?;
            if let Some(cap) = self.cap.get() {
                anew.write_cap(*cap)?;
            }
            *staging = Some(Arc::new(anew));
        }
        let Some(root) = root else { return Ok(Recovered::Bookkeeping) };
        *self.dir.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(root.into());
        self.look_anew_for_encoded();
        Ok(Recovered::Directory)
    }

    /// Writes a damaged manifest again as this process read or wrote it last, notes encoded chunks in
    /// one that a peer wrote without them, and removes the lock of
    /// earlier builds where none of their processes uses it.
    ///
    /// # Errors
    /// `Invalid` where a process has the directory open that may be of an earlier build, and those of
    /// the file system. The next call tries again.
    pub fn repair_manifest(&self) -> Result<(), Error> {
        if self.is_read_only() {
            return Ok(());
        }
        let is_wrong = match Manifest::find(&self.root) {
            Ok(Found::Damaged(_)) => true,
            // A peer that did not notice the encodings wrote a lost manifest again.
            Ok(Found::Whole(manifest)) => self.may_have_encoded() && !manifest.has_encoded,
            _ => false,
        };
        if is_wrong {
            self.edit_manifest(REGISTRATION_WAIT_MAX, |_| Ok(()))?;
        }
        let own = self.own();
        let removed = internal_files::exists(&own.join(EARLIER_LOCK)).and_then(|is_there| {
            if !is_there {
                return Ok(());
            }
            self.with_registration_lock(|| {
                if matches!(Manifest::find(&self.root), Ok(Found::Whole(_))) {
                    remove_unused_earlier_lock(&own);
                }
                Ok(())
            })
        });
        removed.map_err(|e| {
            let what = format!("cannot remove {}", own.join(EARLIER_LOCK).display());
            Error::new(kind_of(&e), what).with_cause(e, "check its permissions")
        })
    }

    /// Whether the path names another directory than the open one, or none.
    fn is_moved(&self) -> io::Result<bool> {
        let ours = fstat(self.dir().as_fd())?;
        match fs::metadata(&self.root) {
            Ok(there) => Ok((there.dev(), there.ino()) != (ours.st_dev, ours.st_ino)),
            // The path is gone: deleted, or moved and not replaced so far.
            Err(e) if e.kind() == Io::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Opens the directory that the path names now, or creates it. Only on the same file system:
    /// another one may be the mount point of a file system that is unmounted, and must not be filled.
    fn open_another(&self) -> io::Result<File> {
        let ours = fstat(self.dir().as_fd())?.st_dev;
        // A missing directory would be created in its parent, whose file system counts then.
        let exists = fs::exists(&self.root)?;
        let checked =
            if exists { self.root.as_path() } else { self.root.parent().unwrap_or(&self.root) };
        if fs::metadata(checked)?.dev() != ours {
            let what = format!(
                "{} is on another file system now: mount the first one again, or restart to use the other",
                self.root.display()
            );
            return Err(io::Error::new(Io::CrossesDevices, what));
        }
        if !exists {
            kvtier_os::create_dir(&self.root).or_else(ignore_existing)?;
        }
        if self.foreign.is_none() {
            manifest::refuse_foreign(&self.root, &self.own()).map_err(io::Error::other)?;
        }
        File::open(&self.root)
    }
}
