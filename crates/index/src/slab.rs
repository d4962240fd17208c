use kvtier_evict::SLOTS_MAX;
use kvtier_key::Digest;

use crate::tenant_numbers::TenantNumbers;
use crate::{CHUNK_BYTES_LIMIT, Chunk, DigestTag, IndexEntry, TenantId};

/// The slots of a segment (256 KiB): growing copies nothing and wastes little.
const SEGMENT: usize = 4096;
/// Ends the list of vacant slots.
const NIL: u32 = u32::MAX;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The slot is free; `depth` is the next free one.
    Vacant,
    /// The chunk is there.
    Present,
    /// The chunk is a victim: a miss, but still on the medium.
    Evicting,
    /// The chunk is gone but still held: the slot waits for the holds to end.
    Forgotten,
}

/// A length below 2^48 in six bytes.
#[derive(Clone, Copy, Debug)]
struct Length([u8; 6]);

impl Length {
    fn new(bytes: u64) -> Self {
        debug_assert!(bytes < CHUNK_BYTES_LIMIT);
        let [a, b, c, d, e, f, _, _] = bytes.to_le_bytes();
        Length([a, b, c, d, e, f])
    }

    fn get(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// One slot: exactly one cache line, so that a lookup reads one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SlotRow {
    pub digest: Digest,
    parent: Option<DigestTag>,
    depth: u32,
    /// The tenant's number in [`TenantNumbers`](crate::tenant_numbers::TenantNumbers).
    tenant: u32,
    len: Length,
    bytes: Length,
    /// The number of holds on it.
    pub holds: u16,
    pub state: SlotState,
}

const _: () = assert!(size_of::<SlotRow>() == 64);

impl SlotRow {
    const VACANT: SlotRow = SlotRow {
        digest: Digest([0; 32]),
        parent: None,
        depth: NIL,
        tenant: 0,
        len: Length([0; 6]),
        bytes: Length([0; 6]),
        holds: 0,
        state: SlotState::Vacant,
    };

    fn present(chunk: &Chunk, tenant: u32) -> Self {
        let mut row = SlotRow {
            digest: chunk.digest,
            state: SlotState::Present,
            depth: 0,
            ..SlotRow::VACANT
        };
        row.set(chunk, tenant);
        row
    }

    /// Takes the facts of `chunk`, without its digest. An unknown chain leaves the known one.
    fn set(&mut self, chunk: &Chunk, tenant: u32) {
        (self.len, self.bytes, self.tenant) =
            (Length::new(chunk.len), Length::new(chunk.bytes), tenant);
        // Listings do not show chains: a rescan must not remove what a save recorded.
        if chunk.parent.is_some() || chunk.depth != 0 {
            (self.parent, self.depth) = (chunk.parent, chunk.depth);
        }
    }

    /// Sets the predecessor, if it is unknown.
    pub fn learn_parent(&mut self, parent: DigestTag, depth: u32) {
        if self.parent.is_none() {
            (self.parent, self.depth) = (Some(parent), depth);
        }
    }

    fn chunk(&self, tenant: TenantId) -> Chunk {
        Chunk {
            digest: self.digest,
            len: self.len.get(),
            bytes: self.bytes.get(),
            tenant,
            parent: self.parent,
            depth: self.depth,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub fn parent(&self) -> Option<DigestTag> {
        self.parent
    }

    /// The number of the tenant in this index, by which policies divide.
    pub fn tenant_number(&self) -> u32 {
        self.tenant
    }
}

/// Slots, dense and reused; the latest vacated is reused first.
#[derive(Debug)]
pub(crate) struct Slab {
    segments: Vec<Box<[SlotRow]>>,
    /// Slots from here on were never used.
    fresh: u32,
    vacant: u32,
    numbers: TenantNumbers,
}

impl Slab {
    pub fn new() -> Self {
        Slab { segments: Vec::new(), fresh: 0, vacant: NIL, numbers: TenantNumbers::default() }
    }

    /// Fills a slot; `None` if there is no number left.
    pub fn insert(&mut self, chunk: &Chunk) -> Option<u32> {
        // The latest vacated slot is probably still in the processor's cache.
        let slot = self.vacant;
        if slot != NIL {
            self.vacant = self[slot].depth;
            self[slot] = SlotRow::present(chunk, self.numbers.take(chunk.tenant));
            return Some(slot);
        }
        let slot = self.fresh;
        if slot >= SLOTS_MAX {
            return None;
        }
        // A new segment leaves the others where they are: a growing vector would copy gigabytes
        // under the index's lock.
        if slot as usize == self.segments.len() * SEGMENT {
            self.segments.push(vec![SlotRow::VACANT; SEGMENT].into_boxed_slice());
        }
        self.fresh += 1;
        self[slot] = SlotRow::present(chunk, self.numbers.take(chunk.tenant));
        Some(slot)
    }

    /// Takes the facts of `chunk`, as far as it has any.
    pub fn set(&mut self, slot: u32, chunk: &Chunk) {
        let old = self[slot].tenant;
        let new = self.numbers.take(chunk.tenant);
        // The new number is taken before the old one is released, so that an unchanged tenant keeps
        // its number.
        self[slot].set(chunk, new);
        self.numbers.release(old);
    }

    /// The chunk in a slot.
    pub fn chunk(&self, slot: u32) -> Chunk {
        self[slot].chunk(self.tenant(&self[slot]))
    }

    pub fn entry(&self, slot: u32) -> IndexEntry {
        IndexEntry { slot, chunk: self.chunk(slot), held: self[slot].holds > 0 }
    }

    /// The tenant of a row.
    pub fn tenant(&self, row: &SlotRow) -> TenantId {
        self.numbers.tenant(row.tenant)
    }

    /// The number of a tenant that has a chunk.
    pub fn number_of(&self, tenant: TenantId) -> Option<u32> {
        self.numbers.get(tenant)
    }

    pub fn remove(&mut self, slot: u32) {
        self.numbers.release(self[slot].tenant);
        self[slot] = SlotRow { depth: self.vacant, ..SlotRow::VACANT };
        self.vacant = slot;
    }

    /// The row of a slot; `None` for a number that was never used.
    pub fn get(&self, slot: u32) -> Option<&SlotRow> {
        self.segments.get(slot as usize / SEGMENT).map(|segment| &segment[slot as usize % SEGMENT])
    }

    /// Every slot is below this.
    pub fn end(&self) -> u32 {
        self.fresh
    }

    pub fn memory_bytes(&self) -> usize {
        self.segments.len() * SEGMENT * size_of::<SlotRow>()
            + self.segments.capacity() * size_of::<Box<[SlotRow]>>()
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = SlotRow;

    fn index(&self, slot: u32) -> &SlotRow {
        &self.segments[slot as usize / SEGMENT][slot as usize % SEGMENT]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut SlotRow {
        &mut self.segments[slot as usize / SEGMENT][slot as usize % SEGMENT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_returns_its_chunk() {
        let chunk = Chunk::new(Digest([7; 32]), CHUNK_BYTES_LIMIT - 1, (1 << 40) + 3)
            .with_tenant(TenantId(u128::MAX));
        let chunk = chunk.with_parent(&Digest([9; 32]), 77);
        let mut slab = Slab::new();
        let slot = slab.insert(&chunk).unwrap();
        assert_eq!((slab.chunk(slot), slab[slot].state), (chunk, SlotState::Present));
        slab.set(slot, &Chunk::new(chunk.digest, 5, 6));
        let known = Chunk { len: 5, bytes: 6, tenant: TenantId::NONE, ..chunk };
        assert_eq!(slab.chunk(slot), known, "an unknown chain takes nothing away");
        assert_eq!(slab.number_of(chunk.tenant), None, "a tenant without chunks has no number");
    }

    #[test]
    fn half_a_chain_is_one_too() {
        let bare = Chunk::new(Digest([7; 32]), 1, 1);
        let mut slab = Slab::new();
        let slot = slab.insert(&bare).unwrap();
        let first = bare.with_parent(&Digest([9; 32]), 0);
        let deep = Chunk { depth: 5, ..bare };
        for chunk in [first, deep] {
            slab.set(slot, &chunk);
            assert_eq!(slab.chunk(slot), chunk);
            slab.set(slot, &bare);
            assert_eq!(slab.chunk(slot), chunk, "it stays");
        }
    }

    #[test]
    fn an_entry_is_held_while_its_slot_has_holds() {
        let mut slab = Slab::new();
        let slot = slab.insert(&Chunk::new(Digest([1; 32]), 1, 1)).unwrap();
        assert!(!slab.entry(slot).held);
        slab[slot].holds = 1;
        assert!(slab.entry(slot).held);
    }

    #[test]
    fn each_slot_of_several_segments_has_its_own_row() {
        let mut slab = Slab::new();
        let digest = |n: u32| Digest::derive("test", &n.to_le_bytes());
        let end = 2 * SEGMENT as u32 + 2;
        let slots = (0..end).map(|n| slab.insert(&Chunk::new(digest(n), 1, 1)));
        assert!(slots.eq((0..end).map(Some)));
        let found = (0..end).map(|slot| slab.get(slot).map(|row| row.digest));
        assert!(found.eq((0..end).map(|n| Some(digest(n)))));
        assert!(slab.get(3 * SEGMENT as u32).is_none());
    }

    #[test]
    fn slots_are_dense_and_reused() {
        let mut slab = Slab::new();
        let chunk = Chunk::new(Digest([1; 32]), 1, 1);
        let slots: Vec<u32> = (0..3000).map(|_| slab.insert(&chunk).unwrap()).collect();
        assert_eq!(slots, (0..3000).collect::<Vec<_>>());
        [5, 2999, 0].into_iter().for_each(|slot| slab.remove(slot));
        assert_eq!([0, 2999, 5, 3000].map(Some), [(); 4].map(|_| slab.insert(&chunk)));
        assert_eq!((slab.end(), slab.segments.len()), (3001, 1));
        assert!((0..3001).all(|slot| slab.get(slot).is_some_and(|row| row.digest == chunk.digest)));
    }

    #[test]
    fn memory_is_that_of_all_rows_and_of_the_pointers_to_their_segments() {
        let mut slab = Slab::new();
        assert_eq!(slab.memory_bytes(), 0);
        let chunk = Chunk::new(Digest([1; 32]), 1, 1);
        (0..2 * SEGMENT + 1).for_each(|_| _ = slab.insert(&chunk));
        let pointers = slab.memory_bytes() - 3 * SEGMENT * 64;
        assert!((3 * 16..=2 * 3 * 16).contains(&pointers), "{pointers} bytes of pointers");
    }
}
