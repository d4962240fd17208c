//! The peers that have the directory open, and their caps.

use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use super::liveness::read_cap;
use super::manifest::{self, Manifest};
use super::{DataDir, OPEN_WAIT_MAX, kind_of, live_names};

impl DataDir {
    /// Registers the cap with which this process opens the directory, for peers now and later.
    ///
    /// # Errors
    /// `Invalid` when peers have another cap, unless `shrink` allows that chunks are deleted: the
    /// process with the smallest cap evicts what the others save.
    pub fn join(&self, capacity_bytes: u64, shrink: bool) -> Result<(), Error> {
        let _ = self.cap.set(capacity_bytes);
        if self.is_read_only() {
            return Ok(());
        }
        let tmp = self.own().join("tmp");
        let failed = |e| Error::new(kind_of(&e), "cannot register").with_source(e);
        let staging = self.staging().map_err(failed)?;
        self.edit_manifest(OPEN_WAIT_MAX, |manifest| {
            // Dead processes do not count.
            let living = live_names(&tmp).map_err(|e| {
                Error::new(kind_of(&e), format!("cannot read {}", tmp.display()))
                    .with_cause(e, "check its permissions")
            })?;
            let others = living.iter().filter(|name| *name != staging.name());
            let caps: Vec<u64> = others.filter_map(|name| read_cap(&tmp, name)).collect();
            match cap_of_others(manifest, &caps)
                .filter(|theirs| *theirs != capacity_bytes && !shrink)
            {
                Some(theirs) => Err(another_cap(self.root(), theirs, capacity_bytes)),
                None => staging.write_cap(capacity_bytes).map_err(failed),
            }
        })
        .map(drop)
    }

    /// Writes `capacity_bytes` into the manifest as the directory's cap.
    ///
    /// # Errors
    /// `Invalid` for a cap below both the noted one and the `used` bytes, unless `shrink` allows that
    /// chunks are deleted. Where damage lost the cap, twice the cap may be used.
    pub fn agree_on_cap(
        &self,
        capacity_bytes: u64,
        used: u64,
        shrink: bool,
    ) -> Result<Manifest, Error> {
        self.edit_manifest(OPEN_WAIT_MAX, |manifest| {
            let smaller = manifest.capacity_bytes.is_none_or(|noted| capacity_bytes < noted);
            // Where damage lost the cap, a crash may have brought back deleted chunks, as many as were evicted
            // since the file system last wrote its journal. In layout `kvtier` only damage loses it. Files of
            // other programs have no cap until one is agreed on: they are left alone.
            let has_lost_cap = manifest.capacity_bytes.is_none()
                && (self.foreign().is_none() || manifest::damaged_one_has_cap(&self.own()));
            let excess = if has_lost_cap { capacity_bytes } else { 0 };
            let allowed = capacity_bytes.saturating_add(excess);
            if smaller && used > allowed && !shrink {
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
}

/// The cap of the peers. The manifest's cap is the last that they agreed on, unless a dead process
/// wrote it.
fn cap_of_others(manifest: &Manifest, caps: &[u64]) -> Option<u64> {
    manifest.capacity_bytes.filter(|noted| caps.contains(noted)).or(caps.iter().min().copied())
}

fn another_cap(root: &Path, theirs: u64, ours: u64) -> Error {
    let what = format!(
        "other processes have {} open with a cap of {theirs} bytes, this one has {ours}: the smaller cap would delete their chunks; \
         give all the same cap, or allow it with `shrink: true` (--shrink)",
        root.display()
    );
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::DiskConfig;
    use crate::layout::{Foreign, Layout};

    #[test]
    fn a_directory_that_lost_its_cap_may_hold_twice_as_much() {
        let agree = |is_noted: bool, used| {
            let dir = tempfile::tempdir().unwrap();
            let data_dir = DataDir::open(dir.path(), None).unwrap();
            if is_noted {
                data_dir.agree_on_cap(2000, 0, false).unwrap();
            }
            data_dir.agree_on_cap(1000, used, false).is_ok()
        };
        assert!(agree(false, 2000) && !agree(false, 2001));
        assert!(
            agree(true, 1000) && !agree(true, 1001),
            "a smaller cap than noted deletes nothing"
        );
    }

    #[test]
    fn files_of_other_programs_may_hold_twice_the_cap_only_where_damage_lost_it() {
        let agree = |damaged: &[u8], used| {
            let dir = tempfile::tempdir().unwrap();
            let mut config = DiskConfig::new(dir.path(), 1000);
            config.layout = Layout::LmcacheMp;
            fs::create_dir(dir.path().join(".kvtier")).unwrap();
            if !damaged.is_empty() {
                fs::write(dir.path().join(".kvtier/manifest"), damaged).unwrap();
            }
            let data_dir = DataDir::open(dir.path(), Some(Foreign::new(&config))).unwrap();
            data_dir.agree_on_cap(1000, used, false).is_ok()
        };
        for without_cap in [&b""[..], b"?", b"layout: lmcache-mp\nchunk capacity: 7\n\xff"] {
            assert!(agree(without_cap, 1000) && !agree(without_cap, 1001), "they are left alone");
        }
        let with_cap = b"layout: lmcache-mp\ncapacity: 7\n\xff";
        assert!(agree(with_cap, 2000) && !agree(with_cap, 2001), "a crash may have added them");
    }

    #[test]
    fn a_cap_that_is_not_lowered_may_be_below_what_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        data_dir.agree_on_cap(1000, 0, false).unwrap();
        for (cap, is_ok) in [(1000, true), (2000, true), (1999, false), (2000, true)] {
            assert_eq!(data_dir.agree_on_cap(cap, 5000, false).is_ok(), is_ok, "{cap}");
        }
        data_dir.agree_on_cap(1999, 5000, true).unwrap();
    }

    #[test]
    fn a_process_takes_the_cap_of_the_others_and_not_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DataDir::open(dir.path(), None).unwrap();
        let first = open();
        first.join(1000, false).unwrap();
        first.agree_on_cap(1000, 0, false).unwrap();
        first.join(2000, false).unwrap();
        first.join(1000, false).unwrap();
        let second = open();
        let e = second.join(2000, false).unwrap_err();
        assert!(e.to_string().contains("a cap of 1000 bytes"), "{e}");
        second.join(1000, false).unwrap();
        second.join(2000, true).unwrap();
    }

    #[test]
    fn the_noted_cap_is_that_of_the_others_if_one_of_them_has_it() {
        let noted = |capacity_bytes| Manifest { capacity_bytes, ..Manifest::default() };
        for (noted, caps, theirs) in [
            (noted(Some(3000)), &[2000, 3000][..], Some(3000)),
            (noted(Some(1000)), &[2000, 3000], Some(2000)),
            (noted(None), &[3000, 2000], Some(2000)),
            (noted(Some(1000)), &[], None),
        ] {
            assert_eq!(cap_of_others(&noted, caps), theirs);
        }
    }
}
