use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, thread};

/// A stream of numbers that is the same for the same seed, on every machine.
///
/// ```
/// use kvtier_testkit::Seed;
///
/// let mut seed = Seed::new(7);
/// let drawn: Vec<u64> = (0..3).map(|_| seed.below(10)).collect();
/// let mut again = Seed::new(7);
/// assert!(drawn.iter().all(|n| *n < 10 && *n == again.below(10)));
/// ```
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Seed {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Seed(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number below `end` (at least 1).
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }
}

/// The golden ratio's fraction: steps of it visit all 64-bit numbers, evenly.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stirs a number so that each of its bits moves all of the result's (the finalizer of SplitMix64).
// SplitMix64: each state gives one well-mixed number, so neighbouring seeds have nothing in common.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs a story for each seed, four at a time, and adds up what they return: `plain` seeds in a
/// plain `cargo test`, as many as `KVTIER_SEEDS` says where it is set. For tests whose name says
/// `fault_seeds`.
///
/// # Panics
/// Names the seed of a story that panicked.
pub fn for_each_seed(plain: u64, story: impl Fn(u64) -> u64 + Sync) -> u64 {
    let asked =
        std::env::var("KVTIER_SEEDS").ok().map(|n| n.parse().expect("KVTIER_SEEDS is a number"));
    let end = asked.unwrap_or(plain);
    let next = AtomicU64::new(0);
    let print = |seed| {
        catch_unwind(AssertUnwindSafe(|| story(seed)))
            // The number of the seed is all that is needed to run the same story again.
            .unwrap_or_else(|_| panic!("the story of seed {seed}"))
    };
    let some = || {
        iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed))
            .take_while(|n| *n < end)
            .map(print)
            .sum::<u64>()
    };
    thread::scope(|scope| {
        // Four threads also on one core: most stories wait for deadlines.
        let tellers: Vec<_> = (0..4).map(|_| scope.spawn(some)).collect();
        tellers
            .into_iter()
            .map(|teller| teller.join().expect("a story failed; its seed is named above"))
            .sum()
    })
}
