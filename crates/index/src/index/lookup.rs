//! Finding chunks by their digests, and what makes one of them a hit.
//!
//! A lookup of a key reads two places in memory: a bucket of the table, which has the slot, and the
//! slot's row, which has the digest. Both are random, so for one key the machine mostly waits.
//! Batches therefore read the table for several keys before they read the rows.

use kvtier_key::Digest;

use crate::slab::SlotState;
use crate::{Chunk, DigestTag, Index, IndexEntry};

/// The number of keys looked up together.
// About as many reads of memory as a core has in flight at once.
const BATCH: usize = 16;

impl Index {
    /// The entry of `digest`. `None`, a miss, also if the chunk is suspect, a victim, or of a
    /// [set](Self::declare_set) that is incomplete.
    pub fn get(&self, digest: &Digest) -> Option<IndexEntry> {
        let slot = self.find(digest)?;
        let row = &self.slab[slot];
        // The cheapest check first: suspects and sets need a look into other tables.
        (row.state == SlotState::Present && !self.is_suspect(digest) && !self.is_hidden(digest))
            .then(|| self.slab.entry(slot))
    }

    /// The entry of a present chunk, even if it is suspect or hidden by its
    /// [set](Self::declare_set); `None` for a victim.
    pub fn known(&self, digest: &Digest) -> Option<IndexEntry> {
        self.slot(digest).map(|slot| self.slab.entry(slot))
    }

    /// The chunk of an entry, even if it is suspect, hidden by its set, or a victim.
    pub fn known_or_victim(&self, digest: &Digest) -> Option<Chunk> {
        self.find(digest).map(|slot| self.slab.chunk(slot))
    }

    /// Whether there is an entry of `digest`, even if it is suspect or a victim.
    pub fn is_known(&self, digest: &Digest) -> bool {
        self.find(digest).is_some()
    }

    /// The slot of a present chunk, suspect or not; `None` for a victim.
    pub fn slot(&self, digest: &Digest) -> Option<u32> {
        self.find(digest).filter(|slot| self.slab[*slot].state == SlotState::Present)
    }

    /// Reads the memory that lookups of these keys need, of several keys at once. One after the
    /// other, each lookup would wait for memory.
    pub fn prefetch<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let mut digests = digests.into_iter();
        loop {
            let mut some = [0; BATCH];
            let n = some
                .iter_mut()
                .zip(&mut digests)
                .map(|(slot, digest)| *slot = self.likely(digest).unwrap_or(0))
                .count();
            // The result is not used. Without this the compiler would drop the reads, which are the
            // purpose.
            core::hint::black_box(
                some[..n]
                    .iter()
                    .fold(0, |all, slot| all ^ self.slab.get(*slot).map_or(0, |row| row.holds)),
            );
            // A short group is the last one.
            if n < BATCH {
                return;
            }
        }
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<u32> {
        self.table.find(hash(digest), |slot| self.slab[*slot].digest == *digest).copied()
    }

    /// The slots of those that have an entry.
    pub(crate) fn find_all(&self, digests: &[Digest]) -> Vec<u32> {
        let mut slots = Vec::with_capacity(digests.len());
        for some in digests.chunks(BATCH) {
            // First read the table for all of them, then the slots, so that no read waits for
            // another.
            let mut likely = [None; BATCH];
            likely.iter_mut().zip(some).for_each(|(slot, digest)| *slot = self.likely(digest));
            let found = likely.iter().zip(some).filter_map(|(slot, digest)| {
                // Only slots of the table count: a forgotten chunk that is held keeps its row.
                let slot = (*slot)?;
                // The likely slot is the one with the same tag. Two digests with one tag are
                // possible, so the full digest decides.
                if self.slab[slot].digest == *digest { Some(slot) } else { self.find(digest) }
            });
            slots.extend(found);
        }
        slots
    }

    /// The slot that probably holds a key; `None` if the key has no entry.
    fn likely(&self, digest: &Digest) -> Option<u32> {
        self.table.find(hash(digest), |_| true).copied()
    }

    pub(crate) fn find_tag(&self, tag: DigestTag) -> Option<u32> {
        self.table
            .find(tag.as_u64(), |slot| DigestTag::from_digest(&self.slab[*slot].digest) == tag)
            .copied()
    }
}

pub(crate) fn hash(digest: &Digest) -> u64 {
    DigestTag::from_digest(digest).as_u64()
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;

    use super::*;
    use crate::{Chunk, IndexConfig};

    #[test]
    fn the_memory_of_all_keys_is_read_and_not_of_the_first_ones_only() {
        let index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        for n in [0, 1, BATCH, BATCH + 1, 3 * BATCH] {
            let digests = vec![Digest([1; 32]); n];
            let mut read = 0;
            index.prefetch(digests.iter().inspect(|_| read += 1));
            assert_eq!(read, n);
        }
    }

    #[test]
    fn a_batch_does_not_find_a_forgotten_chunk_whose_slot_is_held() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let [first, second] = [1, 2].map(|n| Digest::derive("test", &[n]));
        for digest in [first, second] {
            let _ = index.insert(Chunk::new(digest, 1, 1));
        }
        let hold = index.hold(&[first], 60_000).unwrap();
        index.forget(&first);
        assert_eq!(index.find_all(&[first, second]), [1], "slot 0 is kept for the hold alone");
        index.release(hold);
        assert_eq!(index.find_all(&[first, second]), [1]);
    }
}
