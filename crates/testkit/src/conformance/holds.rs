//! Holds: what is held is not removed.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Hold, HoldId, Loaded, Mode, Presence, Removed};

use super::Fixture;

const LEN: usize = 9000;
const LONG: Duration = Duration::from_secs(600);

/// A held chunk is not removed, and says so; released it is.
pub fn a_hold_keeps_from_remove_until_released(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..3);
    f.store(&keys[..2], LEN);
    let held = f.hold(&f.keys([0, 2]), LONG);
    assert_eq!(held.found, [Presence::Hit { len: LEN as u64 }, Presence::Miss]);
    let hold = held.hold.expect("a hold on the hit");
    // Each key once: one removed, one absent, one held.
    assert_eq!(f.remove(&keys), Removed::new(1, 1, 1));
    assert_eq!(f.load(&keys[0], LEN), Loaded::Hit { len: LEN as u64 });
    f.tier.release(hold);
    assert_eq!(f.remove(&keys), Removed::new(1, 2, 0));
}

/// A hold that is never released ends by itself.
pub fn a_hold_expires(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys([0]);
    f.store(&keys, LEN);
    let hold = f.hold(&keys, Duration::from_millis(50)).hold.expect("a hold");
    f.eventually("the hold expires", || f.remove(&keys).removed == 1);
    // It is over already, which must do no harm.
    f.tier.release(hold);
}

/// A lookup that is dropped before its answer, or with it, holds nothing.
pub fn a_hold_whose_answer_is_never_taken_ends(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..4);
    f.store(&keys[..3], LEN);
    for mode in [Mode::Each, Mode::Prefix] {
        let ask = || f.tier.lookup(&f.ctx(), Arc::clone(&keys), mode, Hold::For(LONG));
        // Dropped before the answer, and below after it: the caller never sees the id of either
        // hold.
        drop(ask());
        let answered = ask();
        f.eventually("an answer", || answered.is_done());
        drop(answered);
    }
    let removed = Cell::new(0);
    f.eventually("nothing is held", || {
        removed.set(removed.get() + f.remove(&keys).removed);
        removed.get() == 3
    });
}

/// A chunk held twice is free when both holds have ended.
pub fn two_holds_are_both_needed_to_end(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys([0]);
    f.store(&keys, LEN);
    let [a, b] = [(); 2].map(|()| f.hold(&keys, LONG).hold.expect("a hold"));
    assert_ne!(a, b);
    f.tier.release(a);
    // Released twice is released once.
    f.tier.release(a);
    assert_eq!(f.remove(&keys), Removed::new(0, 0, 1));
    f.tier.release(b);
    assert_eq!(f.remove(&keys), Removed::new(1, 0, 0));
}

/// A hold on several chunks is given back chunk by chunk: what was given back goes at once, the
/// others stay.
pub fn keys_of_a_hold_are_released_one_by_one(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..3);
    f.store(&keys, LEN);
    let hold = f.hold(&keys, LONG).hold.expect("a hold");
    f.tier.release_keys(hold, &[*keys[0].digest(), *f.key(9).digest()]);
    assert_eq!(f.remove(&f.keys([0])), Removed::new(1, 0, 0), "it is not held any more");
    assert_eq!(f.remove(&f.keys([1, 2])), Removed::new(0, 0, 2));
    // Given back twice is given back once.
    f.tier.release_keys(hold, &[*keys[0].digest()]);
    let second = f.hold(&f.keys([1]), LONG).hold.expect("a hold");
    f.tier.release_keys(hold, &[*keys[1].digest(), *keys[2].digest()]);
    assert_eq!(f.remove(&f.keys([1, 2])), Removed::new(1, 0, 1), "another hold has the one");
    f.tier.release_keys(second, &[*keys[1].digest()]);
    assert_eq!(f.remove(&f.keys([1])), Removed::new(1, 0, 0));
    f.tier.release_keys(second, &[*keys[1].digest()]);
    [hold, second, HoldId(u64::MAX)].into_iter().for_each(|hold| f.tier.release(hold));
}

/// Without a hit there is no hold.
pub fn nothing_hit_is_nothing_held(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert_eq!(f.hold(&f.keys(0..2), LONG).hold, None);
    assert_eq!(f.hold(&f.keys([]), LONG).hold, None);
}

/// Releasing what is not held is fine.
pub fn an_unknown_hold_is_released_without_harm(make: &dyn Fn() -> Fixture) {
    let f = make();
    [0, 1, u64::MAX].into_iter().for_each(|n| f.tier.release(HoldId(n)));
    f.store(&f.keys([0]), LEN);
    assert_eq!(f.load(&f.key(0), LEN), Loaded::Hit { len: LEN as u64 });
}
