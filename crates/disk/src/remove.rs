//! Removes: the files of a key, of every length, and its entry in the index. A file that cannot be
//! deleted would be a hit again, so the answer is an error then.

use std::collections::HashMap;
use std::io;

use kvtier_core::{Key, Removed, Reply};
use kvtier_index::RemoveOutcome;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::delete_victims::Deletion;
use crate::layout::Foreign;
use crate::mover::Mover;
use crate::shared::Shared;

/// What became of one key.
enum KeyOutcome {
    Removed,
    Held,
    Absent,
}

/// Removes keys without holds, with their files of every length. Chunks of peers are removed too.
///
/// # Errors
/// The answer is that of the file system where a file cannot be deleted, or where it is unknown whether
/// there is one. The other keys are removed all the same.
pub fn remove<M: Mover>(shared: &Shared<M>, keys: &[Key], answer: Reply<Removed>) {
    let mut counts = Removed::default();
    let mut failed = None;
    // Chunks of peers are removed too, so the index must have them.
    shared.follow_changes();
    // One listing of each shard for all keys: the index has one length for a key, the directory may
    // have more.
    let files = shared.files_of(keys).unwrap_or_else(|e| {
        let what = "cannot list the files of the chunks to remove";
        failed = keys.first().map(|key| shared.io_error("remove", key, what, e));
        HashMap::new()
    });
    for key in keys {
        // The deadline passed, or the caller is gone. What was removed stays removed.
        if answer.is_over() {
            return answer.give_up();
        }
        let lengths = files.get(key.digest()).map_or(&[][..], Vec::as_slice);
        match shared.remove_key(key, lengths) {
            Ok(KeyOutcome::Removed) => counts.removed += 1,
            Ok(KeyOutcome::Held) => counts.held += 1,
            Ok(KeyOutcome::Absent) => counts.absent += 1,
            Err(e) => {
                let error = shared.io_error("remove", key, "cannot delete the chunk's file", e);
                failed.get_or_insert(error);
            }
        }
    }
    answer.complete(failed.map_or(Ok(counts), Err));
}

impl<M: Mover> Shared<M> {
    fn remove_key(&self, key: &Key, lengths: &[u64]) -> io::Result<KeyOutcome> {
        let digest = key.digest();
        let is_in_index = self.index().get(digest).is_some();
        match self.data_dir.foreign() {
            _ if is_in_index => {}
            Some(foreign) => {
                let found = self.try_find_foreign(foreign, key);
                self.listeners.notify();
                found?;
            }
            None => _ = self.find_on_disk(key, lengths.first().copied()),
        }
        // The look at the holds and the begin of the eviction are one step: no lookup gets a hold
        // in between.
        let mut index = self.index();
        index.expire_holds(self.now_ms());
        match index.begin_evict(digest) {
            RemoveOutcome::Gone(entry) => {
                drop(index);
                // Otherwise the next lookup would find the other file, and the key would be back.
                let others = self.delete_others(digest, lengths, Some(entry.chunk.len));
                let deleted = self.delete_chunk(&entry.chunk)?;
                let is_removed = others? | (deleted == Deletion::Deleted);
                Ok(if is_removed { KeyOutcome::Removed } else { KeyOutcome::Absent })
            }
            RemoveOutcome::Held => Ok(KeyOutcome::Held),
            _ => {
                let victim = index.victim(digest);
                drop(index);
                // Eviction deletes it, and may fail: then it is a chunk again.
                let is_removed = match victim {
                    Some(victim) => {
                        let others = self.delete_others(digest, lengths, Some(victim.len));
                        (self.delete_chunk(&victim)? == Deletion::Deleted) | others?
                    }
                    None => self.delete_unknown(key, lengths)?,
                };
                Ok(if is_removed { KeyOutcome::Removed } else { KeyOutcome::Absent })
            }
        }
    }

    /// The lengths of all files of these keys. Two processes may have saved one key with two lengths,
    /// and the index of each has only its own.
    fn files_of(&self, keys: &[Key]) -> io::Result<HashMap<Digest, Vec<u64>>> {
        let mut lengths: HashMap<Digest, Vec<u64>> = HashMap::new();
        // In a foreign layout a key has one name for all lengths.
        if self.data_dir.foreign().is_some() {
            return Ok(lengths);
        }
        let digests: Vec<Digest> = keys.iter().map(|key| *key.digest()).collect();
        let files = self.data_dir.files_of(&digests)?;
        files.into_iter().for_each(|(digest, len)| lengths.entry(digest).or_default().push(len));
        Ok(lengths)
    }

    /// Deletes the files of a chunk that the index lacks, such as corrupt files that could not be
    /// quarantined. Returns whether one existed.
    fn delete_unknown(&self, key: &Key, lengths: &[u64]) -> io::Result<bool> {
        let digest = key.digest();
        let deleted = match self.data_dir.foreign() {
            Some(foreign) => {
                foreign.learn(key);
                self.delete_foreign(foreign, digest)
            }
            None => self.delete_others(digest, lengths, None),
        };
        if matches!(deleted, Ok(true)) {
            self.space.queue.notify();
        }
        deleted
    }

    /// Deletes a chunk's files of these lengths but that in the index. Returns whether one existed.
    /// After an error the others are deleted all the same.
    fn delete_others(
        &self,
        digest: &Digest,
        lengths: &[u64],
        indexed: Option<u64>,
    ) -> io::Result<bool> {
        let mut all = Ok(false);
        for len in lengths.iter().filter(|len| Some(**len) != indexed) {
            let deleted = self.delete_other(digest, *len);
            all = all.and_then(|any| Ok(any | deleted?));
        }
        all
    }

    /// Deletes the files of a foreign layout's chunk that failed its checks and could not be
    /// quarantined. Returns whether one existed. Other files that the index lacks are no chunks.
    fn delete_foreign(&self, foreign: &Foreign, digest: &Digest) -> io::Result<bool> {
        let _one = self.name(digest);
        if !self.index().is_suspect(digest) {
            return Ok(false);
        }
        let _moving = self.space.ledger_validity.moving();
        let is_gone = self.data_dir.delete(digest, 0)?.is_some();
        if is_gone {
            // The ledger may or may not count the file: a scan recounts.
            foreign.request_scan();
            self.append_change(Record::Remove(*digest));
        }
        Ok(is_gone)
    }

    /// Deletes a chunk's file of a length that the index lacks. Returns whether it existed.
    fn delete_other(&self, digest: &Digest, len: u64) -> io::Result<bool> {
        let _one = self.name(digest);
        // Saved again meanwhile, with this one.
        if self.index().known(digest).is_some_and(|entry| entry.chunk.len == len) {
            return Ok(false);
        }
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let Some(bytes) = self.data_dir.delete(digest, len)? else { return Ok(false) };
        self.space.ledger_validity.found_unknown();
        self.uncount(bytes, since);
        self.append_change(Record::Remove(*digest));
        Ok(true)
    }
}
