//! Whether a directory may have encoded chunks. Their files have other lengths than their names state,
//! so they are measured; in all other directories that costs nothing. The manifest notes it before
//! the first one is saved.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::Error;

use super::manifest::{Found, Manifest};
use super::{DataDir, OPEN_WAIT_MAX, kind_of, lock_registration_within};
use crate::layout::Layout;

impl DataDir {
    /// Whether chunks may be encoded, as noted last.
    pub fn may_have_encoded(&self) -> bool {
        self.has_encoded.load(Ordering::Relaxed)
    }

    /// The same as the manifest notes it now: a peer may have begun to encode.
    pub fn look_for_encoded(&self) -> bool {
        if self.foreign().is_none()
            && !self.may_have_encoded()
            && matches!(Manifest::find(self.root()), Ok(Found::Whole(manifest)) if manifest.has_encoded)
        {
            self.has_encoded.store(true, Ordering::Relaxed);
        }
        self.may_have_encoded()
    }

    /// The same after the path began to name another directory.
    pub fn look_anew_for_encoded(&self) {
        self.has_encoded.store(false, Ordering::Relaxed);
        self.look_for_encoded();
    }

    /// Notes in the manifest that chunks may be encoded, before the first one is saved. Builds that
    /// do not read such chunks refuse the directory from then on. Waits at most `most` for others.
    /// Returns whether it was noted just now; a directory that can only be read notes nothing.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin_to_encode(&self, most: Duration) -> Result<bool, Error> {
        let mut had = false;
        self.edit_manifest(most, |manifest| {
            had = std::mem::replace(&mut manifest.has_encoded, true);
            Ok(())
        })?;
        Ok(!had && !self.is_read_only())
    }
}

/// Notes in the manifest of a directory that no tier of this process has open that chunks may be
/// encoded.
///
/// # Errors
/// Those of the file system, and `Invalid` for a directory without a manifest that this build reads.
pub fn begin_to_encode(root: &Path, own: &Path) -> Result<(), Error> {
    let failed = |e: io::Error| {
        let what = format!("cannot write {}/manifest", own.display());
        Error::new(kind_of(&e), what).with_cause(e, "check its permissions and free space")
    };
    let _registration = lock_registration_within(own, OPEN_WAIT_MAX).map_err(failed)?;
    let manifest = Manifest::read(root, Layout::Kvtier)?;
    if manifest.has_encoded {
        return Ok(());
    }
    Manifest { has_encoded: true, ..manifest }.write(own).map_err(failed)
}
