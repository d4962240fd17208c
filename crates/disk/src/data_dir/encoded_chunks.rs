//! Whether a directory may have encoded chunks. Their files have other lengths than their names state,
//! so they are measured; in all other directories that costs nothing. The manifest notes it before
//! the first one is saved.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use super::liveness::names_without_encodings;
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
    /// `Invalid` while a process has the directory open that may be of an earlier build, which would
    /// take encoded chunks for damaged ones, and those of the file system.
    pub fn begin_to_encode(&self, most: Duration) -> Result<bool, Error> {
        let mut had = false;
        self.edit_manifest(most, |manifest| {
            had = manifest.has_encoded;
            if !had && !self.is_read_only() {
                refuse_earlier_builds(self.root(), &self.own())?;
            }
            manifest.has_encoded = true;
            Ok(())
        })?;
        Ok(!had && !self.is_read_only())
    }
}

/// Notes in the manifest of a directory that no tier of this process has open that chunks may be
/// encoded.
///
/// # Errors
/// Those of the file system, and `Invalid` for a directory without a manifest that this build reads,
/// and while a process has it open that may be of an earlier build.
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
    refuse_earlier_builds(root, own)?;
    Manifest { has_encoded: true, ..manifest }.write(own).map_err(failed)
}

/// Refuses a directory that processes have open whose builds may not read encoded chunks: they would
/// quarantine each of them. Those that open it later read the new format and refuse. The caller holds
/// the registration lock.
fn refuse_earlier_builds(root: &Path, own: &Path) -> Result<(), Error> {
    let tmp = own.join("tmp");
    let names = names_without_encodings(&tmp).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot read {}", tmp.display()))
            .with_cause(e, "check its permissions")
    })?;
    if names.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = names.into_iter().collect();
    let what = format!(
        "cannot encode chunks in {}: processes have it open that may be of an earlier build, which reads \
         no encoded chunks ({}, as host.process.start.number); stop them and try again, or open it \
         without `encode`; one of a host that ended without a stop counts for a day: if no process of \
         that host can still write here, remove its directory {}/NAME",
        root.display(),
        names.join(", "),
        tmp.display()
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::open_rw;
    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn stored(root: &Path) -> Manifest {
        let Ok(Found::Whole(manifest)) = Manifest::find(root) else { panic!("no manifest") };
        manifest
    }

    #[test]
    fn nothing_is_encoded_while_a_process_of_an_earlier_build_has_the_directory_open() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        let this = DataDir::open(dir.path(), None).unwrap();
        let staging = own.join("tmp/host.1.1.0");
        fs::create_dir(&staging).unwrap();
        let earlier = "locked while its process lives\nformat: 3\ncap: 7\n";
        fs::write(staging.join("alive"), earlier).unwrap();
        let alive = open_rw(&staging.join("alive")).unwrap();
        alive.lock().unwrap();
        let calls: [&dyn Fn() -> Result<(), Error>; 2] =
            [&|| this.begin_to_encode(SOON).map(drop), &|| begin_to_encode(dir.path(), &own)];
        for call in calls {
            let e = call().unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("host.1.1.0"), "{e}");
            let remedy = format!("remove its directory {}/NAME", own.join("tmp").display());
            assert!(e.to_string().contains(&remedy), "{e}");
            assert!(!stored(dir.path()).has_encoded && !this.may_have_encoded());
        }
        // It ended, however it ended.
        drop(alive);
        assert!(this.begin_to_encode(SOON).unwrap());
        assert!(stored(dir.path()).has_encoded);
    }

    #[test]
    fn the_format_of_a_directory_that_is_being_encoded_comes_back_after_the_manifest_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join(".kvtier/manifest");
        let [plain, third] = [(); 2].map(|()| DataDir::open(dir.path(), None).unwrap());
        let encoding = DataDir::open(dir.path(), None).unwrap();
        encoding.begin_to_encode(SOON).unwrap();
        // No encoded chunk shows the other process that one of them began to encode.
        fs::remove_file(&manifest).unwrap();
        plain.edit_manifest(SOON, |_| Ok(())).unwrap();
        assert!(!stored(dir.path()).has_encoded);
        encoding.repair_manifest().unwrap();
        assert!(stored(dir.path()).has_encoded);
        assert!(plain.look_for_encoded());
        // Also where it is changed for another reason.
        fs::remove_file(&manifest).unwrap();
        assert!(!third.edit_manifest(SOON, |_| Ok(())).unwrap().has_encoded);
        assert!(encoding.edit_manifest(SOON, |_| Ok(())).unwrap().has_encoded);
        assert!(stored(dir.path()).has_encoded);
    }
}
