use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use kvtier_core::{Clock, HoldId};

use crate::sync::{Mutex, MutexGuard};

/// The most holds of a stack at one time.
pub const HOLDS_MAX: usize = 65_536;

/// Holds of single tiers: which tier, and its hold.
pub type Parts = Vec<(usize, HoldId)>;

/// One hold of the stack stands for one in each tier that has some of the chunks. The tiers end theirs by themselves; what is kept here
/// is only which they are.
#[derive(Debug, Default)]
pub struct Holds {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    all: HashMap<u64, (Instant, Parts)>,
}

impl Holds {
    /// None yet, on this clock.
    pub fn new(clock: Clock) -> Self {
        Holds { clock, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hold that stands for these until `ttl` has passed; hands them back when there are too many.
    pub fn keep(&self, parts: Parts, ttl: Duration) -> Result<HoldId, Parts> {
        let (mut state, now) = (self.lock(), self.clock.now());
        if state.all.len() >= HOLDS_MAX {
            state.all.retain(|_, (until, _)| *until > now);
        }
        if state.all.len() >= HOLDS_MAX {
            return Err(parts);
        }
        state.next += 1;
        let id = state.next;
        // A hold without end in sight is kept for a century.
        let until = now.checked_add(ttl).unwrap_or(now + Duration::from_secs(3_000_000_000));
        state.all.insert(id, (until, parts));
        Ok(HoldId(id))
    }

    /// Forgets a hold; what it stood for, nothing if it is unknown.
    pub fn take(&self, id: HoldId) -> Parts {
        self.lock().all.remove(&id.0).map(|(_, parts)| parts).unwrap_or_default()
    }

    /// What a hold stands for, nothing if it is unknown.
    pub fn parts(&self, id: HoldId) -> Parts {
        self.lock().all.get(&id.0).map(|(_, parts)| parts.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use kvtier_core::ManualClock;

    use super::*;

    #[test]
    fn a_hold_is_taken_once_and_expired_ones_make_room() {
        let time = ManualClock::new();
        let holds = Holds::new(time.clock());
        let id = holds.keep(vec![(0, HoldId(7))], Duration::MAX).unwrap();
        assert_eq!(holds.parts(id), [(0, HoldId(7))]);
        assert_eq!(holds.take(id), [(0, HoldId(7))]);
        assert!(holds.parts(id).is_empty() && holds.take(id).is_empty());
        let minute = Duration::from_secs(60);
        (0..HOLDS_MAX).for_each(|_| assert!(holds.keep(vec![], minute).is_ok()));
        assert!(holds.keep(vec![(3, HoldId(3))], minute).is_err(), "all of them still hold");
        time.advance(minute);
        assert!(holds.keep(vec![(1, HoldId(1))], Duration::from_secs(60)).is_ok());
        (1..HOLDS_MAX).for_each(|_| assert!(holds.keep(vec![], Duration::from_secs(60)).is_ok()));
        assert_eq!(holds.keep(vec![(1, HoldId(2))], Duration::ZERO).unwrap_err(), [(1, HoldId(2))]);
    }
}
