//! The index against a naive model: a map of keys, a vector in the order of use, and sums made anew
//! after every step.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kvtier_evict::PolicyKind;
use kvtier_index::{
    Chunk, Index, IndexConfig, IndexHoldId, InsertOutcome, Refusal, RemoveOutcome, Reservation,
    Reserve, TenantId, VICTIMS_MAX,
};
use kvtier_key::Digest;
use proptest::prelude::*;

const KEYS: u8 = 12;
const CAPACITY: u64 = 100;
const HIGH: u64 = 90;
const BATCH: u64 = 10;

fn digest(key: u8) -> Digest {
    Digest([key; 32])
}

fn key(digest: &Digest) -> u8 {
    digest.0[0]
}

fn chunk(key: u8, bytes: u64) -> Chunk {
    Chunk::new(digest(key), bytes + 1, bytes).with_tenant(TenantId(u128::from(key) % 3))
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u64),
    Touch(Vec<u8>),
    Remove(u8),
    Leave(u8),
    Forget(u8),
    Hold(Vec<u8>, u64),
    Release(usize),
    ReleaseKeys(usize, Vec<u8>),
    Pass(u64),
    Expire,
    Reserve(u64),
    Commit(usize, u8),
    Cancel(usize),
    Victims(u64),
    Evicted(u8),
    Restored(u8),
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    let keys = prop::collection::vec(key.clone(), 0..5);
    prop_oneof![
        4 => (key.clone(), 0u64..40).prop_map(|(key, bytes)| Op::Insert(key, bytes)),
        4 => keys.clone().prop_map(Op::Touch),
        1 => key.clone().prop_map(Op::Remove),
        1 => key.clone().prop_map(Op::Leave),
        1 => key.clone().prop_map(Op::Forget),
        3 => (keys.clone(), 1u64..20).prop_map(|(keys, ttl)| Op::Hold(keys, ttl)),
        2 => any::<usize>().prop_map(Op::Release),
        2 => (any::<usize>(), keys).prop_map(|(nth, keys)| Op::ReleaseKeys(nth, keys)),
        2 => (0u64..10).prop_map(Op::Pass),
        1 => Just(Op::Expire),
        6 => (0u64..95).prop_map(Op::Reserve),
        6 => (any::<usize>(), key.clone()).prop_map(|(nth, key)| Op::Commit(nth, key)),
        1 => any::<usize>().prop_map(Op::Cancel),
        2 => (0u64..40).prop_map(Op::Victims),
        6 => key.clone().prop_map(Op::Evicted),
        1 => key.prop_map(Op::Restored),
        1 => Just(Op::Settle),
    ]
}

/// One life of one key, from its insert to its end.
#[derive(Clone, Copy, Debug)]
struct Life {
    id: u64,
    chunk: Chunk,
    leaving: bool,
}

#[derive(Debug, Default)]
struct Model {
    now: u64,
    lives: BTreeMap<u8, Life>,
    /// Keys that could be evicted, cold to hot.
    order: Vec<u8>,
    /// Until when, and which lives of which keys, by the index's own number.
    holds: HashMap<u64, (u64, Vec<(u8, u64)>)>,
    reserved: u64,
    next_life: u64,
    slots_peak: usize,
}

impl Model {
    fn held(&self, life: u64) -> bool {
        self.holds.values().any(|(_, held)| held.iter().any(|(_, id)| *id == life))
    }

    fn used(&self) -> u64 {
        self.lives.values().map(|life| life.chunk.bytes).sum()
    }

    fn leaving(&self) -> u64 {
        self.lives.values().filter(|life| life.leaving).map(|life| life.chunk.bytes).sum()
    }

    fn heat(&mut self, key: u8) {
        self.order.retain(|k| *k != key);
        self.order.push(key);
    }

    fn touch(&mut self, keys: &[u8]) {
        keys.iter()
            .rev()
            .filter(|key| self.order.contains(key))
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|key| self.heat(key));
    }

    fn insert(&mut self, new: Chunk) {
        let key = key(&new.digest);
        let id = self.lives.get(&key).map_or(self.next_life, |life| life.id);
        self.next_life += 1;
        self.lives.insert(key, Life { id, chunk: new, leaving: false });
        if !self.held(id) {
            self.heat(key);
        }
    }

    fn drop(&mut self, key: u8) -> Option<Life> {
        self.order.retain(|k| *k != key);
        self.lives.remove(&key)
    }

    fn leave(&mut self, key: u8) {
        self.lives.get_mut(&key).unwrap().leaving = true;
        self.order.retain(|k| *k != key);
    }

    fn release(&mut self, hold: u64) {
        let Some((_, held)) = self.holds.remove(&hold) else { return };
        self.given_back(held);
    }

    fn release_keys(&mut self, hold: u64, keys: &[u8]) {
        let Some((_, held)) = self.holds.get_mut(&hold) else { return };
        // In the order of the hold, whatever order they are named in.
        let mut places: Vec<usize> = Vec::new();
        for key in keys {
            let mut of_key =
                held.iter().enumerate().filter(|(_, (own, _))| own == key).map(|(place, _)| place);
            places.extend(of_key.find(|place| !places.contains(place)));
        }
        places.sort_unstable();
        let released = places.iter().map(|place| held[*place]).collect();
        for place in places.iter().rev() {
            held.remove(*place);
        }
        if held.is_empty() {
            self.holds.remove(&hold);
        }
        self.given_back(released);
    }

    fn given_back(&mut self, held: Vec<(u8, u64)>) {
        for (key, life) in held.into_iter().rev() {
            let alive = self.lives.get(&key).is_some_and(|now| now.id == life);
            if alive && !self.held(life) {
                self.heat(key);
            }
        }
    }

    fn expire(&mut self) -> usize {
        let mut due: Vec<(u64, u64)> =
            self.holds.iter().map(|(id, (until, _))| (*until, *id)).collect();
        due.retain(|(until, _)| *until <= self.now);
        due.sort_unstable();
        due.iter().for_each(|(_, id)| self.release(*id));
        due.len()
    }

    fn victims(&mut self, need: u64) -> Vec<u8> {
        self.expire();
        let over = (self.used() - self.leaving() + self.reserved + need).saturating_sub(HIGH);
        let wanted = over.min(BATCH.max(need));
        let mut victims = Vec::new();
        let mut freed = 0;
        while freed < wanted && victims.len() < VICTIMS_MAX && !self.order.is_empty() {
            let key = self.order[0];
            freed += self.lives[&key].chunk.bytes;
            self.leave(key);
            victims.push(key);
        }
        victims
    }

    fn slots(&self) -> usize {
        let lives: HashSet<u64> = self.lives.values().map(|life| life.id).collect();
        let held = self.holds.values().flat_map(|(_, held)| held.iter().map(|(_, id)| *id));
        lives.into_iter().chain(held).collect::<HashSet<_>>().len()
    }
}

/// The index and its model, driven side by side.
struct Pair {
    index: Index,
    model: Model,
    reservations: Vec<Reservation>,
}

impl Pair {
    fn new() -> Self {
        let config = IndexConfig::new(CAPACITY).with_high_mark(0.9).with_batch_max(0.1);
        let index = Index::new(config, PolicyKind::Lru.build()).unwrap();
        Pair { index, model: Model::default(), reservations: Vec::new() }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Insert(key, bytes) => self.insert(chunk(key, bytes), None),
            Op::Touch(keys) => {
                self.index.touch_batch(&keys.iter().copied().map(digest).collect::<Vec<_>>());
                self.model.touch(&keys);
            }
            Op::Remove(key) | Op::Leave(key) => self.remove(key, matches!(op, Op::Leave(_))),
            Op::Forget(key) => {
                let gone = self.index.forget(&digest(key)).map(|entry| entry.chunk);
                assert_eq!(gone, self.model.drop(key).map(|life| life.chunk));
            }
            Op::Hold(keys, ttl) => self.hold(&keys, ttl),
            Op::Release(nth) => self.release(nth),
            Op::ReleaseKeys(nth, keys) => self.release_keys(nth, &keys),
            Op::Pass(ms) => self.model.now += ms,
            Op::Expire => assert_eq!(self.index.expire_holds(self.model.now), self.model.expire()),
            Op::Reserve(bytes) => self.reserve(bytes),
            Op::Commit(nth, key) => {
                if let Some(reservation) = self.take(nth) {
                    let bytes = reservation.bytes() / 2;
                    self.insert(chunk(key, bytes), Some(reservation));
                }
            }
            Op::Cancel(nth) => {
                if let Some(reservation) = self.take(nth) {
                    self.index.cancel(reservation);
                }
            }
            Op::Victims(need) => assert_eq!(self.victims(need), self.model.victims(need)),
            Op::Evicted(key) => {
                let leaving = self.model.lives.get(&key).is_some_and(|life| life.leaving);
                assert_eq!(self.index.finish_evict(&digest(key)), leaving);
                leaving.then(|| self.model.drop(key));
            }
            Op::Restored(key) => self.restored(key),
            Op::Settle => self.settle(),
        }
    }

    fn insert(&mut self, new: Chunk, reservation: Option<Reservation>) {
        let old = self.model.lives.get(&key(&new.digest)).map(|life| life.chunk);
        let inserted = match reservation {
            Some(reservation) => self.index.commit(reservation, new),
            None => self.index.insert(new),
        };
        match inserted {
            InsertOutcome::New(_) => assert_eq!(old, None),
            InsertOutcome::Replaced { old: replaced } => assert_eq!(Some(replaced), old),
            other => panic!("{other:?}"),
        }
        self.model.insert(new);
    }

    fn remove(&mut self, key: u8, in_two_steps: bool) {
        let removed = match in_two_steps {
            true => self.index.begin_evict(&digest(key)),
            false => self.index.remove(&digest(key)),
        };
        match self.model.lives.get(&key).copied() {
            None | Some(Life { leaving: true, .. }) => assert_eq!(removed, RemoveOutcome::Absent),
            Some(life) if self.model.held(life.id) => assert_eq!(removed, RemoveOutcome::Held),
            Some(life) => {
                assert!(matches!(removed, RemoveOutcome::Gone(entry) if entry.chunk == life.chunk));
                match in_two_steps {
                    true => self.model.leave(key),
                    false => drop(self.model.drop(key)),
                }
            }
        }
    }

    fn hold(&mut self, keys: &[u8], ttl: u64) {
        let until = self.model.now + ttl;
        let id =
            self.index.hold(&keys.iter().copied().map(digest).collect::<Vec<_>>(), until).unwrap();
        let lives = &self.model.lives;
        let present =
            |key: &u8| lives.get(key).filter(|life| !life.leaving).map(|life| (*key, life.id));
        let held: Vec<(u8, u64)> = keys.iter().filter_map(present).collect();
        self.model.order.retain(|key| !keys.contains(key));
        if !held.is_empty() {
            self.model.holds.insert(id.as_u64(), (until, held));
        }
    }

    fn nth_hold(&self, nth: usize) -> Option<u64> {
        let ids: BTreeSet<u64> = self.model.holds.keys().copied().collect();
        ids.iter().nth(nth % ids.len().max(1)).copied()
    }

    fn release(&mut self, nth: usize) {
        if let Some(id) = self.nth_hold(nth) {
            self.index.release(IndexHoldId::from_u64(id));
            self.model.release(id);
        }
    }

    fn release_keys(&mut self, nth: usize, keys: &[u8]) {
        if let Some(id) = self.nth_hold(nth) {
            self.index.release_keys(
                IndexHoldId::from_u64(id),
                &keys.iter().copied().map(digest).collect::<Vec<_>>(),
            );
            self.model.release_keys(id, keys);
        }
    }

    fn take(&mut self, nth: usize) -> Option<Reservation> {
        let n = self.reservations.len();
        let reservation = (n > 0).then(|| self.reservations.swap_remove(nth % n))?;
        self.model.reserved -= reservation.bytes();
        Some(reservation)
    }

    fn reserve(&mut self, bytes: u64) {
        let fits = self.model.used() + self.model.reserved + bytes <= CAPACITY;
        match self.index.reserve(self.model.now, bytes) {
            Reserve::Full(Refusal::TooLarge { .. }) => assert!(bytes > HIGH),
            Reserve::Granted(reservation) => {
                assert!(fits && reservation.bytes() == bytes);
                self.model.reserved += bytes;
                self.reservations.push(reservation);
            }
            Reserve::Evict(victims) => {
                assert!(!fits && !victims.is_empty());
                let victims: Vec<u8> =
                    victims.iter().map(|victim| key(&victim.chunk.digest)).collect();
                assert_eq!(victims, self.model.victims(bytes));
            }
            refused => {
                assert!(!fits && self.model.victims(bytes).is_empty());
                assert_eq!(refused == Reserve::Busy, self.model.leaving() > 0);
            }
        }
    }

    fn victims(&mut self, need: u64) -> Vec<u8> {
        let victims = self.index.victims(self.model.now, need);
        assert!(victims.iter().all(|victim| !victim.held), "a held chunk is no victim");
        victims.iter().map(|victim| key(&victim.chunk.digest)).collect()
    }

    fn restored(&mut self, key: u8) {
        let leaving = self.model.lives.get(&key).is_some_and(|life| life.leaving);
        assert_eq!(self.index.abort_evict(&digest(key)), leaving);
        if leaving {
            self.model.lives.get_mut(&key).unwrap().leaving = false;
            self.model.heat(key);
        }
    }

    /// Runs the driver to its end: what stays fits below the mark, unless it is held or being
    /// written.
    fn settle(&mut self) {
        (0..KEYS).for_each(|key| self.step(Op::Evicted(key)));
        loop {
            let victims = self.victims(0);
            assert_eq!(victims, self.model.victims(0));
            if victims.is_empty() {
                break;
            }
            victims.iter().for_each(|key| self.step(Op::Evicted(*key)));
        }
        let usage = self.index.usage();
        assert!(usage.used + usage.reserved <= HIGH || self.model.order.is_empty());
    }

    fn check(&mut self) {
        let usage = self.index.usage();
        let model = &self.model;
        assert_eq!(
            (usage.used, usage.reserved, usage.evicting),
            (model.used(), model.reserved, model.leaving())
        );
        assert_eq!((usage.entries, usage.holds), (model.lives.len(), model.holds.len()));
        for tenant in (0..3).map(TenantId) {
            let lives = model.lives.values().filter(|life| life.chunk.tenant == tenant);
            let (bytes, entries) =
                lives.fold((0, 0), |(bytes, n), life| (bytes + life.chunk.bytes, n + 1));
            let usage = self.index.tenant_usage(tenant);
            assert_eq!((usage.bytes, usage.entries), (bytes, entries));
        }
        for key in 0..KEYS {
            let life = model.lives.get(&key).filter(|life| !life.leaving);
            let found = self.index.get(&digest(key)).map(|entry| (entry.chunk, entry.held));
            assert_eq!(found, life.map(|life| (life.chunk, model.held(life.id))));
            assert_eq!(
                self.index.is_held(&digest(key)),
                life.is_some_and(|life| model.held(life.id))
            );
        }
        let order = self.index.eviction_order();
        let running: Vec<u8> = self
            .index
            .chunks_at(&order)
            .map(|chunk| key(&chunk.digest))
            .take(model.order.len())
            .collect();
        assert_eq!(running, model.order);
        self.model.slots_peak = model.slots_peak.max(model.slots());
    }

    /// Empties everything: no slot was lost on the way.
    fn end(mut self) {
        while !self.model.holds.is_empty() {
            self.release(0);
        }
        (0..KEYS).for_each(|key| self.step(Op::Forget(key)));
        while let Some(reservation) = self.take(0) {
            self.index.cancel(reservation);
        }
        self.check();
        assert_eq!(
            (self.index.usage().used, self.index.usage().reserved, self.index.tenants().count()),
            (0, 0, 0)
        );
        for n in 0..self.model.slots_peak {
            let inserted = self.index.insert(chunk(100 + n as u8, 1));
            assert!(
                matches!(inserted, InsertOutcome::New(slot) if (slot as usize) < self.model.slots_peak),
                "{inserted:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_index_is_its_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.step(op);
            pair.check();
        }
        pair.end();
    }
}
