use std::fmt;

/// Some of the numbers below a length that is fixed: which keys of a lookup a tier has, say.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

impl Bitmap {
    /// None of the numbers below `len`.
    pub fn new(len: usize) -> Self {
        Bitmap { words: vec![0; len.div_ceil(64)], len }
    }

    /// Adds a number.
    ///
    /// # Panics
    ///
    /// Where it is not below the length.
    pub fn insert(&mut self, n: usize) {
        assert!(n < self.len, "{n} is not below {}", self.len);
        self.words[n / 64] |= 1 << (n % 64);
    }

    /// Whether a number is in it; one that is not below the length is not.
    pub fn contains(&self, n: usize) -> bool {
        self.words.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// How many numbers are in it.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The numbers in it, the smallest first.
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
    fn it_has_what_was_set_and_nothing_else() {
        let mut bits = Bitmap::new(130);
        [0, 63, 64, 129, 63].into_iter().for_each(|n| bits.insert(n));
        assert_eq!((bits.iter().collect::<Vec<_>>(), bits.count()), (vec![0, 63, 64, 129], 4));
        assert!(!bits.contains(1) && !bits.contains(130) && !bits.contains(usize::MAX));
        assert_eq!(format!("{bits:?}"), "4 of 130: {0, 63, 64, 129}");
        assert_eq!(Bitmap::new(0).count(), 0);
    }
}
