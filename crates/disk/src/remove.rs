use std::collections::HashMap;

use kvtier_core::{Key, Removed, Reply};
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::layout::Foreign;
use crate::mover::Mover;
use crate::shared::Shared;

/// Removes keys without holds, with their files of every length. Chunks of peers are removed too.
pub fn remove<M: Mover>(shared: &Shared<M>, keys: &[Key], answer: Reply<Removed>) {
    let mut counts = Removed::default();
    // Chunks of peers are removed too, so the index must have them.
    shared.follow_changes();
    // One listing of each shard for all keys: the index has one length for a key, the directory may
    // have more.
    let files = shared.files_of(keys);
    for key in keys {
        // The deadline passed, or the caller is gone. What was removed stays removed.
        if answer.is_over() {
            return answer.give_up();
        }
        let lengths = files.get(key.digest()).map_or(&[][..], Vec::as_slice);
        if shared.index().get(key.digest()).is_none() {
            shared.find_on_disk(key, lengths.first().copied());
        }
        // The look at the holds and the begin of the eviction are one step: no lookup gets a hold
        // in between.
        let mut index = shared.index();
        index.expire_holds(shared.now_ms());
        match index.begin_evict(key.digest()) {
            kvtier_index::RemoveOutcome::Gone(entry) => {
                drop(index);
                // Otherwise the next lookup would find the other file, and the key would be back.
                let other = lengths.iter().filter(|len| **len != entry.chunk.len);
                other.for_each(|len| _ = shared.delete_other(key.digest(), *len));
                counts.removed += shared.delete(vec![entry]);
            }
            kvtier_index::RemoveOutcome::Held => counts.held += 1,
            _ => {
                // Eviction deletes the file of a victim.
                let is_leaving = index.is_evicting(key.digest());
                drop(index);
                match !is_leaving && shared.delete_unknown(key, lengths) {
                    true => counts.removed += 1,
                    false => counts.absent += 1,
                }
            }
        }
    }
    answer.complete(Ok(counts));
}

impl<M: Mover> Shared<M> {
    /// The lengths of all files of these keys. Two processes may have saved one key with two lengths,
    /// and the index of each has only its own.
    fn files_of(&self, keys: &[Key]) -> HashMap<Digest, Vec<u64>> {
        let mut lengths: HashMap<Digest, Vec<u64>> = HashMap::new();
        // In a foreign layout a key has one name for all lengths.
        if self.data_dir.foreign().is_some() {
            return lengths;
        }
        let digests: Vec<Digest> = keys.iter().map(|key| *key.digest()).collect();
        match self.data_dir.files_of(&digests) {
            Ok(files) => files
                .into_iter()
                .for_each(|(digest, len)| lengths.entry(digest).or_default().push(len)),
            Err(e) => self.failed("cannot list the files of the chunks to remove", &e),
        }
        lengths
    }

    /// Deletes the files of a chunk that the index lacks, such as corrupt files that could not be
    /// quarantined. Returns whether one existed.
    fn delete_unknown(&self, key: &Key, lengths: &[u64]) -> bool {
        let digest = key.digest();
        let deleted = match self.data_dir.foreign() {
            Some(foreign) => {
                foreign.learn(key);
                usize::from(self.delete_foreign(foreign, digest))
            }
            None => lengths.iter().filter(|len| self.delete_other(digest, **len)).count(),
        };
        if deleted > 0 {
            self.space.queue.notify();
        }
        deleted > 0
    }

    /// Deletes the files of a foreign layout's chunk that failed its checks and could not be
    /// quarantined. Returns whether one existed. Other files that the index lacks are no chunks.
    fn delete_foreign(&self, foreign: &Foreign, digest: &Digest) -> bool {
        let _one = self.name(digest);
        if !self.index().is_suspect(digest) {
            return false;
        }
        let _moving = self.space.ledger_validity.moving();
        match self.data_dir.delete(digest, 0) {
            Ok(gone) => {
                let there = gone.is_some();
                if there {
                    // The ledger may or may not count the file: a scan recounts.
                    foreign.request_scan();
                    self.append_change(Record::Remove(*digest));
                }
                there
            }
            Err(e) => {
                self.failed(&format!("cannot delete the file of {digest}"), &e);
                false
            }
        }
    }

    /// Deletes a chunk's file of a length that the index lacks. Returns whether it existed.
    fn delete_other(&self, digest: &Digest, len: u64) -> bool {
        let _one = self.name(digest);
        // Saved again meanwhile, with this one.
        if self.index().known(digest).is_some_and(|entry| entry.chunk.len == len) {
            return false;
        }
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        match self.data_dir.delete(digest, len) {
            Ok(gone) => {
                if let Some(bytes) = gone {
                    self.space.ledger_validity.found_unknown();
                    self.uncount(bytes, since);
                    self.append_change(Record::Remove(*digest));
                }
                gone.is_some()
            }
            Err(e) => {
                self.failed(&format!("cannot delete a file of {digest}"), &e);
                false
            }
        }
    }
}
