//! Which lookups hold which keys, until these are let go.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use kvtier::core::{Digest, HoldId};

/// No hold lasts longer: the clock ends somewhere.
const LASTS_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The holds of one store. Every hold is released when its last key was let go, or ends by itself.
#[derive(Debug, Default)]
pub struct Holds {
    lasts: Duration,
    /// How many of a hold's keys are not let go yet, and when it ends by itself.
    left: HashMap<HoldId, (usize, Instant)>,
    /// A key may be held by several lookups; the oldest is ended first.
    by_key: HashMap<Digest, VecDeque<HoldId>>,
    ends: BTreeMap<(Instant, u64), Vec<Digest>>,
}

impl Holds {
    /// No holds yet; each lasts so long at most.
    pub fn lasting(lasts: Duration) -> Self {
        Holds { lasts: lasts.min(LASTS_MAX), ..Holds::default() }
    }

    /// A lookup holds `keys` from now on.
    pub fn add(&mut self, hold: HoldId, keys: Vec<Digest>, now: Instant) {
        self.forget_ended(now);
        let end = now + self.lasts;
        self.left.insert(hold, (keys.len(), end));
        for key in &keys {
            self.by_key.entry(*key).or_default().push_back(hold);
        }
        self.ends.insert((end, hold.0), keys);
    }

    /// Whoever looked `key` up needs it no more. Answers the hold to release, if it was that one's last key.
    pub fn let_go(&mut self, key: &Digest, now: Instant) -> Option<HoldId> {
        self.forget_ended(now);
        let holds = self.by_key.get_mut(key)?;
        let hold = holds.pop_front()?;
        if holds.is_empty() {
            self.by_key.remove(key);
        }
        let (left, end) = self.left.get_mut(&hold)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.ends.remove(&(*end, hold.0));
        self.left.remove(&hold);
        Some(hold)
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, hold), keys) = first.remove_entry();
            let hold = HoldId(hold);
            self.left.remove(&hold);
            for key in keys {
                if let Some(holds) = self.by_key.get_mut(&key) {
                    // The oldest ends first, and mostly stands in front: a key that is looked up all the time has many.
                    match holds.front() == Some(&hold) {
                        true => while holds.pop_front_if(|first| *first == hold).is_some() {},
                        false => holds.retain(|other| *other != hold),
                    }
                    if holds.is_empty() {
                        self.by_key.remove(&key);
                    }
                }
            }
        }
    }
}
