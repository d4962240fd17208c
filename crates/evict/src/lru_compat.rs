//! LRU as LMCache has it: a pinned slot keeps its position.

use crate::slot_queue::{First, SlotQueue, policy_of_queue};

/// LRU with exactly LMCache's decisions: a slot that was pinned keeps its position. In
/// [`Lru`](crate::Lru) the end of a pin counts as a use.
#[derive(Clone, Debug)]
pub struct LruCompat(SlotQueue);

impl LruCompat {
    /// An empty queue.
    pub fn new() -> Self {
        LruCompat(SlotQueue::new(First::Oldest))
    }
}

impl Default for LruCompat {
    fn default() -> Self {
        LruCompat::new()
    }
}

policy_of_queue!("lru", LruCompat, |queue, slot| queue.renew(slot));
