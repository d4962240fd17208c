use std::fmt;

/// A set of numbers below a fixed length: the keys of a lookup that a tier has, say.
///
/// ```
/// use kvtier_core::Bitmap;
///
/// let mut hits = Bitmap::new(100);
/// hits.insert(3);
/// hits.insert(64);
/// assert_eq!(hits.iter().collect::<Vec<_>>(), [3, 64]);
/// assert!(hits.contains(64) && !hits.contains(4));
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

impl Bitmap {
    /// The empty set of numbers below `len`.
    pub fn new(len: usize) -> Self {
        Bitmap { words: vec![0; len.div_ceil(64)], len }
    }

    /// Adds a number.
    ///
    /// # Panics
    ///
    /// If the number is not below the length.
    pub fn insert(&mut self, n: usize) {
        // A number in the unused bits of the last word would be counted but never listed.
        assert!(n < self.len, "{n} is not below {}", self.len);
        self.words[n / 64] |= 1 << (n % 64);
    }

    /// Whether the number is in the set.
    pub fn contains(&self, n: usize) -> bool {
        self.words.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// How many numbers are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The numbers in the set, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len).filter(|n| self.contains(*n))
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: ", self.count(), self.len)?;
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_contains_the_inserted_numbers_only() {
        let mut bits = Bitmap::new(130);
        [0, 63, 64, 129, 63].into_iter().for_each(|n| bits.insert(n));
        assert_eq!((bits.iter().collect::<Vec<_>>(), bits.count()), (vec![0, 63, 64, 129], 4));
        assert!(!bits.contains(1) && !bits.contains(130) && !bits.contains(usize::MAX));
        assert_eq!(format!("{bits:?}"), "4 of 130: {0, 63, 64, 129}");
        assert_eq!(Bitmap::new(0).count(), 0);
    }
}
