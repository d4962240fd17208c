//! A host tier over a tier that fails, stalls, loses ops and returns wrong bytes: never a wrong byte, every op
//! answered by its deadline, every byte of memory home. Each seed is another story.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::prelude::*;
use kvtier::{Admit, StackConfig, TierRule, Write};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{Content, FaultTier, Faults, ModelConfig, ModelTier, Seed};

const LEN: usize = 20_000;
const KEYS: u64 = 8;
/// What a busy machine may add to a deadline before we call it missed.
const GRACE: Duration = Duration::from_secs(600);

fn story(number: u64) -> u64 {
    let mut seed = Seed::new(number);
    let model = Arc::new(ModelTier::open(ModelConfig::default().with_capacity(1 << 20)).unwrap());
    let low =
        Arc::new(FaultTier::new(model, Faults::all(60, Duration::from_millis(2)), number).unwrap());
    let host = Arc::new(HostTier::open(HostConfig::new(3 * LEN as u64 + 8192)).unwrap());
    let (top, below) = rules(number);
    let config = StackConfig::new("story")
        .with_dirty_bytes_max(4 * LEN as u64)
        .with_write_back_timeout(Duration::from_millis(50));
    let f = Fixture::new(
        Stack::open(config.with_rule(host, top).with_rule(low.clone(), below)).unwrap(),
    );
    for _ in 0..24 {
        let ctx = Ctx::within(Duration::from_millis(25));
        let start = Instant::now();
        step(&f, &ctx, &mut seed);
        assert!(
            start.elapsed() < Duration::from_millis(25) + GRACE,
            "an answer long after its deadline"
        );
    }
    low.heal();
    let n = seed.below(KEYS);
    f.eventually("a chunk saved after the faults comes back", || {
        let saved = f.save_with(f.save_op(&f.key(n), LEN)).result;
        let loaded = f.load_with(f.load_op(&f.key(n), LEN)).result;
        saved.is_ok() && loaded.is_ok_and(|loaded| loaded == Loaded::Hit { len: LEN as u64 })
    });
    f.tier.close().wait().unwrap();
    let met = low.met();
    let arena = f.arena.clone();
    drop(f);
    drop(low);
    assert_eq!(arena.stats().free, arena.stats().capacity, "memory lost");
    met
}

/// Every way of saving and of admission has its stories.
fn rules(number: u64) -> (TierRule, TierRule) {
    let write = [Write::Through, Write::Back, Write::Spill][number as usize % 3];
    let admit = [Admit::Policy, Admit::AfterHits(2), Admit::Never][number as usize / 3 % 3];
    let below = TierRule::new().with_write(write);
    let own = number.is_multiple_of(2).then_some(Duration::from_millis(10));
    (TierRule::new().with_admit(admit), own.map_or(below, |own| below.with_deadline(own)))
}

fn step(f: &Fixture, ctx: &Ctx, seed: &mut Seed) {
    let keys = f.keys((0..1 + seed.below(4)).map(|_| seed.below(KEYS)));
    match seed.below(8) {
        0..=2 => {
            let ops = keys.iter().map(|key| f.save_op(key, LEN)).collect();
            assert_eq!(f.tier.save(ctx, ops).wait().len(), keys.len());
        }
        3..=5 => {
            let ops = keys.iter().map(|key| f.load_op(key, LEN)).collect();
            let answers = f.tier.load(ctx, ops).wait();
            assert_eq!(answers.len(), keys.len());
            for done in answers {
                if let Ok(Loaded::Hit { len }) = done.result {
                    assert_eq!(len, LEN as u64);
                    assert_eq!(
                        Content::of(&done.op.key).check(0, done.op.into[0].as_host().unwrap()),
                        Ok(())
                    );
                }
            }
        }
        // No caller waits: what is under way ends by itself.
        6 => drop(f.tier.load(ctx, keys.iter().map(|key| f.load_op(key, LEN)).collect())),
        _ => {
            if let Ok(found) =
                f.tier.lookup(ctx, keys, Mode::Prefix, Hold::For(Duration::from_millis(5))).wait()
            {
                found.hold.into_iter().for_each(|hold| f.tier.release(hold));
            }
        }
    }
}

#[test]
fn fault_seeds_below_a_host_tier_give_no_wrong_byte_and_lose_no_memory() {
    let met = kvtier_testkit::for_each_seed(50, story);
    assert!(met > 50, "too few faults to prove anything: {met}");
}
