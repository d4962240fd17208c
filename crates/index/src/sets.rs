//! Chunks that are there together or not at all: keys, values and sidecars of one stretch of tokens, say.

use hashbrown::HashMap;
use kvtier_key::Digest;

use crate::slab::State;
use crate::{Entry, Index};

/// The most chunks that are members of sets.
const MEMBERS_MAX: usize = 1 << 20;

/// What was declared, and how much of it is there.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    of: HashMap<Digest, u32>,
    all: HashMap<u32, Set>,
    next: u32,
    /// Members of sets that are not whole any more: they go first.
    leftovers: Vec<Digest>,
}

#[derive(Debug)]
struct Set {
    members: Box<[Digest]>,
    /// How many of them are there, and not on their way out.
    there: usize,
}

impl Sets {
    /// Whether a chunk that is there is a miss all the same, because another of its set is not.
    pub fn hides(&self, digest: &Digest) -> bool {
        let set = self.of.get(digest).and_then(|id| self.all.get(id));
        set.is_some_and(|set| set.there < set.members.len())
    }

    /// A chunk came, or is back.
    pub fn entered(&mut self, digest: &Digest) {
        if let Some(set) = self.of.get(digest).and_then(|id| self.all.get_mut(id)) {
            set.there = (set.there + 1).min(set.members.len());
        }
    }

    /// A chunk went, or is on its way out: what is left of its set goes too.
    pub fn left(&mut self, digest: &Digest) {
        let Some(set) = self.of.get(digest).and_then(|id| self.all.get_mut(id)) else { return };
        let was_whole = set.there == set.members.len();
        set.there = set.there.saturating_sub(1);
        if was_whole {
            self.leftovers.extend(set.members.iter().filter(|member| *member != digest));
        }
        if set.there == 0 {
            self.forget(digest);
        }
    }

    fn forget(&mut self, digest: &Digest) {
        if let Some(set) = self.of.remove(digest).and_then(|id| self.all.remove(&id)) {
            set.members.iter().for_each(|member| {
                self.of.remove(member);
            });
        }
    }

    fn members(&self, digest: &Digest) -> &[Digest] {
        self.of.get(digest).and_then(|id| self.all.get(id)).map_or(&[], |set| &set.members)
    }
}

impl Index {
    /// Declares that these chunks, which are about to be saved, are there together or not at all: misses until the last of them is
    /// committed, and again when the first of them goes; then the others go too, before anything else does. `false`, and nothing is declared,
    /// when there are too many sets. Sets do not outlive the index.
    pub fn declare_set(&mut self, members: &[Digest]) -> bool {
        let mut distinct: Vec<Digest> = members.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < 2 {
            return true;
        }
        if self.sets.of.len() + distinct.len() > MEMBERS_MAX {
            return false;
        }
        if self.sets.members(&distinct[0]) == &*distinct {
            return true;
        }
        distinct.iter().for_each(|member| self.sets.forget(member));
        let is_there = |member: &&Digest| self.find(member).is_some_and(|slot| self.slab[slot].state == State::Present);
        let there = distinct.iter().filter(is_there).count();
        let id = self.sets.next;
        self.sets.next = id.wrapping_add(1);
        distinct.iter().for_each(|member| {
            self.sets.of.insert(*member, id);
        });
        self.sets.all.insert(id, Set { members: distinct.into(), there });
        true
    }

    /// The saves of a declared set have ended. What is there of one that is not whole goes.
    pub fn end_set(&mut self, members: &[Digest]) {
        let Some(first) = members.first().filter(|first| self.sets.hides(first)) else { return };
        let members = self.sets.members(first).to_vec();
        self.sets.leftovers.extend_from_slice(&members);
        if members.iter().all(|member| self.find(member).is_none()) {
            self.sets.forget(first);
        }
    }

    /// The slots of all that is in a set with one of these.
    pub(crate) fn with_their_sets(&self, mut slots: Vec<u32>) -> Vec<u32> {
        if self.sets.all.is_empty() {
            return slots;
        }
        let mates = |slot: &u32| self.sets.members(&self.slab[*slot].digest).iter().filter_map(|mate| self.find(mate));
        let more: Vec<u32> = slots.iter().flat_map(mates).collect();
        for slot in more {
            if self.slab[slot].state == State::Present && !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }

    /// The next of what is left of sets that are not whole any more.
    pub(crate) fn leftover(&mut self) -> Option<Entry> {
        while let Some(digest) = self.sets.leftovers.pop() {
            let slot = self.find(&digest).filter(|_| self.sets.hides(&digest));
            if let Some(slot) =
                slot.filter(|slot| self.slab[*slot].state == State::Present && self.slab[*slot].holds == 0)
            {
                return Some(self.start_leaving(slot));
            }
        }
        None
    }
}
