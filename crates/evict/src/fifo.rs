use crate::queue::{First, Queue, policy_of_queue};

/// First in, first out: hits change nothing. LMCache's FIFO.
#[derive(Clone, Debug)]
pub struct Fifo(Queue);

impl Fifo {
    /// An empty queue.
    pub fn new() -> Self {
        Fifo(Queue::new(First::Oldest))
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo::new()
    }
}

policy_of_queue!("fifo", Fifo, |_queue, _slot| ());
