//! Upgrades a directory of an earlier format in place.
//!
//! # What differs
//!
//! Builds of formats 1 and 2 registered under a lock on `.kvtier/door`; this build locks
//! `.kvtier/lock`. Two builds on one directory would hold two different locks, so neither may open
//! the other's: the manifest has a format, and all builds read it under their lock before they
//! register. Everything else below `.kvtier`, and every chunk, is the same.
//!
//! # Why the upgrade is safe
//!
//! 1. It takes this build's lock, so that no process of this build opens the directory meanwhile,
//!    and no second upgrade runs.
//! 2. It takes the earlier builds' lock: none of their processes registers meanwhile.
//! 3. It refuses while any process has the directory open, and one that has it registered.
//! 4. It replaces the manifest by one of the new format. That is synced, and one rename: after a
//!    crash of the machine the directory has either format, and this build or the earlier one
//!    opens it.
//! 5. It removes the earlier lock. A process of an earlier build that waits for it gets the lock
//!    then, reads the format, and refuses.
//!
//! Killed before step 4 it has changed nothing. Killed after it, the directory is upgraded, and the
//! next process that opens it removes the earlier lock. Locks are the kernel's, and end with the
//! process.
//!
//! A process of an earlier build that has the directory mounted read-only is not registered, and
//! must be stopped by hand before it can write again.

use std::path::Path;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use super::earlier_lock::{EARLIER_LOCK, lock_earlier_within, remove_earlier_lock};
use super::format::FORMAT;
use super::manifest::{Found, Manifest};
use super::open::repair_within;
use super::registration_lock::{LOCK, OPEN_WAIT_MAX, lock_registration_within};
use super::{is_read_only, kind_of};
use crate::layout::Layout;

/// An upgrade of a directory to this build's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgrade {
    /// The layout of the directory's files, which stays.
    pub layout: Layout,
    /// The format before.
    pub from: u32,
    /// The format after: that of this build. Equal to `from` where there is nothing to do.
    pub to: u32,
}

impl Upgrade {
    /// What an upgrade of the directory would do. Changes nothing.
    ///
    /// # Errors
    /// `Invalid` for a directory without a manifest, with a damaged one, and of a newer build.
    pub fn plan(root: &Path) -> Result<Self, Error> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
        let (from, manifest) = match Manifest::find(root)? {
            Found::Whole(manifest) => (FORMAT, manifest),
            Found::Older { format, manifest } => (format, manifest),
            Found::Nothing => {
                return Err(invalid(format!(
                    "{} is not a kvtier directory: it has no .kvtier/manifest; check the path",
                    root.display()
                )));
            }
            Found::Damaged(why) => {
                return Err(invalid(format!(
                    "{}/.kvtier/manifest {why}: open the directory with a tier once, which writes a new one",
                    root.display()
                )));
            }
        };
        Ok(Upgrade { layout: manifest.layout, from, to: FORMAT })
    }

    /// Upgrades the directory in place. One that has this build's format stays as it is. Killed or
    /// powered off at any step, the directory has either format, and the next call finishes.
    ///
    /// # Errors
    /// `Invalid` where processes have the directory open and those of [`plan`](Self::plan), `Denied`
    /// for a read-only file system, and those of the file system. The directory has its earlier
    /// format then, and can be upgraded later.
    pub fn run(root: &Path) -> Result<Self, Error> {
        Self::run_within(root, OPEN_WAIT_MAX)
    }

    /// The same, with a wait of at most `most` for each lock.
    fn run_within(root: &Path, most: Duration) -> Result<Self, Error> {
        let own = root.join(".kvtier");
        let failed = |what: &str, path: &Path| {
            let what = format!("cannot {what} {}", path.display());
            move |e: std::io::Error| {
                Error::new(kind_of(&e), what).with_cause(e, "check its permissions and free space")
            }
        };
        // Read without a lock: most calls have nothing to do.
        let planned = Self::plan(root)?;
        if planned.from == planned.to && !own.join(EARLIER_LOCK).exists() {
            return Ok(planned);
        }
        if is_read_only(root) {
            let what =
                format!("cannot upgrade {}: it is mounted read-only; remount it", root.display());
            return Err(Error::new(ErrorKind::Denied, what));
        }
        // The locks below must be regular files.
        for found in repair_within(&own, most).map_err(failed("repair", &own))? {
            tracing::warn!("{found}");
        }
        let _lock =
            lock_registration_within(&own, most).map_err(failed("lock", &own.join(LOCK)))?;
        // Another process may have upgraded it meanwhile.
        if let Found::Older { .. } = Manifest::find(root)? {
            let _earlier = lock_earlier_within(root, &own, most)?;
            // Read under both locks: a process of an earlier build may have changed it while this
            // one waited for its lock.
            let Found::Older { manifest, .. } = Manifest::find(root)? else {
                return Self::plan(root).map(|now| Upgrade { from: planned.from, ..now });
            };
            manifest.write(&own).map_err(failed("write", &own.join("manifest")))?;
        }
        remove_earlier_lock(&own);
        Self::plan(root).map(|now| Upgrade { from: planned.from, ..now })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::internal_files::{self, SYNCED};
    use super::super::{DataDir, Recovered, StagingDir, open_rw};
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    /// A directory of format 2, with the manifest's lines as they are there.
    fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        internal_files::make_dirs(&own).unwrap();
        let text = "kvtier directory\nformat: 2\nlayout: kvtier\ncapacity: 7\n";
        let crc = kvtier_key::BlockSums::from_bytes(text.as_bytes()).whole();
        fs::write(own.join("manifest"), format!("{text}crc: {crc:08x}\n")).unwrap();
        fs::write(own.join(EARLIER_LOCK), "").unwrap();
        (dir, own)
    }

    const FORMAT_2_NAME: &str = "host.1.1.0";

    /// Registers a process as builds of format 2 did. It lives as long as the file is open.
    fn process_of_format_2(own: &Path) -> fs::File {
        let staging = own.join("tmp").join(FORMAT_2_NAME);
        fs::create_dir_all(&staging).unwrap();
        fs::write(staging.join("alive"), "locked while its process lives\ncap: 7\n").unwrap();
        let alive = open_rw(&staging.join("alive")).unwrap();
        alive.lock().unwrap();
        alive
    }

    fn is_upgraded(root: &Path) -> bool {
        let manifest = Manifest { capacity_bytes: Some(7), ..Manifest::default() };
        Manifest::find(root).unwrap() == Found::Whole(manifest)
            && !root.join(".kvtier").join(EARLIER_LOCK).exists()
    }

    #[test]
    fn an_upgrade_that_ended_at_any_step_is_finished_by_the_next_one() {
        type Step = fn(&Path);
        let steps: [(&str, Step); 4] = [
            ("before it began", |_| {}),
            ("with its lock", |own| fs::write(own.join(LOCK), "").unwrap()),
            ("with half a manifest", |own| fs::write(own.join("manifest.new"), "kvt").unwrap()),
            ("before it removed the lock", |own| {
                let Found::Older { manifest, format: 2 } =
                    Manifest::find(own.parent().unwrap()).unwrap()
                else {
                    panic!("format 2")
                };
                manifest.write(own).unwrap();
            }),
        ];
        for (when, step) in steps {
            let (dir, own) = directory();
            step(&own);
            let before = if when.contains("removed") { FORMAT } else { 2 };
            let planned = Upgrade { layout: Layout::Kvtier, from: before, to: FORMAT };
            assert_eq!(Upgrade::plan(dir.path()).unwrap(), planned, "{when}");
            assert_eq!(Upgrade::run(dir.path()).unwrap(), planned, "{when}");
            assert!(is_upgraded(dir.path()), "{when}");
            let again = Upgrade { from: FORMAT, ..planned };
            assert_eq!(Upgrade::run(dir.path()).unwrap(), again, "{when}");
            drop(DataDir::open(dir.path(), None).unwrap());
        }
    }

    #[test]
    fn the_new_manifest_is_synced_before_the_earlier_lock_goes() {
        let (dir, own) = directory();
        SYNCED.take();
        Upgrade::run(dir.path()).unwrap();
        assert_eq!(SYNCED.take(), [own]);
    }

    #[test]
    fn a_directory_that_a_process_has_open_is_not_upgraded() {
        let (dir, own) = directory();
        let staging = StagingDir::create(&own.join("tmp")).unwrap();
        let e = Upgrade::run(dir.path()).unwrap_err();
        assert!(e.to_string().contains(staging.name()), "{e}");
        drop(staging);
        for lock in [EARLIER_LOCK, LOCK] {
            let held = open_rw(&own.join(lock)).unwrap();
            held.lock().unwrap();
            let e = Upgrade::run_within(dir.path(), SOON).unwrap_err();
            assert!(e.to_string().contains(&format!("cannot lock {}", own.join(lock).display())));
            held.unlock().unwrap();
        }
        assert!(matches!(Manifest::find(dir.path()).unwrap(), Found::Older { format: 2, .. }));
        Upgrade::run(dir.path()).unwrap();
        assert!(is_upgraded(dir.path()));
    }

    #[test]
    fn a_directory_of_an_earlier_format_is_refused_before_anything_in_it_changes() {
        let (dir, own) = directory();
        let e = DataDir::open(dir.path(), None).unwrap_err();
        let next = format!("run `kvtier migrate {}`", dir.path().display());
        assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains(&next), "{e}");
        let e = super::super::register(&own).unwrap_err();
        assert!(e.to_string().contains(&next), "{e}");
        assert!(!own.join(LOCK).exists() && !dir.path().join("00").exists());
        assert_eq!(fs::read_dir(own.join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_manifest_damaged_while_processes_of_this_build_run_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        let running = DataDir::open(dir.path(), None).unwrap();
        running.agree_on_cap(7, 0, false).unwrap();
        let with_cap = Manifest { capacity_bytes: Some(7), ..Manifest::default() };
        let damage = || {
            fs::write(own.join(EARLIER_LOCK), "").unwrap();
            fs::write(own.join("manifest"), "torn").unwrap();
        };
        // By the process that runs.
        damage();
        running.repair_manifest().unwrap();
        assert_eq!(Manifest::find(dir.path()).unwrap(), Found::Whole(with_cap.clone()));
        assert!(!own.join(EARLIER_LOCK).exists());
        assert!(running.damage().iter().any(|said| said.contains("manifest.damaged")));
        // By one that opens the directory before that.
        damage();
        let second = DataDir::open(dir.path(), None).unwrap();
        assert!(!own.join(EARLIER_LOCK).exists());
        assert_eq!(Manifest::find(dir.path()).unwrap(), Found::Whole(Manifest::default()));
        drop(second);
        // Not under a process of an earlier build.
        damage();
        let process = process_of_format_2(&own);
        let calls: [&dyn Fn() -> Result<(), Error>; 3] = [
            &|| running.repair_manifest(),
            &|| running.agree_on_cap(8, 0, false).map(drop),
            &|| DataDir::open(dir.path(), None).map(drop),
        ];
        for call in calls {
            let e = call().unwrap_err();
            assert!(e.to_string().contains(FORMAT_2_NAME), "{e}");
            assert_eq!(fs::read(own.join("manifest")).unwrap(), b"torn");
        }
        drop(process);
        running.repair_manifest().unwrap();
        assert!(matches!(Manifest::find(dir.path()).unwrap(), Found::Whole(_)));
    }

    #[test]
    fn a_lock_of_earlier_builds_goes_unless_one_of_them_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        let running = DataDir::open(dir.path(), None).unwrap();
        let lock = open_rw(&own.join(EARLIER_LOCK)).unwrap();
        let goes = || {
            running.repair_manifest().unwrap();
            !own.join(EARLIER_LOCK).exists()
        };
        lock.lock().unwrap();
        assert!(!goes());
        drop(DataDir::open(dir.path(), None).unwrap());
        assert!(!goes());
        lock.unlock().unwrap();
        let process = process_of_format_2(&own);
        assert!(!goes());
        drop(process);
        assert!(goes());
    }

    #[test]
    fn a_tier_writes_no_manifest_in_another_directory_under_processes_of_an_earlier_build() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("cache");
        let own = root.join(".kvtier");
        let running = DataDir::open(&root, None).unwrap();
        fs::rename(&root, base.path().join("away")).unwrap();
        fs::create_dir(&root).unwrap();
        internal_files::make_dirs(&own).unwrap();
        fs::write(own.join(EARLIER_LOCK), "").unwrap();
        let process = process_of_format_2(&own);
        let e = running.restore().unwrap_err();
        assert!(e.to_string().contains(FORMAT_2_NAME), "{e}");
        let e = running.agree_on_cap(7, 0, false).unwrap_err();
        assert!(e.to_string().contains(FORMAT_2_NAME), "{e}");
        assert_eq!(Manifest::find(&root).unwrap(), Found::Nothing);
        drop(process);
        assert_eq!(running.restore().unwrap(), Recovered::Directory);
        assert_eq!(Manifest::find(&root).unwrap(), Found::Whole(Manifest::default()));
    }

    #[test]
    fn a_damaged_manifest_of_an_earlier_build_is_replaced_when_none_of_its_processes_runs() {
        let (dir, own) = directory();
        fs::write(own.join("manifest"), "torn").unwrap();
        assert!(Upgrade::run(dir.path()).unwrap_err().to_string().contains("is damaged"));
        let process = process_of_format_2(&own);
        let e = DataDir::open(dir.path(), None).unwrap_err();
        assert!(e.to_string().contains(FORMAT_2_NAME), "{e}");
        assert_eq!(fs::read(own.join("manifest")).unwrap(), b"torn");
        drop(process);
        drop(DataDir::open(dir.path(), None).unwrap());
        assert!(!own.join(EARLIER_LOCK).exists());
        assert_eq!(Manifest::find(dir.path()).unwrap(), Found::Whole(Manifest::default()));
    }
}
