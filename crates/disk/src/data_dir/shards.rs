//! The 256 directories of the layout's chunks. Each is a directory of this file system: a link in
//! its place is not followed, wherever it leads. It is renamed to `.kvtier/<name>.damaged`, and what
//! it leads to is left alone. Chunks are published by renames, which do not reach other file
//! systems, and a medium that is removed would take a part of the chunks with it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use kvtier_key::Digest;

use super::{DataDir, internal_files};
use crate::name;

/// Creates the shards, and syncs the names of new ones. Returns a sentence for each file in their
/// place. The caller holds the registration lock.
pub fn make_shards(root: &Path, own: &Path) -> io::Result<Vec<String>> {
    let (mut damage, mut is_new) = (Vec::new(), false);
    for shard in 0..=255 {
        let shard = name::shard(root, shard);
        is_new |= !shard.is_dir();
        damage.extend(internal_files::make_dir(own, &shard)?);
    }
    if is_new {
        internal_files::sync_dir(root)?;
    }
    Ok(damage)
}

fn is_shard(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| u8::from_str_radix(name, 16).ok())
        .is_some_and(|number| name::shard(Path::new(""), number).as_os_str() == name)
}

impl DataDir {
    /// Renames what has the name of a shard and is no directory, and creates the shard. Returns
    /// whether there was any.
    pub fn repair_shards(&self) -> io::Result<bool> {
        if self.foreign.is_some() || self.is_read_only() {
            return Ok(false);
        }
        let mut wrong = Vec::new();
        for entry in fs::read_dir(&self.root)? {
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
        match fs::create_dir_all(&folder) {
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
            other => other,
        }
    }

    /// The caller holds the registration lock.
    fn repair_shard(&self, shard: &Path) -> io::Result<()> {
        internal_files::make_dir(&self.own(), shard)?
            .into_iter()
            .for_each(|found| self.note_damage(found));
        Ok(())
    }
}
