//! Finds chunks of peers that the index lacks, by the names that their files would have.

use kvtier_core::{Event, Key};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Remembers that chunks of this length exist, so that those of peers are found by name.
    pub fn learn_length(&self, len: u64) {
        self.lengths.learn(len);
    }

    /// Looks on the medium for a chunk that the index lacks, of a length that `hint` or earlier chunks
    /// suggest, and enters it into the index. Returns its length.
    pub fn find_on_disk(&self, key: &Key, hint: Option<u64>) -> Option<u64> {
        let found = self.find_on_disk_quietly(key, hint);
        self.listeners.notify();
        found
    }

    fn find_on_disk_quietly(&self, key: &Key, hint: Option<u64>) -> Option<u64> {
        if let Some(foreign) = self.data_dir.foreign() {
            return self.find_foreign(foreign, key);
        }
        // The candidates: lengths that this directory has, that of the caller's memory, and those
        // that the namespace states.
        let mut lengths = self.lengths.all();
        lengths.extend(hint);
        lengths.extend(key.namespace().all_chunk_bytes().iter().map(|(_, bytes)| *bytes));
        lengths.sort_unstable();
        lengths.dedup();
        // Between the look and the entry no thread of this process may delete or publish the file.
        let _one = self.name(key.digest());
        // A chunk of an incomplete atomic set is stored, and still a miss.
        if self.is_hidden(key.digest()) {
            return None;
        }
        let find = |len: u64| Some((len, self.data_dir.find(key.digest(), len).ok().flatten()?));
        // An error of the medium counts as absent here: a miss costs a recomputation, an error
        // would fail the lookup.
        let (len, file) = lengths.into_iter().find_map(find)?;
        self.clear_corrupt_if_replaced(key.digest(), file);
        let mut index = self.index();
        // A victim's file still exists, and is about to be deleted.
        if index.is_suspect(key.digest()) || index.is_evicting(key.digest()) {
            return None;
        }
        let bytes = self.data_dir.counted_bytes(len, &file);
        let _ = index.insert(self.chunk(key, len, bytes));
        self.space.ledger_validity.found_unknown();
        // A chunk of an incomplete atomic set enters the index and its usage, but is no hit.
        let hidden = index.is_hidden(key.digest());
        self.listeners.push(Event::Stored { key: *key.digest(), len });
        drop(index);
        self.learn_length(len);
        (!hidden).then_some(len)
    }

    /// Whether a chunk in the index is a miss because its atomic set is incomplete.
    fn is_hidden(&self, digest: &Digest) -> bool {
        let index = self.index();
        index.is_known(digest) && index.is_hidden(digest)
    }
}
