//! Which lookups hold which keys, until these are let go.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use kvtier::core::{Digest, HoldId};

/// No hold lasts longer: the clock ends somewhere.
const LASTS_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Keys of one hold that nobody needs any more.
#[derive(Debug)]
pub struct LetGo {
    /// The hold.
    pub hold: HoldId,
    /// Of these keys.
    pub keys: Vec<Digest>,
    /// Whether it keeps no other key.
    pub is_all: bool,
}

/// The holds of one store. A hold is released key by key, with its last key as a whole, or ends by
/// itself.
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

    /// Ends the oldest hold of each key. Answers what to release, hold by hold.
    pub fn let_go<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k Digest>,
        now: Instant,
    ) -> Vec<LetGo> {
        self.forget_ended(now);
        let mut all: HashMap<HoldId, LetGo> = HashMap::new();
        for key in keys {
            let Some(hold) = self.pop(key) else { continue };
            let one =
                all.entry(hold).or_insert_with(|| LetGo { hold, keys: Vec::new(), is_all: false });
            one.keys.push(*key);
            one.is_all = self.count_down(hold);
        }
        all.into_values().collect()
    }

    /// The oldest hold of this key.
    fn pop(&mut self, key: &Digest) -> Option<HoldId> {
        let holds = self.by_key.get_mut(key)?;
        let hold = holds.pop_front();
        if holds.is_empty() {
            self.by_key.remove(key);
        }
        hold
    }

    /// One key of this hold was let go. Answers whether it was the last.
    fn count_down(&mut self, hold: HoldId) -> bool {
        let Some((left, end)) = self.left.get_mut(&hold) else { return true };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.ends.remove(&(*end, hold.0));
        self.left.remove(&hold);
        true
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, hold), keys) = first.remove_entry();
            let hold = HoldId(hold);
            self.left.remove(&hold);
            for key in keys {
                if let Some(holds) = self.by_key.get_mut(&key) {
                    // The oldest ends first, and mostly stands in front: a key that is looked up
                    // all the time has many.
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
