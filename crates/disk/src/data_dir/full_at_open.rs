//! Opens a directory of layout `kvtier` on a device without a free block. To register, a process
//! needs one; on some file systems a full device has none, and no tier runs yet that could evict.
//!
//! After each failure one step is tried, and then the directory is opened again: a file of the
//! quarantine goes, the oldest first; the staging directories of dead processes go; a chunk goes, at
//! most [`CHUNKS_MAX`]. More would not help: something else takes the space, or the failure has
//! another cause.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::manifest::{Found, Manifest};
use super::staging::{self, RemovedStale};
use super::{OPEN_WAIT_MAX, layout_detection, lock_registration_within, quarantine};
use crate::chunk_file_name;
use crate::layout::Layout;

/// The most chunks that are deleted so that a process can register.
const CHUNKS_MAX: usize = 16;

/// What was deleted so that the directory opens.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Staging directories of dead processes, also those that a try removed before it failed.
    pub stale: RemovedStale,
    quarantined: usize,
    chunks: usize,
    /// Files that could not be deleted are not tried again.
    tried: Vec<PathBuf>,
    is_stale_removed: bool,
}

impl Deleted {
    /// Deletes something. Returns whether the directory should be tried again.
    pub fn delete_one(&mut self, root: &Path) -> bool {
        let own = root.join(".kvtier");
        is_ours(root)
            && (self.delete_quarantined(&own)
                || self.delete_stale(&own)
                || (self.chunks < CHUNKS_MAX && self.delete_chunk(root)))
    }

    /// A sentence for the status; `None` where nothing was deleted for space.
    pub fn describe(&self, root: &Path) -> Option<String> {
        (self.has_files() || self.is_stale_removed).then(|| {
            format!(
                "the device of {} was full when it was opened: {} files in quarantine, those of {} dead processes and {} chunks were deleted; free space on it",
                root.display(),
                self.quarantined,
                self.stale.dirs,
                self.chunks
            )
        })
    }

    /// Whether the ledger counts files that were deleted.
    pub fn has_files(&self) -> bool {
        self.quarantined + self.chunks > 0
    }

    fn delete_quarantined(&mut self, own: &Path) -> bool {
        let all = quarantine::list(own).unwrap_or_default();
        let files = all.into_iter().map(|kept| kept.path);
        let is_deleted = self.delete_first(files, quarantine::remove);
        self.quarantined += usize::from(is_deleted);
        is_deleted
    }

    /// Once: an open removes them too, if it comes so far.
    fn delete_stale(&mut self, own: &Path) -> bool {
        if self.is_stale_removed {
            return false;
        }
        // Under the registration lock, as always: another process may be creating its staging
        // directory.
        let removed = lock_registration_within(own, OPEN_WAIT_MAX)
            .and_then(|_registration| staging::remove_stale(&own.join("tmp")))
            .unwrap_or_default();
        self.stale.add(removed);
        self.is_stale_removed = removed.dirs > 0;
        self.is_stale_removed
    }

    /// Deletes the oldest chunk of the first shard that has one.
    fn delete_chunk(&mut self, root: &Path) -> bool {
        let is_deleted = (0..=255).any(|shard| {
            let mut chunks = chunks_of(root, shard);
            // By time first: the oldest chunk of this shard. To find the oldest of all would read
            // 256 directories.
            chunks.sort_unstable();
            self.delete_first(chunks.into_iter().map(|(_, path)| path), |path| {
                kvtier_os::remove_file(path)
            })
        });
        self.chunks += usize::from(is_deleted);
        is_deleted
    }

    /// Deletes the first file that can be deleted.
    fn delete_first(
        &mut self,
        mut files: impl Iterator<Item = PathBuf>,
        delete: impl Fn(&Path) -> std::io::Result<()>,
    ) -> bool {
        files.any(|path| {
            !self.tried.contains(&path)
                && delete(&path).inspect_err(|_| self.tried.push(path)).is_ok()
        })
    }
}

/// Whether the directory has layout `kvtier` and this build's format, as far as its manifest or its
/// chunks show. One of another layout, program or build is left alone.
fn is_ours(root: &Path) -> bool {
    match Manifest::find(root) {
        Ok(Found::Whole(manifest)) => manifest.layout == Layout::Kvtier,
        Ok(Found::Nothing | Found::Damaged(_)) => {
            matches!(layout_detection::layout_of(root, Layout::Kvtier), Ok(Some(Layout::Kvtier)))
        }
        Ok(Found::Older { .. }) | Err(_) => false,
    }
}

/// The chunks of a shard: regular files with a chunk's name and its length.
fn chunks_of(root: &Path, shard: u8) -> Vec<(SystemTime, PathBuf)> {
    let mut chunks = Vec::new();
    let dir = chunk_file_name::shard(root, shard);
    if !fs::symlink_metadata(&dir).is_ok_and(|meta| meta.is_dir()) {
        return chunks;
    }
    for entry in kvtier_os::read_dir(dir).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().and_then(chunk_file_name::parse);
        let Some((_, len)) = named.filter(|(digest, _)| digest.as_bytes()[0] == shard) else {
            continue;
        };
        if let Ok(meta) = entry.metadata()
            && meta.is_file()
            && meta.len() == chunk_file_name::file_len(len)
        {
            chunks.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use kvtier_core::ErrorKind;
    use kvtier_key::Digest;

    use super::super::DataDir;
    use super::super::liveness::FULL_FOR;
    use super::*;

    struct Full {
        dir: tempfile::TempDir,
    }

    impl Full {
        /// A directory with 20 chunks, two files in quarantine, a dead process and files of others.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            let own = root.join(".kvtier");
            drop(DataDir::open(root, None).unwrap());
            for n in 0..20_u8 {
                let chunk = chunk_file_name::path(root, &Digest::derive("test", &[n]), 100);
                fs::write(chunk, vec![n; 8192]).unwrap();
            }
            fs::write(own.join("quarantine/a"), "bad").unwrap();
            fs::write(own.join("quarantine/b"), "bad").unwrap();
            fs::create_dir(own.join("tmp/host.1.1.0")).unwrap();
            fs::write(own.join("tmp/host.1.1.0/alive"), "").unwrap();
            fs::write(own.join("tmp/host.1.1.0/0-2000"), "unfinished").unwrap();
            fs::write(root.join("00/a thesis"), "of another program").unwrap();
            let other = Digest::derive("test", b"cut");
            fs::write(chunk_file_name::path(root, &other, 100), "a chunk's name, and no chunk")
                .unwrap();
            Full { dir }
        }

        /// How many entries are in quarantine, in the shards and among the staging directories.
        fn left(&self) -> [usize; 3] {
            let count = |dir: PathBuf| fs::read_dir(dir).unwrap().count();
            let own = self.dir.path().join(".kvtier");
            let shards =
                (0..=255).map(|shard| count(chunk_file_name::shard(self.dir.path(), shard))).sum();
            [count(own.join("quarantine")), shards, count(own.join("tmp"))]
        }

        /// Opens it on a device that is full for the next registrations, as often as `times` says.
        fn open(&self, times: u32) -> Result<DataDir, kvtier_core::Error> {
            FULL_FOR.set(times);
            let opened = DataDir::open(self.dir.path(), None);
            FULL_FOR.set(0);
            opened
        }
    }

    #[test]
    fn a_start_on_a_full_device_deletes_as_little_as_it_can() {
        for (times, left) in
            [(0, [2, 22, 1]), (1, [1, 22, 1]), (2, [0, 22, 1]), (3, [0, 21, 1]), (18, [0, 6, 1])]
        {
            let full = Full::new();
            let data_dir = full.open(times).unwrap();
            assert_eq!(full.left(), left, "{times}");
            // The open that failed had removed it.
            assert_eq!((data_dir.removed_stale.dirs, data_dir.removed_stale.bytes), (1, 10));
            assert!(data_dir.has_removed_files());
            let said = data_dir.damage();
            assert_eq!(said.iter().any(|said| said.contains("was full")), times > 0, "{said:?}");
        }
    }

    #[test]
    fn what_stays_full_is_an_error_and_costs_no_more_than_a_few_chunks() {
        let full = Full::new();
        let e = full.open(u32::MAX).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Full);
        assert_eq!(full.left(), [0, 22 - CHUNKS_MAX, 0], "nothing half registered is left");
        assert!(full.dir.path().join("00/a thesis").exists());
    }

    #[test]
    fn a_directory_of_another_layout_or_build_is_left_alone() {
        for manifest in [
            Manifest { layout: Layout::LmcacheMp, ..Manifest::default() }.text(),
            "kvtier directory\nformat: 1\nlayout: kvtier\n".to_owned(),
        ] {
            let full = Full::new();
            fs::write(full.dir.path().join(".kvtier/manifest"), manifest).unwrap();
            assert!(!Deleted::default().delete_one(full.dir.path()));
            assert_eq!(full.left(), [2, 22, 1]);
        }
    }

    #[test]
    fn dead_processes_go_before_chunks_where_an_open_does_not_come_so_far() {
        let full = Full::new();
        let mut deleted = Deleted::default();
        let mut steps = Vec::new();
        for _ in 0..4 {
            assert!(deleted.delete_one(full.dir.path()));
            steps.push(full.left());
        }
        assert_eq!(steps, [[1, 22, 1], [0, 22, 1], [0, 22, 0], [0, 21, 0]]);
        assert_eq!((deleted.stale.dirs, deleted.has_files()), (1, true));
    }

    #[test]
    fn what_was_deleted_is_said_and_files_alone_change_the_total() {
        let deleted = |quarantined, chunks, is_stale_removed| Deleted {
            quarantined,
            chunks,
            is_stale_removed,
            ..Deleted::default()
        };
        for (deleted, has_files, is_said) in [
            (deleted(0, 0, false), false, false),
            (deleted(0, 0, true), false, true),
            (deleted(1, 0, false), true, true),
            (deleted(0, 1, false), true, true),
            (deleted(2, 2, true), true, true),
        ] {
            assert_eq!(deleted.has_files(), has_files, "{deleted:?}");
            let said = deleted.describe(Path::new("/a directory"));
            assert_eq!(said.is_some(), is_said, "{deleted:?}");
            assert!(said.is_none_or(|said| {
                said.contains(&format!("{} files in quarantine", deleted.quarantined))
                    && said.contains(&format!("{} chunks were deleted", deleted.chunks))
            }));
        }
    }
}
