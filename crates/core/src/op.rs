use kvtier_key::Key;
use kvtier_mem::{Lease, View};

use crate::{Bitmap, Error};

/// Load the chunk `key` into the leases, in order, as if they were one buffer.
#[derive(Debug)]
pub struct Load {
    /// Which chunk.
    pub key: Key,
    /// Where to; together at least as long as the chunk. On a hit their initialised length says
    /// how far they are filled.
    pub into: Vec<Lease>,
}

/// Save the bytes of the views, in order, as the chunk `key`.
#[derive(Debug)]
pub struct Save {
    /// Which chunk.
    pub key: Key,
    /// Its bytes.
    pub from: Vec<View>,
}

/// An op of a batch: it has a key, and a form without memory for when the memory cannot be handed
/// back yet.
pub trait Op: Send + 'static {
    /// The key it is about.
    fn key(&self) -> &Key;
    /// The same op without its memory.
    fn bare(key: Key) -> Self;
    /// How many bytes of memory it carries.
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

/// An op and how it ended. The op hands its leases back, except after `Timeout` and `Closed`, when
/// memory that the kernel or a driver still holds is not in the answer and returns to its arena by
/// itself.
#[must_use]
#[derive(Debug)]
pub struct Done<O, T> {
    /// The op, with its memory.
    pub op: O,
    /// How it ended.
    pub result: Result<T, Error>,
}

/// How a load ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loaded {
    /// The leases hold exactly what was saved.
    Hit {
        /// Its length in bytes.
        len: u64,
    },
    /// The tier has no such chunk that it can vouch for. The leases hold nothing.
    Miss(MissReason),
    /// Too much in flight; wait for `Tier::ready` and try again.
    Throttled,
}

/// Why a load was a miss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MissReason {
    /// It is not here.
    Absent,
    /// Something is here that fails its checks; it has been set aside.
    Corrupt,
    /// It is longer than the leases, or not of the length its namespace demands.
    Length,
    /// Another program wrote it and nothing proves its bytes, which this tier was told to demand.
    Unverified,
    /// It is here, but loading it would take longer than computing it.
    Slow,
}

/// How a save ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Saved {
    /// It is on the medium.
    Stored,
    /// It already was.
    Present,
    /// The tier chose not to keep it.
    Shed(ShedReason),
}

/// Why a tier did not keep a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ShedReason {
    /// Too much in flight; wait for `Tier::ready` and try again.
    Throttled,
    /// No room: everything that could go is held.
    Full,
    /// It is larger than the tier may hold at all.
    TooLarge,
    /// What would have to go for it is likelier to be asked for.
    NotWorth,
    /// It is larger than all that its tenant may have.
    Quota,
    /// It is to be there together with others or not at all, and of such sets too many chunks are
    /// missing already.
    IncompleteSets,
    /// The medium is read-only; what it has is served.
    ReadOnly,
    /// The medium itself is full, below the cap of the tier, and nothing that could be evicted made
    /// room on it.
    DeviceFull,
}

/// What a lookup says of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Presence {
    /// It is here, with this payload length in bytes.
    Hit {
        /// Payload length in bytes.
        len: u64,
    },
    /// It is not here.
    Miss,
    /// Nobody looked (after the first miss of a prefix), or the tier cannot tell.
    Unknown,
}

impl Presence {
    /// Whether the key is here.
    pub fn is_hit(self) -> bool {
        matches!(self, Presence::Hit { .. })
    }
}

/// Names a hold until it is released or expires. Unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoldId(pub u64);

/// The answer to a lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LookedUp {
    /// One answer a key, in order.
    pub found: Vec<Presence>,
    /// The hold on the hits, if one was asked for and anything was hit.
    pub hold: Option<HoldId>,
    /// From a stack: for each of its tiers, the fastest first, which of the keys it answers for. A
    /// key that several tiers have is the fastest one's, since no other is asked for it. Empty
    /// from a tier that is one medium.
    pub tiers: Vec<Bitmap>,
}

impl LookedUp {
    /// An answer.
    pub fn new(found: Vec<Presence>, hold: Option<HoldId>) -> Self {
        LookedUp { found, hold, tiers: Vec::new() }
    }

    /// The same with which tier of a stack answers for which key.
    pub fn with_tiers(mut self, tiers: Vec<Bitmap>) -> Self {
        self.tiers = tiers;
        self
    }

    /// The tier of a stack that answers for key `n`, 0 the fastest; `None` where none does, and
    /// from a tier that is one medium.
    pub fn tier_of(&self, n: usize) -> Option<usize> {
        self.tiers.iter().position(|keys| keys.contains(n))
    }

    /// How many keys from the first are hits without a gap.
    pub fn prefix_len(&self) -> usize {
        self.found.iter().take_while(|p| p.is_hit()).count()
    }
}

/// What became of a batch of keys to remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Removed {
    /// Gone now.
    pub removed: usize,
    /// Were not here.
    pub absent: usize,
    /// Are held by somebody and stay.
    pub held: usize,
}

impl Removed {
    /// Counts.
    pub fn new(removed: usize, absent: usize, held: usize) -> Self {
        Removed { removed, absent, held }
    }
}
