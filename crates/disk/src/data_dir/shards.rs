//! The 256 directories of the layout's chunks. Each is a directory of this file system. A link in
//! its place is renamed to `.kvtier/<name>.damaged`, wherever it leads: when the directory is opened,
//! and within seconds while a tier has it open. Until then the link is followed. What it leads to is
//! left alone. Chunks are published by renames, which do not reach other file systems, and a medium
//! that is removed would take a part of the chunks with it.
//!
//! The name of each new shard is synced: `durability` syncs a chunk's name in its shard, not the
//! shard's own.

use std::ffi::OsStr;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use kvtier_key::Digest;

use super::{DataDir, internal_files, repair};
use crate::chunk_file_name;

/// Creates the shards, and syncs the names of new ones. Returns a sentence for each file in their
/// place. The caller holds the registration lock.
pub fn make_shards(root: &Path, own: &Path) -> io::Result<Vec<String>> {
    let mut damage = Vec::new();
    let there = shards_in(root)?;
    let missing: Vec<u8> = (0..=255).filter(|shard| !there[usize::from(*shard)]).collect();
    for shard in &missing {
        damage.extend(repair::make_dir(own, &chunk_file_name::shard(root, *shard))?);
    }
    if !missing.is_empty() {
        internal_files::sync_dir(root)?;
    }
    Ok(damage)
}

/// Which shards exist. One listing, where to ask for each shard takes hundreds of calls at every start.
fn shards_in(root: &Path) -> io::Result<[bool; 256]> {
    let mut there = [false; 256];
    for entry in kvtier_os::read_dir(root)? {
        let entry = entry?;
        let shard = entry.file_name().to_str().and_then(chunk_file_name::parse_shard);
        if let Some(shard) = shard {
            // A link is replaced, also one that leads to a directory.
            there[usize::from(shard)] = entry.file_type().is_ok_and(|kind| kind.is_dir());
        }
    }
    Ok(there)
}

fn is_shard(name: &OsStr) -> bool {
    name.to_str().and_then(chunk_file_name::parse_shard).is_some()
}

impl DataDir {
    /// Renames what has the name of a shard and is no directory, and creates the shard. Returns
    /// whether there was any.
    pub fn repair_shards(&self) -> io::Result<bool> {
        if self.foreign.is_some() || self.is_read_only() {
            return Ok(false);
        }
        let mut wrong = Vec::new();
        for entry in kvtier_os::read_dir(&self.root)? {
            let entry = entry?;
            if is_shard(&entry.file_name()) && !entry.file_type()?.is_dir() {
                wrong.push(entry.path());
            }
        }
        if wrong.is_empty() {
            return Ok(false);
        }
        self.with_registration_lock(|| {
            wrong.iter().try_for_each(|shard| self.repair_shard(shard))
        })?;
        Ok(true)
    }

    /// Creates the missing directory of a chunk.
    pub fn make_folder(&self, digest: &Digest) -> io::Result<()> {
        let folder = self.folder(digest);
        match kvtier_os::create_dir_all(&folder) {
            // A file or a broken link has its name.
            Err(e)
                if matches!(e.kind(), Io::AlreadyExists | Io::NotADirectory)
                    || internal_files::is_not_a_file(&e) =>
            {
                if self.foreign.is_some() {
                    return Err(e);
                }
                self.with_registration_lock(|| self.repair_shard(&folder))
            }
            Ok(()) if self.foreign.is_none() => internal_files::sync_dir(&self.root),
            other => other,
        }
    }

    /// The caller holds the registration lock.
    fn repair_shard(&self, shard: &Path) -> io::Result<()> {
        repair::make_dir(&self.own(), shard)?.into_iter().for_each(|found| self.note_damage(found));
        internal_files::sync_dir(&self.root)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use internal_files::SYNCED;

    /// Whether the call syncs the names in `root`.
    fn syncs(root: &Path, call: impl FnOnce()) -> bool {
        SYNCED.take();
        call();
        SYNCED.take().iter().any(|dir| dir == root)
    }

    #[test]
    fn the_name_of_each_new_shard_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let root = dir.path();
        let data_dir = DataDir::open(root, None).unwrap();
        let digest = Digest::derive("test", b"");
        let shard = data_dir.folder(&digest);
        let damage = |to: Option<&Path>| {
            fs::remove_dir(&shard).unwrap();
            to.into_iter().for_each(|to| symlink(to, &shard).unwrap());
        };
        let nowhere = root.join("nowhere");
        for to in [None, Some(elsewhere.path()), Some(&nowhere)] {
            damage(to);
            let make = || drop(make_shards(root, &data_dir.own()).unwrap());
            assert!(syncs(root, make), "at open: {to:?}");
            assert!(!syncs(root, make), "nothing is new");
        }
        for to in [elsewhere.path(), &nowhere] {
            damage(Some(to));
            let repair = || assert!(data_dir.repair_shards().unwrap());
            assert!(syncs(root, repair), "repair: {to:?}");
        }
        for to in [None, Some(nowhere.as_path())] {
            damage(to);
            assert!(syncs(root, || data_dir.make_folder(&digest).unwrap()), "for a save: {to:?}");
            assert!(shard.is_dir() && !shard.is_symlink());
        }
    }
}
