use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Slots of one size: a stack of free numbers that threads pop and push without a lock.
///
/// The head is [count of pops 32 | top + 1, or 0]: the count makes a head that was popped and
/// pushed again in between (the ABA problem) a different one.
#[derive(Debug)]
pub(crate) struct SlotAllocator {
    head: AtomicU64,
    /// For a free slot, the number below it in the stack + 1, or 0.
    below: Box<[AtomicU32]>,
    free: AtomicU32,
    slot: u32,
}

impl SlotAllocator {
    /// `slots` slots of `slot` pages each, all free.
    pub fn new(slots: u32, slot: u32) -> Self {
        let below =
            (0..slots).map(|n| AtomicU32::new(if n + 1 < slots { n + 2 } else { 0 })).collect();
        SlotAllocator {
            head: AtomicU64::new(u64::from(slots > 0)),
            below,
            free: AtomicU32::new(slots),
            slot,
        }
    }

    /// Pages of a slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// How many slots are free; exact without concurrent calls.
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes a slot.
    pub fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = (head as u32).checked_sub(1)?;
            let below = self.below[top as usize].load(Ordering::Relaxed);
            let next = (((head >> 32) + 1) << 32) | u64::from(below);
            // Acquire: what the giver wrote to `below` before its release of the head is seen, and
            // the slot's memory too.
            match self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.free.fetch_sub(1, Ordering::Relaxed);
                    return Some(top);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Gives a slot back.
    pub fn give(&self, slot: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        // Before it can be taken again, so that the count never falls below 0.
        self.free.fetch_add(1, Ordering::Relaxed);
        loop {
            self.below[slot as usize].store(head as u32, Ordering::Relaxed);
            let next = (head >> 32 << 32) | u64::from(slot + 1);
            match self.head.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
