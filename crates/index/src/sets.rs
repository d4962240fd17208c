//! Chunks that are there together or not at all: keys, values and sidecars of one stretch of
//! tokens, say.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use hashbrown::HashMap;
use kvtier_key::Digest;

use crate::slab::{Row, State};
use crate::{Index, TenantId};

/// A set whose chunks are being saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetId(u64);

/// Too many members of sets are not there: nothing was declared, so saving these chunks might show
/// some without the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SetsFull {
    /// The members of sets that are not there.
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

/// What was declared, and how much of it is there.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    of: HashMap<Digest, u64>,
    all: HashMap<u64, Set>,
    /// How many members are not there. What others take up in here is bounded by the index.
    missing: usize,
    next: u64,
    /// Sets of which something is left that goes first, since they are not whole any more or did
    /// not get whole, by whose they are: and of each, how many of its members were passed.
    /// None of those is this tenant's and free to go, so that nobody looks at them again.
    leftovers: BTreeMap<(TenantId, u64), usize>,
}

#[derive(Debug)]
struct Set {
    members: Arc<[Digest]>,
    /// Whose the one is that came last: mostly they all are.
    tenant: TenantId,
    /// How many of them are there, and not on their way out.
    there: usize,
    /// How many of them are on their way out.
    going: usize,
    /// How many of them, there or not, were found wrong and not written again.
    suspects: usize,
    /// How many batches of saves of it have not ended.
    saving: usize,
    /// All of it was there once.
    was_whole: bool,
}

impl Set {
    fn is_whole(&self) -> bool {
        self.there == self.members.len()
    }

    /// Whether what is there of it is what is left: one that is being saved may yet be whole.
    fn is_left(&self) -> bool {
        self.saving == 0 && !self.is_whole()
    }

    /// How many of them the index does not know.
    fn missing(&self) -> usize {
        self.members.len().saturating_sub(self.there + self.going)
    }
}

impl Sets {
    /// Whether no set is declared.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn set(&self, digest: &Digest) -> Option<&Set> {
        self.of.get(digest).and_then(|id| self.all.get(id))
    }

    /// Changes the set that a chunk is in; answers its number.
    fn change(&mut self, digest: &Digest, change: impl FnOnce(&mut Set)) -> Option<u64> {
        let id = *self.of.get(digest)?;
        let set = self.all.get_mut(&id)?;
        self.missing -= set.missing();
        change(set);
        self.missing += set.missing();
        Some(id)
    }

    /// Whether a chunk is a miss although it may be there, because another of its set is not, or
    /// was found wrong. One that somebody held when its set was declared stays a hit for as
    /// long as that is all that is missing.
    pub fn hides(&self, digest: &Digest, is_held: impl FnOnce() -> bool) -> bool {
        self.set(digest).is_some_and(|set| {
            set.suspects > 0 || (!set.is_whole() && (set.was_whole || !is_held()))
        })
    }

    /// A chunk was found wrong.
    pub fn suspected(&mut self, digest: &Digest) {
        self.change(digest, |set| set.suspects += 1);
    }

    /// A chunk that was found wrong is no more suspect.
    pub fn suspect_cleared(&mut self, digest: &Digest) {
        self.change(digest, |set| set.suspects -= 1);
    }

    /// A chunk of this tenant's came.
    pub fn entered(&mut self, digest: &Digest, tenant: TenantId) {
        let came = self.change(digest, |set| {
            set.tenant = tenant;
            set.there = (set.there + 1).min(set.members.len());
            set.was_whole |= set.is_whole();
        });
        if let Some(passed) = came.and_then(|id| self.leftovers.get_mut(&(tenant, id))) {
            *passed = 0;
        }
    }

    /// A chunk of this tenant's is on its way out: what is left of its set goes too.
    pub fn left(&mut self, digest: &Digest, tenant: TenantId) {
        let mut was_whole = false;
        let changed = self.change(digest, |set| {
            was_whole = set.is_whole();
            set.there = set.there.saturating_sub(1);
            set.going += 1;
        });
        self.leftovers.extend(changed.filter(|_| was_whole).map(|id| ((tenant, id), 0)));
    }

    /// Nobody holds a chunk of this tenant's any more: where it is what is left of its set, it goes
    /// first.
    pub fn released(&mut self, digest: &Digest, tenant: TenantId) {
        let Some(id) = self.of.get(digest) else { return };
        if self.all.get(id).is_some_and(Set::is_left) {
            self.leftovers.insert((tenant, *id), 0);
        }
    }

    /// A chunk of this tenant's that was on its way out stays.
    pub fn returned(&mut self, digest: &Digest, tenant: TenantId) {
        if let Some(id) = self.change(digest, |set| set.going = set.going.saturating_sub(1)) {
            // It may never go: what is left of the set goes when it is its turn.
            self.leftovers.remove(&(tenant, id));
        }
        self.entered(digest, tenant);
    }

    /// A chunk that was on its way out is gone.
    pub fn gone(&mut self, digest: &Digest) {
        if let Some(id) = self.change(digest, |set| set.going = set.going.saturating_sub(1)) {
            self.forget_if_over(id);
        }
    }

    /// Forgets a set of which nothing is there, and nothing comes.
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
            self.leftovers.remove(&(set.tenant, id));
        }
    }
}

impl Index {
    /// Declares that these chunks, which are about to be saved, are there together or not at all:
    /// misses until the last of them is committed, and again when the first of them goes; then
    /// the others go too, before anything else does. A chunk that somebody holds
    /// meanwhile stays a hit until it is released. Say with [`end_set`](Self::end_set) when the
    /// saves have ended, however they did. `None` for less than two chunks, which are no set.
    /// Sets do not outlive the index. How many members are there has no maximum of its own; how
    /// many are [missing](crate::IndexConfig::missing_max) has one.
    pub fn declare_set(&mut self, members: &[Digest]) -> Result<Option<SetId>, SetsFull> {
        let mut distinct: Vec<Digest> = members.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < 2 {
            return Ok(None);
        }
        if let Some(id) = self.sets.of.get(&distinct[0]).copied()
            && let Some(set) = self.sets.all.get_mut(&id)
            && *set.members == *distinct
        {
            set.saving += 1;
            return Ok(Some(SetId(id)));
        }
        let known: Vec<&Row> = distinct
            .iter()
            .filter_map(|member| self.find(member))
            .map(|slot| &self.slab[slot])
            .collect();
        let tenant = known.last().map_or(TenantId::NONE, |line| self.slab.tenant(line));
        let there = known.iter().filter(|line| line.state == State::Present).count();
        let (going, was_whole) = (known.len() - there, there == distinct.len());
        let suspects = self.suspects.count(&distinct);
        let set =
            Set { members: distinct.into(), tenant, there, going, suspects, saving: 1, was_whole };
        self.add_set(set).map(|id| Some(SetId(id)))
    }

    /// Adds a set in the place of those that it shares members with.
    fn add_set(&mut self, set: Set) -> Result<u64, SetsFull> {
        let sets = &self.sets;
        let others: BTreeSet<u64> =
            set.members.iter().filter_map(|member| sets.of.get(member)).copied().collect();
        let freed: usize = others.iter().filter_map(|id| sets.all.get(id)).map(Set::missing).sum();
        if sets.missing - freed + set.missing() > self.missing_max.max(self.entries()) {
            return Err(SetsFull { missing: sets.missing });
        }
        let sets = &mut self.sets;
        others.into_iter().for_each(|id| sets.forget(id));
        let id = sets.next;
        sets.next += 1;
        sets.missing += set.missing();
        sets.of.extend(set.members.iter().map(|member| (*member, id)));
        sets.all.insert(id, set);
        Ok(id)
    }

    /// A batch of saves of a declared set has ended. When it was the last, what is there of one
    /// that is not whole goes.
    pub fn end_set(&mut self, id: SetId) {
        let Some(set) = self.sets.all.get_mut(&id.0) else { return };
        set.saving -= 1;
        if set.is_left() {
            self.sets.leftovers.insert((set.tenant, id.0), 0);
            self.sets.forget_if_over(id.0);
        }
    }

    /// All that is declared to be there together with a chunk, itself included; `None` for one on
    /// its own.
    pub fn set_of(&self, digest: &Digest) -> Option<Arc<[Digest]>> {
        self.sets.set(digest).map(|set| Arc::clone(&set.members))
    }

    /// Whether a chunk is a miss, wherever it lies, because another of its [set](Self::declare_set)
    /// is not there, or was found wrong.
    pub fn is_hidden(&self, digest: &Digest) -> bool {
        self.sets.hides(digest, || self.is_held(digest))
    }

    /// The slots of all that is in a set with one of these.
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
                && self.slab[slot].state == State::Present
                && seen.insert(slot)
            {
                slots.push(slot);
            }
        }
        slots
    }

    /// The next of what is left of sets that are not whole any more. It stays the next until it
    /// goes.
    pub(crate) fn leftover(&mut self) -> Option<u32> {
        self.leftover_in(..)
    }

    /// The next of what is left of this tenant's.
    pub(crate) fn leftover_of(&mut self, tenant: TenantId) -> Option<u32> {
        self.leftover_in((tenant, 0)..=(tenant, u64::MAX))
    }

    fn leftover_in(&mut self, range: impl RangeBounds<(TenantId, u64)> + Clone) -> Option<u32> {
        'next: while let Some((&(tenant, id), &passed)) =
            self.sets.leftovers.range(range.clone()).next()
        {
            let set = self.sets.all.get(&id).filter(|set| set.is_left());
            let members = set.map_or_else(|| [].into(), |set| Arc::clone(&set.members));
            for (at, member) in members.iter().enumerate().skip(passed) {
                let Some(slot) = self.idle(member) else { continue };
                let whose = self.slab.tenant(&self.slab[slot]);
                if whose == tenant {
                    self.sets.leftovers.insert((tenant, id), at);
                    // Of whom it passed, one may come first now: who asks again is told the same.
                    let is_first = self
                        .sets
                        .leftovers
                        .range(range.clone())
                        .next()
                        .is_some_and(|first| *first.0 == (tenant, id));
                    if is_first {
                        return Some(slot);
                    }
                    continue 'next;
                }
                self.sets.leftovers.entry((whose, id)).or_insert(at);
            }
            self.sets.leftovers.remove(&(tenant, id));
        }
        None
    }

    /// The slot of a chunk that is there and that nobody holds.
    fn idle(&self, digest: &Digest) -> Option<u32> {
        let is_idle =
            |slot: &u32| self.slab[*slot].state == State::Present && self.slab[*slot].holds == 0;
        self.find(digest).filter(is_idle)
    }
}
