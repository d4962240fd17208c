//! What is remembered of slots that were given up.

use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::slots::{List, NIL, Slots};

/// Tags in the order they came, each once. The oldest is forgotten first.
#[derive(Clone, Debug)]
pub(crate) struct Ghosts {
    tags: Slots<u64>,
    list: List,
    vacant: Vec<u32>,
    by_tag: HashTable<u32>,
}

impl Ghosts {
    pub fn new() -> Self {
        Ghosts { tags: Slots::new(), list: List::EMPTY, vacant: Vec::new(), by_tag: HashTable::new() }
    }

    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Remembers a tag as the newest; 0 is nobody's tag.
    pub fn push(&mut self, tag: u64) {
        if tag == 0 {
            return;
        }
        self.remove(tag);
        let at = self.vacant.pop().unwrap_or(self.tags.len() as u32);
        self.tags.track(at, tag);
        self.tags.push_hottest(&mut self.list, at);
        let tags = &self.tags;
        self.by_tag.insert_unique(hash(tag), at, |at| hash(tags[*at]));
    }

    /// Forgets a tag; whether it was there.
    pub fn remove(&mut self, tag: u64) -> bool {
        let tags = &self.tags;
        let Ok(found) = self.by_tag.find_entry(hash(tag), |at| tags[*at] == tag) else { return false };
        let (at, _) = found.remove();
        self.tags.unlink(&mut self.list, at);
        self.tags.untrack(at);
        self.vacant.push(at);
        true
    }

    /// Forgets the oldest; whether there was one.
    pub fn pop(&mut self) -> bool {
        self.list.coldest != NIL && self.remove(self.tags[self.list.coldest])
    }

    pub fn memory_bytes(&self) -> usize {
        self.tags.memory_bytes() + self.vacant.capacity() * size_of::<u32>() + self.by_tag.allocation_size()
    }
}

/// Tags may be heads of digests or small numbers: this spreads both.
pub(crate) fn hash(tag: u64) -> u64 {
    let mixed = (tag ^ (tag >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first_and_none_is_there_twice() {
        let mut ghosts = Ghosts::new();
        [7, 8, 0, 9, 7].into_iter().for_each(|tag| ghosts.push(tag));
        assert_eq!(ghosts.len(), 3);
        assert!(ghosts.pop() && !ghosts.remove(8) && ghosts.remove(7));
        assert!(ghosts.pop() && !ghosts.pop());
        (1..3000).for_each(|tag| ghosts.push(tag));
        (1..3000).for_each(|tag| assert!(ghosts.remove(tag)));
        assert_eq!(ghosts.len(), 0);
    }
}
