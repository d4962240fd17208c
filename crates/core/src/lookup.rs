use std::collections::HashSet;

use kvtier_key::{Digest, Key};

use crate::{Bitmap, HoldId};

/// Which keys a lookup must answer for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every key by itself.
    Each,
    /// Only the length of the unbroken prefix. Keys after the first miss may be `Unknown`.
    Prefix,
}

/// What a lookup says about one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Presence {
    /// The chunk is there.
    Hit {
        /// Payload length in bytes.
        len: u64,
    },
    /// The chunk is not there.
    Miss,
    /// Not looked up, after the first miss of a prefix; or the tier cannot say.
    Unknown,
}

impl Presence {
    /// Whether the chunk is there.
    pub fn is_hit(self) -> bool {
        matches!(self, Presence::Hit { .. })
    }
}

/// The result of a lookup.
///
/// ```
/// use kvtier_core::{LookedUp, Presence};
///
/// let hit = Presence::Hit { len: 4096 };
/// let answer = LookedUp::new(vec![hit, hit, Presence::Miss, hit], None);
/// assert_eq!(answer.prefix_len(), 2);
/// assert_eq!(answer.found.iter().filter(|found| found.is_hit()).count(), 3);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LookedUp {
    /// One result per key, in order.
    pub found: Vec<Presence>,
    /// The hold on the hits, if one was requested and there are hits.
    pub hold: Option<HoldId>,
    /// From a stack: for each of its tiers, fastest first, the keys that it serves. A key in
    /// several tiers belongs to the fastest, since only that one is asked for it. Empty from a
    /// single medium.
    pub tiers: Vec<Bitmap>,
}

impl LookedUp {
    /// A result without tiers.
    pub fn new(found: Vec<Presence>, hold: Option<HoldId>) -> Self {
        LookedUp { found, hold, tiers: Vec::new() }
    }

    /// The digests of the keys that are hits.
    pub fn hits(&self, keys: &[Key]) -> Vec<Digest> {
        let mut hits = Vec::with_capacity(keys.len());
        let found = keys.iter().zip(&self.found).filter(|(_, presence)| presence.is_hit());
        hits.extend(found.map(|(key, _)| *key.digest()));
        hits
    }

    /// Adds the hold on the hits. Those that are `gone` since are misses.
    pub fn with_hold(mut self, hold: Option<HoldId>, keys: &[Key], gone: &[Digest]) -> Self {
        self.hold = hold;
        if !gone.is_empty() {
            // A lookup may have thousands of keys, so comparing each with each would be too slow.
            let gone: HashSet<&Digest> = gone.iter().collect();
            let found = keys.iter().zip(&mut self.found);
            found
                .filter(|(key, presence)| presence.is_hit() && gone.contains(key.digest()))
                .for_each(|(_, presence)| *presence = Presence::Miss);
        }
        self
    }

    /// Adds the keys that each tier of a stack serves.
    pub fn with_tiers(mut self, tiers: Vec<Bitmap>) -> Self {
        self.tiers = tiers;
        self
    }

    /// The tier of a stack that serves key `n`, 0 the fastest; `None` if none does, and from a
    /// single medium.
    pub fn tier_of(&self, n: usize) -> Option<usize> {
        self.tiers.iter().position(|keys| keys.contains(n))
    }

    /// The number of hits before the first key that is no hit.
    pub fn prefix_len(&self) -> usize {
        self.found.iter().take_while(|p| p.is_hit()).count()
    }
}

#[cfg(test)]
mod tests {
    use kvtier_key::Namespace;

    use super::*;

    #[test]
    fn a_hit_that_is_gone_when_it_is_held_is_a_miss() {
        let namespace = Namespace::from_name("test");
        let keys = ["a", "b", "c", "d"].map(|name| Key::from_name(&namespace, name));
        let hit = Presence::Hit { len: 1 };
        let found = LookedUp::new(vec![hit, Presence::Miss, hit, Presence::Unknown], None);
        assert_eq!(found.hits(&keys), [*keys[0].digest(), *keys[2].digest()]);
        let gone = [*keys[2].digest(), *keys[3].digest()];
        let held = found.clone().with_hold(Some(HoldId(7)), &keys, &gone);
        let expected = vec![hit, Presence::Miss, Presence::Miss, Presence::Unknown];
        assert_eq!(held, LookedUp::new(expected, Some(HoldId(7))));
        assert_eq!(found.clone().with_hold(None, &keys, &[]), found);
    }
}
