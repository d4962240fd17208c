//! Finding chunks by their digests, and what makes one of them a hit.
//!
//! A lookup of a key reads two places in memory: a bucket of the table, which has the slot, and the
//! slot's row, which has the digest. Both are random, so for one key the machine mostly waits.
//! Batches therefore read the table for several keys before they read the rows.

use kvtier_key::Digest;

use crate::slab::SlotState;
use crate::{DigestTag, Index, IndexEntry};

/// The number of keys looked up together.
const BATCH: usize = 16;

impl Index {
    /// The entry of `digest`. `None`, a miss, also if the chunk is suspect, a victim, or of a
    /// [set](Self::declare_set) that is incomplete.
    pub fn get(&self, digest: &Digest) -> Option<IndexEntry> {
        let slot = self.find(digest)?;
        let row = &self.slab[slot];
        (row.state == SlotState::Present && !self.is_suspect(digest) && !self.is_hidden(digest))
            .then(|| self.slab.entry(slot))
    }

    /// The entry of a present chunk, even if it is suspect or hidden by its
    /// [set](Self::declare_set); `None` for a victim.
    pub fn known(&self, digest: &Digest) -> Option<IndexEntry> {
        self.slot(digest).map(|slot| self.slab.entry(slot))
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
                .map(|(slot, digest)| *slot = self.likely(digest))
                .count();
            // The result is not used. Without this the compiler would drop the reads, which are the
            // purpose.
            core::hint::black_box(
                some[..n]
                    .iter()
                    .fold(0, |all, slot| all ^ self.slab.get(*slot).map_or(0, |row| row.holds)),
            );
            if n < BATCH {
                return;
            }
        }
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<u32> {
        self.table.find(hash(digest), |slot| self.slab[*slot].digest == *digest).copied()
    }

    /// The slots of the present ones.
    pub(crate) fn find_all(&self, digests: &[Digest]) -> Vec<u32> {
        let mut slots = Vec::with_capacity(digests.len());
        for some in digests.chunks(BATCH) {
            // First read the table for all of them, then the slots, so that no read waits for
            // another.
            let mut likely = [0; BATCH];
            likely.iter_mut().zip(some).for_each(|(slot, digest)| *slot = self.likely(digest));
            let is_it = |slot: &u32, digest: &Digest| {
                self.slab.get(*slot).is_some_and(|row| row.digest == *digest)
            };
            let found =
                // The likely slot is the one with the same tag. Two digests with one tag are
                // possible, so the full digest decides.
                likely.iter().zip(some).filter_map(|(slot, digest)| match is_it(slot, digest) {
                    true => Some(*slot),
                    false => self.find(digest),
                });
            slots.extend(found);
        }
        slots
    }

    /// The slot that probably holds a key, if the key is present.
    fn likely(&self, digest: &Digest) -> u32 {
        self.table.find(hash(digest), |_| true).copied().unwrap_or(0)
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
