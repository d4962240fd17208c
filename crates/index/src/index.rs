use hashbrown::HashTable;
use kvtier_evict::{EvictionHint, Policy};
use kvtier_key::Digest;

use crate::atomic_sets::Sets;
use crate::chains::Chains;
use crate::compat::CompatState;
use crate::config::Marks;
use crate::holds::Holds;
use crate::quota::Limits;
use crate::slab::{Row, Slab, State};
use crate::suspects::Suspects;
use crate::usage::UsageTotals;
use crate::{
    CHUNK_BYTES_LIMIT, Chunk, DigestTag, IndexConfig, IndexEntry, IndexUsage, InvalidConfig,
    Refusal, Reservation, TenantId, TenantTotals,
};

/// The most slots that one [`Index::keys_page`] scans.
const PAGE_SCAN_MAX: u32 = 1 << 16;
/// The number of keys looked up together.
const BATCH: usize = 16;

/// The chunks of one tier. See the crate's documentation for how a tier uses it.
#[derive(Debug)]
pub struct Index {
    pub(crate) marks: Marks,
    pub(crate) slab: Slab,
    /// Slots by the tag of their digest, which is uniform and so its own hash.
    table: HashTable<u32>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) totals: UsageTotals,
    pub(crate) holds: Holds,
    pub(crate) suspects: Suspects,
    pub(crate) chains: Chains,
    pub(crate) quotas: Limits,
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
            holds: Holds::new(config.holds_max, config.held_max),
            suspects: Suspects::new(config.suspects_max),
            chains: Chains::default(),
            quotas: Limits::default(),
            sets: Sets::default(),
            missing_max: config.missing_max,
            compat: CompatState::default(),
        })
    }

    /// Makes the table large enough for `entries` more, so that none of their inserts rehashes it.
    pub fn reserve_entries(&mut self, entries: usize) {
        let slab = &self.slab;
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
        if self.slab[slot].state != State::Present || len.max(bytes) >= CHUNK_BYTES_LIMIT {
            return false;
        }
        let old = self.slab.chunk(slot);
        let new = Chunk { len, bytes, ..old };
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

    /// The entry of `digest`. `None`, a miss, also if the chunk is suspect, a victim, or of a
    /// [set](Self::declare_set) that is incomplete.
    pub fn get(&self, digest: &Digest) -> Option<IndexEntry> {
        let slot = self.find(digest)?;
        let row = &self.slab[slot];
        (row.state == State::Present && !self.is_suspect(digest) && !self.is_hidden(digest))
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
        self.find(digest).filter(|slot| self.slab[*slot].state == State::Present)
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

    /// Removes a chunk in two steps: it becomes a victim, a miss that still counts, until
    /// [`finish_evict`](Self::finish_evict) or [`abort_evict`](Self::abort_evict) is called.
    pub fn begin_evict(&mut self, digest: &Digest) -> RemoveOutcome {
        match self.removable(digest) {
            Ok(slot) => RemoveOutcome::Gone(self.start_evicting(slot)),
            Err(not) => not,
        }
    }

    /// Drops a chunk that vanished from the medium, or was quarantined as corrupt, even if it is
    /// held. Its holds stay valid but hold nothing; a later save of it is not held by them.
    pub fn forget(&mut self, digest: &Digest) -> Option<IndexEntry> {
        self.find(digest).map(|slot| self.drop_entry(slot, RemovalCause::Removed))
    }

    /// Marks the bytes of this key as corrupt: a miss until its next [`commit`](Self::commit). Its
    /// entry stays, counted and evictable, for media that cannot quarantine the bytes.
    pub fn mark_suspect(&mut self, digest: &Digest) {
        // The list of suspects is bounded. One that falls out of it becomes an ordinary chunk
        // again, whose next load verifies it anew.
        if let Some(forgotten) = self.suspects.insert(*digest) {
            self.sets.suspected(digest);
            forgotten.iter().for_each(|digest| self.sets.suspect_cleared(digest));
        }
    }

    /// The corrupt bytes are gone: bytes found under this key from now on were written since.
    pub fn clear_suspect(&mut self, digest: &Digest) {
        if self.suspects.remove(digest) {
            self.sets.suspect_cleared(digest);
        }
    }

    /// Whether the key's bytes are corrupt and not overwritten since.
    pub fn is_suspect(&self, digest: &Digest) -> bool {
        self.suspects.contains(digest)
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

    /// Up to `n` of the present chunks. A chunk that comes or goes between pages may be missed.
    /// None comes twice unless it was removed and saved again.
    pub fn keys_page(&self, cursor: SlotCursor, n: usize) -> ChunkPage {
        // A bound on the scan and not only on the result: a page of an almost empty index must not
        // hold the caller's lock for long.
        let stop = cursor.0.saturating_add(PAGE_SCAN_MAX).min(self.slab.end());
        let mut chunks = Vec::new();
        let mut at = cursor.0;
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

    /// The heap memory of entries, table and policy, in bytes; without holds, suspects and tenants.
    pub fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes() + self.table.allocation_size() + self.policy.memory_bytes()
    }

    /// The number of chunks, victims included.
    pub(crate) fn entries(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<u32> {
        self.table.find(hash(digest), |slot| self.slab[*slot].digest == *digest).copied()
    }

    /// The slots of the present ones.
    fn find_all(&self, digests: &[Digest]) -> Vec<u32> {
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

    /// Makes a present entry a victim.
    pub(crate) fn start_evicting(&mut self, slot: u32) -> IndexEntry {
        self.slab[slot].state = State::Evicting;
        let entry = self.slab.entry(slot);
        // It still counts in `used`, and now also in `evicting`: see the module `reserve`.
        self.count_evicting(entry.chunk.tenant, entry.chunk.bytes);
        self.policy.begin_evict(slot);
        self.sets.left(&entry.chunk.digest, entry.chunk.tenant);
        entry
    }

    /// Makes a victim a present entry again.
    pub(crate) fn stop_evicting(&mut self, slot: u32) {
        self.slab[slot].state = State::Present;
        let Chunk { digest, bytes, tenant, .. } = self.slab.chunk(slot);
        self.uncount_evicting(tenant, bytes);
        self.policy.unpin(slot);
        self.sets.returned(&digest, tenant);
    }

    /// Removes an entry everywhere. The policy remembers it if it was evicted. Its slot is free
    /// once no hold refers to it.
    pub(crate) fn drop_entry(&mut self, slot: u32, end: RemovalCause) -> IndexEntry {
        let entry = self.slab.entry(slot);
        let state = self.slab[slot].state;
        if state == State::Evicting {
            self.uncount_evicting(entry.chunk.tenant, entry.chunk.bytes);
        }
        self.uncount(&entry.chunk);
        // A victim has left its set already.
        if state == State::Present {
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
            true => self.slab[slot].state = State::Forgotten,
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
            && self.slab[child].state == State::Present
        {
            self.notify_policy(child);
        }
        InsertOutcome::New(slot)
    }

    fn replace(&mut self, slot: u32, chunk: &Chunk) -> InsertOutcome {
        if self.slab[slot].state == State::Evicting {
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
        let stays = parent.is_some_and(|slot| self.slab[slot].state != State::Evicting);
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

    pub(crate) fn find_tag(&self, tag: DigestTag) -> Option<u32> {
        self.table
            .find(tag.as_u64(), |slot| DigestTag::from_digest(&self.slab[*slot].digest) == tag)
            .copied()
    }

    fn removable(&mut self, digest: &Digest) -> Result<u32, RemoveOutcome> {
        let Some(slot) = self.find(digest) else {
            self.policy.forget(hash(digest));
            return Err(RemoveOutcome::Absent);
        };
        match self.slab[slot] {
            Row { state: State::Evicting, .. } => Err(RemoveOutcome::Absent),
            Row { holds: 1.., .. } => Err(RemoveOutcome::Held),
            _ => Ok(slot),
        }
    }

    fn chunk_at(&self, slot: u32) -> Option<Chunk> {
        let row = (slot < self.slab.end()).then(|| &self.slab[slot])?;
        (row.state == State::Present).then(|| self.slab.chunk(slot))
    }
}

pub(crate) fn hash(digest: &Digest) -> u64 {
    DigestTag::from_digest(digest).as_u64()
}
