//! What a tier does when its directory, or `.kvtier` in it, is taken away under it.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError};

use nix::sys::stat::fstat;

use super::{
    DataDir, REGISTRATION_WAIT_MAX, StagingDir, exists_is_fine, internal_files, lock_registration,
    manifest, repair_within, shards::make_shards,
};

/// What had to be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Nothing.
    Nothing,
    /// `.kvtier`, or what this process needs in it.
    Bookkeeping,
    /// All: the path leads to another directory now, which has chunks of its own, or none.
    Directory,
}

impl DataDir {
    /// Makes `.kvtier` again if somebody deleted it, or what we need in it; and for the first time
    /// if it could only be read until now. Where the path leads to another directory by now,
    /// goes on there.
    pub fn restore(&self) -> io::Result<Recovered> {
        let is_moved = self.is_moved()?;
        let (own, mut staging) =
            (self.own(), self.staging.write().unwrap_or_else(PoisonError::into_inner));
        let manifest = internal_files::exists(&own.join("manifest"))?;
        let has_staging_dir = staging.as_ref().is_some_and(|staging| staging.exists());
        if manifest && has_staging_dir && !is_moved {
            return Ok(Recovered::Nothing);
        }
        let root = if is_moved { Some(self.open_another()?) } else { None };
        internal_files::make_own(&own)?;
        repair_within(&own, REGISTRATION_WAIT_MAX)?
            .into_iter()
            .for_each(|found| self.note_damage(found));
        let _registration = lock_registration(&own)?;
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another process may have been faster.
        if !internal_files::exists(&own.join("manifest"))? {
            said.write(&own)?;
        }
        if root.is_some() {
            let damage =
                manifest::agree(&self.root, &own, said.layout).map_err(io::Error::other)?;
            damage.into_iter().for_each(|found| self.note_damage(found));
            if !said.layout.is_foreign() {
                make_shards(&self.root, &own)?
                    .into_iter()
                    .for_each(|found| self.note_damage(found));
            }
        }
        if !has_staging_dir {
            let anew = StagingDir::create(&own.join("tmp"))?;
            if let Some(cap) = self.cap.get() {
                anew.write_cap(*cap)?;
            }
            *staging = Some(Arc::new(anew));
        }
        let Some(root) = root else { return Ok(Recovered::Bookkeeping) };
        *self.dir.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(root.into());
        Ok(Recovered::Directory)
    }

    /// Whether the path leads to another directory than the one that is open, or to none.
    fn is_moved(&self) -> io::Result<bool> {
        let ours = fstat(self.dir().as_fd())?;
        match fs::metadata(&self.root) {
            Ok(there) => Ok((there.dev(), there.ino()) != (ours.st_dev, ours.st_ino)),
            Err(e) if e.kind() == Io::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// The directory to which the path leads now, made if there is none. Only on the same file
    /// system: another may be what lies below a mount that is gone, and is not to be filled.
    fn open_another(&self) -> io::Result<File> {
        let ours = fstat(self.dir().as_fd())?.st_dev;
        let exists = fs::exists(&self.root)?;
        let checked =
            if exists { self.root.as_path() } else { self.root.parent().unwrap_or(&self.root) };
        if fs::metadata(checked)?.dev() != ours {
            let what = format!(
                "{} was taken away, and another file system is in its place: mount it again, or restart to use the other",
                self.root.display()
            );
            return Err(io::Error::new(Io::CrossesDevices, what));
        }
        if !exists {
            fs::create_dir(&self.root).or_else(exists_is_fine)?;
        }
        if self.foreign.is_none() {
            manifest::refuse_foreign(&self.root, &self.own()).map_err(io::Error::other)?;
        }
        File::open(&self.root)
    }
}
