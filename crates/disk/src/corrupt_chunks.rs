//! Chunks whose files failed a check: they are misses until their names mean other files.

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::corrupt_file::CorruptFile;
use crate::counters::add;
use crate::data_dir::FileId;
use crate::mover::Mover;
use crate::shared::Shared;

/// The most chunks that the index remembers as unusable here.
pub const SUSPECTS_MAX: usize = 1 << 16;
/// The same in a simulation, so that it is reached there.
const SIMULATED_SUSPECTS_MAX: usize = 4;

/// How many chunks the index may remember as unusable here.
pub fn suspects_max() -> usize {
    if kvtier_os::is_simulated() { SIMULATED_SUSPECTS_MAX } else { SUSPECTS_MAX }
}

/// How many files are remembered at most because they are damaged and could not be quarantined, or cannot
/// be decoded here. More than the index has suspects, so that each of those has its file here: else
/// nothing would show that a peer replaced it. Twice as many, so that the others are rarely removed.
pub fn corrupt_files_max() -> usize {
    2 * suspects_max()
}

/// The most files that wait to be moved into quarantine.
pub const UNMOVED_MAX: usize = 4096;

impl<M: Mover> Shared<M> {
    /// Marks a chunk corrupt whose file `seen` failed its checks, and quarantines the file. `false`
    /// when the name means another file by now, or none: then the checked bytes are no chunk's any
    /// more.
    pub fn quarantine_corrupt(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        let was_current = self.quarantine_corrupt_quietly(digest, len, seen);
        self.listeners.notify();
        was_current
    }

    fn quarantine_corrupt_quietly(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        let _one = self.name(digest);
        let known = match self.data_dir.find(digest, len) {
            // A save replaced the file since it was checked: the check says nothing about the new
            // one.
            Ok(Some(there)) if there != seen => return false,
            Ok(None) => {
                let _moving = self.space.ledger_validity.moving();
                let gone = self.forget(digest, false);
                gone.into_iter().for_each(|chunk| self.lost(digest, chunk.bytes));
                return false;
            }
            // Also where the name cannot be read: a miss is safe, and the next save clears it.
            _ => self.mark_corrupt(digest, seen),
        };
        self.move_corrupt(CorruptFile { digest: *digest, len, file: seen, known });
        true
    }

    /// Moves a corrupt chunk's file into quarantine. Where that fails, it is tried again later: the mark
    /// keeps the chunk a miss, but the file takes space, and no eviction finds it. The caller holds
    /// the chunk's [name](Self::name).
    fn move_corrupt(&self, corrupt: CorruptFile) {
        let CorruptFile { digest, len, file: seen, known } = corrupt;
        if self.data_dir.is_read_only() {
            return self.move_later(corrupt);
        }
        match self.quarantine(&digest, len, known) {
            Ok(()) => {
                self.append_change(Record::Remove(digest));
                // A file from before a crash of the machine lost what was not synced, which is no
                // sign of a bad device. Operators watch the other counter.
                let is_torn = self
                    .data_dir
                    .removed_stale
                    .crashed_before_s
                    .is_some_and(|booted| seen.was_written_before(booted));
                add(
                    if is_torn { &self.counters.torn_by_crash } else { &self.counters.quarantined },
                    1,
                );
                // A scan of foreign files may have entered it again, as one that takes space. Elsewhere the
                // entry may be of a good file of another length.
                if self.data_dir.foreign().is_some() {
                    self.forget(&digest, false);
                }
                self.clear_corrupt(&digest);
            }
            Err(e) => {
                self.failed(&format!("cannot quarantine the corrupt chunk {digest}"), &e);
                self.move_later(corrupt);
            }
        }
    }

    fn move_later(&self, corrupt: CorruptFile) {
        let mut unmoved = self.chunks.unmoved_files();
        if unmoved.len() < UNMOVED_MAX {
            unmoved.push(corrupt);
        }
    }

    /// Tries again to move the corrupt files into quarantine that could not be moved.
    pub fn move_unmoved(&self) {
        let unmoved = std::mem::take(&mut *self.chunks.unmoved_files());
        for mut corrupt in unmoved {
            let _one = self.name(&corrupt.digest);
            match self.data_dir.find(&corrupt.digest, corrupt.len) {
                Ok(Some(there)) if there == corrupt.file => {
                    // A scan may have counted it since. Too high a total costs space until the next
                    // one, too low a one does not occur.
                    if self.data_dir.foreign().is_some() {
                        corrupt.known = None;
                        self.space.ledger_validity.suspect();
                    }
                    self.move_corrupt(corrupt);
                }
                // Deleted, or replaced.
                Ok(_) => {}
                Err(_) => self.move_later(corrupt),
            }
        }
    }

    /// Marks a chunk corrupt: it is a miss as long as its name means this file. The caller holds its
    /// [name](Self::name). Returns the index's entry.
    pub fn mark_corrupt(&self, digest: &Digest, file: FileId) -> Option<Chunk> {
        let known = self.forget(digest, true);
        self.remember_corrupt(digest, file);
        known
    }

    fn remember_corrupt(&self, digest: &Digest, file: FileId) {
        let mut corrupt_files = self.chunks.corrupt_files();
        if corrupt_files.len() >= corrupt_files_max() {
            // The other files were replaced, or the index forgot them: their chunks are tried again.
            let index = self.index();
            corrupt_files.retain(|digest, _| index.is_suspect(digest));
        }
        corrupt_files.insert(*digest, file);
    }

    /// Makes a chunk a miss here whose file `seen` this process cannot use, as long as its name means
    /// that file. The file stays for other processes; the next save of this one replaces it, and
    /// eviction deletes it when its turn comes: a directory full of such chunks takes new ones.
    pub fn set_unusable(&self, digest: &Digest, len: u64, seen: FileId) {
        let one = self.name(digest);
        // Between the look and the mark no save of this process may publish another file.
        if matches!(self.data_dir.find(digest, len), Ok(Some(there)) if there == seen) {
            let known = {
                let mut index = self.index();
                let known = index.known(digest).map(|entry| entry.chunk);
                // A victim's end is not reported yet.
                let reported = index.known_or_victim(digest);
                if let Some(chunk) = reported.filter(|_| !index.is_suspect(digest)) {
                    self.listeners.push(Event::Gone { key: *digest, len: chunk.len });
                }
                self.mark_suspect(&mut index, digest);
                known
            };
            self.remember_corrupt(digest, seen);
            // Cut or extended by another program: the ledger counts the earlier length.
            if known.is_some_and(|chunk| seen.bytes() != Some(chunk.bytes)) {
                self.space.ledger_validity.suspect();
            }
        }
        drop(one);
        self.listeners.notify();
    }

    /// Clears a corrupt chunk if its name means another `file` now: a peer saved the chunk again.
    pub fn clear_corrupt_if_replaced(&self, digest: &Digest, file: FileId) {
        if self.chunks.corrupt_files().get(digest).is_some_and(|wrong| *wrong != file) {
            self.clear_corrupt(digest);
        }
    }

    fn clear_corrupt(&self, digest: &Digest) {
        self.chunks.corrupt_files().remove(digest);
        let mut index = self.index();
        let was_suspect = index.is_suspect(digest);
        index.clear_suspect(digest);
        // It was reported as gone when it was marked.
        if let Some(chunk) = index.known_or_victim(digest).filter(|_| was_suspect) {
            self.report_stored(&index, &chunk);
        }
    }

    /// Whether the chunk's name still means this file, unchanged. A load whose bytes the CPU did not
    /// see must check: a peer may have renamed the file and written over it meanwhile.
    pub fn is_still(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        matches!(self.data_dir.find(digest, len), Ok(Some(there)) if there == seen)
    }
}
