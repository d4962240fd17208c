/// A stream of numbers that is the same for the same seed, on every machine.
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
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
