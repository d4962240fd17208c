//! Changes the manifest of an open directory.

use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::Error;

use super::manifest::{self, Found, Manifest};
use super::registration_lock::{RegistrationLock, lock_registration_within};
use super::{DataDir, earlier_lock, kind_of, layout_detection, repair};

/// The directory's manifest, or what takes its place.
struct StoredManifest {
    manifest: Manifest,
    /// Whether the file has it.
    is_written: bool,
    /// Locks out earlier builds while it is written anew.
    _earlier: Option<RegistrationLock>,
}

impl DataDir {
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
        // Compared below: a manifest that did not change is not written, so idle processes cause no
        // writes.
        let before = manifest.clone();
        // A peer that did not notice it may have written a lost manifest again.
        manifest.has_encoded |= self.may_have_encoded();
        edit(&mut manifest)?;
        if manifest != before || !is_written {
            manifest.write(&own).map_err(fail)?;
        }
        self.has_encoded.fetch_or(manifest.has_encoded, Ordering::Relaxed);
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
        let renamed = repair::rename_damaged_because(own, &path, &why);
        self.note_damage(
            renamed.unwrap_or_else(|_| format!("{} {why}; it is written again", path.display())),
        );
        let mut manifest =
            self.last_manifest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A peer may have begun to encode since this process looked.
        manifest.has_encoded |= self.may_have_encoded()
            || (self.foreign().is_none()
                && layout_detection::has_other_lengths(&self.root).unwrap_or(true));
        Ok(StoredManifest { manifest, is_written: false, _earlier })
    }
}
