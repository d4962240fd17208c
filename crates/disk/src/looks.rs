use std::sync::Mutex;
use std::time::{Duration, Instant};

use kvtier_core::Clock;

/// The least time between two looks at the whole directory.
const APART_MIN: Duration = Duration::from_millis(100);
/// Of the time, looks may take one part in so many.
const SHARE: u32 = 20;

/// Looks at the whole directory, which are dear: each reads every name.
#[derive(Debug, Default)]
pub struct Looks {
    next: Mutex<Option<Instant>>,
}

impl Looks {
    /// Calls `look`, unless another thread does so now or did a moment ago: then answers `false`.
    pub fn now_and_then(&self, clock: &Clock, look: impl FnOnce() -> bool) -> bool {
        let Ok(mut next) = self.next.try_lock() else { return false };
        let began = clock.now();
        if next.is_some_and(|next| began < next) {
            return false;
        }
        let looked = look();
        let ended = clock.now();
        *next = Some(ended + APART_MIN.max((ended - began) * SHARE));
        looked
    }
}
