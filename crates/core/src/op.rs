use std::collections::HashSet;

use kvtier_key::{Digest, Key};
use kvtier_mem::{Lease, View};

use crate::{Bitmap, Error};

/// Loads the chunk `key` into the leases, in order, as if they were one buffer.
#[derive(Debug)]
pub struct Load {
    /// The chunk.
    pub key: Key,
    /// The destination; together at least as long as the chunk. On a hit, their initialised lengths
    /// cover the chunk.
    pub into: Vec<Lease>,
}

/// Saves the bytes of the views, in order, as the chunk `key`.
#[derive(Debug)]
pub struct Save {
    /// The chunk.
    pub key: Key,
    /// Its bytes.
    pub from: Vec<View>,
}

/// An op of a batch. It has a key, and a form without memory for results that come before the
/// medium has released the memory.
pub trait Op: Send + 'static {
    /// Its key.
    fn key(&self) -> &Key;
    /// The same op without memory.
    fn bare(key: Key) -> Self;
    /// The bytes of memory that it carries.
    fn bytes(&self) -> u64;
}

impl Op for Load {
    fn key(&self) -> &Key {
        &self.key
    }
    fn bare(key: Key) -> Self {
        Load { key, into: Vec::new() }
    }
    fn bytes(&self) -> u64 {
        self.into.iter().map(|l| l.len() as u64).sum()
    }
}

impl Op for Save {
    fn key(&self) -> &Key {
        &self.key
    }
    fn bare(key: Key) -> Self {
        Save { key, from: Vec::new() }
    }
    fn bytes(&self) -> u64 {
        self.from.iter().map(|v| v.len() as u64).sum()
    }
}

/// An op and its result. The op returns its memory, except after `Timeout` and `Closed`: memory
/// that the kernel or a driver still holds then returns to its arena by itself.
#[must_use]
#[derive(Debug)]
pub struct Done<O, T> {
    /// The op, with its memory.
    pub op: O,
    /// Its result.
    pub result: Result<T, Error>,
}

/// The result of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loaded {
    /// The leases contain exactly the bytes that were saved.
    Hit {
        /// Length in bytes.
        len: u64,
    },
    /// The tier has no valid bytes for the chunk. The leases contain nothing.
    Miss(MissReason),
    /// Too much in flight: wait for [`Tier::ready`](crate::Tier::ready) and retry.
    Throttled,
}

/// Why a load was a miss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MissReason {
    /// The chunk is not in the tier.
    Absent,
    /// The stored bytes fail their checks and have been quarantined.
    Corrupt,
    /// The chunk is longer than the leases, or not of its namespace's length.
    Length,
    /// Another program wrote the chunk without checksums, and the configuration requires them.
    Unverified,
    /// Loading the chunk would take longer than computing it.
    Slow,
}

/// The result of a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Saved {
    /// The chunk is on the medium.
    Stored,
    /// The chunk already was on the medium.
    Present,
    /// The tier did not keep the chunk.
    Shed(ShedReason),
}

/// Why a tier did not keep a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ShedReason {
    /// Too much in flight: wait for [`Tier::ready`](crate::Tier::ready) and retry.
    Throttled,
    /// No space: every chunk that could be evicted is held.
    Full,
    /// The chunk is larger than the tier accepts at all.
    TooLarge,
    /// The chunks that would be evicted for it are likelier to be requested again.
    NotWorth,
    /// The chunk is larger than the whole quota of its tenant.
    Quota,
    /// The chunk belongs to an [atomic set](crate::Ctx::atomic), and the tier already tracks its
    /// maximum of missing members.
    IncompleteSets,
    /// The medium is read-only; its chunks are still served.
    ReadOnly,
    /// The device is full below the tier's capacity, and evicting freed nothing.
    DeviceFull,
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

/// Identifies a hold until it is released or expires. Unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoldId(pub u64);

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

/// The counts of a remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Removed {
    /// Chunks that are gone now.
    pub removed: usize,
    /// Chunks that were not there.
    pub absent: usize,
    /// Chunks that are held and stay.
    pub held: usize,
}

impl Removed {
    /// These counts.
    pub fn new(removed: usize, absent: usize, held: usize) -> Self {
        Removed { removed, absent, held }
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
