//! Stacks of every kind of rule against a map of what was saved: no hit that is not in it, no
//! chunk lost while the tiers below have space, no hold without effect, no wrong byte, and every
//! byte of memory returned in the end.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use kvtier::prelude::*;
use kvtier::{Admit, StackConfig, TierRule, Write};
use proptest::prelude::*;

const KEYS: u64 = 12;
const LEN: usize = 20_000;
const COST: u64 = 20_480;

#[derive(Clone, Debug)]
enum Op {
    Save(Vec<u64>),
    Load(Vec<u64>),
    Remove(u64),
    Hold(u64),
    Release(usize),
    /// From here on the tier below the first is broken, or not.
    Break(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let some = || proptest::collection::vec(0..KEYS, 1..5);
    prop_oneof![
        4 => some().prop_map(Op::Save),
        4 => some().prop_map(Op::Load),
        2 => (0..KEYS).prop_map(Op::Remove),
        1 => (1..6u64).prop_map(Op::Hold),
        1 => (0..4usize).prop_map(Op::Release),
        1 => any::<bool>().prop_map(Op::Break),
    ]
}

fn rules() -> impl Strategy<Value = (TierRule, TierRule, TierRule)> {
    let write = || prop_oneof![Just(Write::Through), Just(Write::Back), Just(Write::Spill)];
    let admit = || {
        prop_oneof![Just(Admit::Policy), (1..4u8).prop_map(Admit::AfterHits), Just(Admit::Never)]
    };
    (admit(), write(), admit(), write()).prop_map(|(a, b, c, d)| {
        // Only memory can hand down what it evicts, and the tier in the middle is a probe.
        let last = if d == Write::Spill { Write::Back } else { d };
        (
            TierRule::new().with_admit(a),
            TierRule::new().with_write(b).with_admit(c),
            TierRule::new().with_write(last),
        )
    })
}

struct World {
    stack: Stack,
    middle: Arc<Probe>,
    arena: Arena,
    hosts: Vec<Arc<HostTier>>,
    /// What was saved and not removed since.
    there: BTreeSet<u64>,
    /// What may be there or not: it was saved or removed while a tier was broken.
    unsure: BTreeSet<u64>,
    /// Each with the chunks that it holds: all hits of its lookup.
    holds: Vec<(HoldId, Vec<u64>)>,
    broken: bool,
    spills: bool,
}

impl World {
    fn new(top: TierRule, middle: TierRule, last: TierRule) -> Self {
        let spills = middle.write == Write::Spill;
        let hosts: Vec<_> = [3 * COST, 1 << 20, 4 << 20].map(host).into();
        let probe = Probe::over(hosts[1].clone());
        let config =
            StackConfig::new("s").with_rule(hosts[0].clone(), top).with_rule(probe.clone(), middle);
        let stack = Stack::open(config.with_rule(hosts[2].clone(), last)).unwrap();
        let there = BTreeSet::new();
        let unsure = BTreeSet::new();
        let holds = Vec::new();
        World {
            stack,
            middle: probe,
            arena: arena(),
            hosts,
            there,
            unsure,
            holds,
            broken: false,
            spills,
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Save(keys) => self.save(keys),
            Op::Load(keys) => self.load(keys),
            Op::Remove(n) => self.remove(n),
            Op::Hold(n) => self.hold(n),
            Op::Release(at) if at < self.holds.len() => {
                self.stack.release(self.holds.swap_remove(at).0)
            }
            Op::Release(_) => {}
            Op::Break(broken) => {
                self.broken = broken;
                if broken { self.middle.break_it() } else { self.middle.mend() }
            }
        }
        self.stack.flush(&ctx()).wait().unwrap();
        if self.broken && self.spills {
            // What memory gave up meanwhile went nowhere.
            self.unsure.extend(&self.there);
        }
    }

    fn save(&mut self, keys: Vec<u64>) {
        let ops = keys
            .iter()
            .map(|n| Save { key: key(*n), from: vec![view(&self.arena, *n, LEN)] })
            .collect();
        for (n, done) in keys.iter().zip(self.stack.save(&ctx(), ops).wait()) {
            assert!(
                matches!(done.result, Ok(Saved::Stored | Saved::Present | Saved::Shed(_))),
                "{:?}",
                done.result
            );
            if self.broken {
                self.unsure.insert(*n);
            } else if !matches!(done.result, Ok(Saved::Shed(_))) {
                self.there.insert(*n);
            }
        }
    }

    fn load(&mut self, keys: Vec<u64>) {
        let into = |n: &u64| Load { key: key(*n), into: vec![self.arena.lease(LEN).unwrap()] };
        let done = self.stack.load(&ctx(), keys.iter().map(into).collect()).wait();
        for (n, done) in keys.iter().zip(done) {
            let is_hit = done.result.unwrap() == hit(LEN);
            assert!(
                !is_hit || done.op.into[0].as_host().unwrap() == bytes(*n, LEN),
                "a wrong byte in chunk {n}"
            );
            if !self.unsure.contains(n) {
                assert!(!is_hit || self.there.contains(n), "chunk {n} was removed or never saved");
                assert!(is_hit || self.broken || !self.there.contains(n), "chunk {n} is lost");
            }
        }
    }

    fn remove(&mut self, n: u64) {
        let held = self.holds.iter().any(|(_, held)| held.contains(&n));
        match self.stack.remove(&ctx(), [key(n)].into()).wait() {
            // A copy without a hold, in a tier that was not asked for it, may be removed; the
            // chunk stays.
            Ok(answer) if held => {
                assert!(answer.held == 1, "chunk {n} is held: {answer:?}");
                self.unsure.insert(n);
            }
            Ok(_) => {
                self.there.remove(&n);
                self.unsure.remove(&n);
            }
            Err(_) => {
                assert!(self.broken);
                self.unsure.insert(n);
            }
        }
    }

    /// Holds a prefix of `n` chunks, as far as it is stored: then all of it loads.
    fn hold(&mut self, n: u64) {
        let keys: Arc<[Key]> = (0..n).map(key).collect();
        let found = self
            .stack
            .lookup(&ctx(), keys, Mode::Prefix, Hold::For(Duration::from_secs(600)))
            .wait()
            .unwrap();
        let end = found.prefix_len() as u64;
        if let Some(hold) = found.hold {
            let held = (0..n).filter(|n| found.found[*n as usize].is_hit()).collect();
            self.holds.push((hold, held));
        }
        if !self.broken {
            let expected = (0..n).take_while(|n| self.there.contains(n)).count() as u64;
            let sure = (0..n).all(|n| !self.unsure.contains(&n));
            assert!(!sure || end == expected, "a prefix of {end}, and it is {expected}");
            (0..end).for_each(|n| {
                assert_eq!(load(&self.stack, &self.arena, n, LEN), hit(LEN), "a hole in the prefix")
            });
        }
    }

    /// Everything ends and all memory is home.
    fn end(self) {
        let World { stack, middle, arena, hosts, .. } = self;
        stack.close().wait().unwrap();
        drop((stack, middle));
        assert_eq!(arena.stats().free, arena.stats().capacity, "memory of the caller is lost");
        for host in hosts {
            let stats = host.arena().stats();
            let used = host.usage().used_bytes.unwrap() as usize;
            assert_eq!(stats.capacity - stats.free, used, "memory of {} is lost", host.caps().name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_stack_of_any_rules_is_a_map(rules in rules(), ops in proptest::collection::vec(op(), 1..40)) {
        let mut world = World::new(rules.0, rules.1, rules.2);
        ops.into_iter().for_each(|op| world.step(op));
        world.end();
    }
}
