use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use kvtier_key::Digest;

use crate::Index;
use crate::slab::SlotState;

/// A hold; unique in one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexHoldId(u64);

impl IndexHoldId {
    /// Its number, for interfaces of another kind.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The hold of this number. Releasing one that never existed is harmless.
    pub fn from_u64(id: u64) -> Self {
        IndexHoldId(id)
    }
}

/// The hold on the hits of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldHits {
    /// The hold; `None` where no hit is left.
    pub id: Option<IndexHoldId>,
    /// The chunks that are no hits any more.
    pub gone: Vec<Digest>,
}

/// No further hold is possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldsFull {
    /// The number of holds.
    pub holds: usize,
    /// The number of entries that they hold; shared ones count for each hold.
    pub held: usize,
}

impl fmt::Display for HoldsFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HoldsFull { holds, held } = self;
        write!(
            f,
            "too many holds ({holds} holds of {held} entries): release some, or raise holds_max and held_max"
        )
    }
}

impl std::error::Error for HoldsFull {}

#[derive(Debug)]
struct HeldSlots {
    until_ms: u64,
    /// The slots of the named keys, in the order of their chain, followed by those of the other
    /// members of their sets.
    slots: Vec<u32>,
    /// How many of the slots were named.
    named: usize,
}

impl HeldSlots {
    fn named(&self) -> &[u32] {
        &self.slots[..self.named]
    }
}

/// All holds, by number and by expiry.
#[derive(Debug)]
pub(crate) struct HoldTable {
    by_id: HashMap<u64, HeldSlots>,
    by_time: BTreeSet<(u64, u64)>,
    next: u64,
    held: usize,
    holds_max: usize,
    held_max: usize,
}

impl HoldTable {
    pub fn new(holds_max: usize, held_max: usize) -> Self {
        HoldTable {
            by_id: HashMap::new(),
            by_time: BTreeSet::new(),
            next: 1,
            held: 0,
            holds_max,
            held_max,
        }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    fn has_capacity(&self, entries: usize) -> bool {
        self.by_id.len() < self.holds_max && self.held + entries <= self.held_max
    }

    fn add(&mut self, hold: HeldSlots) -> u64 {
        let id = self.next;
        self.next += 1;
        // A hold on nothing is never stored: it cannot be released late or expire, and costs
        // nothing.
        if !hold.slots.is_empty() {
            self.held += hold.slots.len();
            self.by_time.insert((hold.until_ms, id));
            self.by_id.insert(id, hold);
        }
        id
    }

    fn take(&mut self, id: u64) -> Option<HeldSlots> {
        let hold = self.by_id.remove(&id)?;
        self.by_time.remove(&(hold.until_ms, id));
        self.held -= hold.slots.len();
        Some(hold)
    }

    /// Changes a hold; it ends if no slot is left in it.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut HeldSlots)) {
        let Some(hold) = self.by_id.get_mut(&id) else { return };
        self.held -= hold.slots.len();
        change(hold);
        self.held += hold.slots.len();
        if hold.slots.is_empty() {
            self.take(id);
        }
    }

    fn expired(&self, now_ms: u64) -> Option<u64> {
        self.by_time.first().filter(|(until_ms, _)| *until_ms <= now_ms).map(|(_, id)| *id)
    }
}

impl Index {
    /// Protects these chunks from eviction and removal until `until_ms`, or until released. Give
    /// them in the order of their chain. Keys that [`get`](Index::get) would not find are skipped;
    /// a hold on nothing is valid.
    ///
    /// ```
    /// # use kvtier_evict::PolicyKind;
    /// # use kvtier_index::{Chunk, Index, IndexConfig, Reserve};
    /// # use kvtier_key::Digest;
    /// let mut index = Index::new(IndexConfig::new(4096).with_high_mark(1.0), PolicyKind::Lru.build())?;
    /// let key = Digest::derive("example", b"chunk");
    /// let _ = index.insert(Chunk::new(key, 4000, 4096));
    ///
    /// let hold = index.hold(&[key], 60_000)?; // until second 60
    /// assert!(matches!(index.reserve(0, 4096), Reserve::Full(_)), "it cannot be evicted");
    /// index.release(hold);
    /// assert!(matches!(index.reserve(0, 4096), Reserve::Evict(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the maximum of holds or of held entries is reached.
    pub fn hold(&mut self, chain: &[Digest], until_ms: u64) -> Result<IndexHoldId, HoldsFull> {
        let slots = self.slots_of(chain);
        self.hold_slots(slots, until_ms)
    }

    /// Holds the hits of a lookup for `ttl` from now on, after the holds that expired have ended.
    /// Give the hits in the order of their chain. Those that are gone since are returned.
    ///
    /// # Errors
    ///
    /// When the maximum of holds or of held entries is reached.
    pub fn hold_hits(
        &mut self,
        now_ms: u64,
        ttl: Duration,
        hits: &[Digest],
    ) -> Result<HeldHits, HoldsFull> {
        self.expire_holds(now_ms);
        let slots = self.slots_of(hits);
        let mut gone = Vec::new();
        if slots.len() < hits.len() {
            gone.extend(hits.iter().filter(|digest| self.get(digest).is_none()));
        }
        if slots.is_empty() {
            return Ok(HeldHits { id: None, gone });
        }
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let id = Some(self.hold_slots(slots, now_ms.saturating_add(ttl_ms))?);
        Ok(HeldHits { id, gone })
    }

    fn slots_of(&self, chain: &[Digest]) -> Vec<u32> {
        chain.iter().filter_map(|digest| self.get(digest)).map(|entry| entry.slot).collect()
    }

    fn hold_slots(&mut self, slots: Vec<u32>, until_ms: u64) -> Result<IndexHoldId, HoldsFull> {
        let named = slots.len();
        // A set is a hit as a whole. If another member were evicted, the held ones would become
        // misses with it.
        let slots = self.with_their_sets(slots);
        // `count_up` last, because it is the only step that changes something, and it undoes itself
        // if it fails.
        if !self.holds.has_capacity(slots.len()) || !self.count_up(&slots) {
            return Err(HoldsFull { holds: self.holds.len(), held: self.holds.held });
        }
        Ok(IndexHoldId(self.holds.add(HeldSlots { until_ms, slots, named })))
    }

    /// Ends a hold. Chunks that no other hold protects may be evicted again, as most recent, the
    /// deepest first. Unknown, released and expired holds are ignored.
    pub fn release(&mut self, id: IndexHoldId) {
        if let Some(hold) = self.holds.take(id.0) {
            self.count_down(&hold.slots);
        }
    }

    /// Releases these keys of a hold, in the order of their chain. A key that was named twice must
    /// be released twice. The rest of a set stays held while the hold has one of its members.
    /// Ignores unknown holds like [`release`](Self::release). A hold ends with its last key.
    pub fn release_keys(&mut self, id: IndexHoldId, keys: &[Digest]) {
        let Some(hold) = self.holds.by_id.get(&id.0) else { return };
        let slots = keys.iter().filter_map(|digest| self.find(digest)).collect();
        let (mut released, mut named) = take_each(hold.named(), slots, |slot| *slot);
        // Slower, and rare: a key was named twice, or its chunk was forgotten and saved again in
        // another slot since the hold began.
        if released.len() < keys.len() {
            // Chunks that vanished, or were saved again since, are held in their former slots.
            let found: Vec<Digest> = released.iter().map(|slot| self.slab[*slot].digest).collect();
            let (_, rest) = take_each(keys, found, |digest| *digest);
            let (vanished, left) = take_each(&named, rest, |slot| self.slab[*slot].digest);
            released.extend(vanished);
            named = left;
        }
        let others = &hold.slots[hold.named..];
        // Without sets nothing but the named slots can stay.
        let with_sets = !others.is_empty() || !self.sets.is_empty();
        let kept: Option<HashSet<u32>> =
            with_sets.then(|| self.with_their_sets(named.clone()).into_iter().collect());
        let stays = |slot: &u32| kept.as_ref().is_some_and(|kept| kept.contains(slot));
        let (stay, freed): (Vec<u32>, Vec<u32>) =
            released.iter().chain(others).copied().partition(stays);
        self.holds.change(id.0, |hold| {
            hold.named = named.len();
            hold.slots = named;
            hold.slots.extend(stay);
        });
        // Last, since it may free slots. Until here each slot is counted by this hold, so it cannot
        // be reused.
        self.count_down(&freed);
    }

    /// Ends the holds that have expired at `now_ms`; returns their number. `reserve` and `victims`
    /// call it themselves.
    pub fn expire_holds(&mut self, now_ms: u64) -> usize {
        let mut expired = 0;
        while let Some(id) = self.holds.expired(now_ms) {
            self.release(IndexHoldId(id));
            expired += 1;
        }
        expired
    }

    /// Whether a hold protects this chunk.
    pub fn is_held(&self, digest: &Digest) -> bool {
        self.find(digest).is_some_and(|slot| self.slab[slot].holds > 0)
    }

    /// Counts one more hold on each slot; `false`, with nothing changed, if a counter would
    /// overflow.
    fn count_up(&mut self, slots: &[u32]) -> bool {
        for (done, slot) in slots.iter().enumerate() {
            let row = &mut self.slab[*slot];
            let Some(holds) = row.holds.checked_add(1) else {
                self.count_down(&slots[..done]);
                return false;
            };
            row.holds = holds;
            if holds == 1 {
                self.policy.pin(*slot);
            }
        }
        true
    }

    fn count_down(&mut self, slots: &[u32]) {
        // From the end of the chain to its head: the policy gets the head last, as the most recent,
        // so tails are evicted before heads.
        for slot in slots.iter().rev() {
            let row = &mut self.slab[*slot];
            row.holds -= 1;
            match (row.holds, row.state) {
                // The chunk is gone since it was held. Its slot was kept, or a new chunk in it
                // would have inherited the hold.
                (0, SlotState::Forgotten) => self.slab.remove(*slot),
                (0, _) => {
                    self.policy.unpin(*slot);
                    let row = &self.slab[*slot];
                    self.sets.released(&row.digest, self.slab.tenant(row));
                }
                _ => {}
            }
        }
    }
}

/// Splits `all` into the items whose key is in `wanted`, at most as often as it is there and the
/// first ones first, and the others. Both keep their order. The time grows with the number of
/// items, not with its product with `wanted`.
fn take_each<T: Copy, K: Ord>(
    all: &[T],
    mut wanted: Vec<K>,
    key: impl Fn(&T) -> K,
) -> (Vec<T>, Vec<T>) {
    wanted.sort_unstable();
    // For each run of equal keys, at its first index, how many were used already.
    let mut used = vec![0usize; wanted.len()];
    let mut taken = Vec::with_capacity(wanted.len());
    let mut others = Vec::with_capacity(all.len());
    for item in all {
        let key = key(item);
        let first = wanted.partition_point(|other| *other < key);
        let is_free =
            |first: &usize| wanted.get(first + used[*first]).is_some_and(|other| *other == key);
        match Some(first).filter(|first| *first < wanted.len()).filter(is_free) {
            Some(first) => {
                used[first] += 1;
                taken.push(*item);
            }
            None => others.push(*item),
        }
    }
    (taken, others)
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;

    use super::*;
    use crate::{Chunk, IndexConfig};

    #[test]
    fn all_holds_together_hold_no_more_than_the_most_entries() {
        let mut holds = HoldTable::new(2, 5);
        let hold =
            |slots: &[u32]| HeldSlots { until_ms: 1, slots: slots.to_vec(), named: slots.len() };
        holds.add(hold(&[1, 2, 3]));
        assert_eq!([0, 2, 3].map(|entries| holds.has_capacity(entries)), [true, true, false]);
        holds.add(hold(&[4]));
        assert!(!holds.has_capacity(0), "two holds");
    }

    #[test]
    fn of_a_chunk_that_is_named_twice_each_release_ends_one() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let digest = Digest([1; 32]);
        let _ = index.insert(Chunk::new(digest, 1, 1));
        let hold = index.hold(&[digest, digest], 60_000).unwrap();
        let held = [(); 2].map(|()| {
            index.release_keys(hold, &[digest]);
            (index.holds.held, index.is_held(&digest))
        });
        assert_eq!(held, [(1, true), (0, false)]);
    }
}
