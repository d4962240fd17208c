//! The trait of all policies, and the facts and hints of slots that callers pass.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::time::Duration;

/// Slots are numbered below this. Policies use the numbers above as markers.
pub const SLOTS_MAX: u32 = u32::MAX - 16;

/// The facts about a slot that a policy gets when the slot is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// The slot's number, below [`SLOTS_MAX`].
    pub slot: u32,
    /// The slot of the previous chunk in the prefix chain, if that is known and present.
    pub parent: Option<u32>,
    /// The number of chunks before it in its chain; 0 for the first, or if the chain is unknown.
    pub depth: u32,
    /// The bytes that its eviction frees.
    pub bytes: u64,
    /// The cost of computing it again, in any unit that is the same for all slots; 0 = unknown.
    pub cost: u32,
    /// Its tenant, for policies that divide by tenant (cache salt).
    pub tenant: u32,
    /// Identifies the chunk while it is absent: the head of its digest, say. Policies look it up
    /// among the evicted chunks; 0 = unknown, never remembered.
    pub tag: u64,
}

impl SlotInfo {
    /// A slot of `bytes` bytes: no known parent, cost or tenant.
    pub fn new(slot: u32, bytes: u64) -> Self {
        SlotInfo { slot, parent: None, depth: 0, bytes, cost: 0, tenant: 0, tag: 0 }
    }

    /// Sets its position in a prefix chain: the previous slot, if present, and the number of chunks
    /// before it.
    pub fn with_chain(mut self, parent: Option<u32>, depth: u32) -> Self {
        (self.parent, self.depth) = (parent, depth);
        self
    }

    /// Sets the cost of computing it again.
    pub fn with_cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets its tenant.
    pub fn with_tenant(mut self, group: u32) -> Self {
        self.tenant = group;
        self
    }

    /// Sets the tag that identifies it after its eviction.
    pub fn with_tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }
}

/// What the caller expects of a chunk. All fields are optional; a policy may ignore them.
///
/// ```
/// use kvtier_evict::EvictionHint;
///
/// // The user is typing: the conversation returns within half a minute.
/// let soon = EvictionHint::new().with_expected_return_ms(30_000);
/// let over = EvictionHint::new().with_session_ended();
/// assert_ne!(soon, over);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EvictionHint {
    /// The conversation has ended.
    pub session_ended: bool,
    /// In how many milliseconds from now the chunk is probably requested again.
    pub expected_return_ms: Option<u64>,
    /// Chunks of a higher priority stay longer; 0 is normal.
    pub priority: i8,
    /// For how many milliseconds to keep it at least. After that it is treated as normal.
    pub retention_ms: Option<u64>,
}

impl EvictionHint {
    /// A hint without content.
    pub fn new() -> Self {
        EvictionHint::default()
    }

    /// The hint of a caller who counts in durations. Times beyond the range of milliseconds are the
    /// longest.
    pub fn from_durations(
        session_ended: bool,
        priority: i8,
        expected_return: Option<Duration>,
        retention: Option<Duration>,
    ) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        EvictionHint {
            session_ended,
            expected_return_ms: expected_return.map(ms),
            priority,
            retention_ms: retention.map(ms),
        }
    }

    /// Says that the conversation has ended.
    pub fn with_session_ended(mut self) -> Self {
        self.session_ended = true;
        self
    }

    /// Sets in how many milliseconds the chunk is probably requested again.
    pub fn with_expected_return_ms(mut self, ms: u64) -> Self {
        self.expected_return_ms = Some(ms);
        self
    }

    /// Sets the priority: higher stays longer, 0 is normal.
    pub fn with_priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets for how many milliseconds to keep it at least.
    pub fn with_retention_ms(mut self, ms: u64) -> Self {
        self.retention_ms = Some(ms);
        self
    }
}

/// Decides which slot to evict next. Every call but [`eviction_order`](Policy::eviction_order)
/// takes amortised constant time, or the logarithm of a small number, whatever the number of slots
/// and of pinned slots.
///
/// All calls but `insert` and `reserve` ignore slots that the policy does not track.
pub trait Policy: Debug + Send {
    /// Its name in configurations.
    fn name(&self) -> &'static str;

    /// Tracks a slot as the most recent. A tracked slot is inserted again, with these facts, and
    /// stays pinned if it was.
    ///
    /// # Panics
    ///
    /// If the slot is not below [`SLOTS_MAX`].
    fn insert(&mut self, entry: SlotInfo);

    /// Tracks a slot like [`insert`](Policy::insert), for a chunk whose bytes are still being
    /// written. The `insert` that follows completes it and is no second use.
    fn reserve(&mut self, entry: SlotInfo) {
        self.insert(entry);
    }

    /// One slot was hit.
    fn touch(&mut self, slot: u32);

    /// One request hit these slots, in the order of their chain. The first becomes the most recent
    /// and the deepest the least recent of them, so that tails are evicted before heads.
    fn touch_chain(&mut self, chain: &[u32]) {
        // From the deepest: what is touched last is evicted last.
        chain.iter().rev().for_each(|slot| self.touch(*slot));
    }

    /// Like [`touch_chain`](Policy::touch_chain), for a request that also used `absent` chunks
    /// after these: misses of a load, or chunks that were shed instead of saved.
    fn touch_request(&mut self, chain: &[u32], absent: usize) {
        let _ = absent;
        self.touch_chain(chain);
    }

    /// Sets what the caller expects of a slot, until it is hit or hinted again.
    fn hint(&mut self, slot: u32, hint: &EvictionHint) {
        let _ = (slot, hint);
    }

    /// Sets the time, in milliseconds of any monotonic clock. Call it as often as the time is
    /// known. Only hints depend on it.
    fn set_time(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// The slot is gone for another reason than eviction: deleted, corrupt or replaced; pinned or
    /// not. The policy does not remember it.
    fn remove(&mut self, slot: u32);

    /// The slot is gone because the policy chose it. Policies with a memory remember `tag`, the
    /// chunk's [`SlotInfo::tag`] if it returns.
    fn evict(&mut self, slot: u32, tag: u64) {
        let _ = tag;
        self.remove(slot);
    }

    /// The absent chunk of this tag will not return: it was deleted elsewhere.
    fn forget(&mut self, tag: u64) {
        let _ = tag;
    }

    /// Excludes the slot from victims. A search passes over it at most once. Pinning twice is
    /// pinning once.
    fn pin(&mut self, slot: u32);

    /// The slot is being evicted: pinned, and already gone for what the policy counts. Next it is
    /// evicted, removed, or unpinned and present as before.
    fn begin_evict(&mut self, slot: u32) {
        self.pin(slot);
    }

    /// The slot may be a victim again: at its former position, or (LRU) as the most recent, since
    /// it was in use until now.
    fn unpin(&mut self, slot: u32);

    /// The slot to evict next. It stays tracked until it is removed; an immediate second call
    /// returns the same slot. `None` if every tracked slot is pinned, and always from a policy that
    /// never evicts.
    fn victim(&mut self) -> Option<u32>;

    /// The slot to evict for a new chunk whose predecessor in its chain is in `parent`. `None` also
    /// if the new chunk is worth less than what it would displace: shed its save, and those of the
    /// rest of its chain.
    fn victim_for(&mut self, parent: Option<u32>) -> Option<u32> {
        let _ = parent;
        self.victim()
    }

    /// A save of the chunk of this tag was shed: there was no victim for it, or its predecessor in
    /// the chain is missing. A policy that learns from returns counts this one.
    fn shed(&mut self, tag: u64) {
        let _ = tag;
    }

    /// Whether a chunk may displace others although its predecessor in the chain is missing, so
    /// that no request can use it.
    fn accepts_orphans(&self) -> bool {
        true
    }

    /// Whether the slot can be evicted early without harm: nothing that stays depends on it, and
    /// the caller did not ask to keep it.
    fn is_evictable(&self, slot: u32) -> bool {
        let _ = slot;
        true
    }

    /// Whether [`tenant_victim`](Policy::tenant_victim) has an answer.
    /// [`PerTenant`](crate::PerTenant) gives other policies one.
    fn tracks_tenants(&self) -> bool {
        false
    }

    /// The slot of this tenant to evict next; `None` from policies that do not divide by tenant.
    fn tenant_victim(&mut self, group: u32) -> Option<u32> {
        let _ = group;
        None
    }

    /// The number of tracked slots, pinned ones included.
    fn len(&self) -> usize;

    /// Whether no slot is tracked.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tracked slots, the next victim first as far as that is known; pinned ones last, in no
    /// order. Takes time and memory in proportion to the number of slots: for snapshots and tests.
    /// It applies deferred hits, which has no visible effect.
    fn eviction_order(&mut self) -> Vec<u32>;

    /// The heap memory in use, in bytes.
    fn memory_bytes(&self) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lru;

    #[test]
    fn a_hint_has_what_it_was_built_of() {
        let hint = EvictionHint::new().with_expected_return_ms(5).with_priority(-3);
        let hint = hint.with_retention_ms(7).with_session_ended();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(hint, EvictionHint::from_durations(true, -3, ms(5), ms(7)));
        let hint = EvictionHint::new().with_session_ended().with_expected_return_ms(5);
        assert_eq!(hint, EvictionHint::from_durations(true, 0, ms(5), None));
    }

    #[test]
    fn the_victim_for_a_new_chunk_is_the_next_one_whatever_its_parent() {
        let mut policy = Lru::new();
        [2, 3].into_iter().for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
        assert_eq!([None, Some(2), Some(3)].map(|parent| policy.victim_for(parent)), [Some(2); 3]);
    }

    #[test]
    fn what_a_policy_leaves_open_has_the_plainest_answer() {
        let mut policy = Lru::new();
        assert!(policy.is_empty());
        policy.insert(SlotInfo::new(2, 1));
        assert!(!policy.is_empty() && policy.is_evictable(2) && policy.accepts_orphans());
        assert_eq!((policy.tracks_tenants(), policy.tenant_victim(0)), (false, None));
    }
}
