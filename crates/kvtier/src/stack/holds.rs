use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use kvtier_core::{Clock, Digest, HoldId};

use crate::sync::{Mutex, MutexGuard};

/// The most holds of a stack at once.
pub const HOLDS_MAX: usize = 65_536;

/// Expired holds are purged only above this number.
const PURGE_MIN: usize = 64;

/// Holds of single tiers: the index of the tier, and its hold.
pub type Parts = Vec<(usize, HoldId)>;

/// The holds of a stack. Each stands for one hold in every tier that has some of the chunks. The
/// tiers expire their holds themselves; this map only names them.
#[derive(Debug, Default)]
pub struct StackHolds {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// At this number of holds the expired ones are purged, so that holds which no caller releases
    /// do not accumulate.
    purge_at: usize,
    all: HashMap<u64, HeldParts>,
}

#[derive(Debug)]
struct HeldParts {
    until: Instant,
    parts: Parts,
    /// The chunks that it holds, until some are released.
    keys: Vec<Digest>,
    /// From then on: how often each is still held.
    left: HashMap<Digest, usize>,
}

impl HeldParts {
    /// Releases each of these keys once; returns whether any key is left.
    fn release_keys(&mut self, keys: &[Digest]) -> bool {
        // The map is built when a key is released for the first time. Most holds end as a whole and
        // never need it.
        for key in self.keys.drain(..) {
            *self.left.entry(key).or_default() += 1;
        }
        for key in keys {
            if let Entry::Occupied(mut times) = self.left.entry(*key) {
                // A lookup that named a key twice holds it twice, as the contract of `release_keys`
                // says.
                *times.get_mut() -= 1;
                if *times.get() == 0 {
                    times.remove();
                }
            }
        }
        !self.left.is_empty()
    }
}

/// The parts of a hold after some of its keys were released.
#[derive(Debug, PartialEq, Eq)]
pub enum Rest {
    /// Other keys are still held: these parts continue without the released ones.
    Some(Parts),
    /// The hold has ended: these parts are to be released.
    Nothing(Parts),
}

impl StackHolds {
    /// No holds, on this clock.
    pub fn new(clock: Clock) -> Self {
        StackHolds { clock, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a hold on these chunks that stands for these parts until `ttl` has passed. Returns
    /// the parts if there are too many holds.
    pub fn keep(&self, parts: Parts, keys: Vec<Digest>, ttl: Duration) -> Result<HoldId, Parts> {
        let mut state = self.lock();
        let now = self.clock.now();
        // A purge visits every hold. It runs when their number has doubled since the last one, so
        // its cost per hold stays constant.
        if state.all.len() >= state.purge_at.clamp(PURGE_MIN, HOLDS_MAX) {
            state.all.retain(|_, kept| kept.until > now);
            state.purge_at = 2 * state.all.len();
        }
        // Even after the purge there is no space: an engine that never releases must not use up
        // memory.
        if state.all.len() >= HOLDS_MAX {
            return Err(parts);
        }
        state.next += 1;
        let id = state.next;
        // A hold without end in sight is kept for a century.
        let until = now.checked_add(ttl).unwrap_or(now + Duration::from_secs(3_000_000_000));
        state.all.insert(id, HeldParts { until, parts, keys, left: HashMap::new() });
        Ok(HoldId(id))
    }

    /// Removes a hold and returns its parts; none if it is unknown.
    pub fn take(&self, id: HoldId) -> Parts {
        self.lock().all.remove(&id.0).map(|kept| kept.parts).unwrap_or_default()
    }

    /// Releases keys of a hold, which ends with its last one.
    pub fn release_keys(&self, id: HoldId, keys: &[Digest]) -> Rest {
        let mut state = self.lock();
        let left = state
            .all
            .get_mut(&id.0)
            // The parts are cloned, not taken: the same tiers still hold the other keys.
            .and_then(|kept| kept.release_keys(keys).then(|| kept.parts.clone()));
        match left {
            Some(parts) => Rest::Some(parts),
            None => {
                Rest::Nothing(state.all.remove(&id.0).map(|kept| kept.parts).unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvtier_core::ManualClock;

    use super::*;

    #[test]
    fn a_hold_is_taken_once_and_expired_ones_are_purged() {
        let time = ManualClock::new();
        let holds = StackHolds::new(time.clock());
        let keep = |parts, ttl| holds.keep(parts, vec![Digest([1; 32])], ttl);
        let id = keep(vec![(0, HoldId(7))], Duration::MAX).unwrap();
        assert_eq!(holds.take(id), [(0, HoldId(7))]);
        assert!(holds.take(id).is_empty());
        let minute = Duration::from_secs(60);
        (0..HOLDS_MAX).for_each(|_| assert!(keep(vec![], minute).is_ok()));
        assert!(keep(vec![(3, HoldId(3))], minute).is_err(), "none has expired");
        time.advance(minute);
        assert!(keep(vec![(1, HoldId(1))], Duration::from_secs(60)).is_ok());
        (1..HOLDS_MAX).for_each(|_| assert!(keep(vec![], Duration::from_secs(60)).is_ok()));
        assert_eq!(keep(vec![(1, HoldId(2))], Duration::ZERO).unwrap_err(), [(1, HoldId(2))]);
    }

    #[test]
    fn a_hold_ends_with_its_last_key() {
        let holds = StackHolds::default();
        let [a, b, c] = [1, 2, 3].map(|n| Digest([n; 32]));
        let parts = || vec![(0, HoldId(7)), (1, HoldId(8))];
        let id = holds.keep(parts(), vec![a, b, a], Duration::MAX).unwrap();
        assert_eq!(holds.release_keys(id, &[a, c]), Rest::Some(parts()));
        assert_eq!(holds.release_keys(id, &[b, b, c]), Rest::Some(parts()), "it was held twice");
        assert_eq!(holds.release_keys(id, &[a]), Rest::Nothing(parts()));
        assert_eq!(holds.release_keys(id, &[a]), Rest::Nothing(vec![]));
        assert!(holds.lock().all.is_empty() && holds.take(id).is_empty());
    }
}
