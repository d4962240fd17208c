//! Policies against the plainest form of themselves, vectors and all.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use kvtier_evict::{PolicyKind, SlotInfo};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Use(u32),
    Remove(u32),
    Evict,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0u32..24).prop_map(Op::Use),
        1 => (0u32..24).prop_map(Op::Remove),
        4 => Just(Op::Evict),
    ];
    prop::collection::vec(op, 1..300)
}

/// A policy without pins, as a textbook has it.
trait Naive {
    fn insert(&mut self, slot: u32);
    fn touch(&mut self, slot: u32);
    fn remove(&mut self, slot: u32);
    fn victim(&mut self) -> Option<u32>;
    fn evict(&mut self, slot: u32) {
        self.remove(slot);
    }
}

fn agree(kind: PolicyKind, mut naive: impl Naive, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut policy = kind.build();
    let mut there = [false; 24];
    let tag = |slot: u32| u64::from(slot) + 1;
    for op in ops {
        match *op {
            Op::Use(slot) if there[slot as usize] => (policy.touch(slot), naive.touch(slot)).0,
            Op::Use(slot) => {
                (policy.insert(SlotInfo::new(slot, 1).with_tag(tag(slot))), naive.insert(slot)).0
            }
            Op::Remove(slot) if there[slot as usize] => (policy.remove(slot), naive.remove(slot)).0,
            Op::Remove(_) => {}
            Op::Evict => {
                let victim = policy.victim();
                prop_assert_eq!(victim, naive.victim(), "{}", kind);
                if let Some(slot) = victim {
                    policy.begin_evict(slot);
                    policy.evict(slot, tag(slot));
                    naive.evict(slot);
                    there[slot as usize] = false;
                }
            }
        }
        match *op {
            Op::Use(slot) => there[slot as usize] = true,
            Op::Remove(slot) => there[slot as usize] = false,
            Op::Evict => {}
        }
        prop_assert_eq!(policy.len(), there.iter().filter(|there| **there).count());
    }
    Ok(())
}

/// FIFO, LRU and MRU: a vector, what a use does, and which end goes.
struct Line {
    order: Vec<u32>,
    moves: bool,
    newest_goes: bool,
}

impl Naive for Line {
    fn insert(&mut self, slot: u32) {
        self.order.push(slot);
    }
    fn touch(&mut self, slot: u32) {
        if self.moves {
            self.remove(slot);
            self.order.push(slot);
        }
    }
    fn remove(&mut self, slot: u32) {
        self.order.retain(|s| *s != slot);
    }
    fn victim(&mut self) -> Option<u32> {
        if self.newest_goes { self.order.last().copied() } else { self.order.first().copied() }
    }
}

/// Uses, and when the count became what it is.
#[derive(Default)]
struct Lfu(HashMap<u32, (u32, u32)>, u32);

impl Naive for Lfu {
    fn insert(&mut self, slot: u32) {
        self.1 += 1;
        self.0.insert(slot, (1, self.1));
    }
    fn touch(&mut self, slot: u32) {
        self.1 += 1;
        let uses = self.0[&slot].0 + 1;
        self.0.insert(slot, (uses, self.1));
    }
    fn remove(&mut self, slot: u32) {
        self.0.remove(&slot);
    }
    fn victim(&mut self) -> Option<u32> {
        self.0.iter().min_by_key(|(_, rank)| **rank).map(|(slot, _)| *slot)
    }
}

/// Oldest first, with its visited bit; the hand is an index.
#[derive(Default)]
struct Sieve {
    queue: Vec<(u32, bool)>,
    hand: usize,
}

impl Naive for Sieve {
    fn insert(&mut self, slot: u32) {
        // A hand that ran past the end starts again at the oldest, not at the next slot.
        if self.hand >= self.queue.len() {
            self.hand = 0;
        }
        self.queue.push((slot, false));
    }
    fn touch(&mut self, slot: u32) {
        self.queue.iter_mut().filter(|(s, _)| *s == slot).for_each(|(_, visited)| *visited = true);
    }
    fn remove(&mut self, slot: u32) {
        let at = self.queue.iter().position(|(s, _)| *s == slot).unwrap();
        self.queue.remove(at);
        self.hand -= usize::from(at < self.hand);
    }
    fn victim(&mut self) -> Option<u32> {
        if self.queue.is_empty() {
            return None;
        }
        loop {
            self.hand %= self.queue.len();
            let (slot, visited) = &mut self.queue[self.hand];
            if !*visited {
                return Some(*slot);
            }
            *visited = false;
            self.hand += 1;
        }
    }
}

/// Queues of slot and hits.
#[derive(Default)]
struct S3Fifo {
    small: Vec<(u32, u8)>,
    main: Vec<(u32, u8)>,
    gone: Vec<u32>,
}

impl Naive for S3Fifo {
    fn insert(&mut self, slot: u32) {
        match self.gone.iter().position(|s| *s == slot) {
            Some(at) => {
                self.gone.remove(at);
                self.main.push((slot, 0));
            }
            None => self.small.push((slot, 0)),
        }
    }
    fn touch(&mut self, slot: u32) {
        let both = self.small.iter_mut().chain(&mut self.main);
        both.filter(|(s, _)| *s == slot).for_each(|(_, hits)| *hits = (*hits + 1).min(3));
    }
    fn remove(&mut self, slot: u32) {
        self.small.retain(|(s, _)| *s != slot);
        self.main.retain(|(s, _)| *s != slot);
    }
    fn evict(&mut self, slot: u32) {
        if self.small.iter().any(|(s, _)| *s == slot) {
            self.gone.push(slot);
        }
        self.remove(slot);
        let keep = (self.small.len() + self.main.len()).max(1);
        self.gone.drain(..self.gone.len().saturating_sub(keep));
    }
    fn victim(&mut self) -> Option<u32> {
        loop {
            let small =
                self.small.len() * 10 >= self.small.len() + self.main.len() || self.main.is_empty();
            if small && !self.small.is_empty() {
                match self.small[0] {
                    (slot, 2..) => {
                        self.small.remove(0);
                        self.main.push((slot, 0));
                    }
                    (slot, _) => return Some(slot),
                }
            } else {
                match *self.main.first()? {
                    (slot, hits @ 1..) => {
                        self.main.remove(0);
                        self.main.push((slot, hits - 1));
                    }
                    (slot, 0) => return Some(slot),
                }
            }
        }
    }
}

/// Window, probation and protected, and exact counts of all uses ever.
#[derive(Default)]
struct WTinyLfu {
    parts: [Vec<u32>; 3],
    uses: HashMap<u32, u32>,
}

impl WTinyLfu {
    fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }
    fn count(&mut self, slot: u32) {
        let uses = self.uses.entry(slot).or_default();
        *uses = (*uses + 1).min(15);
    }
    fn candidate(&self) -> Option<u32> {
        let over = self.parts[0].len() * 100 > self.len().max(100);
        self.parts[0].first().copied().filter(|_| over)
    }
}

impl Naive for WTinyLfu {
    fn insert(&mut self, slot: u32) {
        self.parts[0].push(slot);
        self.count(slot);
    }
    fn touch(&mut self, slot: u32) {
        self.count(slot);
        let part = if self.parts[0].contains(&slot) { 0 } else { 2 };
        self.remove(slot);
        self.parts[part].push(slot);
        while self.parts[2].len() * 5 > (self.parts[1].len() + self.parts[2].len()) * 4 {
            let demoted = self.parts[2].remove(0);
            self.parts[1].push(demoted);
        }
    }
    fn remove(&mut self, slot: u32) {
        self.parts.iter_mut().for_each(|part| part.retain(|s| *s != slot));
    }
    fn victim(&mut self) -> Option<u32> {
        if self.parts[0].len() == self.len() {
            while let Some(slot) = self.candidate() {
                self.remove(slot);
                self.parts[1].push(slot);
            }
        }
        loop {
            let main = self.parts[1].first().or(self.parts[2].first()).copied();
            let Some(main) = main else { return self.parts[0].first().copied() };
            let Some(candidate) = self.candidate() else { return Some(main) };
            if self.uses[&candidate] <= self.uses[&main] {
                return Some(candidate);
            }
            self.remove(candidate);
            self.parts[1].push(candidate);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_textbook_policy_decides_as_its_naive_form(ops in ops()) {
        let line = |moves, newest_goes| Line { order: Vec::new(), moves, newest_goes };
        agree(PolicyKind::Lru, line(true, false), &ops)?;
        agree(PolicyKind::IsolatedLru, line(true, false), &ops)?;
        agree(PolicyKind::Fifo, line(false, false), &ops)?;
        agree(PolicyKind::Mru, line(true, true), &ops)?;
        agree(PolicyKind::Lfu, Lfu::default(), &ops)?;
        agree(PolicyKind::Sieve, Sieve::default(), &ops)?;
        agree(PolicyKind::S3Fifo, S3Fifo::default(), &ops)?;
        agree(PolicyKind::WTinyLfu, WTinyLfu::default(), &ops)?;
    }
}
