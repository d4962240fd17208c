//! When something happened, as precisely as the clocks of two nodes allow.

use std::time::Duration;

use crate::state::shared::Shared;

/// Times of two nodes that are closer than this are not comparable. Each is wrong by up to two
/// seconds: the store's `Date` has no fractions, and a change is recorded at its answer, somewhat
/// after it happened.
const MARGIN_MS: i64 = 5000;

/// A range of times on this tier's clock. Times before the tier was opened are negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTime {
    pub from_ms: i64,
    pub to_ms: i64,
}

/// Which of two changes came last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newer {
    /// The change in the journal that is being applied.
    This,
    /// The change that was known before.
    Other,
    /// Only the bucket can decide.
    Unclear,
}

impl EventTime {
    pub fn at(ms: i64) -> Self {
        EventTime { from_ms: ms, to_ms: ms }
    }

    /// That long before now.
    pub fn ago(shared: &Shared, ago: Duration) -> Self {
        EventTime::at(shared.now_ms().cast_signed() - ago.as_millis() as i64)
    }

    /// Between two Unix times in milliseconds, by the store's clock.
    pub fn between(shared: &Shared, from_ms: u64, to_ms: u64) -> Self {
        let ahead_ms =
            shared.node.server_ms(&shared.client).cast_signed() - shared.now_ms().cast_signed();
        EventTime {
            from_ms: from_ms.cast_signed() - ahead_ms,
            to_ms: to_ms.cast_signed() - ahead_ms,
        }
    }

    /// Which came last, this or the known one.
    pub fn compare(&self, known: &EventTime) -> Newer {
        if known.to_ms + MARGIN_MS < self.from_ms {
            Newer::This
        } else if self.to_ms + MARGIN_MS < known.from_ms {
            Newer::Other
        } else {
            Newer::Unclear
        }
    }
}

impl Newer {
    /// Combines comparisons: one `Other` decides.
    pub fn and(self, other: Newer) -> Newer {
        match (self, other) {
            (Newer::Other, _) | (_, Newer::Other) => Newer::Other,
            (Newer::This, Newer::This) => Newer::This,
            _ => Newer::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_clearly_later_wins_and_what_is_not_clear_is_said() {
        let known = EventTime { from_ms: 100_000, to_ms: 110_000 };
        let compare = |from_ms, to_ms| EventTime { from_ms, to_ms }.compare(&known);
        assert_eq!(compare(115_001, 115_001), Newer::This);
        assert_eq!(compare(115_000, 200_000), Newer::Unclear);
        assert_eq!(compare(105_000, 105_000), Newer::Unclear);
        assert_eq!(compare(-7, 95_000), Newer::Unclear);
        assert_eq!(compare(-7, 94_999), Newer::Other);
        assert_eq!(Newer::This.and(Newer::This), Newer::This);
        assert_eq!(Newer::This.and(Newer::Unclear), Newer::Unclear);
        assert_eq!(Newer::Unclear.and(Newer::Other), Newer::Other);
    }
}
