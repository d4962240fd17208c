//! First in, first out.

use crate::slot_queue::{First, SlotQueue, policy_of_queue};

/// First in, first out: hits change nothing. LMCache's FIFO.
#[derive(Clone, Debug)]
pub struct Fifo(SlotQueue);

impl Fifo {
    /// An empty queue.
    pub fn new() -> Self {
        Fifo(SlotQueue::new(First::Oldest))
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo::new()
    }
}

policy_of_queue!("fifo", Fifo, |_queue, _slot| ());
