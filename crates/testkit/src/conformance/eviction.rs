//! Eviction: the cap is kept, and what is held stays.

use std::time::Duration;

use kvtier_core::{Key, Loaded, Mode, Presence, Saved, ShedReason};

use super::Fixture;

const LEN: usize = 9000;
const LONG: Duration = Duration::from_secs(600);

/// Length of chunks of which about `n` fill the tier, in whole pages.
fn len_of(capacity: u64, n: u64) -> usize {
    (capacity / n / 4096 * 4096) as usize
}

/// Saves that must be taken, one at a time, as eviction frees space.
fn press(f: &Fixture, keys: &[Key], len: usize) {
    for key in keys {
        f.eventually("space for a chunk", || f.save(key, len) != Saved::Shed(ShedReason::Full));
    }
}

/// What is held outlives any pressure; released, it goes like the rest.
pub fn a_hold_keeps_from_eviction(make: &dyn Fn() -> Fixture) {
    let f = make();
    let Some(capacity) = f.capacity else { return };
    let len = len_of(capacity, 16);
    let first = f.keys(0..2);
    f.store(&first, len);
    let hold = f.hold(&first, LONG).hold.expect("a hold");
    // More than twice the cap: without the hold the first chunks would be gone.
    press(&f, &f.keys(10..50), len);
    first.iter().for_each(|key| assert_eq!(f.load(key, len), Loaded::Hit { len: len as u64 }));
    f.tier.release(hold);
    press(&f, &f.keys(50..90), len);
    assert_eq!(f.lookup(&first, Mode::Each), [Presence::Miss; 2]);
}

/// However much is saved, the tier keeps its cap; what was saved last is there.
pub fn capacity_is_kept_and_the_newest_stays(make: &dyn Fn() -> Fixture) {
    let f = make();
    let Some(capacity) = f.capacity else { return };
    let len = len_of(capacity, 16);
    for n in 0..48 {
        press(&f, &f.keys([n]), len);
        f.eventually("the cap is kept", || {
            f.tier.usage().used_bytes.is_some_and(|used| used <= capacity)
        });
        assert_eq!(f.load(&f.key(n), len), Loaded::Hit { len: len as u64 }, "the chunk just saved");
    }
    assert_eq!(f.lookup(&f.keys([0]), Mode::Each), [Presence::Miss]);
    // Half of what fits: tiers may keep a reserve, but must not stay empty.
    assert!(f.tier.usage().chunks >= 8, "it keeps about as much as it may");
}

/// A chunk that could never fit is shed by that name and displaces nothing.
pub fn a_chunk_larger_than_the_tier_is_shed(make: &dyn Fn() -> Fixture) {
    let f = make();
    let Some(capacity) = f.capacity else { return };
    f.store(&f.keys([0]), LEN);
    let done = f.save_with(f.save_op(&f.key(1), capacity as usize + 4096));
    match done.result {
        Ok(saved) => assert_eq!(saved, Saved::Shed(ShedReason::TooLarge)),
        Err(error) => assert_eq!(error.kind(), kvtier_core::ErrorKind::Invalid),
    }
    assert_eq!(f.load(&f.key(0), LEN), Loaded::Hit { len: LEN as u64 });
}
