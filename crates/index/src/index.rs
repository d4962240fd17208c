use hashbrown::HashTable;
use kvtier_evict::{EvictionHint, Policy};
use kvtier_key::Digest;

use crate::chains::Chains;
use crate::compat::CompatState;
use crate::config::Marks;
use crate::holds::Holds;
use crate::quota::Limits;
use crate::sets::Sets;
use crate::slab::{Row, Slab, State};
use crate::suspects::Suspects;
use crate::usage::UsageTotals;
use crate::{
    CHUNK_BYTES_LIMIT, Chunk, DigestTag, IndexConfig, IndexEntry, IndexUsage, InvalidConfig,
    Refusal, Reservation, TenantId, TenantTotals,
};

/// The most slots that one [`Index::keys_page`] looks at.
const PAGE_SCAN_MAX: u32 = 1 << 16;
/// So many keys are looked for at once where there are several.
const AT_ONCE: usize = 16;

/// Which chunks one tier has. See the crate's documentation for how a tier uses it.
#[derive(Debug)]
pub struct Index {
    pub(crate) marks: Marks,
    pub(crate) slab: Slab,
    /// Slots by the tag of their digest, which is uniform and therefore its own hash.
    table: HashTable<u32>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) totals: UsageTotals,
    pub(crate) holds: Holds,
    pub(crate) suspects: Suspects,
    pub(crate) chains: Chains,
    pub(crate) quotas: Limits,
    pub(crate) sets: Sets,
    /// The most members of sets that are not there.
    pub(crate) missing_max: usize,
    pub(crate) compat: CompatState,
}

/// Why an entry goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalCause {
    /// The policy gave it up.
    Evicted,
    /// It was removed, or vanished.
    Removed,
}

/// What an insert did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum InsertOutcome {
    /// The chunk was not known; this is its slot.
    New(u32),
    /// It was known, as `old`; it keeps its slot and its holds. If it was a victim, it is one no
    /// longer.
    Replaced {
        /// What was known before.
        old: Chunk,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// What a remove did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum RemoveOutcome {
    /// This entry goes.
    Gone(IndexEntry),
    /// A hold keeps it; nothing was changed.
    Held,
    /// It is not there, or already a victim.
    Absent,
}

/// Where the next page of keys begins; the default is the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SlotCursor(u32);

impl SlotCursor {
    /// The number behind it, to carry it through an interface of another kind.
    pub fn as_u32(self) -> u32 {
        self.0
    }

    /// The cursor of this number.
    pub fn from_u32(slot: u32) -> Self {
        SlotCursor(slot)
    }
}

/// Some of the chunks that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkPage {
    /// The chunks, in no order that means anything.
    pub chunks: Vec<Chunk>,
    /// Where to go on; `None` at the end. A page may be short, even empty, before the end.
    pub next: Option<SlotCursor>,
}

impl Index {
    /// An empty index that evicts by `policy`, which must be empty too.
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

    /// Makes the table large enough for `entries` more, so that no insert among them rehashes it.
    pub fn reserve_entries(&mut self, entries: usize) {
        let slab = &self.slab;
        self.table.reserve(entries, |slot| hash(&slab[*slot].digest));
    }

    /// Enters a chunk that lies on the medium (found there, or told by a journal), as the most
    /// recent. One that is known is replaced; where `chunk` knows no chain, the known one
    /// stays. Claims no room: see [`commit`](Self::commit).
    pub fn insert(&mut self, chunk: Chunk) -> InsertOutcome {
        if chunk.len.max(chunk.bytes) >= CHUNK_BYTES_LIMIT {
            return InsertOutcome::Refused(Refusal::TooLarge {
                bytes: chunk.len.max(chunk.bytes),
                bytes_max: CHUNK_BYTES_LIMIT - 1,
            });
        }
        match self.find(&chunk.digest) {
            Some(slot) => self.replace(slot, &chunk),
            None => self.add(&chunk),
        }
    }

    /// Corrects the payload's length and the cost in bytes of a chunk that is there. Its place in
    /// the order of use stays. `false` if it is not there, or on its way out, or longer than an
    /// index can say.
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

    /// Enters a chunk that was just written into the room that `reservation` claimed. It is no
    /// suspect any more. A chunk that costs more than was claimed is entered all the same: what
    /// lies there is counted.
    pub fn commit(&mut self, reservation: Reservation, chunk: Chunk) -> InsertOutcome {
        self.cancel(reservation);
        self.clear_suspect(&chunk.digest);
        self.insert(chunk)
    }

    /// The entry of `digest`; `None` (a miss) also when it is suspect, a victim on its way out, or
    /// of a [set](Self::declare_set) that is not whole.
    pub fn get(&self, digest: &Digest) -> Option<IndexEntry> {
        let slot = self.find(digest)?;
        let line = &self.slab[slot];
        (line.state == State::Present && !self.is_suspect(digest) && !self.is_hidden(digest))
            .then(|| self.slab.entry(slot))
    }

    /// The entry of a chunk that is there, be it suspect or hidden by its [set](Self::declare_set);
    /// `None` for a victim on its way out.
    pub fn known(&self, digest: &Digest) -> Option<IndexEntry> {
        self.slot(digest).map(|slot| self.slab.entry(slot))
    }

    /// Whether there is an entry of `digest`, be it suspect or on its way out.
    pub fn is_known(&self, digest: &Digest) -> bool {
        self.find(digest).is_some()
    }

    /// The slot of a chunk that is there, suspect or not; `None` also for a victim on its way out.
    pub fn slot(&self, digest: &Digest) -> Option<u32> {
        self.find(digest).filter(|slot| self.slab[*slot].state == State::Present)
    }

    /// Notes that a request used these chunks, given in the order of its chain: the first becomes
    /// the most recent and the deepest the least recent of them, so that tails are evicted
    /// before heads. Absent ones are passed over.
    pub fn touch_batch(&mut self, chain: &[Digest]) {
        match chain {
            [digest] => self.find(digest).into_iter().for_each(|slot| self.policy.touch(slot)),
            chain => {
                let slots = self.find_all(chain);
                self.policy.touch_request(&slots, chain.len() - slots.len());
            }
        }
    }

    /// Reads from memory what it takes to look these up, of several at once: one after the other,
    /// each lookup would wait for memory by itself.
    pub fn prefetch<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let mut digests = digests.into_iter();
        loop {
            let mut some = [0; AT_ONCE];
            let n = some
                .iter_mut()
                .zip(&mut digests)
                .map(|(slot, digest)| *slot = self.likely(digest))
                .count();
            core::hint::black_box(
                some[..n]
                    .iter()
                    .fold(0, |all, slot| all ^ self.slab.get(*slot).map_or(0, |line| line.holds)),
            );
            if n < AT_ONCE {
                return;
            }
        }
    }

    /// Tells the policy what the caller expects of these chunks, at this time. Absent ones are
    /// passed over.
    pub fn hint_batch(&mut self, now_ms: u64, chain: &[Digest], hint: &EvictionHint) {
        self.policy.set_time(now_ms);
        for slot in chain.iter().rev().filter_map(|digest| self.find(digest)).collect::<Vec<u32>>()
        {
            self.policy.hint(slot, hint);
        }
    }

    /// Removes a chunk that no hold keeps. It stops being counted at once: call it when the medium
    /// has deleted the chunk, or deletes it at once; else [`begin_evict`](Self::begin_evict).
    pub fn remove(&mut self, digest: &Digest) -> RemoveOutcome {
        match self.removable(digest) {
            Ok(slot) => RemoveOutcome::Gone(self.drop_entry(slot, RemovalCause::Removed)),
            Err(not) => not,
        }
    }

    /// Removes a chunk in two steps: it becomes a victim, a miss that is still counted, until
    /// [`finish_evict`](Self::finish_evict) or [`abort_evict`](Self::abort_evict) is called.
    pub fn begin_evict(&mut self, digest: &Digest) -> RemoveOutcome {
        match self.removable(digest) {
            Ok(slot) => RemoveOutcome::Gone(self.mark_evicting(slot)),
            Err(not) => not,
        }
    }

    /// Drops a chunk that vanished outside our sight, or was set aside as corrupt: even when it is
    /// held. Holds on it stay valid and hold nothing; saved again, it is not held by them.
    pub fn forget(&mut self, digest: &Digest) -> Option<IndexEntry> {
        self.find(digest).map(|slot| self.drop_entry(slot, RemovalCause::Removed))
    }

    /// Notes that the bytes of this key were found wrong: a miss until its next
    /// [`commit`](Self::commit). An entry of its stays, counted and evictable, for media that
    /// cannot set the bytes aside.
    pub fn mark_suspect(&mut self, digest: &Digest) {
        if let Some(forgotten) = self.suspects.insert(*digest) {
            self.sets.suspected(digest);
            forgotten.iter().for_each(|digest| self.sets.suspect_cleared(digest));
        }
    }

    /// The wrong bytes are out of the way: what is found under this key from now on was written
    /// since.
    pub fn clear_suspect(&mut self, digest: &Digest) {
        if self.suspects.remove(digest) {
            self.sets.suspect_cleared(digest);
        }
    }

    /// Whether the key's bytes were found wrong and not overwritten since.
    pub fn is_suspect(&self, digest: &Digest) -> bool {
        self.suspects.contains(digest)
    }

    /// What lies on the medium.
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

    /// What one tenant has on the medium.
    pub fn tenant_usage(&self, tenant: TenantId) -> TenantTotals {
        self.totals.tenants.get(&tenant).copied().unwrap_or_default()
    }

    /// Every tenant that has something on the medium, in no order.
    pub fn tenants(&self) -> impl ExactSizeIterator<Item = (TenantId, TenantTotals)> + '_ {
        self.totals.tenants.iter().map(|(tenant, usage)| (*tenant, *usage))
    }

    /// Up to `n` of the chunks that are there. Chunks that come or go between pages may be missed,
    /// none comes twice unless it went and came back.
    pub fn keys_page(&self, cursor: SlotCursor, n: usize) -> ChunkPage {
        let stop = cursor.0.saturating_add(PAGE_SCAN_MAX).min(self.slab.end());
        let (mut chunks, mut at) = (Vec::new(), cursor.0);
        while at < stop && chunks.len() < n {
            chunks.extend(self.chunk_at(at));
            at += 1;
        }
        ChunkPage { chunks, next: (at < self.slab.end()).then_some(SlotCursor(at)) }
    }

    /// All slots in the order of the policy, the next victim first, held ones last: with
    /// [`chunks_at`](Self::chunks_at) the way to a snapshot. Takes time and memory (4 bytes)
    /// for each.
    pub fn eviction_order(&mut self) -> Vec<u32> {
        self.policy.eviction_order()
    }

    /// The chunks that are in `slots` now, in their order; slots that are empty or on their way out
    /// are passed over. So a snapshot can be taken in pieces, with other calls in between.
    pub fn chunks_at<'a>(&'a self, slots: &'a [u32]) -> impl Iterator<Item = Chunk> + 'a {
        slots.iter().filter_map(|slot| self.chunk_at(*slot))
    }

    /// The heap memory held by entries, table and policy, in bytes; holds, suspects and tenants not
    /// counted.
    pub fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes() + self.table.allocation_size() + self.policy.memory_bytes()
    }

    /// How many chunks are there, or on their way out.
    pub(crate) fn entries(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<u32> {
        self.table.find(hash(digest), |slot| self.slab[*slot].digest == *digest).copied()
    }

    /// The slots of those that are there.
    fn find_all(&self, digests: &[Digest]) -> Vec<u32> {
        let mut slots = Vec::with_capacity(digests.len());
        for some in digests.chunks(AT_ONCE) {
            // First what the table says of all of them, then what the slots say, so that none waits
            // for another.
            let mut likely = [0; AT_ONCE];
            likely.iter_mut().zip(some).for_each(|(slot, digest)| *slot = self.likely(digest));
            let is_it = |slot: &u32, digest: &Digest| {
                self.slab.get(*slot).is_some_and(|line| line.digest == *digest)
            };
            let found =
                likely.iter().zip(some).filter_map(|(slot, digest)| match is_it(slot, digest) {
                    true => Some(*slot),
                    false => self.find(digest),
                });
            slots.extend(found);
        }
        slots
    }

    /// The slot that a key is most likely in, if it is there.
    fn likely(&self, digest: &Digest) -> u32 {
        self.table.find(hash(digest), |_| true).copied().unwrap_or(0)
    }

    /// Makes a present entry a victim.
    pub(crate) fn mark_evicting(&mut self, slot: u32) -> IndexEntry {
        self.slab[slot].state = State::Evicting;
        let entry = self.slab.entry(slot);
        self.count_evicting(entry.chunk.tenant, entry.chunk.bytes);
        self.policy.begin_evict(slot);
        self.sets.left(&entry.chunk.digest, entry.chunk.tenant);
        entry
    }

    /// Takes back a victim.
    pub(crate) fn unmark_evicting(&mut self, slot: u32) {
        self.slab[slot].state = State::Present;
        let Chunk { digest, bytes, tenant, .. } = self.slab.chunk(slot);
        self.uncount_evicting(tenant, bytes);
        self.policy.unpin(slot);
        self.sets.returned(&digest, tenant);
    }

    /// Takes an entry out of everything, remembered by the policy if that gave it up; its slot is
    /// free once no hold refers to it.
    pub(crate) fn drop_entry(&mut self, slot: u32, end: RemovalCause) -> IndexEntry {
        let (entry, state) = (self.slab.entry(slot), self.slab[slot].state);
        if state == State::Evicting {
            self.uncount_evicting(entry.chunk.tenant, entry.chunk.bytes);
        }
        self.uncount(&entry.chunk);
        // Who is on its way out has left its set already.
        if state == State::Present {
            self.sets.left(&entry.chunk.digest, entry.chunk.tenant);
        }
        self.sets.gone(&entry.chunk.digest);
        match end {
            RemovalCause::Evicted => self.policy.evict(slot, hash(&entry.chunk.digest)),
            RemovalCause::Removed => self.policy.remove(slot),
        }
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
        if let Some(child) = self.take_early(&chunk.digest)
            && self.slab[child].state == State::Present
        {
            self.notify_policy(child);
        }
        InsertOutcome::New(slot)
    }

    fn replace(&mut self, slot: u32, chunk: &Chunk) -> InsertOutcome {
        if self.slab[slot].state == State::Evicting {
            self.unmark_evicting(slot);
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
        // One that is leaving may be gone when the next save of it ends.
        let stays = parent.is_some_and(|slot| self.slab[slot].state != State::Evicting);
        if let (Some(before), false, false) = (chunk.parent, stays, self.policy.accepts_orphans()) {
            self.note_early(&chunk.digest, before);
        }
        let entry = kvtier_evict::SlotInfo::new(slot, chunk.bytes).with_chain(parent, chunk.depth);
        self.policy.insert(
            entry.with_tenant(self.slab[slot].tenant_number()).with_tag(hash(&chunk.digest)),
        );
    }

    /// The slot of a tenant that goes next; `None` also from policies that do not divide by tenant.
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
        let line = (slot < self.slab.end()).then(|| &self.slab[slot])?;
        (line.state == State::Present).then(|| self.slab.chunk(slot))
    }
}

pub(crate) fn hash(digest: &Digest) -> u64 {
    DigestTag::from_digest(digest).as_u64()
}
