use kvtier_key::Key;
use kvtier_mem::{Lease, View};

use crate::Error;

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
    /// The chunk is encoded in a way that this build or configuration does not decode, or not
    /// encrypted where the tier takes only encrypted chunks.
    Codec,
    /// The key that encrypted the chunk is not loaded.
    KeyMissing,
    /// Decoding the chunk needs more memory than the tier may use for it.
    TooLarge,
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
