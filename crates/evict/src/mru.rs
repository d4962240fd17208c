use crate::queue::{First, Queue, policy_of_queue};

/// Most recently used first. LMCache's MRU.
#[derive(Clone, Debug)]
pub struct Mru(Queue);

impl Mru {
    /// An empty queue.
    pub fn new() -> Self {
        Mru(Queue::new(First::Newest))
    }
}

impl Default for Mru {
    fn default() -> Self {
        Mru::new()
    }
}

policy_of_queue!("mru", Mru, |queue, slot| queue.renew(slot));
