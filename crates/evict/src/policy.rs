use alloc::vec::Vec;
use core::fmt::Debug;

/// Slots are numbered below this; the numbers above are the policies' own markers.
pub const SLOTS_MAX: u32 = u32::MAX - 16;

/// What a policy is told of one slot when it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The slot's number, below [`SLOTS_MAX`].
    pub slot: u32,
    /// The slot of the chunk before this one in its prefix chain, where that is known and present.
    pub parent: Option<u32>,
    /// How many chunks lie before it in its chain; 0 for the first, or where the chain is unknown.
    pub depth: u32,
    /// What evicting it frees, in bytes.
    pub bytes: u64,
    /// What computing it again costs, in a unit of the caller's that is the same for all slots; 0 = unknown.
    pub cost: u32,
    /// Whose it is: policies that divide by owner (per tenant, per salt) divide by this.
    pub group: u32,
}

impl Entry {
    /// An entry of `bytes` bytes in `slot`: no known parent, cost or owner.
    pub fn new(slot: u32, bytes: u64) -> Self {
        Entry { slot, parent: None, depth: 0, bytes, cost: 0, group: 0 }
    }

    /// Sets its place in a prefix chain: the slot before it, if present, and how many chunks lie before it.
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
    pub fn with_group(mut self, group: u32) -> Self {
        self.group = group;
        self
    }
}

/// Which slot goes next. Every call but [`order`](Policy::order) takes (amortised) constant time, whatever the number
/// of slots and however many are pinned.
///
/// Slots that the policy does not track are ignored by all calls but `insert`. A request touches its chunks from the
/// deepest to the first, so that tails go before heads: that order is the caller's to keep.
pub trait Policy: Debug + Send {
    /// The name by which configurations choose it.
    fn name(&self) -> &'static str;

    /// Tracks a slot, as the most recent. A slot that is tracked already is inserted anew, with these facts; if it
    /// was pinned, it stays so. Panics where the slot is not below [`SLOTS_MAX`].
    fn insert(&mut self, entry: Entry);

    /// The slot was hit.
    fn touch(&mut self, slot: u32);

    /// The slot is gone, for whatever reason; pinned or not.
    fn remove(&mut self, slot: u32);

    /// From now on the slot is no victim, and no search for one passes over it. Pinning twice is pinning once.
    fn pin(&mut self, slot: u32);

    /// The slot is back in the running, as the most recent.
    fn unpin(&mut self, slot: u32);

    /// The slot that should go next. It stays tracked, and stays the answer, until it is removed, pinned or touched.
    /// `None` when every tracked slot is pinned.
    fn victim(&mut self) -> Option<u32>;

    /// How many slots are tracked, pinned ones included.
    fn len(&self) -> usize;

    /// Whether no slot is tracked.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tracked slots, the next victim first; the pinned ones come last, in no order. Takes time and memory in
    /// proportion to the number of slots: for snapshots and tests.
    fn order(&self) -> Vec<u32>;

    /// The heap memory held, in bytes.
    fn memory_bytes(&self) -> usize;
}
