//! The host tier: its hit ratios, its copies, its cap.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::*;
use kvtier::LmcacheEviction;
use kvtier::core::{Chain, Hint, ManualClock};
use kvtier::evict::PolicyKind;
use kvtier::prelude::*;

/// A generator of numbers that is the same everywhere.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn lru(bytes: u64) -> HostTier {
    HostTier::open(HostConfig::new(bytes).with_policy(PolicyKind::Lru)).unwrap()
}

/// An LRU as it is said in one sentence: the least recent goes until the new one fits.
struct Naive(VecDeque<(u64, u64)>, u64);

impl Naive {
    fn request(&mut self, n: u64, cost: u64) -> bool {
        let here = self.0.iter().position(|(m, _)| *m == n);
        if let Some(at) = here {
            let entry = self.0.remove(at).unwrap();
            self.0.push_back(entry);
        } else {
            while self.0.iter().map(|(_, c)| c).sum::<u64>() + cost > self.1 {
                self.0.pop_front();
            }
            self.0.push_back((n, cost));
        }
        here.is_some()
    }
}

/// Load, and save what missed, for chunks of `len(n)` bytes; every answer as the naive one's.
fn agrees(capacity: u64, len: impl Fn(u64) -> usize) {
    let tier = lru(capacity);
    let arena = arena();
    let mut naive = Naive(VecDeque::new(), capacity);
    let mut seed = 7;
    let mut hits = 0;
    for step in 0..4000 {
        // Two of three requests go to a few chunks.
        let n = if random(&mut seed).is_multiple_of(3) {
            random(&mut seed) % 200
        } else {
            random(&mut seed) % 20
        };
        let len = len(n);
        let expected = naive.request(n, (len as u64).next_multiple_of(4096));
        let loaded = load(&tier, &arena, n, len);
        assert_eq!(loaded, if expected { hit(len) } else { ABSENT }, "request {step} of chunk {n}");
        if !expected {
            assert_eq!(save(&tier, &arena, n, len), Saved::Stored);
        }
        hits += u64::from(expected);
    }
    assert!((1000..3500).contains(&hits), "{hits} hits prove little");
    assert_eq!(tier.usage().used_bytes, Some(naive.0.iter().map(|(_, c)| c).sum()));
    assert_eq!(tier.status().counter("hits"), hits);
}

#[test]
fn eviction_is_that_of_a_naive_lru() {
    agrees(32 * 8192, |_| 8000);
    agrees(33 * 4096, |_| 4096);
}

#[test]
fn eviction_of_mixed_sizes_is_that_of_a_naive_lru_too() {
    agrees(40 * 4096, |n| 1 + (n * 977 % 9000) as usize);
}

#[test]
fn by_lmcaches_letter_a_share_of_all_chunks_goes_once_a_second() {
    let arena = arena();
    let time = ManualClock::new();
    let config = HostConfig::new(40960)
        .with_policy(PolicyKind::Lru)
        .with_compat(LmcacheEviction::new().with(0.5, 0.6));
    let tier = &HostTier::open(config.with_clock(time.clock())).unwrap();
    (0..6).for_each(|n| assert_eq!(save(tier, &arena, n, 4096), Saved::Stored));
    let used = || tier.usage().used_bytes.unwrap() / 4096;
    assert_eq!(used(), 6, "it looked when the first was saved, and not again");
    time.advance(Duration::from_millis(1000));
    assert_eq!(save(tier, &arena, 6, 4096), Saved::Stored);
    let here: Vec<u64> = (0..7).filter(|n| load(tier, &arena, *n, 4096) == hit(4096)).collect();
    assert_eq!(
        (here, used()),
        (vec![4, 5, 6], 3),
        "six tenths of seven chunks went, the least recent"
    );
}

#[test]
fn below_a_high_mark_the_cap_is_not_used() {
    let config = HostConfig::new(10 * 4096).with_high_mark(0.5).with_name("low");
    let tier = HostTier::open(config).unwrap();
    let arena = arena();
    (0..11).for_each(|n| assert_eq!(save(&tier, &arena, n, 4096), Saved::Stored));
    assert_eq!(tier.usage().used_bytes, Some(5 * 4096));
    assert_eq!(load(&tier, &arena, 10, 4096), hit(4096));
    assert_eq!(&*tier.caps().name, "low");
}

#[test]
fn a_written_chunk_in_the_tiers_own_arena_is_kept_in_place() {
    let tier = host(4 << 20);
    let write = ctx().with_class(Class::Write);
    let other = ctx();
    let here = view(tier.arena(), 1, LEN);
    let free = tier.arena().stats().free;
    let save = |ctx: &Ctx, n| {
        tier.save(ctx, vec![Save { key: key(n), from: vec![here.clone()] }]).wait().remove(0).result
    };
    assert_eq!(save(&write, 1).unwrap(), Saved::Stored);
    assert_eq!(tier.arena().stats().free, free, "a copy was made");
    assert_eq!(tier.status().counter("shared_save_bytes"), LEN as u64);
    assert_eq!(load(&*tier, &arena(), 1, LEN), hit(LEN));
    assert_eq!(save(&other, 2).unwrap(), Saved::Stored);
    assert!(tier.arena().stats().free < free, "no copy was made");
    assert_eq!(tier.status().counter("copied_save_bytes"), LEN as u64);
}

#[test]
fn mixed_sizes_in_a_full_arena_are_taken() {
    let tier = host(4 << 20);
    let arena = arena();
    // A comb of small chunks, every other one in use, then chunks that fit into no gap.
    (0..1024).for_each(|n| assert_eq!(save(&*tier, &arena, n, 4096), Saved::Stored));
    for n in 2000..2040 {
        for small in (0..1024).step_by(2) {
            load(&*tier, &arena, small, 4096);
        }
        assert_eq!(save(&*tier, &arena, n, 1 << 20), Saved::Stored, "chunk {n}");
        assert_eq!(load(&*tier, &arena, n, 1 << 20), hit(1 << 20));
        assert!(tier.usage().used_bytes.unwrap() <= 4 << 20);
    }
    assert_eq!(tier.status().counter("shed"), 0);
}

#[test]
fn sizes_that_cannot_be_are_invalid() {
    for bytes in [0, u64::MAX, u64::MAX / 2, 1 << 62] {
        let error = HostTier::open(HostConfig::new(bytes)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Full), "{bytes}: {error:?}");
    }
    for mark in [0.0, 1.1, f64::NAN] {
        assert_eq!(
            HostTier::open(HostConfig::new(1 << 20).with_high_mark(mark)).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}

/// Saves chunks `from..to` of a conversation as one batch; how many were kept.
fn save_chain(tier: &HostTier, arena: &Arena, from: u64, to: u64) -> usize {
    let parent = from.checked_sub(1).map(|n| *key(n).digest());
    let ctx = ctx().with_chain(Chain { parent, depth: from as u32 });
    let ops = (from..to).map(|n| Save { key: key(n), from: vec![view(arena, n, 4096)] }).collect();
    let done = tier.save(&ctx, ops).wait();
    done.iter().filter(|done| matches!(done.result, Ok(Saved::Stored))).count()
}

fn prefix(tier: &HostTier, n: u64) -> usize {
    let keys = (0..n).map(key).collect();
    tier.lookup(&ctx(), keys, Mode::Prefix, Hold::None).wait().unwrap().prefix_len()
}

#[test]
fn a_chain_that_is_longer_than_the_tier_keeps_its_beginning() {
    let tier = HostTier::open(HostConfig::new(10 * 4096)).unwrap();
    let arena = arena();
    assert_eq!(save_chain(&tier, &arena, 0, 8), 8);
    let done = save_chain(&tier, &arena, 8, 16);
    assert_eq!((done, prefix(&tier, 16)), (2, 10));
    assert_eq!(save_chain(&tier, &arena, 16, 20), 0, "the one before is missing");
    assert_eq!((prefix(&tier, 20), tier.status().counter("shed")), (10, 10));
}

#[test]
fn a_lookup_supplies_the_chain_for_saves_without_one() {
    let tier = HostTier::open(HostConfig::new(4 * 4096)).unwrap();
    let arena = arena();
    assert_eq!(prefix(&tier, 9), 0);
    let kept = (0..9).take_while(|n| save(&tier, &arena, *n, 4096) == Saved::Stored).count();
    assert_eq!((kept, prefix(&tier, 9)), (4, 4));
    // Of chunks that were never requested, only the age is known.
    assert_eq!(save(&tier, &arena, 20, 4096), Saved::Stored);
    assert_eq!(prefix(&tier, 9), 3, "the tail went, not the head");
}

#[test]
fn hints_reach_the_policy() {
    let tier = HostTier::open(HostConfig::new(3 * 4096)).unwrap();
    let arena = arena();
    let hinted = |n, hint: Hint| {
        let op = Save { key: key(n), from: vec![view(&arena, n, 4096)] };
        let done = tier.save(&ctx().with_hint(hint), vec![op]).wait().remove(0);
        assert_eq!(done.result.unwrap(), Saved::Stored);
    };
    let mut keep = Hint::default();
    keep.retention = Some(Duration::from_secs(3600));
    hinted(0, keep);
    (1..9).for_each(|n| hinted(n, Hint::default()));
    assert_eq!(load(&tier, &arena, 0, 4096), hit(4096), "though it is the oldest");
    assert_eq!(load(&tier, &arena, 6, 4096), ABSENT);
}

fn key_of(tenant: &str, n: u64) -> Key {
    kvtier_testkit::conformance::Fixture::key_in(Namespace::new(tenant, Digest::default()), n)
}

fn save_of(tier: &HostTier, arena: &Arena, tenant: &str, n: u64) -> Saved {
    let op = Save { key: key_of(tenant, n), from: vec![view(arena, n, LEN)] };
    tier.save(&ctx(), vec![op]).wait().remove(0).result.unwrap()
}

fn chunks_of(tier: &HostTier, tenant: &str) -> u64 {
    tier.usage().tenants.iter().find(|one| one.tenant == tenant).map_or(0, |one| one.chunks)
}

#[test]
fn quotas_hold_by_every_policy_and_change_at_run_time() {
    const COST: u64 = 102_400;
    let arena = arena();
    for policy in PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Noop) {
        let tier = HostTier::open(HostConfig::new(100 * COST).with_policy(policy)).unwrap();
        for (tenant, n) in
            ["", "a", "b"].into_iter().flat_map(|tenant| (0..6).map(move |n| (tenant, n)))
        {
            assert_eq!(save_of(&tier, &arena, tenant, n), Saved::Stored, "{policy}");
        }
        let chunks = || ["", "a", "b"].map(|tenant| chunks_of(&tier, tenant));
        assert!(tier.set_quota("a", Some(4 * COST)));
        assert_eq!(save_of(&tier, &arena, "a", 6), Saved::Stored, "{policy}");
        assert_eq!(chunks(), [6, 4, 6], "{policy}: what is above it goes with the next save");
        assert!(tier.set_quota("*", Some(2 * COST)));
        assert_eq!(save_of(&tier, &arena, "b", 6), Saved::Stored, "{policy}");
        assert_eq!(save_of(&tier, &arena, "", 6), Saved::Stored, "{policy}");
        assert_eq!(chunks(), [7, 4, 2], "{policy}: others are all that have a name");
        assert!(tier.set_quota("b", Some(0)) && tier.set_quota("", Some(3 * COST)));
        assert_eq!(save_of(&tier, &arena, "b", 7), Saved::Shed(ShedReason::Quota), "{policy}");
        assert_eq!(save_of(&tier, &arena, "", 7), Saved::Stored, "{policy}");
        assert!(["a", "b", "*"].iter().all(|tenant| tier.set_quota(tenant, None)));
        (10..20)
            .for_each(|n| assert_eq!(save_of(&tier, &arena, "b", n), Saved::Stored, "{policy}"));
        assert_eq!(chunks(), [3, 4, 12], "{policy}");
    }
}

#[test]
fn with_fair_quotas_no_tenant_takes_the_share_of_another() {
    const COST: u64 = 102_400;
    let arena = arena();
    for (policy, fair) in
        [(PolicyKind::Default, true), (PolicyKind::Lru, true), (PolicyKind::Lru, false)]
    {
        // Two thirds of each is its part.
        let quotas = kvtier::Quotas::new().with("a", 10 * COST).with("b", 5 * COST).with_fair(fair);
        let config = HostConfig::new(10 * COST).with_policy(policy).with_quotas(quotas);
        let tier = HostTier::open(config).unwrap();
        (0..3).for_each(|n| assert_eq!(save_of(&tier, &arena, "b", n), Saved::Stored, "{policy}"));
        (0..30).for_each(|n| assert_eq!(save_of(&tier, &arena, "a", n), Saved::Stored, "{policy}"));
        assert_eq!(chunks_of(&tier, "b"), if fair { 3 } else { 0 }, "{policy}");
    }
}
