//! A small buffer of deferred updates.

/// The capacity of the buffer.
const CAPACITY: usize = 16;

/// Updates that are applied together: the last hits of single slots, or the last evictions, in
/// order. One update reads memory several times, each read waiting for the one before. Several
/// updates in a row wait at the same time, since their reads are issued first. The owner applies
/// them when the buffer is full, and before anything that depends on them, so the delay has no
/// visible effect.
#[derive(Clone, Debug)]
pub(crate) struct Deferred<T> {
    items: [T; CAPACITY],
    len: usize,
}

impl<T: Copy + Default> Deferred<T> {
    pub fn new() -> Self {
        Deferred { items: [T::default(); CAPACITY], len: 0 }
    }

    /// Appends an update. Returns whether the buffer is full.
    pub fn push(&mut self, item: T) -> bool {
        self.items[self.len] = item;
        self.len += 1;
        self.len == CAPACITY
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The updates and their number; the buffer is empty then.
    pub fn take(&mut self) -> ([T; CAPACITY], usize) {
        // A copy, since applying the updates borrows the owner of this buffer.
        (self.items, core::mem::take(&mut self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_full_at_its_capacity_and_empty_once_taken() {
        let mut updates = Deferred::new();
        for _ in 0..2 {
            assert!(updates.is_empty());
            let full: alloc::vec::Vec<bool> = (1..=16).map(|item| updates.push(item)).collect();
            assert_eq!(full.iter().position(|full| *full), Some(15));
            assert!(!updates.is_empty());
            assert_eq!(updates.take(), (core::array::from_fn(|at| at as u32 + 1), 16));
        }
    }
}
