//! Most recently used first.

use crate::slot_queue::{First, SlotQueue, policy_of_queue};

/// Most recently used first. LMCache's MRU.
#[derive(Clone, Debug)]
pub struct Mru(SlotQueue);

impl Mru {
    /// An empty queue.
    pub fn new() -> Self {
        Mru(SlotQueue::new(First::Newest))
    }
}

impl Default for Mru {
    fn default() -> Self {
        Mru::new()
    }
}

policy_of_queue!("mru", Mru, |queue, slot| queue.renew(slot));
