//! Atomic sets: chunks that are all hits or all misses, say keys, values and sidecars of the same
//! tokens.
//!
//! A set is declared before its saves begin. Its members are misses until the last of them is
//! committed. When a member of a complete set is evicted, removed or found corrupt, the others
//! become misses at once, and are *leftovers*: they are evicted before any other chunk. A set whose
//! saves have ended without completing it is left over too.
//!
//! Counters in each [`Set`] (present, evicting, suspect) make `hides` a constant-time check; every
//! change of a chunk's state updates them. The search for leftovers is in
//! [`set_leftovers`](super::set_leftovers).

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use kvtier_key::Digest;

use crate::index::set_leftovers::SetLeftovers;
use crate::slab::{SlotRow, SlotState};
use crate::{Index, TenantId};

/// A set whose chunks are being saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetId(u64);

/// Too many members of sets are absent. Nothing was declared, so the chunks, if saved, might become
/// visible one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SetsFull {
    /// The absent members of sets.
    pub missing: usize,
}

impl fmt::Display for SetsFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing;
        write!(
            f,
            "{missing} chunks of sets are not there, and no more can be: wait for saves, or save chunks one by one"
        )
    }
}

impl std::error::Error for SetsFull {}

/// The declared sets, and how complete they are.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    of: HashMap<Digest, u64>,
    all: HashMap<u64, Set>,
    /// The number of absent members. The index bounds all other memory of this struct.
    missing: usize,
    next: u64,
    pub leftovers: SetLeftovers,
}

#[derive(Debug)]
struct Set {
    members: Arc<[Digest]>,
    /// The tenant of the latest member; mostly they have one tenant.
    tenant: TenantId,
    /// Members that are present and no victims.
    there: usize,
    /// Members that are victims.
    going: usize,
    /// Members, present or not, that are corrupt and not written again.
    suspects: usize,
    /// Batches of saves of it that have not ended.
    saving: usize,
    /// Whether all members were present once.
    was_whole: bool,
}

impl Set {
    /// Whether all members are present.
    fn is_whole(&self) -> bool {
        self.there == self.members.len()
    }

    /// Whether its present members are leftovers: a set that is being saved may still become
    /// complete.
    fn has_leftovers(&self) -> bool {
        self.saving == 0 && !self.is_whole()
    }

    /// The number of members without an entry.
    fn missing(&self) -> usize {
        self.members.len().saturating_sub(self.there + self.going)
    }
}

// Why the counters stay right: every change of a chunk's state in the index calls exactly one of
// the methods below, and each goes through `change`, which keeps `missing` in step.
//
// - absent to present: `entered`; present to victim: `left`; victim to present: `returned`, which
//   is `going - 1` and then `entered`.
// - victim to absent: `gone`. Present to absent, as for a chunk that vanished: `left` and then
//   `gone`.
// - a suspect is counted apart from that, because a chunk can be corrupt and present at once.
impl Sets {
    /// Whether no set is declared.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn set(&self, digest: &Digest) -> Option<&Set> {
        self.of.get(digest).and_then(|id| self.all.get(id))
    }

    /// Changes the set of a chunk; returns the set's number.
    fn change(&mut self, digest: &Digest, change: impl FnOnce(&mut Set)) -> Option<u64> {
        let id = *self.of.get(digest)?;
        let set = self.all.get_mut(&id)?;
        self.missing -= set.missing();
        change(set);
        self.missing += set.missing();
        Some(id)
    }

    /// Whether a chunk is a miss although it is present, because another member of its set is
    /// absent or corrupt. A chunk that was held when its set was declared stays a hit while members
    /// are merely not saved yet.
    pub fn hides(&self, digest: &Digest, is_held: impl FnOnce() -> bool) -> bool {
        self.set(digest).is_some_and(|set| {
            // A corrupt member hides the others even while they are held: the set can never be
            // loaded as a whole.
            set.suspects > 0 || (!set.is_whole() && (set.was_whole || !is_held()))
        })
    }

    /// A chunk is corrupt.
    pub fn suspected(&mut self, digest: &Digest) {
        self.change(digest, |set| set.suspects += 1);
    }

    /// A chunk is no longer suspect.
    pub fn suspect_cleared(&mut self, digest: &Digest) {
        self.change(digest, |set| set.suspects -= 1);
    }

    /// A chunk of this tenant was entered.
    pub fn entered(&mut self, digest: &Digest, tenant: TenantId) {
        let came = self.change(digest, |set| {
            set.tenant = tenant;
            set.there = (set.there + 1).min(set.members.len());
            set.was_whole |= set.is_whole();
        });
        // The new chunk may be in front of the position that the search has reached.
        came.into_iter().for_each(|id| self.leftovers.rewind(tenant, id));
    }

    /// A chunk of this tenant became a victim: its set has leftovers.
    pub fn left(&mut self, digest: &Digest, tenant: TenantId) {
        let mut was_whole = false;
        let changed = self.change(digest, |set| {
            was_whole = set.is_whole();
            set.there = set.there.saturating_sub(1);
            set.going += 1;
        });
        // Only the first loss makes leftovers; for further ones the entry exists already.
        changed.filter(|_| was_whole).into_iter().for_each(|id| self.leftovers.add(tenant, id));
    }

    /// The last hold on a chunk of this tenant ended; if it is a leftover, it is evicted first.
    pub fn released(&mut self, digest: &Digest, tenant: TenantId) {
        let Some(id) = self.of.get(digest) else { return };
        if self.all.get(id).is_some_and(Set::has_leftovers) {
            self.leftovers.add(tenant, *id);
        }
    }

    /// A victim of this tenant is present again.
    pub fn returned(&mut self, digest: &Digest, tenant: TenantId) {
        if let Some(id) = self.change(digest, |set| set.going = set.going.saturating_sub(1)) {
            // It may never go: what is left of the set goes when it is its turn.
            self.leftovers.remove(tenant, id);
        }
        self.entered(digest, tenant);
    }

    /// A victim was deleted.
    pub fn gone(&mut self, digest: &Digest) {
        if let Some(id) = self.change(digest, |set| set.going = set.going.saturating_sub(1)) {
            self.forget_if_over(id);
        }
    }

    /// The members of a set that has leftovers; none for any other.
    pub fn leftover_members(&self, id: u64) -> Arc<[Digest]> {
        let set = self.all.get(&id).filter(|set| set.has_leftovers());
        set.map_or_else(|| [].into(), |set| Arc::clone(&set.members))
    }

    /// Removes a set without present members and without saves.
    fn forget_if_over(&mut self, id: u64) {
        if self.all.get(&id).is_some_and(|set| (set.there, set.going, set.saving) == (0, 0, 0)) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(set) = self.all.remove(&id) {
            self.missing -= set.missing();
            set.members.iter().for_each(|member| {
                self.of.remove(member);
            });
            self.leftovers.remove(set.tenant, id);
        }
    }
}

impl Index {
    /// Declares that these chunks, which are about to be saved, form an atomic set. They are misses
    /// until the last of them is committed. They are misses again when the first of them is gone,
    /// and the others are then evicted before any other chunk. A chunk that is held meanwhile stays
    /// a hit until it is released. Call [`end_set`](Self::end_set) when the saves have ended, in
    /// whatever way. `None` for fewer than two chunks. Sets do not outlive the index.
    ///
    /// ```
    /// # use kvtier_evict::PolicyKind;
    /// # use kvtier_index::{Chunk, Index, IndexConfig};
    /// # use kvtier_key::Digest;
    /// let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build())?;
    /// let keys = [1u8, 2].map(|n| Digest::derive("example", &[n]));
    /// let set = index.declare_set(&keys)?.expect("two chunks");
    /// let _ = index.insert(Chunk::new(keys[0], 4000, 4096));
    /// assert!(index.get(&keys[0]).is_none(), "the second is missing");
    /// let _ = index.insert(Chunk::new(keys[1], 4000, 4096));
    /// assert!(index.get(&keys[0]).is_some() && index.get(&keys[1]).is_some());
    /// index.end_set(set);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When too many members of sets are [absent](crate::IndexConfig::missing_max).
    pub fn declare_set(&mut self, members: &[Digest]) -> Result<Option<SetId>, SetsFull> {
        let mut distinct: Vec<Digest> = members.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < 2 {
            return Ok(None);
        }
        if let Some(id) = self.sets.of.get(&distinct[0]).copied()
            && let Some(set) = self.sets.all.get_mut(&id)
            // The same set again, by a second save of the same chunks: one more batch that may
            // complete it.
            && *set.members == *distinct
        {
            set.saving += 1;
            return Ok(Some(SetId(id)));
        }
        let known: Vec<&SlotRow> = distinct
            .iter()
            .filter_map(|member| self.find(member))
            .map(|slot| &self.slab[slot])
            .collect();
        let tenant = known.last().map_or(TenantId::NONE, |line| self.slab.tenant(line));
        let there = known.iter().filter(|line| line.state == SlotState::Present).count();
        let going = known.len() - there;
        let was_whole = there == distinct.len();
        let suspects = self.suspects.count(&distinct);
        let set =
            Set { members: distinct.into(), tenant, there, going, suspects, saving: 1, was_whole };
        self.add_set(set).map(|id| Some(SetId(id)))
    }

    /// Adds a set, which replaces those that share members with it.
    fn add_set(&mut self, set: Set) -> Result<u64, SetsFull> {
        let sets = &self.sets;
        let others: BTreeSet<u64> =
            set.members.iter().filter_map(|member| sets.of.get(member)).copied().collect();
        let freed: usize = others.iter().filter_map(|id| sets.all.get(id)).map(Set::missing).sum();
        // Absent members have no entry that would bound them, so they are bounded here. An index
        // with many entries may have as many absent members.
        if sets.missing - freed + set.missing() > self.missing_max.max(self.entries()) {
            return Err(SetsFull { missing: sets.missing });
        }
        let sets = &mut self.sets;
        // A chunk is in one set at most. The newer declaration wins, since its saves are under way.
        others.into_iter().for_each(|id| sets.forget(id));
        let id = sets.next;
        sets.next += 1;
        sets.missing += set.missing();
        sets.of.extend(set.members.iter().map(|member| (*member, id)));
        sets.all.insert(id, set);
        Ok(id)
    }

    /// A batch of saves of a declared set has ended. With the last batch, the chunks of an
    /// incomplete set become leftovers.
    pub fn end_set(&mut self, id: SetId) {
        let Some(set) = self.sets.all.get_mut(&id.0) else { return };
        set.saving -= 1;
        if set.has_leftovers() {
            self.sets.leftovers.add(set.tenant, id.0);
            self.sets.forget_if_over(id.0);
        }
    }

    /// All members of a chunk's set, itself included; `None` for a chunk without a set.
    pub fn set_of(&self, digest: &Digest) -> Option<Arc<[Digest]>> {
        self.sets.set(digest).map(|set| Arc::clone(&set.members))
    }

    /// Whether a chunk is a miss, even if it is present, because another member of its
    /// [set](Self::declare_set) is absent or corrupt.
    pub fn is_hidden(&self, digest: &Digest) -> bool {
        self.sets.hides(digest, || self.is_held(digest))
    }

    /// The slots of all members of the sets of these slots, themselves included.
    pub(crate) fn with_their_sets(&self, mut slots: Vec<u32>) -> Vec<u32> {
        if self.sets.is_empty() {
            return slots;
        }
        let mut seen: HashSet<u32> = slots.iter().copied().collect();
        let sets: BTreeSet<u64> = slots
            .iter()
            .filter_map(|slot| self.sets.of.get(&self.slab[*slot].digest))
            .copied()
            .collect();
        for mate in
            sets.iter().filter_map(|id| self.sets.all.get(id)).flat_map(|set| set.members.iter())
        {
            if let Some(slot) = self.find(mate)
                && self.slab[slot].state == SlotState::Present
                && seen.insert(slot)
            {
                slots.push(slot);
            }
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;

    use super::*;
    use crate::{Chunk, IndexConfig};

    #[test]
    fn a_held_chunk_of_a_set_that_was_whole_is_hidden_with_its_first_loss() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let keys = [1, 2].map(|n| Digest([n; 32]));
        let _ = index.insert(Chunk::new(keys[0], 1, 1));
        let _ = index.hold(&keys[..1], 60_000).unwrap();
        let _ = index.declare_set(&keys).unwrap();
        assert!(!index.is_hidden(&keys[0]), "the other is merely not saved yet");
        let _ = index.insert(Chunk::new(keys[1], 1, 1));
        assert!(!index.is_hidden(&keys[0]));
        let _ = index.remove(&keys[1]);
        assert!(index.is_hidden(&keys[0]));
    }

    #[test]
    fn members_that_are_there_or_going_are_not_missing_from_a_new_set() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let keys = [1, 2, 3, 4, 5, 6].map(|n| Digest([n; 32]));
        for digest in &keys[..3] {
            let _ = index.insert(Chunk::new(*digest, 1, 1));
        }
        let _ = index.begin_evict(&keys[2]);
        let _ = index.declare_set(&keys).unwrap();
        let set = index.sets.set(&keys[0]).unwrap();
        assert_eq!((set.there, set.going, index.sets.missing), (2, 1, 3));
    }
}
