//! Unfinished files get their names, each in one step: a reader sees the whole file or none.

use std::fs::File;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use kvtier_key::Digest;
use kvtier_os::{renameat, renameat2, unlinkat};
use nix::fcntl::RenameFlags;
use nix::unistd::UnlinkatFlags;

use super::chunk_files::Draft;
use super::{DataDir, internal_files, repair};

impl DataDir {
    /// Gives an unfinished file a chunk's name, in one step. Returns the bytes of the file that had
    /// that name until now, as [`delete`](Self::delete) does.
    pub fn publish(&self, draft: &Draft, digest: &Digest, len: u64) -> io::Result<Option<u64>> {
        let staging = draft.staging.dir();
        let from = draft.name.as_str();
        let to = self.at(digest, len)?;
        let rename = |flags| renameat2(staging, from, self.dir(), to.as_str(), flags);
        self.publish_by(&rename, draft, digest, len)
    }

    /// The same with `rename`, which applies its flags in one step or fails with `EINVAL`.
    fn publish_by(
        &self,
        rename: &dyn Fn(RenameFlags) -> nix::Result<()>,
        draft: &Draft,
        digest: &Digest,
        len: u64,
    ) -> io::Result<Option<u64>> {
        let over = || -> io::Result<Option<u64>> {
            let replaced = self.find(digest, len)?;
            let to = self.at(digest, len)?;
            let rename =
                || renameat(draft.staging.dir(), draft.name.as_str(), self.dir(), to.as_str());
            match rename() {
                Ok(()) => Ok(replaced.map(|file| self.released(len, file.bytes()))),
                Err(nix::Error::EISDIR) => {
                    self.move_directory_away(&self.root.join(&to))?;
                    Ok(rename().map(|()| None)?)
                }
                Err(e) => Err(e.into()),
            }
        };
        let mut made_shard = false;
        loop {
            // The usual case: the name is free, and one system call publishes the chunk. A reader
            // finds no file or a complete one.
            match rename(RenameFlags::RENAME_NOREPLACE) {
                Ok(()) => return Ok(None),
                Err(nix::Error::EEXIST) => {}
                // The shard was deleted or replaced: tries once more with a new one. The unfinished
                // file may be gone instead.
                Err(nix::Error::ENOENT | nix::Error::ENOTDIR | nix::Error::ELOOP)
                    if !std::mem::replace(&mut made_shard, true) =>
                {
                    self.make_folder(digest)?;
                }
                // The file system has no `RENAME_NOREPLACE`.
                Err(nix::Error::EINVAL) => return over(),
                Err(e) => return Err(e.into()),
            }
            // Exchanged, not replaced: a peer may delete the old file at this moment, and exactly one
            // of both must count that.
            match rename(RenameFlags::RENAME_EXCHANGE) {
                Ok(()) => return Ok(self.clear_swapped(draft, len)),
                Err(nix::Error::ENOENT) => {}
                // The file system has no `RENAME_EXCHANGE`.
                Err(nix::Error::EINVAL) => return over(),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Deletes what had the chunk's name before, and has the unfinished file's name now. The chunk is
    /// published even if this fails. Returns the bytes that are counted for a file that is gone now:
    /// directories are not counted.
    fn clear_swapped(&self, draft: &Draft, len: u64) -> Option<u64> {
        let bytes = self.released(len, self.draft_bytes(draft).ok());
        match unlinkat(draft.staging.dir(), draft.name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Err(nix::Error::EISDIR) => {
                if let Err(e) = self.move_directory_away(&draft.staging.path().join(&draft.name)) {
                    self.note_damage(format!(
                        "a directory that had a chunk's name cannot be renamed away: {e}"
                    ));
                }
                None
            }
            Err(e) if e != nix::Error::ENOENT => {
                // In a foreign layout its name does not state what is counted for it.
                let counted = if self.foreign().is_some() { 0 } else { bytes };
                Some(self.discard(draft.clone(), counted)).filter(|released| *released > 0)
            }
            _ => Some(bytes),
        }
    }

    /// Removes an empty directory that has a chunk's name. A directory with contents is moved below
    /// `.kvtier`.
    fn move_directory_away(&self, path: &Path) -> io::Result<()> {
        match kvtier_os::remove_dir(path) {
            Err(e) if e.kind() == Io::DirectoryNotEmpty => {
                let said = repair::rename_damaged_because(
                    &self.own(),
                    path,
                    "was a directory in the place of a chunk",
                )?;
                self.note_damage(said);
                Ok(())
            }
            other => other,
        }
    }

    /// Syncs a chunk's name to the device.
    pub fn sync_name(&self, digest: &Digest) -> io::Result<()> {
        let folder = self.folder(digest);
        // In a foreign layout the directories above may be new too.
        let above = folder
            .ancestors()
            .take_while(|dir| self.foreign.is_some() && dir.starts_with(&self.root))
            .skip(1);
        std::iter::once(folder.as_path())
            .chain(above)
            .try_for_each(|dir| kvtier_os::sync_all(&File::open(dir)?))
    }

    /// Gives an unfinished file this path, in the place of an earlier file, and syncs the name.
    pub fn publish_as(&self, draft: &Draft, path: &str) -> io::Result<()> {
        renameat(draft.staging.dir(), draft.name.as_str(), self.dir(), path)?;
        self.root.join(path).parent().map_or(Ok(()), internal_files::sync_dir)
    }

    /// Publishes an unfinished file as a chunk's sidecar, in the place of an earlier one.
    pub fn publish_sidecar(&self, draft: &Draft, digest: &Digest) -> io::Result<()> {
        let Some(to) = self.sidecar(digest)? else { return self.unlink_draft(draft) };
        renameat(draft.staging.dir(), draft.name.as_str(), self.dir(), to.as_str())?;
        // A peer may have evicted the chunk's file since it got its name.
        self.delete_lone_sidecar(digest)
    }

    /// Deletes a chunk's sidecar if the chunk's file is gone. Whichever of a save and a delete of a
    /// peer comes last does it, so that no sidecar stays that the ledger does not count.
    pub fn delete_lone_sidecar(&self, digest: &Digest) -> io::Result<()> {
        if self.sidecar(digest)?.is_some() && self.find(digest, 0)?.is_none() {
            self.delete_sidecar(digest)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_replaces_the_old_one_where_names_cannot_be_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let digest = Digest::derive("test", b"x");
        // Flags that a file system has: both, the first, none.
        for able in [RenameFlags::all(), RenameFlags::RENAME_NOREPLACE, RenameFlags::empty()] {
            for replaced in [false, true] {
                let (draft, file) = data_dir.create(8192).unwrap();
                file.set_len(8192).unwrap();
                let to = data_dir.at(&digest, 4096).unwrap();
                let rename = |flags: RenameFlags| match able.contains(flags) {
                    true => renameat2(
                        draft.staging.dir(),
                        draft.name.as_str(),
                        data_dir.dir(),
                        to.as_str(),
                        flags,
                    ),
                    false => Err(nix::Error::EINVAL),
                };
                assert_eq!(
                    data_dir.publish_by(&rename, &draft, &digest, 4096).unwrap(),
                    replaced.then_some(8192),
                    "{able:?}"
                );
                assert_eq!(
                    std::fs::read_dir(data_dir.staging().unwrap().path()).unwrap().count(),
                    1,
                    "{able:?}: only `alive` is left"
                );
            }
            assert!(data_dir.delete(&digest, 4096).unwrap() == Some(8192));
        }
    }

    /// Its draft's name then means the old file, and states what the new one has.
    #[test]
    fn of_a_process_killed_between_exchange_and_delete_no_more_is_released_than_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let peer = DataDir::open(dir.path(), None).unwrap();
        peer.begin_to_encode(std::time::Duration::from_secs(60)).unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let digest = Digest::derive("test", b"x");
        let path = crate::chunk_file_name::path(dir.path(), &digest, 40_960);
        std::fs::write(&path, [0; 4096]).unwrap();
        let (draft, file) = data_dir.create(45_056).unwrap();
        file.set_len(45_056).unwrap();
        let counted = 4096 + 45_056;
        kvtier_os::rename_exchange(&draft.staging.path().join(&draft.name), &path).unwrap();
        data_dir.staging().unwrap().abandon();
        drop(draft);
        drop(data_dir);
        let removed = peer.remove_stale(|| ()).unwrap();
        assert_eq!((removed.dirs, removed.bytes), (1, 4096));
        assert_eq!(counted - removed.bytes, peer.count_once().unwrap());
    }

    #[test]
    fn a_replaced_file_counts_its_own_bytes_also_before_this_process_noticed_encodings() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let peer = DataDir::open(dir.path(), None).unwrap();
        let digest = Digest::derive("test", b"x");
        let path = crate::chunk_file_name::path(dir.path(), &digest, 40_960);
        let replace = || {
            std::fs::write(&path, [0; 12_288]).unwrap();
            let (draft, _) = data_dir.create(45_056).unwrap();
            data_dir.publish(&draft, &digest, 40_960).unwrap()
        };
        // Cut by another program. The ledger counts what its name states, or by a recount of a peer
        // what is left: it is compared.
        assert!(!data_dir.is_count_uncertain());
        assert_eq!(replace(), Some(12_288));
        assert!(data_dir.is_count_uncertain());
        peer.begin_to_encode(std::time::Duration::from_secs(60)).unwrap();
        assert!(!data_dir.may_have_encoded());
        assert_eq!(replace(), Some(12_288));
        assert!(data_dir.may_have_encoded() && !data_dir.is_count_uncertain());
    }
}
