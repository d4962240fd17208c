use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kvtier_key::Digest;

/// What an operator or a coordinator can ask any tier.
pub trait Observe {
    /// How much is in it, whoever wrote it.
    fn usage(&self) -> Usage;

    /// A page of at most `max` keys from `from` (the default is the beginning), in an order of the
    /// tier's own that stays the same while it is open. A key stored or removed meanwhile may
    /// or may not appear.
    fn keys(&self, from: Cursor, max: usize) -> KeyPage;

    /// Tells `listener` of everything stored, touched and gone from now on. Called without locks
    /// held, on the tier's threads: be quick.
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

impl Usage {
    /// The share of the cap that is used, above 1 when more lies there than may: LMCache's
    /// `get_usage()`. `None` (-1 there) without a cap, with a cap of 0, and while nobody knows
    /// what is used.
    pub fn fraction(&self) -> Option<f64> {
        let capacity = self.capacity_bytes.filter(|bytes| *bytes > 0)?;
        self.used_bytes.map(|used| used as f64 / capacity as f64)
    }

    /// What is in this and another medium together; what is in both counts twice, as it takes up
    /// room twice. Unknown, and without a cap, where one of them is.
    pub fn combine(mut self, other: Usage) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
        self.used_bytes = sum(self.used_bytes, other.used_bytes);
        self.capacity_bytes = sum(self.capacity_bytes, other.capacity_bytes);
        self.chunks += other.chunks;
        // There may be as many tenants as users.
        let places = self.tenants.iter().enumerate().map(|(at, one)| (one.tenant.clone(), at));
        let places: HashMap<String, usize> = places.collect();
        for more in other.tenants {
            match places.get(&more.tenant) {
                Some(at) => {
                    let one = &mut self.tenants[*at];
                    (one.used_bytes, one.chunks) =
                        (one.used_bytes + more.used_bytes, one.chunks + more.chunks)
                }
                None => self.tenants.push(more),
            }
        }
        self
    }
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

/// Where a page of keys begins; means something only to the tier that gave it. The default is the
/// beginning.
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
    /// Where the next page begins; `None` at the end. A page may be short, even empty, before the
    /// end.
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
    /// Events were dropped here, because too many waited for the listeners: list the keys to know
    /// what is there.
    Missed {
        /// How many.
        events: u64,
    },
}

/// Hears of events.
pub trait Listener: fmt::Debug + Send + Sync {
    /// Events in the order they happened to each key, one call at a time; perhaps a moment after
    /// who did it was answered.
    ///
    /// It is called on a thread of the tier's own or of one of its callers, which does nothing else
    /// until it returns. It may call the tier, but must not wait for its answer: what is asked
    /// may need that very thread, and would only end at its deadline. What takes long, or waits,
    /// belongs on a thread of the listener's.
    fn on_events(&self, events: &[Event]);
}

/// Whether a tier works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Takes and answers work.
    pub healthy: bool,
    /// What an operator should know, healthy or not: the engine chosen and why, faults seen, what
    /// to do.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used_bytes: Option<u64>, capacity_bytes: Option<u64>) -> Usage {
        Usage { used_bytes, capacity_bytes, ..Usage::default() }
    }

    #[test]
    fn what_share_is_used_is_unknown_without_a_cap() {
        assert_eq!(usage(Some(30), Some(120)).fraction(), Some(0.25));
        assert_eq!(usage(Some(180), Some(120)).fraction(), Some(1.5));
        for unknown in [
            usage(Some(30), Some(0)),
            usage(Some(0), Some(0)),
            usage(Some(30), None),
            usage(None, Some(9)),
        ] {
            assert_eq!(unknown.fraction(), None, "{unknown:?}");
        }
    }

    #[test]
    fn two_media_add_up_tenant_by_tenant() {
        let of = |tenant: &str, chunks| TenantUsage {
            tenant: tenant.into(),
            used_bytes: 10 * chunks,
            chunks,
        };
        let with =
            |tenants: Vec<TenantUsage>| Usage { chunks: 3, tenants, ..usage(Some(30), Some(100)) };
        let both = with(vec![of("a", 1), of("b", 2)]).combine(with(vec![of("c", 2), of("a", 1)]));
        assert_eq!((both.used_bytes, both.capacity_bytes, both.chunks), (Some(60), Some(200), 6));
        assert_eq!(both.tenants, [of("a", 2), of("b", 2), of("c", 2)]);
        let unknown = with(vec![]).combine(usage(None, None));
        assert_eq!((unknown.used_bytes, unknown.capacity_bytes), (None, None));
    }
}
