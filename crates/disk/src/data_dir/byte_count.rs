//! How many bytes lie in a directory that others are changing.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kvtier_key::Digest;

use super::{DataDir, staging};
use crate::name;

/// How often the directory is read at most.
const PASSES_MAX: usize = 8;

/// What a census found.
#[derive(Debug, Default)]
pub struct ByteCount {
    /// Bytes of unfinished files, of files with names, and of the quarantine.
    pub bytes: u64,
    /// The chunks seen by name; empty in a foreign layout.
    pub chunks: Vec<(Digest, u64)>,
}

/// Files by their inodes: a renamed file is the same, and is counted where it is seen first.
#[derive(Debug, Default)]
pub struct Seen {
    inodes: HashSet<u64>,
    bytes: u64,
}

impl Seen {
    /// A file with this inode was seen.
    pub fn file(&mut self, inode: u64, bytes: u64) {
        if self.inodes.insert(inode) {
            self.bytes += bytes;
        }
    }
}

impl DataDir {
    /// Counts the bytes of all files once; a file that is renamed meanwhile may be missed.
    pub fn count_once(&self) -> io::Result<u64> {
        let mut seen = Seen::default();
        self.pass(&mut seen, &mut ByteCount::default())?;
        Ok(seen.bytes)
    }

    /// Counts the bytes of all files, and misses none. The caller holds the ledger's lock, and the
    /// own process's threads move nothing.
    pub fn count(&self) -> io::Result<ByteCount> {
        let mut census = ByteCount::default();
        let others = staging::live_names(&self.own().join("tmp"))?.len()
            > usize::from(self.has_staging_dir());
        census.bytes = count(others, |seen| self.pass(seen, &mut census))?;
        Ok(census)
    }

    /// Unfinished files first: one that is published meanwhile is seen before it moves.
    fn pass(&self, seen: &mut Seen, census: &mut ByteCount) -> io::Result<()> {
        drafts(&self.own().join("tmp"), &mut |inode, bytes| seen.file(inode, bytes))?;
        match self.foreign() {
            None => self.list_inodes(|listed| {
                seen.file(listed.inode, name::file_len(listed.len));
                census.chunks.push((listed.digest, listed.len));
            })?,
            Some(foreign) => self.foreign_names(|name| {
                // Gone by now, or no file, is nothing.
                let meta =
                    fs::symlink_metadata(self.root().join(name)).ok().filter(fs::Metadata::is_file);
                if let Some(meta) =
                    meta.filter(|meta| meta.len() > 0 && foreign.key_of(name).is_some())
                {
                    seen.file(meta.ino(), meta.len() + self.head_bytes());
                }
                Ok(())
            })?,
        }
        each_file(&self.own().join("quarantine"), &mut |_, inode, bytes| seen.file(inode, bytes))
    }
}

/// Counts the bytes of all files that `pass` finds. `others` may rename what is counted: a file that
/// moved behind the reader is found by the next pass.
pub fn count(others: bool, mut pass: impl FnMut(&mut Seen) -> io::Result<()>) -> io::Result<u64> {
    let mut seen = Seen::default();
    for number in 0..PASSES_MAX {
        let before = seen.bytes;
        pass(&mut seen)?;
        if !others || (number > 0 && seen.bytes == before) {
            break;
        }
    }
    Ok(seen.bytes)
}

/// The unfinished files in all staging directories, with the bytes that they have or state,
/// whichever is more.
pub fn drafts(tmp: &Path, each: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    for staging in staging::staging_dirs(tmp)? {
        each_file(&staging.path(), &mut |name, inode, bytes| {
            if name != "alive" {
                each(inode, bytes.max(staging::claimed_by(name).unwrap_or(0)));
            }
        })?;
    }
    Ok(())
}

/// Inode and length of each file in a directory; none where that is gone.
fn each_file(dir: &Path, each: &mut dyn FnMut(&str, u64, u64)) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == Io::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(meta) => each(&entry.file_name().to_string_lossy(), meta.ino(), meta.len()),
            Err(e) if e.kind() == Io::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
