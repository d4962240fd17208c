//! The entries of an index. Each submodule is one part of [`Index`]: its state and its methods.

mod atomic_sets;
mod chain_positions;
mod holds;
mod listing;
mod lmcache_eviction;
mod lookup;
mod over_quota;
mod quota;
mod reserve;
mod set_leftovers;
mod suspects;
mod tenant_limits;
mod victims;

pub use atomic_sets::{SetId, SetsFull};
pub use holds::{HeldHits, HoldsFull, IndexHoldId};
pub use listing::{ChunkPage, SlotCursor};
pub use lmcache_eviction::LmcacheEviction;
pub use reserve::{Refusal, Reservation, Reserve, ReserveRequest};

use hashbrown::HashTable;
use kvtier_evict::{EvictionHint, Policy};
use kvtier_key::Digest;

use crate::config::CapacityMarks;
use crate::slab::{Slab, SlotRow, SlotState};
use crate::usage::UsageTotals;
use crate::{
    CHUNK_BYTES_LIMIT, Chunk, IndexConfig, IndexEntry, IndexUsage, InvalidConfig, TenantId,
    TenantTotals,
};
use atomic_sets::Sets;
use chain_positions::Chains;
use holds::HoldTable;
use lmcache_eviction::CompatState;
use lookup::hash;
use suspects::Suspects;
use tenant_limits::TenantLimits;

/// The chunks of one tier. See the crate's documentation for how a tier uses it.
#[derive(Debug)]
pub struct Index {
    pub(crate) marks: CapacityMarks,
    pub(crate) slab: Slab,
    /// Slots by the tag of their digest, which is uniform and so its own hash.
    pub(crate) table: HashTable<u32>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) totals: UsageTotals,
    pub(crate) holds: HoldTable,
    pub(crate) suspects: Suspects,
    pub(crate) chains: Chains,
    pub(crate) quotas: TenantLimits,
    pub(crate) sets: Sets,
    /// The most absent members of sets.
    pub(crate) missing_max: usize,
    pub(crate) compat: CompatState,
}

/// Why an entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalCause {
    /// The policy chose it.
    Evicted,
    /// It was removed, or vanished from the medium.
    Removed,
}

/// The outcome of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum InsertOutcome {
    /// The chunk was unknown; this is its slot.
    New(u32),
    /// The chunk replaced `old` and keeps its slot and its holds. If `old` was a victim, the chunk
    /// is none.
    Replaced {
        /// The replaced chunk.
        old: Chunk,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// The outcome of a remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum RemoveOutcome {
    /// This entry was removed.
    Gone(IndexEntry),
    /// A hold protects it; nothing was changed.
    Held,
    /// It is absent, or already a victim.
    Absent,
}

impl Index {
    /// An empty index that evicts by `policy`, which must be empty too.
    ///
    /// # Errors
    ///
    /// For a capacity of 0 and for marks that are no shares.
    pub fn new(config: IndexConfig, policy: Box<dyn Policy>) -> Result<Self, InvalidConfig> {
        Ok(Index {
            marks: config.marks()?,
            slab: Slab::new(),
            table: HashTable::new(),
            policy,
            totals: UsageTotals::default(),
            holds: HoldTable::new(config.holds_max, config.held_max),
            suspects: Suspects::new(config.suspects_max),
            chains: Chains::default(),
            quotas: TenantLimits::default(),
            sets: Sets::default(),
            missing_max: config.missing_max,
            compat: CompatState::default(),
        })
    }

    /// Makes the table large enough for `entries` more, so that none of their inserts rehashes it.
    pub fn reserve_entries(&mut self, entries: usize) {
        let slab = &self.slab;
        // A start may enter millions of chunks: growing step by step would move each slot several
        // times.
        self.table.reserve(entries, |slot| hash(&slab[*slot].digest));
    }

    /// Enters a chunk that is on the medium, found there or reported by a journal, as the most
    /// recent. A known chunk is replaced; if `chunk` has no chain, the known chain stays. Claims no
    /// space: see [`commit`](Self::commit).
    pub fn insert(&mut self, chunk: Chunk) -> InsertOutcome {
        if chunk.len.max(chunk.bytes) >= CHUNK_BYTES_LIMIT {
            return InsertOutcome::Refused(Refusal::TooLarge {
                bytes: chunk.len.max(chunk.bytes),
                bytes_max: CHUNK_BYTES_LIMIT - 1,
            });
        }
        match self.find(&chunk.digest) {
            // A second save of a key keeps the slot, so holds on it hold the new bytes.
            Some(slot) => self.replace(slot, &chunk),
            None => self.add(&chunk),
        }
    }

    /// Corrects the length and the cost of a present chunk. Its position in the order of use stays.
    /// `false` if it is absent, a victim, or too long for an index.
    pub fn resize(&mut self, digest: &Digest, len: u64, bytes: u64) -> bool {
        let Some(slot) = self.find(digest) else { return false };
        // A victim has its old cost in `evicting`, from which its cost is subtracted when it is
        // deleted.
        if self.slab[slot].state != SlotState::Present || len.max(bytes) >= CHUNK_BYTES_LIMIT {
            return false;
        }
        let old = self.slab.chunk(slot);
        let new = Chunk { len, bytes, ..old };
        // The policy is not notified: it would take the chunk for one that was just used.
        self.slab.set(slot, &new);
        self.uncount(&old);
        self.count(&new);
        true
    }

    /// Enters a chunk that was just written into the space that `reservation` claimed. It is no
    /// longer suspect. A chunk that costs more than was claimed is entered too, since it is on the
    /// medium.
    pub fn commit(&mut self, reservation: Reservation, chunk: Chunk) -> InsertOutcome {
        // The claim ends before the chunk counts. Both happen under the caller's lock, so no other
        // save sees the space as free in between.
        self.cancel(reservation);
        self.clear_suspect(&chunk.digest);
        self.insert(chunk)
    }

    /// One request used these chunks, given in the order of its chain. The first becomes the most
    /// recent and the deepest the least recent of them, so that tails are evicted before heads.
    /// Absent ones are skipped.
    pub fn touch_batch(&mut self, chain: &[Digest]) {
        match chain {
            // The usual load of one chunk needs no list.
            [digest] => self.find(digest).into_iter().for_each(|slot| self.policy.touch(slot)),
            chain => {
                let slots = self.find_all(chain);
                self.policy.touch_request(&slots, chain.len() - slots.len());
            }
        }
    }

    /// Gives the policy the caller's hint for these chunks, at this time. Absent ones are skipped.
    pub fn hint_batch(&mut self, now_ms: u64, chain: &[Digest], hint: &EvictionHint) {
        self.policy.set_time(now_ms);
        // Deepest first, as for a touch: what the policy sees last is the most recent.
        for slot in chain.iter().rev().filter_map(|digest| self.find(digest)).collect::<Vec<u32>>()
        {
            self.policy.hint(slot, hint);
        }
    }

    /// Removes a chunk that is not held. It stops counting at once. Call it when the medium has
    /// deleted the chunk, or deletes it immediately; otherwise use
    /// [`begin_evict`](Self::begin_evict).
    pub fn remove(&mut self, digest: &Digest) -> RemoveOutcome {
        match self.removable(digest) {
            Ok(slot) => RemoveOutcome::Gone(self.drop_entry(slot, RemovalCause::Removed)),
            Err(not) => not,
        }
    }

    /// Drops a chunk that vanished from the medium, or was quarantined as corrupt, even if it is
    /// held. Its holds stay valid but hold nothing; a later save of it is not held by them.
    pub fn forget(&mut self, digest: &Digest) -> Option<IndexEntry> {
        self.find(digest).map(|slot| self.drop_entry(slot, RemovalCause::Removed))
    }

    /// The space in use.
    pub fn usage(&self) -> IndexUsage {
        IndexUsage {
            capacity: self.marks.capacity,
            used: self.totals.used,
            reserved: self.totals.reserved,
            evicting: self.totals.evicting,
            entries: self.entries(),
            holds: self.holds.len(),
        }
    }

    /// The space that one tenant uses.
    pub fn tenant_usage(&self, tenant: TenantId) -> TenantTotals {
        self.totals.tenants.get(&tenant).copied().unwrap_or_default()
    }

    /// Every tenant with chunks, in no order.
    pub fn tenants(&self) -> impl ExactSizeIterator<Item = (TenantId, TenantTotals)> + '_ {
        self.totals.tenants.iter().map(|(tenant, usage)| (*tenant, *usage))
    }

    /// The heap memory of entries, table and policy, in bytes; without holds, suspects and tenants.
    pub fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes() + self.table.allocation_size() + self.policy.memory_bytes()
    }

    /// The number of chunks, victims included.
    pub(crate) fn entries(&self) -> usize {
        self.table.len()
    }

    /// Removes an entry everywhere. The policy remembers it if it was evicted. Its slot is free
    /// once no hold refers to it.
    pub(crate) fn drop_entry(&mut self, slot: u32, end: RemovalCause) -> IndexEntry {
        let entry = self.slab.entry(slot);
        let state = self.slab[slot].state;
        if state == SlotState::Evicting {
            self.uncount_evicting(entry.chunk.tenant, entry.chunk.bytes);
        }
        self.uncount(&entry.chunk);
        // A victim has left its set already.
        if state == SlotState::Present {
            self.sets.left(&entry.chunk.digest, entry.chunk.tenant);
        }
        self.sets.gone(&entry.chunk.digest);
        match end {
            RemovalCause::Evicted => self.policy.evict(slot, hash(&entry.chunk.digest)),
            RemovalCause::Removed => self.policy.remove(slot),
        }
        // Compared by slot: the slab row is still there, but equal tags of other digests must not
        // match.
        let found = self.table.find_entry(hash(&entry.chunk.digest), |s| *s == slot);
        found.expect("an entry that is there is in the table").remove();
        match entry.held {
            // The holds refer to the slot by number. It must not get another chunk before they have
            // ended.
            true => self.slab[slot].state = SlotState::Forgotten,
            false => self.slab.remove(slot),
        }
        entry
    }

    fn add(&mut self, chunk: &Chunk) -> InsertOutcome {
        let Some(slot) = self.slab.insert(chunk) else {
            return InsertOutcome::Refused(Refusal::NoSlot);
        };
        let slab = &self.slab;
        self.table.insert_unique(hash(&chunk.digest), slot, |slot| hash(&slab[*slot].digest));
        self.count(chunk);
        self.sets.entered(&chunk.digest, chunk.tenant);
        self.notify_policy(slot);
        // A successor was committed first and has no parent in the policy. It is entered again now
        // that its parent has a slot.
        if let Some(child) = self.take_early(&chunk.digest)
            && self.slab[child].state == SlotState::Present
        {
            self.notify_policy(child);
        }
        InsertOutcome::New(slot)
    }

    fn replace(&mut self, slot: u32, chunk: &Chunk) -> InsertOutcome {
        if self.slab[slot].state == SlotState::Evicting {
            self.stop_evicting(slot);
        }
        let old = self.slab.chunk(slot);
        self.slab.set(slot, chunk);
        self.uncount(&old);
        self.count(chunk);
        self.notify_policy(slot);
        InsertOutcome::Replaced { old }
    }

    pub(crate) fn notify_policy(&mut self, slot: u32) {
        let chunk = self.slab.chunk(slot);
        let parent = chunk.parent.and_then(|tag| self.find_tag(tag));
        // A parent that is being deleted may be saved again under another slot. The link is then
        // made when that save ends.
        let stays = parent.is_some_and(|slot| self.slab[slot].state != SlotState::Evicting);
        if let (Some(before), false, false) = (chunk.parent, stays, self.policy.accepts_orphans()) {
            self.remember_early(&chunk.digest, before);
        }
        let entry = kvtier_evict::SlotInfo::new(slot, chunk.bytes).with_chain(parent, chunk.depth);
        self.policy.insert(
            entry.with_tenant(self.slab[slot].tenant_number()).with_tag(hash(&chunk.digest)),
        );
    }

    /// The slot of a tenant to evict next; `None` also from policies that do not divide by tenant.
    pub(crate) fn tenant_victim(&mut self, tenant: TenantId) -> Option<u32> {
        let number = self.slab.number_of(tenant)?;
        self.policy.tenant_victim(number)
    }

    pub(crate) fn removable(&mut self, digest: &Digest) -> Result<u32, RemoveOutcome> {
        let Some(slot) = self.find(digest) else {
            // A policy may remember evicted chunks. One that its owner removed will not return for
            // reasons that a policy can learn from.
            self.policy.forget(hash(digest));
            return Err(RemoveOutcome::Absent);
        };
        // A victim's deletion is under way, so for the caller it is gone already. A hold protects
        // against both kinds of removal.
        match self.slab[slot] {
            SlotRow { state: SlotState::Evicting, .. } => Err(RemoveOutcome::Absent),
            SlotRow { holds: 1.., .. } => Err(RemoveOutcome::Held),
            _ => Ok(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kvtier_evict::{PolicyKind, SlotInfo};

    use super::*;

    /// Notes how many chunks of each request are there, and how many are absent.
    #[derive(Clone, Debug, Default)]
    struct Requests(Arc<Mutex<Vec<(usize, usize)>>>);

    impl Policy for Requests {
        fn name(&self) -> &'static str {
            "requests"
        }

        fn insert(&mut self, _entry: SlotInfo) {}

        fn touch(&mut self, _slot: u32) {}

        fn touch_request(&mut self, chain: &[u32], absent: usize) {
            self.0.lock().unwrap().push((chain.len(), absent));
        }

        fn remove(&mut self, _slot: u32) {}

        fn pin(&mut self, _slot: u32) {}

        fn unpin(&mut self, _slot: u32) {}

        fn victim(&mut self) -> Option<u32> {
            None
        }

        fn len(&self) -> usize {
            0
        }

        fn eviction_order(&mut self) -> Vec<u32> {
            Vec::new()
        }

        fn memory_bytes(&self) -> usize {
            0
        }
    }

    fn index() -> Index {
        Index::new(IndexConfig::new(1 << 60), PolicyKind::Lru.build()).unwrap()
    }

    #[test]
    fn a_chunk_that_is_too_long_is_refused_with_the_most_bytes() {
        let refused =
            |len, bytes| InsertOutcome::Refused(Refusal::TooLarge { bytes: len, bytes_max: bytes });
        let most = CHUNK_BYTES_LIMIT - 1;
        let insert = |len, bytes| index().insert(Chunk::new(Digest([1; 32]), len, bytes));
        assert_eq!(insert(most, most), InsertOutcome::New(0));
        assert_eq!(insert(1, most + 1), refused(most + 1, most));
        assert_eq!(insert(most + 2, 1), refused(most + 2, most));
    }

    #[test]
    fn entries_that_are_reserved_fit_without_growing() {
        let mut index = index();
        index.reserve_entries(1000);
        assert!((1000..4000).contains(&index.table.capacity()), "{}", index.table.capacity());
    }

    #[test]
    fn a_policy_sees_how_many_chunks_of_a_request_are_absent() {
        let seen = Requests::default();
        let mut index = Index::new(IndexConfig::new(1 << 60), Box::new(seen.clone())).unwrap();
        let chain: Vec<Digest> = (1..=5).map(|n| Digest([n; 32])).collect();
        for digest in &chain[..2] {
            let _ = index.insert(Chunk::new(*digest, 1, 1));
        }
        index.touch_batch(&chain);
        index.touch_batch(&chain[..2]);
        index.touch_batch(&chain[2..]);
        assert_eq!(*seen.0.lock().unwrap(), [(2, 3), (2, 0), (0, 3)]);
    }

    #[test]
    fn memory_is_that_of_entries_table_and_policy_together() {
        let mut index = index();
        let _ = index.insert(Chunk::new(Digest([1; 32]), 1, 1));
        let parts =
            [index.slab.memory_bytes(), index.table.allocation_size(), index.policy.memory_bytes()];
        assert!(parts.iter().all(|bytes| *bytes > 1), "{parts:?}");
        assert_eq!(index.memory_bytes(), parts.iter().sum());
    }
}
