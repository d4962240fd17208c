//! The default policy.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::collections::binary_heap::PeekMut;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::history::{Ghost, History};
use crate::later::Later;
use crate::returns::{Evidence, Returns, Watched};
use crate::slots::{List, NIL, Slots};
use crate::{Entry, Hint, Policy};

mod class;
mod node;
mod retained;

pub(crate) use class::Class;
use class::{ENDED, HITS_MAX, LastRequest, RETAINED, Weight, gap_of, hinted};
use node::{KIDS_MAX, LIST_STRIDE, Node};
use retained::Retained;

const LISTS: usize = LIST_STRIDE * class::WEIGHTS;
/// No look at all chunks looks at more than this many at a time.
const STRIPE: usize = 1 << 15;
/// So many chunks are one victim that is taken without a new look at which class is worth the least.
const CHEAP_SHARE: usize = 1 << 16;
/// No way up to the head of a chain is followed further than this; who would be attached beyond is not.
const WAY_UP_MAX: usize = 1 << 14;

/// What a request is taken to use before any was seen.
const REQUEST_CHUNKS: f32 = 16.0;
/// The mean is over about this many requests.
const REQUESTS_AVERAGED: f32 = 256.0;

/// The default policy for chunks of KV cache. It learns from the returns that it sees, of which class of chunk how many
/// return after how long, and gives up the leaf of the prefix tree that is worth the least: expected returns for each
/// step of time that it takes up room.
///
/// The class of a chunk is how often it was hit, and how long its conversation paused before its last request and how much that added; or
/// what the caller hinted, which is believed as far as it proved true. A sample of what was given up is remembered in a bounded table, so that
/// what is learnt does not depend on what was kept.
#[derive(Clone, Debug)]
pub struct KvPolicy {
    nodes: Slots<Node>,
    /// One for each class and weight.
    lists: Box<[List; LISTS]>,
    /// Which of `lists` are not empty: three words for each weight.
    filled: [u64; LISTS / 64],
    /// Slots that had children when they were the coldest.
    parked: List,
    history: History,
    returns: Returns,
    weight: Weight,
    retained: Retained,
    run: Run,
    /// How many chunks of the request that is being learnt from are not here.
    absent: usize,
    /// The mean number of chunks that a request uses, of late.
    request_chunks: f32,
    /// Counts uses of chunks.
    now: u32,
    now_ms: u64,
    learnt_at: u32,
    stripe: usize,
    /// The list that was found the cheapest, and for how many more victims it is taken for that.
    cheap: (usize, usize),
    hits: Later<u32>,
    /// Who went of late and is not in `history` yet.
    gone: Later<Gone>,
}

/// New chunks that were saved one after the other, each the child of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    last: u32,
    chunks: usize,
}

/// A chunk that was given up: what it is known by, what to remember of it, and when it went.
#[derive(Clone, Copy, Debug, Default)]
struct Gone {
    tag: u64,
    ghost: Ghost,
    at: u32,
}

impl KvPolicy {
    /// A policy without slots.
    pub fn new() -> Self {
        KvPolicy {
            nodes: Slots::new(),
            lists: Box::new([List::EMPTY; LISTS]),
            filled: [0; LISTS / 64],
            parked: List::EMPTY,
            history: History::new(),
            returns: Returns::new(),
            weight: Weight::default(),
            retained: Retained::default(),
            run: Run::default(),
            absent: 0,
            request_chunks: REQUEST_CHUNKS,
            now: 0,
            now_ms: 0,
            learnt_at: 0,
            stripe: 0,
            cheap: (0, 0),
            hits: Later::new(),
            gone: Later::new(),
        }
    }

    /// Remembers who went of late: before anybody asks for what is remembered. Whether a tag is in the sample is seen when it was read,
    /// which takes a while.
    #[inline(never)]
    fn bury(&mut self) {
        let (all, len) = self.gone.take();
        for gone in &all[..len] {
            if let Some(old) = self.history.push(gone.tag, gone.ghost) {
                self.returns.lost(old.class.index(), gone.at.wrapping_sub(old.stamp), self.history.weight());
            }
        }
    }

    /// Remembers what was given up, or shed.
    fn remember(&mut self, tag: u64, ghost: Ghost) {
        if self.gone.push(Gone { tag, ghost, at: self.now }) {
            self.bury();
        }
    }

    /// Learns from the return of what was given up. The class that it has from now on.
    fn returned(&mut self, ghost: Ghost) -> Class {
        let age = self.age(ghost.stamp);
        self.returns.returned(ghost.class.index(), age, self.history.weight());
        let request = ghost.class.last_request().with_gap(gap_of(age, self.nodes.len()));
        Class::seen((ghost.class.hits() + 1).min(HITS_MAX), request)
    }

    /// Forgets a tag; what was remembered of it. Of most that is nothing: they are not in the sample.
    fn recall(&mut self, tag: u64) -> Option<Ghost> {
        if !self.history.samples(tag) {
            return None;
        }
        self.bury();
        self.history.take(tag)
    }

    /// Does what the hits that wait are to do: before anything but another hit.
    fn settle(&mut self) {
        if !self.hits.is_empty() {
            self.settle_all();
        }
    }

    #[inline(never)]
    fn settle_all(&mut self) {
        let (slots, len) = self.hits.take();
        self.nodes.warm(&slots[..len]);
        slots[..len].iter().for_each(|slot| self.use_chain(&[*slot]));
    }

    /// One request used these slots, given in the order of their chain.
    fn use_chain(&mut self, chain: &[u32]) {
        self.now = self.now.wrapping_add(chain.len() as u32);
        if chain.len() > 1 {
            self.request_chunks += (chain.len() as f32 - self.request_chunks) / REQUESTS_AVERAGED;
        }
        let request = self.last_request(chain);
        let mut hits = 0;
        for (at, slot) in chain.iter().copied().enumerate().rev() {
            if !self.nodes.is_tracked(slot) {
                continue;
            }
            let node = self.nodes[slot];
            if !self.completes(slot, chain.len()) {
                self.returns.returned(node.class().index(), self.age(node.stamp), 1.0);
                hits = hits.max((node.class().hits() + 1).min(HITS_MAX));
            }
            // What is after it in the chain was hit no more often.
            hits = hits.max(node.class().hits());
            self.nodes[slot].set_fresh(false);
            if node.parent == NIL && at > 0 {
                self.attach(slot, chain[at - 1]);
            }
            let kept = node.class().is(RETAINED);
            self.renew(slot, if kept { node.class().with_hits(hits) } else { Class::seen(hits, request) });
        }
    }

    fn age(&self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp)
    }

    /// Takes a slot out of the list that it is in, if any.
    fn unlink(&mut self, slot: u32) {
        let Some(node) = self.nodes.listed(slot) else { return };
        if node.is_parked() {
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

    /// Makes a slot a child of `parent`, if that is tracked and not below it itself.
    fn attach(&mut self, slot: u32, parent: u32) {
        if self.nodes.is_tracked(parent) && !self.leads_to(parent, slot) {
            self.nodes[parent].add_kid();
            let generation = self.nodes[parent].generation();
            self.nodes[slot].set_parent(parent, generation);
        }
    }

    /// Whether `ancestor` is among those before `slot`, or `slot` itself. Callers that name parents in a ring would keep it from ever
    /// having a leaf. What has no children is nobody's ancestor, so the way up is looked at only for what has.
    fn leads_to(&self, slot: u32, ancestor: u32) -> bool {
        if slot == ancestor || self.nodes[ancestor].kids() == 0 {
            return slot == ancestor;
        }
        let mut at = slot;
        for _ in 0..WAY_UP_MAX {
            let Some(parent) = self.parent_of(at) else { return false };
            if parent == ancestor {
                return true;
            }
            at = parent;
        }
        true
    }

    /// The parent of a slot, if that is still the one it was.
    fn parent_of(&self, slot: u32) -> Option<u32> {
        let node = self.nodes[slot];
        let is_there = node.parent != NIL && self.nodes.is_tracked(node.parent);
        let is_same = is_there && self.nodes[node.parent].generation() == node.parent_generation();
        is_same.then_some(node.parent)
    }

    /// Makes a slot nobody's child. A parent without children is back where it was when it was parked.
    fn detach(&mut self, slot: u32) {
        let Node { parent, .. } = self.nodes[slot];
        if parent == NIL {
            return;
        }
        let same = self.nodes[parent].generation() == self.nodes[slot].parent_generation();
        self.nodes[slot].parent = NIL;
        let alone = same && self.nodes.is_tracked(parent) && self.nodes[parent].sub_kid();
        if alone && self.nodes[parent].is_parked() {
            self.unlink(parent);
            self.push_coldest(parent);
        }
    }

    /// Ends to track a slot.
    fn untrack(&mut self, slot: u32, node: Node) {
        self.unlink(slot);
        if node.parent != NIL {
            self.detach(slot);
        }
        if node.kids() > 0 {
            self.nodes[slot].orphan();
        }
        self.nodes.untrack(slot);
    }

    /// Makes a slot the most recent of its class.
    fn renew(&mut self, slot: u32, class: Class) {
        self.unlink(slot);
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.set_class(class);
        node.stamp = now;
        if !node.is_pinned() {
            let at = node.list();
            self.push_hottest(slot, at);
        }
    }

    /// Whether a touch of `n` slots only completes the saving of this one.
    fn completes(&self, slot: u32, n: usize) -> bool {
        let soon = (2 * n).max(self.nodes.len() / 32);
        self.nodes[slot].is_fresh() && self.age(self.nodes[slot].stamp) as usize <= soon
    }

    /// What this request shows of its conversation: how long it paused, since its deepest chunk that is not new was used, and how many chunks
    /// it added.
    fn last_request(&self, chain: &[u32]) -> LastRequest {
        let mut added = self.absent;
        for slot in chain.iter().rev().filter(|slot| self.nodes.is_tracked(**slot)) {
            let node = &self.nodes[*slot];
            if !self.completes(*slot, chain.len()) {
                // The new chunks are its children already.
                return LastRequest::new(self.gap_since(*slot, usize::from(added > self.absent)), added);
            }
            if node.class().hits() > 0 {
                return LastRequest::new(node.class().last_request().gap(), added);
            }
            added += 1;
        }
        LastRequest::new(class::NEW, added)
    }

    /// How long the conversation that goes on after this chunk paused. After a chunk with several children, of which `own` are this
    /// conversation's, it is one that begins: they share a prompt.
    fn gap_since(&self, slot: u32, own: usize) -> u8 {
        let node = self.nodes[slot];
        if usize::from(node.kids()) > 1 + own {
            return class::NEW;
        }
        gap_of(self.age(node.stamp), self.nodes.len())
    }

    /// Looks at a part of what is watched, and learns.
    fn learn(&mut self) {
        self.learnt_at = self.now;
        self.bury();
        let mut watched = Watched::new();
        let share = |all: usize| (all.div_ceil(STRIPE), all.min(STRIPE));
        let (parts, len) = share(self.nodes.end());
        let from = self.stripe % parts.max(1) * STRIPE;
        for slot in from..(from + len).min(self.nodes.end()) {
            if self.nodes.is_tracked(slot as u32) {
                let node = self.nodes[slot as u32];
                watched.add(node.class().index(), self.age(node.stamp), parts as f32);
            }
        }
        let (parts, len) = share(self.history.buckets());
        let from = self.stripe % parts.max(1) * STRIPE;
        let weight = self.history.weight() * parts as f32;
        for ghost in self.history.ghosts(from..(from + len).min(self.history.buckets())) {
            watched.add(ghost.class.index(), self.age(ghost.stamp), weight);
        }
        self.stripe = self.stripe.wrapping_add(1);
        let all = self.nodes.len().max(1 << 16) as f32;
        self.returns.learn(&watched, &Evidence { events_max: 64.0 * all, request_chunks: self.request_chunks });
    }

    /// Of the coldest slots of all lists the one that goes first has the lowest.
    fn rank(&self, slot: u32) -> u64 {
        let node = self.nodes[slot];
        let age = self.age(node.stamp);
        let worth = self.returns.worth(node.class().index(), age) * class::factor(node.weight());
        // The bits of floats that are not negative are in the order of the floats, and their highest is free.
        u64::from(node.class().is(RETAINED)) << 63 | u64::from(worth.to_bits()) << 32 | u64::from(u32::MAX - age)
    }

    /// The list whose coldest slot is worth the least, or was a few victims ago, where those few are next to nothing.
    fn cheap(&mut self) -> Option<usize> {
        let (at, left) = self.cheap;
        if left > 0 && !self.lists[at].is_empty() {
            return Some(at);
        }
        let at = self.cheapest()?;
        // Nothing else may have been there but what is retained.
        let exact = at % LIST_STRIDE == usize::from(RETAINED.index());
        self.cheap = (at, if exact { 0 } else { self.nodes.len() / CHEAP_SHARE });
        Some(at)
    }

    /// The list whose coldest slot is worth the least.
    fn cheapest(&self) -> Option<usize> {
        let mut best = None;
        for (word, filled) in self.filled.iter().enumerate() {
            let mut left = *filled;
            while left != 0 {
                let at = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let (weight, class) = (at / LIST_STRIDE, at % LIST_STRIDE);
                let stamp = self.nodes[self.lists[at].coldest].stamp;
                let kept = class as u8 == RETAINED.index();
                let worth = self.returns.worth(class as u8, self.age(stamp)) * class::factor(weight);
                let found = (kept, worth, u32::MAX - self.age(stamp), at);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        }
        best.map(|(.., at)| at)
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

    fn insert(&mut self, entry: Entry) {
        self.settle();
        let slot = entry.slot;
        self.now = self.now.wrapping_add(1);
        let weight = self.weight.of(entry.cost, entry.bytes);
        if self.nodes.is_tracked(slot) {
            self.unlink(slot);
            self.nodes[slot].set_weight(weight);
            self.detach(slot);
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
            self.settle_all();
        }
    }

    fn touch_chain(&mut self, chain: &[u32]) {
        self.settle();
        self.nodes.warm(chain);
        self.use_chain(chain);
    }

    fn touch_request(&mut self, chain: &[u32], absent: usize) {
        self.settle();
        self.nodes.warm(chain);
        self.absent = absent;
        self.use_chain(chain);
        self.absent = 0;
    }

    fn hint(&mut self, slot: u32, hint: &Hint) {
        self.settle();
        if !self.nodes.is_tracked(slot) {
            return;
        }
        let class = match *hint {
            Hint { retention_ms: Some(ms), .. } => {
                let (nodes, until_ms) = (&self.nodes, self.now_ms.saturating_add(ms));
                let is_kept = |slot| nodes.is_tracked(slot) && nodes[slot].class().is(RETAINED);
                self.retained.keep(slot, until_ms, nodes.len(), is_kept);
                RETAINED
            }
            Hint { expected_return_ms: Some(ms), .. } => hinted(ms),
            Hint { session_ended: true, .. } => ENDED,
            _ => self.nodes[slot].class(),
        };
        let class = class.with_hits(self.nodes[slot].class().hits());
        self.unlink(slot);
        if hint.priority != 0 {
            self.nodes[slot].set_weight(class::prior(hint.priority));
        }
        self.nodes[slot].set_class(class);
        if !self.nodes[slot].is_pinned() {
            self.push_hottest(slot, self.nodes[slot].list());
        }
    }

    fn at(&mut self, now_ms: u64) {
        self.settle();
        self.now_ms = now_ms;
        while let Some(slot) = self.retained.expired(now_ms) {
            if self.nodes.is_tracked(slot) && self.nodes[slot].class().is(RETAINED) {
                self.renew(slot, Class::seen(self.nodes[slot].class().hits(), LastRequest::new(class::NEW, 0)));
            }
        }
    }

    fn remove(&mut self, slot: u32) {
        self.settle();
        if let Some(node) = self.nodes.tracked(slot) {
            self.untrack(slot, node);
        }
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        self.settle();
        let Some(node) = self.nodes.tracked(slot) else { return };
        self.cheap.1 = self.cheap.1.saturating_sub(1);
        if self.history.is_small_for(self.nodes.len()) {
            self.bury();
            self.history.make(self.nodes.len());
        }
        let ghost = Ghost { stamp: node.stamp, class: node.class() };
        self.remember(tag, ghost);
        self.untrack(slot, node);
    }

    fn forget(&mut self, tag: u64) {
        self.settle();
        self.recall(tag);
    }

    fn pin(&mut self, slot: u32) {
        self.settle();
        if self.nodes.is_tracked(slot) {
            self.unlink(slot);
            self.nodes[slot].set_pinned(true);
        }
    }

    fn leave(&mut self, slot: u32) {
        self.settle();
        if self.nodes.is_tracked(slot) {
            self.pin(slot);
            self.detach(slot);
        }
    }

    fn unpin(&mut self, slot: u32) {
        self.settle();
        if self.nodes.is_tracked(slot) && self.nodes[slot].is_pinned() {
            self.nodes[slot].set_pinned(false);
            self.renew(slot, self.nodes[slot].class());
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.settle();
        let period = (self.nodes.len() / 8).max(4096) as u32;
        if self.age(self.learnt_at) >= period {
            self.learn();
        }
        while let Some(at) = self.cheap() {
            let slot = self.lists[at].coldest;
            if matches!(self.nodes[slot].kids(), 0 | KIDS_MAX) {
                return Some(slot);
            }
            self.unlink(slot);
            self.nodes[slot].set_parked(true);
            self.nodes.push_hottest(&mut self.parked, slot);
        }
        // All leaves are pinned: better a hole than no room.
        (self.parked.coldest != NIL).then_some(self.parked.coldest)
    }

    fn victim_for(&mut self, parent: Option<u32>) -> Option<u32> {
        // What comes after the least worthy chunk of all is worth no more.
        self.victim().filter(|victim| Some(*victim) != parent)
    }

    fn shed(&mut self, tag: u64) {
        self.settle();
        let class = match self.recall(tag) {
            Some(ghost) => self.returned(ghost),
            None => Class::seen(0, LastRequest::new(class::NEW, usize::MAX)),
        };
        self.remember(tag, Ghost { stamp: self.now, class });
    }

    fn takes_orphans(&self) -> bool {
        false
    }

    fn may_go(&self, slot: u32) -> bool {
        let node = self.nodes.is_tracked(slot).then(|| self.nodes[slot]);
        node.is_none_or(|node| matches!(node.kids(), 0 | KIDS_MAX) && !node.class().is(RETAINED))
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn order(&mut self) -> Vec<u32> {
        self.settle();
        // Of the coldest of all lists the one that is worth the least goes, and the next of its list is the coldest then.
        let lists = self.lists.iter().chain([&self.parked]).filter(|list| !list.is_empty());
        let mut coldest: BinaryHeap<_> = lists.map(|list| Reverse((self.rank(list.coldest), list.coldest))).collect();
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
    /// Tracks a slot that was not, with what is remembered of its chunk.
    fn enter(&mut self, entry: &Entry, weight: usize) {
        let class = match self.recall(entry.tag) {
            Some(ghost) => self.returned(ghost),
            None => self.begins(entry),
        };
        let generation = self.nodes.of_any(entry.slot).map_or(0, Node::generation);
        let node = Node::fresh(self.now, weight, class, generation);
        let at = node.list();
        self.filled[at / 64] |= 1 << (at % 64);
        self.nodes.track_hottest(&mut self.lists[at], entry.slot, node);
    }
}

impl KvPolicy {
    /// The class of a chunk that nothing is known of, until its request is complete.
    fn begins(&mut self, entry: &Entry) -> Class {
        let parent = entry.parent.filter(|parent| self.nodes.is_tracked(*parent));
        let goes_on = self.run.chunks > 0 && entry.parent == Some(self.run.last);
        self.run = Run { last: entry.slot, chunks: if goes_on { self.run.chunks + 1 } else { 1 } };
        let gap = match parent {
            Some(parent) if goes_on => self.nodes[parent].class().last_request().gap(),
            Some(parent) => self.gap_since(parent, 0),
            None => class::NEW,
        };
        Class::seen(0, LastRequest::new(gap, self.run.chunks))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every slot's way up ends, and every parent knows how many children it has.
    fn check(policy: &KvPolicy) -> Result<(), TestCaseError> {
        let slots: Vec<u32> = (0..16).filter(|slot| policy.nodes.is_tracked(*slot)).collect();
        for slot in &slots {
            let way = core::iter::successors(Some(*slot), |slot| policy.parent_of(*slot));
            prop_assert!(way.take(17).count() <= 16, "a ring through {slot}");
            let kids = slots.iter().filter(|kid| policy.parent_of(**kid) == Some(*slot)).count();
            prop_assert_eq!(usize::from(policy.nodes[*slot].kids()), kids);
        }
        Ok(())
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, Option<u32>),
        Touch(Vec<u32>),
        Remove(u32),
        Leave(u32),
        Evict,
    }

    fn op() -> impl Strategy<Value = Op> {
        let slot = 0..8u32;
        prop_oneof![
            4 => (slot.clone(), prop::option::of(slot.clone())).prop_map(|(slot, parent)| Op::Insert(slot, parent)),
            3 => prop::collection::vec(slot.clone(), 1..6).prop_map(Op::Touch),
            1 => slot.clone().prop_map(Op::Remove),
            1 => slot.prop_map(Op::Leave),
            1 => Just(Op::Evict),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn whatever_chains_callers_name_there_is_no_ring(ops in prop::collection::vec(op(), 1..60)) {
            let mut policy = KvPolicy::new();
            for op in ops {
                match op {
                    Op::Insert(slot, parent) => policy.insert(Entry::new(slot, 1).with_chain(parent, 0)),
                    Op::Touch(chain) => policy.touch_chain(&chain),
                    Op::Remove(slot) => policy.remove(slot),
                    Op::Leave(slot) => policy.leave(slot),
                    Op::Evict => if let Some(victim) = policy.victim() {
                        policy.leave(victim);
                        policy.evict(victim, 1);
                    }
                }
                check(&policy)?;
            }
        }
    }

    #[test]
    fn the_order_is_that_in_which_slots_go() {
        let mut policy = KvPolicy::new();
        // What is hinted so is worth the more the closer its return, and goes in its turn all the same.
        (0..10_000).for_each(|_| policy.returns.returned(hinted(1000).index(), 900, 1.0));
        policy.returns.learn(&Watched::new(), &Evidence { events_max: 1e9, request_chunks: 1.0 });
        for slot in 0..1000 {
            policy.insert(Entry::new(slot, 1));
            if slot % 3 == 0 {
                policy.hint(slot, &Hint::new().with_expected_return_ms(1000));
            }
            if slot % 7 == 0 {
                policy.touch(slot / 2);
            }
        }
        [4, 5, 900].into_iter().for_each(|slot| policy.pin(slot));
        let order = policy.order();
        for slot in &order[..997] {
            assert_eq!(policy.victim(), Some(*slot));
            policy.leave(*slot);
            policy.evict(*slot, 0);
        }
        assert_eq!((&order[997..], policy.victim()), (&[4, 5, 900][..], None));
    }

    #[test]
    fn who_asks_for_the_order_has_the_hits_that_wait_settled_in_place() {
        let mut policy = KvPolicy::new();
        (0..2).for_each(|slot| policy.insert(Entry::new(slot, 1)));
        policy.touch(0);
        assert_eq!((policy.order(), policy.hits.is_empty()), (alloc::vec![1, 0], true), "not in a copy of all");
    }

    #[test]
    fn who_comes_back_at_once_is_known_again() {
        let mut policy = KvPolicy::new();
        (0..4).for_each(|slot| policy.insert(Entry::new(slot, 1)));
        policy.evict(0, 77);
        policy.insert(Entry::new(0, 1).with_tag(77));
        assert_eq!(policy.nodes[0].class().hits(), 1);
        policy.evict(0, 77);
        policy.forget(77);
        policy.insert(Entry::new(0, 1).with_tag(77));
        assert_eq!(policy.nodes[0].class().hits(), 0);
    }

    #[test]
    fn chunks_whose_parents_are_a_ring_go_in_their_turn() {
        let mut policy = KvPolicy::new();
        policy.insert(Entry::new(0, 1));
        policy.insert(Entry::new(1, 1).with_chain(Some(0), 1));
        policy.insert(Entry::new(0, 1).with_chain(Some(1), 2));
        policy.insert(Entry::new(2, 1));
        assert_eq!(policy.victim(), Some(1));
    }
}
