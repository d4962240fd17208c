//! Maps the keys that callers release to the holds of their lookups.
//!
//! A tier hands out one hold per lookup, over all keys found. LMCache releases key by key. `Holds`
//! therefore counts the keys of each hold that are not released yet. A release ends the oldest hold
//! of its key, and the last key of a hold ends the hold as a whole. A hold that nothing releases
//! expires in the tier by itself; its entries here expire at the same time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use kvtier::core::{Digest, HoldId};

/// The longest hold, so that adding it to a point in time cannot overflow.
const HOLD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Keys of one hold that were released.
#[derive(Debug)]
pub struct ReleasedKeys {
    pub hold: HoldId,
    pub keys: Vec<Digest>,
    /// Whether the hold has no other key.
    pub is_whole_hold: bool,
}

/// The holds of one store.
#[derive(Debug, Default)]
pub struct Holds {
    duration: Duration,
    /// The keys of each hold that are not released yet, and when the hold expires.
    remaining: HashMap<HoldId, Remaining>,
    /// The holds of each key, the oldest first: several lookups may hold one key.
    by_key: HashMap<Digest, VecDeque<HoldId>>,
    by_expiry: BTreeMap<(Instant, u64), Vec<Digest>>,
}

#[derive(Debug)]
struct Remaining {
    keys: usize,
    expires: Instant,
}

impl Holds {
    /// Without holds; each lasts at most `duration`.
    pub fn new(duration: Duration) -> Self {
        Holds { duration: duration.min(HOLD_MAX), ..Holds::default() }
    }

    /// Adds the hold of a lookup over `keys`.
    pub fn add(&mut self, hold: HoldId, keys: Vec<Digest>, now: Instant) {
        self.remove_expired(now);
        let expires = now + self.duration;
        self.remaining.insert(hold, Remaining { keys: keys.len(), expires });
        for key in &keys {
            self.by_key.entry(*key).or_default().push_back(hold);
        }
        self.by_expiry.insert((expires, hold.0), keys);
    }

    /// Ends the oldest hold of each key. Returns the keys to release, by hold.
    pub fn release<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k Digest>,
        now: Instant,
    ) -> Vec<ReleasedKeys> {
        self.remove_expired(now);
        let mut released: HashMap<HoldId, ReleasedKeys> = HashMap::new();
        for key in keys {
            let Some(hold) = self.pop_oldest(key) else { continue };
            let of_hold = released.entry(hold).or_insert_with(|| ReleasedKeys {
                hold,
                keys: Vec::new(),
                is_whole_hold: false,
            });
            of_hold.keys.push(*key);
            of_hold.is_whole_hold = self.count_down(hold);
        }
        released.into_values().collect()
    }

    fn pop_oldest(&mut self, key: &Digest) -> Option<HoldId> {
        let holds = self.by_key.get_mut(key)?;
        let hold = holds.pop_front();
        if holds.is_empty() {
            self.by_key.remove(key);
        }
        hold
    }

    /// Counts one key of a hold as released; returns whether it was the last.
    fn count_down(&mut self, hold: HoldId) -> bool {
        let Some(Remaining { keys, expires }) = self.remaining.get_mut(&hold) else { return true };
        *keys -= 1;
        if *keys > 0 {
            return false;
        }
        self.by_expiry.remove(&(*expires, hold.0));
        self.remaining.remove(&hold);
        true
    }

    fn remove_expired(&mut self, now: Instant) {
        while let Some(first) = self.by_expiry.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, hold), keys) = first.remove_entry();
            let hold = HoldId(hold);
            self.remaining.remove(&hold);
            for key in keys {
                if let Some(holds) = self.by_key.get_mut(&key) {
                    // The oldest expires first and is usually in front. A key that is looked up
                    // often has many holds, so the rest is not scanned without need.
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
