//! Listings: pages of keys, and all chunks in the order of eviction for a snapshot.

use crate::slab::SlotState;
use crate::{Chunk, Index};

/// The most slots that one [`Index::keys_page`] scans.
// A few milliseconds of scanning.
const PAGE_SCAN_MAX: u32 = 1 << 16;

/// The start of the next page of keys; the default is the start of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SlotCursor(u32);

impl SlotCursor {
    /// Its number, for interfaces of another kind.
    pub fn as_u32(self) -> u32 {
        self.0
    }

    /// The cursor of this number.
    pub fn from_u32(slot: u32) -> Self {
        SlotCursor(slot)
    }
}

/// Some of the present chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkPage {
    /// The chunks, in no particular order.
    pub chunks: Vec<Chunk>,
    /// The start of the next page; `None` at the end. A page before the end may be short or empty.
    pub next: Option<SlotCursor>,
}

impl Index {
    /// Up to `n` of the present chunks. A chunk that comes or goes between pages may be missed.
    /// None comes twice unless it was removed and saved again.
    pub fn keys_page(&self, cursor: SlotCursor, n: usize) -> ChunkPage {
        // A bound on the scan and not only on the result: a page of an almost empty index must not
        // hold the caller's lock for long.
        let stop = cursor.0.saturating_add(PAGE_SCAN_MAX).min(self.slab.end());
        let mut chunks = Vec::new();
        let mut at = cursor.0;
        // By slot and not by key: a slot's number stays while its chunk does, so pages need no
        // state in the index.
        while at < stop && chunks.len() < n {
            chunks.extend(self.chunk_at(at));
            at += 1;
        }
        ChunkPage { chunks, next: (at < self.slab.end()).then_some(SlotCursor(at)) }
    }

    /// All slots in the policy's order, the next victim first, held ones last; with
    /// [`chunks_at`](Self::chunks_at) the way to a snapshot. Takes time, and 4 bytes of memory, per
    /// slot.
    pub fn eviction_order(&mut self) -> Vec<u32> {
        self.policy.eviction_order()
    }

    /// The chunks that are in `slots` now, in their order. Empty slots and victims are skipped. So
    /// a snapshot can be taken in pieces, with other calls in between.
    pub fn chunks_at<'a>(&'a self, slots: &'a [u32]) -> impl Iterator<Item = Chunk> + 'a {
        slots.iter().filter_map(|slot| self.chunk_at(*slot))
    }

    fn chunk_at(&self, slot: u32) -> Option<Chunk> {
        // A segment has rows beyond the end, which were never used.
        let row = (slot < self.slab.end()).then(|| &self.slab[slot])?;
        (row.state == SlotState::Present).then(|| self.slab.chunk(slot))
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_key::Digest;

    use crate::{Chunk, Index, IndexConfig};

    #[test]
    fn a_slot_that_was_never_used_has_no_chunk() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        assert_eq!(index.chunks_at(&[0, 1]).count(), 0, "it has no rows yet");
        let chunk = Chunk::new(Digest::derive("test", &[]), 1, 1);
        let _ = index.insert(chunk);
        assert_eq!(index.chunks_at(&[1, 0, u32::MAX]).collect::<Vec<_>>(), [chunk]);
    }
}
