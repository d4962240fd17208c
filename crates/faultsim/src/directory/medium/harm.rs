//! What others do to the directory: a program that deletes chunks, a medium that damages the files of
//! `.kvtier`, and a quota below the cap.

use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::{Entry, Medium, MediumState};

impl Medium {
    /// From now on allocations fail where the chunks would have more bytes. The free space that
    /// the file system reports stays as it is, as with a quota.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.lock().quota_bytes = bytes;
    }

    /// Whether the file of this length would be beyond the quota.
    pub(super) fn exceeds_quota(&self, file: BorrowedFd<'_>, bytes: u64) -> bool {
        let Some(quota) = self.lock().quota_bytes else { return false };
        let had = nix::sys::stat::fstat(file).map_or(0, |stat| stat.st_size.cast_unsigned());
        bytes > had && self.chunk_bytes() + (bytes - had) > quota
    }

    /// Another program deletes about one of `one_in` chunks. Returns how many.
    pub fn delete_chunks(&self, rng: &mut Rng, one_in: u64) -> io::Result<usize> {
        let mut state = self.lock();
        let chunks = state.files_where(|path| !path.starts_with(".kvtier"));
        let chosen: Vec<_> = chunks.into_iter().filter(|_| rng.u64(..one_in) == 0).collect();
        for path in &chosen {
            fs::remove_file(self.root().join(path))?;
            state.change(vec![(path.clone(), None)]);
        }
        Ok(chosen.len())
    }

    /// Damages one of the files in `.kvtier` that are no chunks and no locks. Returns what was done.
    pub fn damage(&self, rng: &mut Rng) -> io::Result<String> {
        let mut state = self.lock();
        let files = state.files_where(is_bookkeeping);
        if files.is_empty() {
            return Ok("nothing to damage".to_owned());
        }
        let path = &files[rng.usize(..files.len())];
        let kind = rng.u64(..4);
        let can_be_replaced = !path.ends_with("ledger");
        let done = match kind {
            0 if can_be_replaced => {
                state.replace_by_directory(self.root(), path)?;
                "is a directory now"
            }
            1 => state.edit(self.root(), path, |bytes| bytes.fill(0))?,
            2 => state
                .edit(self.root(), path, |bytes| bytes.truncate(rng.usize(..bytes.len().max(1))))?,
            _ => state.edit(self.root(), path, |bytes| {
                let bit = rng.usize(..(8 * bytes.len()).max(1));
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            })?,
        };
        Ok(format!("{} {done}", path.display()))
    }
}

/// Not the locks: to take away the file that others have locked is no damage of the medium.
fn is_bookkeeping(path: &Path) -> bool {
    let Ok(own) = path.strip_prefix(".kvtier") else { return false };
    let is_lock = ["lock", "evictor"].iter().any(|lock| own == Path::new(lock));
    !is_lock && !own.starts_with("tmp") && !own.starts_with("quarantine")
}

impl MediumState {
    /// The paths of files for which this holds.
    fn files_where(&self, holds: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
        let files = self.names.sorted(|path, entry| matches!(entry, Entry::File(_)) && holds(path));
        files.into_iter().map(|(path, _)| path).collect()
    }

    fn replace_by_directory(&mut self, root: &Path, path: &Path) -> io::Result<()> {
        fs::remove_file(root.join(path))?;
        fs::create_dir(root.join(path))?;
        self.change(vec![(path.to_owned(), Some(Entry::Dir))]);
        Ok(())
    }

    /// Changes the bytes of a file, the durable ones too, and none of its times.
    fn edit(
        &mut self,
        root: &Path,
        path: &Path,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<&'static str> {
        let file = File::options().read(true).write(true).open(root.join(path))?;
        let meta = file.metadata()?;
        let mut bytes = vec![0; meta.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        change(&mut bytes);
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.set_modified(meta.modified()?)?;
        if let Some(kept) = self.files.get_mut(&meta.ino()) {
            kept.durable = Some(bytes);
            kept.is_dirty = false;
            kept.changes();
        }
        Ok("is damaged")
    }
}
