use crate::queue::{First, Queue, policy_of_queue};

/// LRU to the letter of LMCache: a slot that was pinned has the place it had, where
/// [`Lru`](crate::Lru) takes the end of a pin for a use.
#[derive(Clone, Debug)]
pub struct LruCompat(Queue);

impl LruCompat {
    /// An empty queue.
    pub fn new() -> Self {
        LruCompat(Queue::new(First::Oldest))
    }
}

impl Default for LruCompat {
    fn default() -> Self {
        LruCompat::new()
    }
}

policy_of_queue!("lru", LruCompat, |queue, slot| queue.renew(slot));
