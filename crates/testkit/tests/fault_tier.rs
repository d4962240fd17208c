//! The suite over the fault tier with its faults off, and what it does with them on.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Loaded, MissReason, Saved, ShedReason, Tier};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{Content, FaultTier, Faults, ModelConfig, ModelTier};

const CAPACITY: u64 = 8 << 20;
const LEN: usize = 9000;

fn model() -> Arc<dyn Tier> {
    Arc::new(ModelTier::open(ModelConfig::default().with_capacity(CAPACITY)).unwrap())
}

fn make() -> Fixture {
    Fixture::new(FaultTier::new(model(), Faults::none(), 1).unwrap()).with_capacity(CAPACITY)
}

kvtier_testkit::conformance!(make);

fn only(faults: Faults) -> (Arc<FaultTier>, Fixture) {
    let f = Fixture::new(ModelTier::open(ModelConfig::default()).unwrap());
    let tier = Arc::new(FaultTier::new(Arc::clone(&f.tier), faults, 1).unwrap());
    (tier, f)
}

fn faults(set: impl Fn(&mut Faults)) -> Faults {
    let mut faults = Faults::none();
    faults.delay = Duration::from_millis(30);
    set(&mut faults);
    faults
}

#[test]
fn each_fault_is_what_it_says_and_ends_when_healed() {
    let failed: fn(&mut Faults) = |f| f.failed = 1000;
    let cases: [(fn(&mut Faults), Result<Loaded, ErrorKind>); 4] = [
        (failed, Err(ErrorKind::Io)),
        (|f| f.throttled = 1000, Ok(Loaded::Throttled)),
        (|f| f.corrupt = 1000, Ok(Loaded::Miss(MissReason::Corrupt))),
        (|f| f.delayed = 1000, Ok(Loaded::Hit { len: LEN as u64 })),
    ];
    for (set, expected) in cases {
        let (tier, f) = only(faults(set));
        f.store(&f.keys([0]), LEN);
        let load = || tier.load(&f.ctx(), vec![f.load_op(&f.key(0), LEN)]).wait().pop().unwrap();
        assert_eq!(load().result.map_err(|e| e.kind()), expected);
        assert_eq!(tier.met(), 1);
        tier.heal();
        assert_eq!(load().result.unwrap(), Loaded::Hit { len: LEN as u64 });
        tier.close().wait().unwrap();
    }
}

#[test]
fn a_lost_op_times_out_and_its_memory_is_returned_before_close_resolves() {
    let delay = Duration::from_millis(300);
    let (tier, f) = only(faults(|f| (f.lost, f.delay) = (1000, delay)));
    let ctx = Ctx::within(Duration::from_millis(30));
    let start = Instant::now();
    let done = tier.save(&ctx, vec![f.save_op(&f.key(0), LEN)]).wait().pop().unwrap();
    assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(done.op.from.is_empty(), "the medium still has it");
    let home = f.arena.stats().free == f.arena.stats().capacity;
    // A thread that stood still meanwhile sees nothing of the delay.
    assert!(!home || start.elapsed() >= Duration::from_millis(30) + delay, "home at once");
    tier.close().wait().unwrap();
    assert_eq!(f.arena.stats().free, f.arena.stats().capacity);
}

/// Whatever goes wrong, a hit is right, every op is answered, and no memory is lost.
#[test]
fn under_all_faults_no_byte_is_wrong_and_nothing_is_lost() {
    for seed in 0..8 {
        let (tier, f) = {
            let f = make();
            let tier = FaultTier::new(
                Arc::clone(&f.tier),
                Faults::all(80, Duration::from_millis(3)),
                seed,
            )
            .unwrap();
            (tier, f)
        };
        for round in 0..20 {
            let ctx = Ctx::within(Duration::from_millis(60));
            let keys = f.keys(round % 5..round % 5 + 4);
            let saved =
                tier.save(&ctx, keys.iter().map(|key| f.save_op(key, LEN)).collect()).wait();
            let fine = [Saved::Stored, Saved::Present, Saved::Shed(ShedReason::Throttled)];
            assert_eq!(saved.len(), 4);
            assert!(saved.iter().all(|d| d.result.as_ref().is_ok_and(|s| fine.contains(s)) || d.result.is_err()));
            let loaded =
                tier.load(&ctx, keys.iter().map(|key| f.load_op(key, LEN)).collect()).wait();
            assert_eq!(loaded.len(), 4);
            for done in loaded {
                if let Ok(Loaded::Hit { len }) = done.result {
                    assert_eq!(len, LEN as u64);
                    assert_eq!(
                        Content::of(&done.op.key).check(0, done.op.into[0].as_host().unwrap()),
                        Ok(())
                    );
                }
            }
        }
        assert!(tier.met() > 10, "{} faults", tier.met());
        tier.heal();
        assert!(
            f.load(&f.key(2), LEN) == Loaded::Hit { len: LEN as u64 }
                || f.save(&f.key(2), LEN) == Saved::Stored
        );
        tier.close().wait().unwrap();
        assert_eq!(f.arena.stats().free, f.arena.stats().capacity, "memory lost with seed {seed}");
    }
}
