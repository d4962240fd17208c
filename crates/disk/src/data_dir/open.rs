//! Opens the directory: creates what is missing, repairs what is damaged, and registers this process.

use std::fs::File;
use std::io::{self, ErrorKind as Io};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use super::file_system_properties::is_read_only;
use super::full_at_open::Deleted;
use super::liveness::{live_names, read_cap};
use super::manifest::{self, Manifest};
use super::registration_lock::{LOCK, OPEN_WAIT_MAX, lock_registration_within, lock_within};
use super::shards::make_shards;
use super::{DataDir, StagingDir, earlier_lock, internal_files, kind_of, repair, scratch, staging};
use crate::layout::{Foreign, Layout};
use crate::ledger;

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
        // The first of the steps that write; each is safe to repeat after a kill.
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
        // Directories of killed probes and benchmarks hold space, and no process needs them.
        scratch::delete_leftovers(root);
        internal_files::make_own(&own).map_err(at("create", &own))?;
        let mut damage = repair_within(&own, OPEN_WAIT_MAX).map_err(at("create", &own))?;
        let registration =
            lock_registration_within(&own, OPEN_WAIT_MAX).map_err(at("lock", &own.join(LOCK)))?;
        damage.extend(manifest::agree(root, &own, layout)?);
        // An upgrade that was killed leaves the lock of earlier builds behind.
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
        if !layout.is_foreign() {
            mark_uncounted_if_first(&own).map_err(at("write", &own.join("ledger")))?;
        }
        let staging =
            StagingDir::create(&own.join("tmp")).map_err(at("write to", &own.join("tmp")))?;
        let dir = File::open(root).map_err(at("open", root))?;
        // Registered: from here on peers count this process as living.
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
}

/// Has the files counted, unless a tier lives that has done so: it writes its cap before it counts, and
/// tools write none. The caller holds the registration lock, and is not registered yet.
pub fn mark_uncounted_if_first(own: &Path) -> io::Result<()> {
    let tmp = own.join("tmp");
    let has_tier = live_names(&tmp)?.iter().any(|name| read_cap(&tmp, name).is_some());
    if has_tier { Ok(()) } else { ledger::mark_uncounted(own) }
}

/// Repairs `.kvtier`, one process at a time: a renamed file may be the one that peers have locked,
/// or are about to lock. Waits at most `most` for them.
pub fn repair_within(own: &Path, most: Duration) -> io::Result<Vec<String>> {
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
    let repaired = repair::repair(own);
    // Also where a child that this process forked has it open too.
    let _ = dir.unlock();
    repaired
}

#[cfg(test)]
mod tests {
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
}
