//! The default policy.
//!
//! Slots are grouped into lists by class and weight; each list is in the order of last use. Within
//! a class the hit density falls with age, so the coldest slot of each list is its best victim. A
//! victim is the coldest slot with the lowest density over all lists ([`victim`]), which takes
//! time in the number of classes and not of slots.
//!
//! The policy evicts leaves of the prefix tree only, since a chunk without its predecessors is
//! useless. A slot that has children when a search meets it is parked, and returns to its list with
//! its last child's eviction.
//!
//! The densities come from the [reuse model](ReuseModel). It learns from three sources: chunks that
//! return while present, evicted chunks that return (a bounded [`ReuseHistory`] of ghosts), and chunks
//! that are still being watched. The [guard] compares the policy with LRU all the time, and reduces
//! the differences between classes when LRU is ahead.
//!
//! Hits of single slots and evictions are deferred and applied in groups ([`Deferred`]). Every call
//! that depends on them applies them first.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::collections::binary_heap::PeekMut;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::deferred::Deferred;
use crate::slots::{NIL, SlotList, Slots};
use crate::{EvictionHint, Policy, SlotInfo};

mod chunk_weight;
mod classify;
mod ghost_sample;
mod guard;
mod learn_reuse;
mod node;
mod retention_deadlines;
mod reuse_class;
mod reuse_model;
mod shadow;
mod tree;
mod victim;

use chunk_weight::Weight;
use ghost_sample::{Ghost, ReuseHistory};
use guard::Guard;
use node::{CHILDREN_MAX, LIST_STRIDE, TreeNode};
use retention_deadlines::Retained;
use reuse_class::{ENDED, LastRequest, RETAINED, ReuseClass, hinted};
use reuse_model::ReuseModel;

const LISTS: usize = LIST_STRIDE * chunk_weight::WEIGHTS;

/// The assumed chunks of a request before any was observed.
const REQUEST_CHUNKS: f32 = 16.0;

/// The default policy for chunks of KV cache. It learns which classes of chunks return after how
/// long, and evicts the leaf of the prefix tree with the lowest hit density: expected hits per unit
/// of time in the cache.
///
/// The class of a chunk is its number of hits, the pause of its conversation before the last
/// request and the chunks which that request added. Or it is a hint of the caller, which counts as
/// far as it proves true. A sample of the evicted chunks is remembered in a bounded table, so that
/// the model does not depend on what was kept.
///
/// ```
/// use kvtier_evict::{KvPolicy, Policy, SlotInfo};
///
/// let mut policy = KvPolicy::new();
/// // A prompt of two chunks: the second is of no use without the first.
/// policy.insert(SlotInfo::new(0, 4096));
/// policy.insert(SlotInfo::new(1, 4096).with_chain(Some(0), 1));
/// assert_eq!(policy.victim(), Some(1), "leaves before their parents");
/// ```
#[derive(Clone, Debug)]
pub struct KvPolicy {
    nodes: Slots<TreeNode>,
    /// One for each class and weight.
    lists: Box<[SlotList; LISTS]>,
    /// Which of `lists` are not empty: three words for each weight.
    filled: [u64; LISTS / 64],
    /// Slots that had children when they were the coldest.
    parked: SlotList,
    history: ReuseHistory,
    returns: ReuseModel,
    guard: Guard,
    weight: Weight,
    retained: Retained,
    run: SaveRun,
    /// The slot that was filled last.
    filled_last: u32,
    /// How many chunks of the current request are absent.
    absent: usize,
    /// The last chunk of the current request; `NIL` where it is absent or the end is not known.
    tail: u32,
    /// The mean number of chunks of recent requests.
    request_chunks: f32,
    /// Counts uses of chunks.
    now: u32,
    learnt_at: u32,
    stripe: usize,
    /// The cheapest list, and for how many more victims it is used without a new search.
    cheap: (usize, usize),
    hits: Deferred<u32>,
    /// Recent evictions that are not in `history` yet.
    evicted: Deferred<EvictedChunk>,
}

/// New chunks that were saved one after the other, each the child of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct SaveRun {
    last: u32,
    chunks: usize,
}

/// An evicted chunk: its tag, its ghost, and when it was evicted.
#[derive(Clone, Copy, Debug, Default)]
struct EvictedChunk {
    tag: u64,
    ghost: Ghost,
    at: u32,
}

impl KvPolicy {
    /// A policy without slots.
    pub fn new() -> Self {
        KvPolicy {
            nodes: Slots::new(),
            lists: Box::new([SlotList::EMPTY; LISTS]),
            filled: [0; LISTS / 64],
            parked: SlotList::EMPTY,
            history: ReuseHistory::new(),
            returns: ReuseModel::new(),
            guard: Guard::new(),
            weight: Weight::default(),
            retained: Retained::default(),
            run: SaveRun::default(),
            filled_last: NIL,
            absent: 0,
            tail: NIL,
            request_chunks: REQUEST_CHUNKS,
            now: 0,
            learnt_at: 0,
            stripe: 0,
            cheap: (0, 0),
            hits: Deferred::new(),
            evicted: Deferred::new(),
        }
    }

    /// Applies the deferred hits: before anything but another hit.
    fn apply_hits(&mut self) {
        if !self.hits.is_empty() {
            self.apply_all_hits();
        }
    }

    #[inline(never)]
    fn apply_all_hits(&mut self) {
        let (slots, len) = self.hits.take();
        self.nodes.prefetch(&slots[..len]);
        slots[..len].iter().for_each(|slot| self.use_chain(&[*slot]));
    }

    fn age(&self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp)
    }

    /// Removes a slot from its list, if it is in one.
    fn unlink(&mut self, slot: u32) {
        let Some(node) = self.nodes.listed(slot) else { return };
        if node.is_parked() {
            // Parked slots are in a list of their own, which no bit of `filled` is for.
            self.nodes.unlink(&mut self.parked, slot);
            self.nodes[slot].set_parked(false);
            return;
        }
        let at = node.list();
        self.nodes.unlink(&mut self.lists[at], slot);
        if self.lists[at].is_empty() {
            self.filled[at / 64] &= !(1 << (at % 64));
        }
    }

    fn push_hottest(&mut self, slot: u32, at: usize) {
        self.filled[at / 64] |= 1 << (at % 64);
        self.nodes.push_hottest(&mut self.lists[at], slot);
    }

    fn push_coldest(&mut self, slot: u32) {
        let at = self.nodes[slot].list();
        self.filled[at / 64] |= 1 << (at % 64);
        self.nodes.push_coldest(&mut self.lists[at], slot);
    }

    /// Makes a slot the most recent of its class.
    fn renew(&mut self, slot: u32, class: ReuseClass) {
        self.renew_at(slot, class, self.now);
    }

    /// Makes a slot the most recent of its class, as used at `stamp`.
    fn renew_at(&mut self, slot: u32, class: ReuseClass, stamp: u32) {
        self.unlink(slot);
        let node = &mut self.nodes[slot];
        node.set_class(class);
        node.stamp = stamp;
        // A pinned slot is in no list; `unpin` finds its list by this class.
        if !node.is_pinned() {
            let at = node.list();
            self.push_hottest(slot, at);
        }
    }
}

impl Default for KvPolicy {
    fn default() -> Self {
        KvPolicy::new()
    }
}

impl Policy for KvPolicy {
    fn name(&self) -> &'static str {
        "default"
    }

    fn insert(&mut self, entry: SlotInfo) {
        self.apply_hits();
        let slot = entry.slot;
        // The clock counts uses of chunks, and a save is one.
        self.now = self.now.wrapping_add(1);
        let weight = self.weight.of(entry.cost, entry.bytes);
        if self.nodes.is_tracked(slot) {
            // The end of a reservation, or a chunk that is saved again. Neither is a request for
            // it, so its class stays.
            self.unlink(slot);
            self.nodes[slot].set_weight(weight);
            // It may have another parent now: leave the old one before `attach` below.
            self.detach(slot);
            if self.guard.watches(slot) {
                self.guard.used(self.nodes[slot].stamp, self.now, false);
            }
            self.renew(slot, self.nodes[slot].class());
        } else {
            self.enter(&entry, weight);
        }
        if let Some(parent) = entry.parent {
            self.attach(slot, parent);
        }
    }

    fn touch(&mut self, slot: u32) {
        if self.hits.push(slot) {
            self.apply_all_hits();
        }
    }

    fn touch_chain(&mut self, chain: &[u32]) {
        self.apply_hits();
        // All slots are read at once before they are moved one by one.
        self.nodes.prefetch(chain);
        self.use_chain(chain);
    }

    fn touch_request(&mut self, chain: &[u32], absent: usize) {
        self.apply_hits();
        self.nodes.prefetch(chain);
        self.absent = absent;
        // If chunks are absent, the request ended with one of them, so no slot is its tail.
        self.tail = chain.last().copied().filter(|_| absent == 0).unwrap_or(NIL);
        self.use_chain(chain);
        // Other calls do not say what was absent or where a request ends.
        (self.absent, self.tail) = (0, NIL);
    }

    fn hint(&mut self, slot: u32, hint: &EvictionHint) {
        self.apply_hits();
        if !self.nodes.is_tracked(slot) {
            return;
        }
        let class = match *hint {
            // A chunk has one class, and only that of retention is exempt from what the model
            // learns, so it goes first.
            EvictionHint { retention_ms: Some(ms), .. } => {
                self.retained.keep_for(slot, ms);
                RETAINED
            }
            EvictionHint { expected_return_ms: Some(ms), .. } => hinted(ms),
            EvictionHint { session_ended: true, .. } => ENDED,
            _ => self.nodes[slot].class(),
        };
        // A hinted class keeps the hits for the class that the next request derives from them.
        let class = class.with_hits(self.nodes[slot].class().hits());
        if !class.is(RETAINED) {
            self.retained.release(slot);
        }
        self.unlink(slot);
        // Priority 0 keeps the weight that cost and bytes gave.
        if hint.priority != 0 {
            self.nodes[slot].set_weight(chunk_weight::of_priority(hint.priority));
        }
        // The stamp stays, so a hint may put a slot out of the order of its list. It is evicted a
        // little late or early then.
        self.nodes[slot].set_class(class);
        if !self.nodes[slot].is_pinned() {
            self.push_hottest(slot, self.nodes[slot].list());
        }
    }

    fn set_time(&mut self, now_ms: u64) {
        self.apply_hits();
        self.retained.set_time(now_ms);
        while let Some(slot) = self.retained.next_expired() {
            // A hinted class has no pause and no request, so the slot is treated as new and just
            // used.
            let hits = self.nodes[slot].class().hits();
            self.renew(slot, ReuseClass::seen(hits, LastRequest::new(reuse_class::NEW, 0)));
        }
    }

    fn remove(&mut self, slot: u32) {
        self.apply_hits();
        if let Some(node) = self.nodes.tracked(slot) {
            if self.guard.watches(slot) {
                // LRU would have lost it too.
                self.guard.removed(node.stamp, self.now);
            }
            self.untrack(slot, node);
        }
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        self.apply_hits();
        let Some(node) = self.nodes.tracked(slot) else { return };
        // Counts evictions and not searches, which may ask for one victim several times.
        self.cheap.1 = self.cheap.1.saturating_sub(1);
        if self.history.is_small_for(self.nodes.len()) {
            self.flush_ghosts();
            self.history.make(self.nodes.len());
        }
        let ghost = Ghost { stamp: node.stamp, class: node.class() };
        // Evictions begin when the cache is full, so it has space for what is tracked now.
        self.guard.set_capacity(self.nodes.len());
        self.remember(tag, ghost);
        self.untrack(slot, node);
    }

    fn forget(&mut self, tag: u64) {
        self.apply_hits();
        self.take_ghost(tag);
    }

    fn pin(&mut self, slot: u32) {
        self.apply_hits();
        if self.nodes.is_tracked(slot) {
            self.unlink(slot);
            self.nodes[slot].set_pinned(true);
        }
    }

    fn begin_evict(&mut self, slot: u32) {
        self.apply_hits();
        if self.nodes.is_tracked(slot) {
            // The parent loses its child before the medium has deleted it, so that it can be the
            // next victim while deletes are under way.
            self.pin(slot);
            self.detach(slot);
        }
    }

    fn unpin(&mut self, slot: u32) {
        self.apply_hits();
        if self.nodes.is_tracked(slot) && self.nodes[slot].is_pinned() {
            let node = self.nodes[slot];
            self.nodes[slot].set_pinned(false);
            let hottest = self.lists[node.list()].hottest;
            // A list is in the order of its stamps. The slot goes to the hot end, so it must not be
            // older there than the slot before it.
            let is_older =
                hottest != NIL && self.age(self.nodes[hottest].stamp) < self.age(node.stamp);
            self.renew_at(
                slot,
                node.class(),
                if is_older { self.nodes[hottest].stamp } else { node.stamp },
            );
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.apply_hits();
        self.find_victim()
    }

    fn victim_for(&mut self, parent: Option<u32>) -> Option<u32> {
        // A chunk after the one of the lowest density is worth no more.
        self.victim().filter(|victim| Some(*victim) != parent)
    }

    fn shed(&mut self, tag: u64) {
        self.apply_hits();
        // Remembered like an evicted chunk, so that its return is counted. Otherwise a class that
        // is shed could never prove its worth.
        let class = match self.take_ghost(tag) {
            Some(ghost) => self.returned(ghost),
            None => ReuseClass::seen(0, LastRequest::new(reuse_class::NEW, usize::MAX)),
        };
        // LRU would have saved it. Only chunks of the sample are seen when they return, so only
        // those enter the shadow, each for all that it stands for.
        if self.history.samples(tag) {
            self.guard.shed(self.now, self.history.weight());
        }
        self.remember(tag, Ghost { stamp: self.now, class });
    }

    fn accepts_orphans(&self) -> bool {
        false
    }

    fn is_evictable(&self, slot: u32) -> bool {
        let node = self.nodes.is_tracked(slot).then(|| self.nodes[slot]);
        node.is_none_or(|node| {
            // A count at its maximum never falls again, so it must not keep the slot for ever.
            matches!(node.children(), 0 | CHILDREN_MAX) && !node.class().is(RETAINED)
        })
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        self.apply_hits();
        // The coldest slot of the lowest density over all lists comes first, then the next of its
        // list becomes the coldest.
        // Merged and not sorted: the first quota of a tier reads the order of all its slots under
        // the tier's lock.
        let lists = self.lists.iter().chain([&self.parked]).filter(|list| !list.is_empty());
        let mut coldest: BinaryHeap<_> =
            lists.map(|list| Reverse((self.rank(list.coldest), list.coldest))).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(mut first) = coldest.peek_mut() {
            let Reverse((_, slot)) = *first;
            order.push(slot);
            match self.nodes.hotter(slot) {
                NIL => drop(PeekMut::pop(first)),
                next => *first = Reverse((self.rank(next), next)),
            }
        }
        order.extend(self.nodes.unlisted());
        order
    }

    fn memory_bytes(&self) -> usize {
        let lists = size_of_val(&*self.lists);
        self.nodes.memory_bytes()
            + lists
            + self.history.memory_bytes()
            + self.returns.memory_bytes()
            + self.retained.memory_bytes()
    }
}

impl KvPolicy {
    /// Tracks a new slot, with what is remembered of its chunk.
    fn enter(&mut self, entry: &SlotInfo, weight: usize) {
        // A chunk that does not continue the one saved before it begins another request.
        if entry.parent.is_none_or(|parent| parent != self.filled_last) {
            self.guard.begin_request();
        }
        self.filled_last = entry.slot;
        let class = match self.take_ghost(entry.tag) {
            Some(ghost) => self.returned(ghost),
            None => self.begins(entry),
        };
        // The generation outlives the slot's chunk: nodes that still name this slot as their parent
        // mean an earlier one.
        let generation = self.nodes.of_any(entry.slot).map_or(0, TreeNode::generation);
        let node = TreeNode::fresh(self.now, weight, class, generation);
        let at = node.list();
        self.filled[at / 64] |= 1 << (at % 64);
        self.nodes.track_hottest(&mut self.lists[at], entry.slot, node);
        self.guard.grow(self.nodes.len(), self.nodes.end());
        if self.guard.watches(entry.slot) {
            self.guard.saved(self.now);
        }
    }
}

#[cfg(test)]
mod tests;
