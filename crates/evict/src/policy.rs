use alloc::vec::Vec;
use core::fmt::Debug;

/// Slots are numbered below this; the numbers above are the policies' own markers.
pub const SLOTS_MAX: u32 = u32::MAX - 16;

/// What a policy is told of one slot when it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// The slot's number, below [`SLOTS_MAX`].
    pub slot: u32,
    /// The slot of the chunk before this one in its prefix chain, where that is known and present.
    pub parent: Option<u32>,
    /// How many chunks lie before it in its chain; 0 for the first, or where the chain is unknown.
    pub depth: u32,
    /// What evicting it frees, in bytes.
    pub bytes: u64,
    /// What computing it again costs, in a unit of the caller's that is the same for all slots; 0
    /// = unknown.
    pub cost: u32,
    /// Whose it is: policies that divide by owner (per tenant, per salt) divide by this.
    pub tenant: u32,
    /// What the chunk is known by when it is not there: the head of its digest, say. Policies look
    /// it up among what they gave up; 0 = unknown, never remembered.
    pub tag: u64,
}

impl SlotInfo {
    /// An entry of `bytes` bytes in `slot`: no known parent, cost or owner.
    pub fn new(slot: u32, bytes: u64) -> Self {
        SlotInfo { slot, parent: None, depth: 0, bytes, cost: 0, tenant: 0, tag: 0 }
    }

    /// Sets its place in a prefix chain: the slot before it, if present, and how many chunks lie
    /// before it.
    pub fn with_chain(mut self, parent: Option<u32>, depth: u32) -> Self {
        (self.parent, self.depth) = (parent, depth);
        self
    }

    /// Sets what computing it again costs.
    pub fn with_cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets whose it is.
    pub fn with_tenant(mut self, group: u32) -> Self {
        self.tenant = group;
        self
    }

    /// Sets what it is known by after it is gone.
    pub fn with_tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }
}

/// What the caller expects of a chunk. Every field may be left as it is; a policy may ignore all of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EvictionHint {
    /// The conversation is over.
    pub session_ended: bool,
    /// In how many milliseconds from now the chunk will likely be asked for again.
    pub expected_return_ms: Option<u64>,
    /// Higher stays longer; 0 is normal.
    pub priority: i8,
    /// Keep it for at least so many milliseconds, then treat it as normal.
    pub retention_ms: Option<u64>,
}

impl EvictionHint {
    /// A hint that says nothing.
    pub fn new() -> Self {
        EvictionHint::default()
    }

    /// The conversation is over.
    pub fn with_session_ended(mut self) -> Self {
        self.session_ended = true;
        self
    }

    /// Sets in how many milliseconds the chunk will likely be asked for again.
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

/// Which slot goes next. Every call but [`eviction_order`](Policy::eviction_order) takes (amortised) constant time,
/// or the logarithm of a small number, whatever the number of slots and however many are pinned.
///
/// Slots that the policy does not track are ignored by all calls but `insert`.
pub trait Policy: Debug + Send {
    /// The name by which configurations choose it.
    fn name(&self) -> &'static str;

    /// Tracks a slot, as the most recent. A slot that is tracked already is inserted anew, with
    /// these facts; if it was pinned, it stays so. Panics where the slot is not below
    /// [`SLOTS_MAX`].
    fn insert(&mut self, entry: SlotInfo);

    /// Tracks a slot as [`insert`](Policy::insert) does, for a chunk whose bytes have yet to come;
    /// `insert` tells that they came, which is then no second use.
    fn reserve(&mut self, entry: SlotInfo) {
        self.insert(entry);
    }

    /// The slot was hit, alone.
    fn touch(&mut self, slot: u32);

    /// One request hit these slots, given in the order of their chain. Of them the first becomes
    /// the most recent and the deepest the least recent, so that tails go before heads.
    fn touch_chain(&mut self, chain: &[u32]) {
        chain.iter().rev().for_each(|slot| self.touch(*slot));
    }

    /// One request used these slots, as [`touch_chain`](Policy::touch_chain) has them, and `absent`
    /// further chunks after them that are not here: misses of a load, or chunks that were shed
    /// instead of saved.
    fn touch_request(&mut self, chain: &[u32], absent: usize) {
        let _ = absent;
        self.touch_chain(chain);
    }

    /// What the caller expects of a slot, from now on and until it is hit or hinted again.
    fn hint(&mut self, slot: u32, hint: &EvictionHint) {
        let _ = (slot, hint);
    }

    /// The time, in milliseconds of any clock that only goes forward; told as often as the caller
    /// knows it. Only hints are measured by it.
    fn set_time(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// The slot is gone for a reason of its own (deleted, corrupt, replaced); pinned or not. It is
    /// not remembered.
    fn remove(&mut self, slot: u32);

    /// The slot is gone because the policy gave it up. Policies with a memory remember `tag`, under
    /// which the chunk may come back as [`SlotInfo::tag`].
    fn evict(&mut self, slot: u32, tag: u64) {
        let _ = tag;
        self.remove(slot);
    }

    /// The chunk of this tag, which is not here, will not come back: it was deleted elsewhere.
    fn forget(&mut self, tag: u64) {
        let _ = tag;
    }

    /// From now on the slot is no victim, and no search for one passes over it twice. Pinning twice
    /// is pinning once.
    fn pin(&mut self, slot: u32);

    /// The slot was given up and is on its way out: pinned, and for what the policy counts already
    /// gone. Then it is evicted, or removed, or unpinned and there as before.
    fn begin_evict(&mut self, slot: u32) {
        self.pin(slot);
    }

    /// The slot is back in the running: where it was, or (LRU) as the most recent, since it was in
    /// use until now.
    fn unpin(&mut self, slot: u32);

    /// The slot that should go next. It stays tracked until it is removed; asked again at once, the
    /// answer is the same. `None` when every tracked slot is pinned, and always of a policy
    /// that gives nothing up.
    fn victim(&mut self) -> Option<u32>;

    /// The slot that should go so that a chunk can be saved whose chain's chunk before it is in
    /// `parent`. `None` also where the new chunk is not worth what it would displace: shed its
    /// save, and those of the rest of its chain.
    fn victim_for(&mut self, parent: Option<u32>) -> Option<u32> {
        let _ = parent;
        self.victim()
    }

    /// The chunk of this tag was asked to be saved and was shed: there was no victim for it, or the
    /// chunk before it in its chain is missing. A policy that learns from returns counts this
    /// one.
    fn shed(&mut self, tag: u64) {
        let _ = tag;
    }

    /// Whether a chunk may displace others although the chunk before it in its chain is missing, so
    /// that nothing can use it.
    fn accepts_orphans(&self) -> bool {
        true
    }

    /// Whether the slot can go before others without harm: nothing that stays is of no use without
    /// it, and nobody asked to keep it.
    fn is_evictable(&self, slot: u32) -> bool {
        let _ = slot;
        true
    }

    /// Whether [`tenant_victim`](Policy::tenant_victim) has an answer; [`PerTenant`](crate::PerTenant) gives one
    /// to the others.
    fn tracks_tenants(&self) -> bool {
        false
    }

    /// The slot of this owner that should go next; `None` from policies that do not divide by
    /// owner.
    fn tenant_victim(&mut self, group: u32) -> Option<u32> {
        let _ = group;
        None
    }

    /// How many slots are tracked, pinned ones included.
    fn len(&self) -> usize;

    /// Whether no slot is tracked.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tracked slots, the next victim first as far as that is known; the pinned ones come last,
    /// in no order. Takes time and memory in proportion to the number of slots: for snapshots
    /// and tests. Nobody sees that it changes anything: what was put off is done before.
    fn eviction_order(&mut self) -> Vec<u32>;

    /// The heap memory held, in bytes.
    fn memory_bytes(&self) -> usize;
}
