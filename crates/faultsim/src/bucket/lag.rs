//! Listings that lag, as those of eventual stores do: each change of an object appears in them late.
//! The changes of one object appear in their order.

use std::collections::{BTreeMap, VecDeque};

use super::Object;

/// What listings show.
#[derive(Debug)]
pub struct Lag {
    rng: fastrand::Rng,
    max_ms: u64,
    listed: BTreeMap<String, Object>,
    /// By object: when each change appears, and what it is then.
    late: BTreeMap<String, VecDeque<LateChange>>,
}

#[derive(Debug)]
struct LateChange {
    appears_ms: u64,
    /// `None`: it is deleted.
    object: Option<Object>,
}

impl Lag {
    pub fn new(rng: fastrand::Rng, max_ms: u64) -> Self {
        Lag { rng, max_ms, listed: BTreeMap::new(), late: BTreeMap::new() }
    }

    /// The object is this now, or deleted.
    pub fn changed(&mut self, key: &str, object: Option<Object>, now_ms: u64) {
        let late = self.late.entry(key.to_owned()).or_default();
        let earliest = late.back().map_or(now_ms, |last| last.appears_ms);
        let appears_ms = earliest.max(now_ms + self.rng.u64(..=self.max_ms));
        late.push_back(LateChange { appears_ms, object });
    }

    /// What a listing shows now.
    pub fn listed(&mut self, now_ms: u64) -> &BTreeMap<String, Object> {
        let Lag { listed, late, .. } = self;
        late.retain(|key, changes| {
            while let Some(change) = changes.pop_front_if(|change| change.appears_ms <= now_ms) {
                match change.object {
                    Some(object) => drop(listed.insert(key.clone(), object)),
                    None => drop(listed.remove(key)),
                }
            }
            !changes.is_empty()
        });
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_appear_late_in_their_order_and_all_of_them() {
        let object = |modified_s| Object {
            bytes: Vec::new(),
            etag: String::new(),
            modified_s,
            headers: Vec::new(),
            entry: String::new(),
        };
        for seed in 0..100 {
            let mut lag = Lag::new(fastrand::Rng::with_seed(seed), 1000);
            lag.changed("a", Some(object(1)), 0);
            lag.changed("a", None, 10);
            lag.changed("a", Some(object(2)), 20);
            let mut shown: Vec<Option<u64>> = Vec::new();
            for now_ms in 0..=1020 {
                let now = lag.listed(now_ms).get("a").map(|object| object.modified_s);
                if shown.last() != Some(&now) {
                    shown.push(now);
                }
            }
            assert_eq!(shown.last(), Some(&Some(2)), "within the longest lag");
            assert!(!shown.windows(2).any(|two| two == [Some(2), Some(1)]), "{shown:?}");
        }
    }
}
