use std::fmt;
use std::sync::Arc;

use kvtier_key::Digest;

/// What an operator or a coordinator can ask any tier.
pub trait Observe {
    /// How much is in it, whoever wrote it.
    fn usage(&self) -> Usage;

    /// A page of at most `max` keys from `from` (the default is the beginning), in an order of the tier's own that stays the same while
    /// it is open. A key stored or removed meanwhile may or may not appear.
    fn keys(&self, from: Cursor, max: usize) -> KeyPage;

    /// Tells `listener` of everything stored, touched and gone from now on. Called without locks held, on the tier's threads: be
    /// quick.
    fn listen(&self, listener: Arc<dyn Listener>);

    /// Whether it works, and if not, why.
    fn status(&self) -> Status;
}

/// How full a tier is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes on the medium; `None` while unknown.
    pub used_bytes: Option<u64>,
    /// The cap in bytes; `None` for none.
    pub capacity_bytes: Option<u64>,
    /// Number of chunks.
    pub chunks: u64,
    /// Per tenant.
    pub tenants: Vec<TenantUsage>,
}

/// What one tenant uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// The tenant's name.
    pub tenant: String,
    /// Bytes on the medium.
    pub used_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

/// Where a page of keys begins; means something only to the tier that gave it. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// One key of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The key's digest.
    pub key: Digest,
    /// Payload length in bytes.
    pub len: u64,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<KeyInfo>,
    /// Where the next page begins; `None` at the end. A page may be short, even empty, before the end.
    pub next: Option<Cursor>,
}

/// Something that happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Now here, with this payload length in bytes.
    Stored {
        /// Which key.
        key: Digest,
        /// Payload length in bytes.
        len: u64,
    },
    /// Asked for and found.
    Touched {
        /// Which key.
        key: Digest,
    },
    /// Gone: evicted, removed, set aside as corrupt, or found missing.
    Gone {
        /// Which key.
        key: Digest,
        /// Payload length in bytes.
        len: u64,
    },
}

/// Hears of events.
pub trait Listener: fmt::Debug + Send + Sync {
    /// Events in the order they happened to each key.
    fn hear(&self, events: &[Event]);
}

/// Whether a tier works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Takes and answers work.
    pub healthy: bool,
    /// What an operator should know, healthy or not: the engine chosen and why, faults seen, what to do.
    pub reasons: Vec<String>,
    /// Named counters, in a fixed order.
    pub counters: Vec<(&'static str, u64)>,
}

impl Status {
    /// A status with these reasons and counters.
    pub fn new(healthy: bool, reasons: Vec<String>, counters: Vec<(&'static str, u64)>) -> Self {
        Status { healthy, reasons, counters }
    }

    /// The counter of this name; 0 when there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v)
    }
}
