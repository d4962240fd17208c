use std::fmt;

/// The most victims in one batch.
pub const VICTIMS_MAX: usize = 1024;

/// Limits of one index. [`Index::new`](crate::Index::new) checks them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct IndexConfig {
    /// What the medium may hold, in bytes; writes in flight are counted in it. `u64::MAX`: as much
    /// as it takes.
    pub capacity_bytes: u64,
    /// Eviction goes down to this share of the capacity, above 0 and at most 1.
    pub high_mark: f64,
    /// One batch of victims is at most this share of the capacity (or one victim, or what one save
    /// needs).
    pub batch_max: f64,
    /// The most holds there may be at one time.
    pub holds_max: usize,
    /// The most entries that all holds together may hold; one that two holds share counts twice.
    pub held_max: usize,
    /// The most suspect keys remembered; beyond it the oldest is forgotten.
    pub suspects_max: usize,
    /// The most members of sets that are not there, or as many as there are chunks if these are
    /// more; beyond it no set is declared.
    pub missing_max: usize,
}

impl IndexConfig {
    /// The defaults for a medium of `capacity_bytes` bytes: mark 0.98, batches of 0.5 %, 65,536
    /// holds of 1,048,576 entries, 65,536 suspects, 1,048,576 members of sets that are not
    /// there.
    pub fn new(capacity_bytes: u64) -> Self {
        IndexConfig {
            capacity_bytes,
            high_mark: 0.98,
            batch_max: 0.005,
            holds_max: 1 << 16,
            held_max: 1 << 20,
            suspects_max: 1 << 16,
            missing_max: 1 << 20,
        }
    }

    /// Sets the high mark. At 1 the whole capacity is used, and every save evicts just what it
    /// needs.
    pub fn with_high_mark(mut self, share: f64) -> Self {
        self.high_mark = share;
        self
    }

    /// Sets the share of the capacity that one batch of victims may have.
    pub fn with_batch_max(mut self, share: f64) -> Self {
        self.batch_max = share;
        self
    }

    /// Sets the most holds, and the most entries that they may hold together.
    pub fn with_holds_max(mut self, holds: usize, entries: usize) -> Self {
        (self.holds_max, self.held_max) = (holds, entries);
        self
    }

    /// Sets the most suspect keys remembered.
    pub fn with_suspects_max(mut self, keys: usize) -> Self {
        self.suspects_max = keys;
        self
    }

    /// Sets the most members of sets that may be missing.
    pub fn with_missing_max(mut self, chunks: usize) -> Self {
        self.missing_max = chunks;
        self
    }

    pub(crate) fn marks(&self) -> Result<CapacityMarks, InvalidConfig> {
        if self.capacity_bytes == 0 {
            return Err(InvalidConfig {
                what: "capacity_bytes is 0",
                fix: "give the medium a capacity",
            });
        }
        if !(self.high_mark > 0.0 && self.high_mark <= 1.0) {
            return Err(InvalidConfig {
                what: "high_mark is not a share",
                fix: "set it above 0 and at most 1",
            });
        }
        if !(self.batch_max > 0.0 && self.batch_max <= 1.0) {
            return Err(InvalidConfig {
                what: "batch_max is not a share",
                fix: "set it above 0 and at most 1",
            });
        }
        let capacity = self.capacity_bytes;
        // At least one byte. Above 2^53 a `f64` rounds, so the result is bounded by the capacity.
        let share = |share: f64| ((capacity as f64 * share) as u64).clamp(1, capacity);
        // Exactly the capacity, without rounding.
        let high = if self.high_mark == 1.0 { capacity } else { share(self.high_mark) };
        Ok(CapacityMarks { capacity, high, batch: share(self.batch_max) })
    }
}

/// The limits of [`IndexConfig`] in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapacityMarks {
    pub capacity: u64,
    pub high: u64,
    pub batch: u64,
}

/// A configuration that makes no index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    pub(crate) what: &'static str,
    pub(crate) fix: &'static str,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

impl std::error::Error for InvalidConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_shares_of_the_capacity() {
        let marks = IndexConfig::new(1000).marks().unwrap();
        assert_eq!((marks.capacity, marks.high, marks.batch), (1000, 980, 5));
        let marks = IndexConfig::new(u64::MAX).with_high_mark(1.0).marks().unwrap();
        assert_eq!(marks.high, u64::MAX);
        assert_eq!(
            IndexConfig::new(1).marks().unwrap().high,
            1,
            "a medium of one byte holds one byte"
        );
    }

    #[test]
    fn what_is_no_share_is_refused_by_name() {
        let bad = [
            (IndexConfig::new(0), "capacity_bytes"),
            (IndexConfig::new(9).with_high_mark(0.0), "high_mark"),
            (IndexConfig::new(9).with_high_mark(f64::NAN), "high_mark"),
            (IndexConfig::new(9).with_batch_max(0.0), "batch_max"),
            (IndexConfig::new(9).with_batch_max(1.5), "batch_max"),
        ];
        for (config, name) in bad {
            assert!(config.marks().unwrap_err().to_string().contains(name));
        }
    }
}
