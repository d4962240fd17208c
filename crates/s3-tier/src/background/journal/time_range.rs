//! When something happened, as far as two clocks can tell.

use std::time::Duration;

use crate::state::shared::Shared;

/// Times of two nodes that are closer than this tell nothing. Each is off by up to a second or two,
/// as the store's `Date` has no fractions, and what is noted when the store's answer comes was done
/// somewhat before.
const MARGIN_MS: i64 = 5000;

/// Something happened then, or between these times, by this tier's clock; what was before the tier
/// was there is below 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct When {
    pub from_ms: i64,
    pub to_ms: i64,
}

/// Which of two changes came last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// The one that a journal tells of now.
    This,
    /// One that was known before.
    Other,
    /// Only the bucket can tell.
    Unclear,
}

impl When {
    pub fn at(ms: i64) -> Self {
        When { from_ms: ms, to_ms: ms }
    }

    /// So long ago.
    pub fn ago(shared: &Shared, ago: Duration) -> Self {
        When::at(shared.now_ms().cast_signed() - ago.as_millis() as i64)
    }

    /// Between these times, in Unix milliseconds by the store's clock.
    pub fn between(shared: &Shared, from_ms: u64, to_ms: u64) -> Self {
        let ahead_ms =
            shared.truth.server_ms(&shared.client).cast_signed() - shared.now_ms().cast_signed();
        When { from_ms: from_ms.cast_signed() - ahead_ms, to_ms: to_ms.cast_signed() - ahead_ms }
    }

    /// Which came last, this or what was known before.
    pub fn against(&self, known: &When) -> Last {
        if known.to_ms + MARGIN_MS < self.from_ms {
            Last::This
        } else if self.to_ms + MARGIN_MS < known.from_ms {
            Last::Other
        } else {
            Last::Unclear
        }
    }
}

impl Last {
    /// Of several comparisons: one that is lost is enough.
    pub fn and(self, other: Last) -> Last {
        match (self, other) {
            (Last::Other, _) | (_, Last::Other) => Last::Other,
            (Last::This, Last::This) => Last::This,
            _ => Last::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_clearly_later_wins_and_what_is_not_clear_is_said() {
        let known = When { from_ms: 100_000, to_ms: 110_000 };
        let against = |from_ms, to_ms| When { from_ms, to_ms }.against(&known);
        assert_eq!(against(115_001, 115_001), Last::This);
        assert_eq!(against(115_000, 200_000), Last::Unclear);
        assert_eq!(against(105_000, 105_000), Last::Unclear);
        assert_eq!(against(-7, 95_000), Last::Unclear);
        assert_eq!(against(-7, 94_999), Last::Other);
        assert_eq!(Last::This.and(Last::This), Last::This);
        assert_eq!(Last::This.and(Last::Unclear), Last::Unclear);
        assert_eq!(Last::Unclear.and(Last::Other), Last::Other);
    }
}
