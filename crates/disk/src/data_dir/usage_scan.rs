//! Counts the bytes in a directory while peers change it.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kvtier_key::Digest;

use super::{DataDir, liveness, staging};

/// The most passes over the directory.
const PASSES_MAX: usize = 8;

/// The result of a count.
#[derive(Debug, Default)]
pub struct ByteCount {
    /// Bytes of unfinished files, of files with names, and of the quarantine.
    pub bytes: u64,
    /// The chunks seen by name; empty in a foreign layout.
    pub chunks: Vec<(Digest, u64)>,
}

/// Files by their inodes: a renamed file is the same file, and is counted once.
#[derive(Debug, Default)]
pub struct SeenFiles {
    inodes: HashSet<u64>,
    bytes: u64,
}

impl SeenFiles {
    /// Counts a file, unless its inode was seen before.
    pub fn file(&mut self, inode: u64, bytes: u64) {
        if self.inodes.insert(inode) {
            self.bytes += bytes;
        }
    }
}

impl DataDir {
    /// Counts the bytes of all files once; a file that is renamed meanwhile may be missed.
    pub fn count_once(&self) -> io::Result<u64> {
        self.until_measured(|| {
            let mut seen = SeenFiles::default();
            self.pass(&mut seen, &mut ByteCount::default())?;
            Ok(seen.bytes)
        })
    }

    /// Counts the bytes of all files, and misses none. The caller holds the ledger's lock, and no
    /// thread of this process moves files.
    pub fn count(&self) -> io::Result<ByteCount> {
        self.until_measured(|| {
            let mut counted = ByteCount::default();
            counted.bytes = count(|| self.peers(), |seen| self.pass(seen, &mut counted))?;
            Ok(counted)
        })
    }

    /// Counts, and counts again if a peer began to encode meanwhile: then names do not show the
    /// lengths of files any more.
    fn until_measured<T>(&self, count: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let was_measured = self.look_for_encoded();
        let counted = count()?;
        if was_measured || !self.look_for_encoded() { Ok(counted) } else { count() }
    }

    fn peers(&self) -> io::Result<Peers> {
        let tmp = self.own().join("tmp");
        // Each process makes a directory in there when it comes, and removes it when it goes.
        // The time is read before the names: a process that comes in between changes one of them.
        let meta = fs::metadata(&tmp)?;
        let any = liveness::live_names(&tmp)?.len() > usize::from(self.has_staging_dir());
        Ok(Peers { any, last_change: (meta.mtime(), meta.mtime_nsec()) })
    }

    /// Unfinished files first: one that is published meanwhile is seen before it moves.
    fn pass(&self, seen: &mut SeenFiles, counted: &mut ByteCount) -> io::Result<()> {
        drafts(&self.own().join("tmp"), &mut |inode, bytes| seen.file(inode, bytes))?;
        match self.foreign() {
            None => self.list(|listed| {
                seen.file(listed.inode, listed.bytes);
                counted.chunks.push((listed.digest, listed.len));
            })?,
            Some(foreign) => self.foreign_names(|name| {
                // Deleted meanwhile, or not a file.
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

/// The other processes that have the directory open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Whether there are any.
    pub any: bool,
    /// When one came or went last.
    pub last_change: (i64, i64),
}

/// Counts the bytes of all files that `pass` finds. Other processes may rename what is counted: a
/// file that moved behind the reader is found by the next pass. One pass is enough only if no other
/// process had the directory open at any time of it, so `peers` is asked before and after it.
pub fn count(
    mut peers: impl FnMut() -> io::Result<Peers>,
    mut pass: impl FnMut(&mut SeenFiles) -> io::Result<()>,
) -> io::Result<u64> {
    let mut seen = SeenFiles::default();
    // A process that comes and goes during the pass leaves another time.
    let at_first = peers()?;
    for number in 0..PASSES_MAX {
        // `seen` is kept over all passes, so each adds only what the ones before it missed.
        let before = seen.bytes;
        pass(&mut seen)?;
        let was_alone = !at_first.any && number == 0 && peers()? == at_first;
        if was_alone || (number > 0 && seen.bytes == before) {
            break;
        }
    }
    Ok(seen.bytes)
}

/// The unfinished files in all staging directories, with the bytes that they have or state,
/// whichever is more.
pub fn drafts(tmp: &Path, each: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    for staging in liveness::staging_dirs(tmp)? {
        each_file(&staging.path(), &mut |name, inode, bytes| {
            if name != "alive" {
                // A file that is not allocated yet has a claim all the same, which its name states.
                each(inode, bytes.max(staging::claimed_by(name).unwrap_or(0)));
            }
        })?;
    }
    Ok(())
}

/// Calls `each` with name, inode and length of each file in a directory, if it exists.
fn each_file(dir: &Path, each: &mut dyn FnMut(&str, u64, u64)) -> io::Result<()> {
    let entries = match kvtier_os::read_dir(dir) {
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
