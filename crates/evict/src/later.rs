//! Hits that have yet to move their slots.

/// How many hits wait at most.
const MOST: usize = 16;

/// The last hits of single slots, in their order. To move a slot is to wait for memory several times; several slots that are moved one
/// after the other, what they need read before, wait at the same time. So hits wait until there are some, or until anybody asks for the
/// order, or changes it in another way: nobody sees the difference.
#[derive(Clone, Debug)]
pub(crate) struct Later {
    slots: [u32; MOST],
    len: usize,
}

impl Later {
    pub const fn new() -> Self {
        Later { slots: [0; MOST], len: 0 }
    }

    /// Notes a hit. Answers whether no more can wait.
    pub fn push(&mut self, slot: u32) -> bool {
        self.slots[self.len] = slot;
        self.len += 1;
        self.len == MOST
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hits that waited, and how many of these they are; now none waits.
    pub fn take(&mut self) -> ([u32; MOST], usize) {
        (self.slots, core::mem::take(&mut self.len))
    }
}
