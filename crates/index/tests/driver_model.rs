//! The driver of eviction, however chunks, chains, sets, holds, tenants and quotas come and go: no
//! save goes round for ever, and no victim is one that may not go.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use kvtier_evict::PolicyKind;
use kvtier_index::{
    ChainPlace, Chunk, DigestTag, Index, IndexConfig, IndexEntry, IndexHoldId, Refusal,
    Reservation, Reserve, ReserveRequest, SetId, SlotCursor, TenantId,
};
use kvtier_key::Digest;
use proptest::prelude::*;

const OTHERS: [PolicyKind; 6] = [
    PolicyKind::Lru,
    PolicyKind::IsolatedLru,
    PolicyKind::Arc,
    PolicyKind::Lfu,
    PolicyKind::S3Fifo,
    PolicyKind::Sieve,
];

/// Chunk `n` of chain `c`.
fn digest(c: u8, n: u8) -> Digest {
    let mut bytes = [0; 32];
    (bytes[0], bytes[1], bytes[2]) = (c + 1, n, 77);
    Digest(bytes)
}

fn place(c: u8, n: u8) -> ChainPlace {
    match n {
        0 => ChainPlace::new(None, 0),
        _ => ChainPlace::new(Some(DigestTag::from_digest(&digest(c, n - 1))), u32::from(n)),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Expect(u8, u8),
    Begin(u8, u8, u8),
    Come(usize),
    Fail(usize),
    Answer(usize, bool),
    AnswerAll,
    Leave(u8, u8),
    Forget(u8, u8),
    Found(u8, u8, u8),
    Hold(u8, Vec<u8>),
    Release(usize),
    Declare(Vec<(u8, u8)>),
    End(usize),
    Quota(u8, Option<u64>),
    Others(Option<u64>),
    Fair(bool),
    Touch(u8, u8),
    Suspect(u8, u8),
    Squeeze(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let c = 0..3u8;
    let n = 0..6u8;
    let t = 0..3u8;
    let cn = (c.clone(), n.clone());
    prop_oneof![
        2 => cn.clone().prop_map(|(c, n)| Op::Expect(c, n)),
        9 => (c.clone(), n.clone(), prop::option::of(t.clone())).prop_map(|(c, n, t)| Op::Begin(c, n, t.unwrap_or(c))),
        8 => any::<usize>().prop_map(Op::Come),
        1 => any::<usize>().prop_map(Op::Fail),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(n, gone)| Op::Answer(n, gone)),
        2 => Just(Op::AnswerAll),
        1 => cn.clone().prop_map(|(c, n)| Op::Leave(c, n)),
        1 => cn.clone().prop_map(|(c, n)| Op::Forget(c, n)),
        1 => (c.clone(), n.clone(), t.clone()).prop_map(|(c, n, t)| Op::Found(c, n, t)),
        1 => (c.clone(), prop::collection::vec(n.clone(), 1..4)).prop_map(|(c, n)| Op::Hold(c, n)),
        2 => any::<usize>().prop_map(Op::Release),
        2 => prop::collection::vec(cn.clone(), 2..5).prop_map(Op::Declare),
        2 => any::<usize>().prop_map(Op::End),
        1 => (t.clone(), prop::option::of(1..14u64)).prop_map(|(t, b)| Op::Quota(t, b)),
        1 => prop::option::of(1..14u64).prop_map(Op::Others),
        1 => any::<bool>().prop_map(Op::Fair),
        2 => cn.clone().prop_map(|(c, n)| Op::Touch(c, n)),
        1 => cn.prop_map(|(c, n)| Op::Suspect(c, n)),
        1 => (1..4u64).prop_map(Op::Squeeze),
    ]
}

fn take<T>(of: &mut Vec<T>, nth: usize) -> Option<T> {
    (!of.is_empty()).then(|| of.swap_remove(nth % of.len()))
}

struct World {
    index: Index,
    kind: PolicyKind,
    /// What was claimed, for which chunk and tenant, and whether it was announced.
    reservations: Vec<(Reservation, u8, u8, u8, bool)>,
    leaving: Vec<Digest>,
    holds: Vec<IndexHoldId>,
    sets: Vec<SetId>,
    expected: Vec<DigestTag>,
    /// Chunks that came without a known predecessor, or lost it since: the policy cannot
    /// attach them to it.
    orphans: BTreeSet<(u8, u8)>,
}

impl World {
    fn present(&self) -> Vec<Chunk> {
        self.index.keys_page(SlotCursor::default(), 1000).chunks
    }

    fn given(&mut self, victims: &[IndexEntry]) {
        for victim in victims {
            let digest = victim.chunk.digest;
            assert!(!victim.held && !self.index.is_held(&digest), "held {digest:?}");
            assert!(self.index.is_evicting(&digest));
            assert!(!self.leaving.contains(&digest), "given twice {digest:?}");
            self.leaving.push(digest);
            self.lost(digest);
        }
    }

    fn lost(&mut self, digest: Digest) {
        self.orphans.insert((digest.0[0] - 1, digest.0[1] + 1));
    }

    fn came(&mut self, c: u8, n: u8) {
        let before = n.checked_sub(1).map(|n| digest(c, n));
        let is_known = before.is_none_or(|before| {
            self.index.slot(&before).is_some()
                || self.expected.contains(&DigestTag::from_digest(&before))
                || self.is_written(&before)
        });
        if is_known {
            self.orphans.remove(&(c, n))
        } else {
            self.orphans.insert((c, n))
        };
    }

    fn is_written(&self, one: &Digest) -> bool {
        self.reservations
            .iter()
            .any(|reservation| reservation.4 && digest(reservation.1, reservation.2) == *one)
    }

    fn answer_all(&mut self) {
        for digest in std::mem::take(&mut self.leaving) {
            let _ = self.index.finish_evict(&digest);
        }
    }

    /// Claims space for a chunk until it is granted or refused.
    fn begin(&mut self, c: u8, n: u8, t: u8) {
        let at = place(c, n);
        let expected = self.index.add_pending(DigestTag::from_digest(&digest(c, n)), at);
        let want = ReserveRequest::new(1).with_place(at).with_tenant(TenantId(t.into()));
        for _ in 0..200 {
            let there = self.present();
            match self.index.reserve_for(0, &want) {
                Reserve::Granted(reservation) => {
                    self.reservations.push((reservation, c, n, t, expected));
                    return;
                }
                Reserve::Evict(victims) => {
                    assert!(!victims.is_empty());
                    if self.kind == PolicyKind::Default {
                        self.assert_keeps_own_prefix(c, n, &victims[0], &there);
                    }
                    self.given(&victims);
                    self.answer_all();
                }
                Reserve::Busy => {
                    assert!(self.index.usage().evicting > 0, "busy with nothing");
                    assert!(!self.leaving.is_empty());
                    self.answer_all();
                }
                Reserve::Full(why) => {
                    let all_held = |of: Option<TenantId>| {
                        let mut there =
                            there.iter().filter(|chunk| of.is_none_or(|of| chunk.tenant == of));
                        there.all(|chunk| self.index.is_held(&chunk.digest))
                    };
                    match why {
                        Refusal::Held => assert!(
                            all_held(Some(want.tenant)) || all_held(None),
                            "space could be freed"
                        ),
                        Refusal::NotWorth => assert_eq!(self.kind, PolicyKind::Default),
                        _ => {}
                    }
                    if expected {
                        self.index.remove_pending(DigestTag::from_digest(&digest(c, n)));
                    }
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("round and round");
    }

    /// The victim is no earlier chunk of the new chunk's own chain, as far as the policy can see.
    fn assert_keeps_own_prefix(&self, c: u8, n: u8, victim: &IndexEntry, there: &[Chunk]) {
        for m in (0..n).rev() {
            let one = digest(c, m);
            assert!(victim.chunk.digest != one, "{m} went for {n}");
            let coming =
                self.expected.contains(&DigestTag::from_digest(&one)) || self.is_written(&one);
            let is_gap = !coming || self.index.is_evicting(&one);
            if self.orphans.contains(&(c, m))
                || (is_gap && there.iter().all(|chunk| chunk.digest != one))
            {
                return;
            }
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Expect(c, n) => {
                let tag = DigestTag::from_digest(&digest(c, n));
                if self.index.add_pending(tag, place(c, n)) {
                    self.expected.push(tag);
                }
            }
            Op::Begin(c, n, t) => self.begin(c, n, t),
            Op::Come(nth) => {
                if let Some((reservation, c, n, t, expected)) = take(&mut self.reservations, nth) {
                    let chunk = Chunk::new(digest(c, n), 1, 1)
                        .with_tenant(TenantId(t.into()))
                        .with_place(place(c, n));
                    self.leaving.retain(|leaving| *leaving != chunk.digest);
                    let _ = self.index.commit(reservation, chunk);
                    self.came(c, n);
                    if expected {
                        self.index.remove_pending(DigestTag::from_digest(&digest(c, n)));
                    }
                }
            }
            Op::Fail(nth) => {
                if let Some((reservation, c, n, _, expected)) = take(&mut self.reservations, nth) {
                    self.index.cancel(reservation);
                    self.lost(digest(c, n));
                    if expected {
                        self.index.remove_pending(DigestTag::from_digest(&digest(c, n)));
                    }
                }
            }
            Op::Answer(nth, gone) => {
                if let Some(digest) = take(&mut self.leaving, nth) {
                    assert!(if gone {
                        self.index.finish_evict(&digest)
                    } else {
                        self.index.abort_evict(&digest)
                    });
                }
            }
            Op::AnswerAll => self.answer_all(),
            Op::Leave(c, n) => {
                if let kvtier_index::RemoveOutcome::Gone(entry) =
                    self.index.begin_evict(&digest(c, n))
                {
                    self.given(&[entry]);
                }
            }
            Op::Forget(c, n) => {
                let _ = self.index.forget(&digest(c, n));
                self.lost(digest(c, n));
                self.leaving.retain(|leaving| *leaving != digest(c, n));
            }
            Op::Found(c, n, t) => {
                self.leaving.retain(|leaving| *leaving != digest(c, n));
                let chunk = Chunk::new(digest(c, n), 1, 1)
                    .with_tenant(TenantId(t.into()))
                    .with_place(place(c, n));
                let _ = self.index.insert(chunk);
                self.came(c, n);
            }
            Op::Hold(c, ns) => {
                let chain: Vec<Digest> = ns.into_iter().map(|n| digest(c, n)).collect();
                self.holds.push(self.index.hold(&chain, 1000).unwrap());
            }
            Op::Release(nth) => {
                take(&mut self.holds, nth).into_iter().for_each(|hold| self.index.release(hold))
            }
            Op::Declare(of) => {
                let of: Vec<Digest> = of.into_iter().map(|(c, n)| digest(c, n)).collect();
                self.sets.extend(self.index.declare_set(&of).unwrap());
            }
            Op::End(nth) => {
                take(&mut self.sets, nth).into_iter().for_each(|set| self.index.end_set(set))
            }
            Op::Quota(t, bytes) => self.index.set_quota(TenantId(t.into()), bytes),
            Op::Others(bytes) => self.index.set_quota_of_others(bytes),
            Op::Fair(fair) => self.index.set_fair_sharing(fair),
            Op::Touch(c, n) => {
                let chain: Vec<Digest> = (0..=n).map(|n| digest(c, n)).collect();
                self.index.touch_batch(&chain);
            }
            Op::Suspect(c, n) => drop(self.index.mark_suspect(&digest(c, n))),
            Op::Squeeze(n) => {
                let victims = self.index.evict_bytes(0, n);
                self.given(&victims);
            }
        }
    }

    fn check(&mut self) {
        let usage = self.index.usage();
        let present = self.present();
        assert_eq!(usage.used, (present.len() + self.leaving.len()) as u64);
        assert_eq!(usage.evicting, self.leaving.len() as u64);
        assert_eq!(usage.reserved, self.reservations.len() as u64);
        let mut of: BTreeMap<TenantId, usize> = BTreeMap::new();
        present.iter().for_each(|chunk| *of.entry(chunk.tenant).or_default() += 1);
        for t in 0..3 {
            let there = self.index.tenant_usage(TenantId(t)).entries;
            assert!(there >= of.get(&TenantId(t)).copied().unwrap_or(0));
        }
        let mut order = self.index.eviction_order();
        assert_eq!(order.len(), usage.entries);
        order.sort_unstable();
        order.dedup();
        assert_eq!(order.len(), usage.entries, "twice in the order");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_save_loops_and_no_victim_is_wrong(
        kind in prop_oneof![Just(PolicyKind::Default), prop::sample::select(&OTHERS[..])],
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let config = IndexConfig::new(8).with_high_mark(1.0).with_suspects_max(3);
        let index = Index::new(config, kind.build()).unwrap();
        let mut world = World { index, kind, reservations: vec![], leaving: vec![], holds: vec![], sets: vec![], expected: vec![], orphans: BTreeSet::new() };
        for op in ops {
            world.step(op);
            world.check();
        }
    }
}

/// A chunk comes while the one before it leaves and is being saved again.
#[test]
fn a_chain_keeps_a_beginning_that_was_evicted_and_saved_again() {
    let config = IndexConfig::new(8).with_high_mark(1.0).with_suspects_max(3);
    let index = Index::new(config, PolicyKind::Default.build()).unwrap();
    let kind = PolicyKind::Default;
    let mut world = World {
        index,
        kind,
        reservations: vec![],
        leaving: vec![],
        holds: vec![],
        sets: vec![],
        expected: vec![],
        orphans: BTreeSet::new(),
    };
    let ops = [
        Op::Begin(0, 0, 0),
        Op::Begin(2, 3, 2),
        Op::Begin(0, 1, 0),
        Op::Begin(1, 1, 1),
        Op::Begin(2, 3, 2),
        Op::Begin(1, 0, 1),
        Op::Begin(0, 2, 0),
        Op::Begin(2, 4, 2),
        Op::Come(15899278812735766553),
        Op::Come(1487510470098976713),
        Op::Squeeze(1),
        Op::Come(111266250346753019),
        Op::Come(3268520840279271971),
        Op::Expect(0, 0),
        Op::AnswerAll,
        Op::Come(0),
        Op::Come(0),
        Op::Come(55106550937447825),
        Op::Declare(vec![(2, 3), (1, 2)]),
        Op::End(0),
        Op::Begin(0, 0, 0),
        Op::Begin(2, 5, 2),
    ];
    for op in ops {
        world.step(op);
        world.check();
    }
}
