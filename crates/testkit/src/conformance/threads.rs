//! Many at once.

use std::thread;

use kvtier_core::{Loaded, MissReason, Saved, ShedReason};

use super::Fixture;
use crate::Seed;

const LEN: usize = 20_000;
const THREADS: u64 = 4;
const KEYS: u64 = 6;
const ROUNDS: u64 = 40;

/// Threads that save and load the same keys see each chunk whole or not at all.
pub fn threads_that_save_and_load_the_same_keys_see_whole_chunks(make: &dyn Fn() -> Fixture) {
    let f = make();
    crowd(|seed| {
        let key = f.key(seed.below(KEYS));
        if seed.below(2) == 0 {
            let saved = f.save(&key, LEN);
            // Another thread may have saved it, or save it now.
            let fine = [Saved::Stored, Saved::Present, Saved::Shed(ShedReason::Throttled)];
            assert!(fine.contains(&saved), "{saved:?}");
        } else {
            whole(&f, seed);
        }
    });
    // At rest every key must be there: no race may leave one that can neither be saved nor loaded.
    for n in 0..KEYS {
        let saved = f.save(&f.key(n), LEN);
        assert!([Saved::Stored, Saved::Present].contains(&saved), "{saved:?}");
        assert_eq!(f.load(&f.key(n), LEN), Loaded::Hit { len: LEN as u64 });
    }
}

/// Removing in between changes what is there, never what a hit holds.
pub fn threads_that_save_load_and_remove_never_see_a_wrong_byte(make: &dyn Fn() -> Fixture) {
    let f = make();
    crowd(|seed| {
        let key = f.key(seed.below(KEYS));
        match seed.below(4) {
            0 => drop(f.remove(&[key].into())),
            1 | 2 => drop(f.save(&key, LEN)),
            _ => whole(&f, seed),
        }
    });
    f.tier.close().wait().expect("close");
    // After `close` all memory is back, whatever the threads did last.
    let now = f.arena.stats();
    assert_eq!(now.free, now.capacity, "memory lost");
}

fn crowd(step: impl Fn(&mut Seed) + Sync) {
    thread::scope(|scope| {
        for n in 0..THREADS {
            let step = &step;
            scope.spawn(move || {
                let mut seed = Seed::new(n);
                (0..ROUNDS).for_each(|_| step(&mut seed));
            });
        }
    });
}

fn whole(f: &Fixture, seed: &mut Seed) {
    // `load` proves the bytes of a hit.
    // Also with more memory than the chunk needs, which takes other paths in some tiers.
    let loaded = f.load(&f.key(seed.below(KEYS)), LEN + seed.below(3) as usize * 4096);
    let fine =
        [Loaded::Hit { len: LEN as u64 }, Loaded::Miss(MissReason::Absent), Loaded::Throttled];
    assert!(fine.contains(&loaded), "{loaded:?}");
}
