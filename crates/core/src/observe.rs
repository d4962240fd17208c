use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kvtier_key::Digest;

/// What an operator or a coordinator can ask of any tier.
pub trait Observe {
    /// The space in use, whichever process wrote it.
    fn usage(&self) -> Usage;

    /// A page of at most `max` keys from `from` (the default is the start). The order is the tier's
    /// own and stays the same while the tier is open. A key stored or removed meanwhile may or may
    /// not appear.
    ///
    /// ```
    /// use kvtier_core::{Cursor, Digest, Observe};
    ///
    /// fn all_keys(tier: &dyn Observe) -> Vec<Digest> {
    ///     let mut keys = Vec::new();
    ///     let mut from = Some(Cursor::default());
    ///     while let Some(cursor) = from {
    ///         let page = tier.keys(cursor, 1000);
    ///         keys.extend(page.keys.iter().map(|info| info.key));
    ///         from = page.next;
    ///     }
    ///     keys
    /// }
    /// ```
    fn keys(&self, from: Cursor, max: usize) -> KeyPage;

    /// Sends `listener` every later event. The tier calls it on its own threads, without locks
    /// held: return fast.
    fn listen(&self, listener: Arc<dyn Listener>);

    /// Whether the tier works, and if not, why.
    fn status(&self) -> Status;
}

/// The space in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes on the medium; `None` while unknown.
    pub used_bytes: Option<u64>,
    /// Capacity in bytes; `None` if unlimited.
    pub capacity_bytes: Option<u64>,
    /// Number of chunks.
    pub chunks: u64,
    /// Usage per tenant.
    pub tenants: Vec<TenantUsage>,
}

impl Usage {
    /// The usage of a medium by this number of chunks, without tenants.
    pub fn new(used_bytes: Option<u64>, capacity_bytes: Option<u64>, chunks: usize) -> Self {
        Usage { used_bytes, capacity_bytes, chunks: chunks as u64, tenants: Vec::new() }
    }

    /// Adds the usage per tenant.
    pub fn with_tenants(mut self, tenants: impl Iterator<Item = TenantUsage>) -> Self {
        self.tenants = tenants.collect();
        self
    }

    /// Used bytes divided by capacity; above 1 when the medium is over its capacity. This is
    /// LMCache's `get_usage()`. `None` (-1 there) without a capacity, with a capacity of 0, and
    /// while the used bytes are unknown.
    ///
    /// ```
    /// use kvtier_core::Usage;
    ///
    /// let mut usage = Usage::default();
    /// assert_eq!(usage.fraction(), None, "unlimited");
    /// (usage.used_bytes, usage.capacity_bytes) = (Some(25), Some(100));
    /// assert_eq!(usage.fraction(), Some(0.25));
    /// ```
    pub fn fraction(&self) -> Option<f64> {
        let capacity = self.capacity_bytes.filter(|bytes| *bytes > 0)?;
        self.used_bytes.map(|used| used as f64 / capacity as f64)
    }

    /// The usage of this and another medium together. A chunk on both counts twice, as it occupies
    /// both. Unknown or unlimited where one of them is.
    pub fn combine(mut self, other: Usage) -> Self {
        // An overflow counts as unknown or unlimited, too.
        let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
        self.used_bytes = sum(self.used_bytes, other.used_bytes);
        self.capacity_bytes = sum(self.capacity_bytes, other.capacity_bytes);
        self.chunks += other.chunks;
        // There may be as many tenants as users, so find them by hash.
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

/// The usage of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// The tenant's name.
    pub tenant: String,
    /// Bytes on the medium.
    pub used_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl TenantUsage {
    /// The usage of a tenant by this number of chunks.
    pub fn new(tenant: String, used_bytes: u64, chunks: usize) -> Self {
        TenantUsage { tenant, used_bytes, chunks: chunks as u64 }
    }
}

/// The start of a page of keys; valid only for the tier that returned it. The default is the start
/// of the listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

impl Cursor {
    /// The number of a slot, for tiers that list their slots. A number that no page of theirs
    /// returned is past the end.
    pub fn slot(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

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
    /// The start of the next page; `None` at the end. A page before the end may be short or empty.
    pub next: Option<Cursor>,
}

impl KeyPage {
    /// A page of a tier that lists its slots; `next` is the slot where the next page begins.
    pub fn from_slots(keys: impl Iterator<Item = KeyInfo>, next: Option<u32>) -> Self {
        KeyPage { keys: keys.collect(), next: next.map(|slot| Cursor(slot.into())) }
    }
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The chunk is there now.
    Stored {
        /// The key.
        key: Digest,
        /// Payload length in bytes.
        len: u64,
    },
    /// The chunk was requested and found.
    Touched {
        /// The key.
        key: Digest,
    },
    /// The chunk is gone: evicted, removed, quarantined as corrupt, or found missing.
    Gone {
        /// The key.
        key: Digest,
        /// Payload length in bytes.
        len: u64,
    },
    /// Events were dropped here because too many waited for the listeners. List the keys to
    /// resynchronise.
    Missed {
        /// Their number.
        events: u64,
    },
}

/// Receives the events of a tier.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use kvtier_core::{Event, Listener};
///
/// /// Counts the bytes that leave a tier.
/// #[derive(Debug, Default)]
/// struct Evicted(AtomicU64);
///
/// impl Listener for Evicted {
///     fn on_events(&self, events: &[Event]) {
///         for event in events {
///             if let Event::Gone { len, .. } = event {
///                 self.0.fetch_add(*len, Ordering::Relaxed);
///             }
///         }
///     }
/// }
/// ```
pub trait Listener: fmt::Debug + Send + Sync {
    /// Receives events, each key's in the order of its changes; one call at a time. An event may
    /// arrive a moment after the operation that caused it was answered.
    ///
    /// The call runs on a thread of the tier or of one of its callers, which is blocked until it
    /// returns. A listener may call the tier but must not wait for the result: the operation may
    /// need the very thread that is blocked. Move long work to a thread of your own.
    fn on_events(&self, events: &[Event]);
}

/// Whether a tier works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The tier accepts work and completes it.
    pub healthy: bool,
    /// Notes for the operator, healthy or not: the engine and why it was chosen, faults, next
    /// steps.
    pub reasons: Vec<String>,
    /// Named counters, in a fixed order.
    pub counters: Vec<(&'static str, u64)>,
}

impl Status {
    /// A status with these reasons and counters.
    pub fn new(healthy: bool, reasons: Vec<String>, counters: Vec<(&'static str, u64)>) -> Self {
        Status { healthy, reasons, counters }
    }

    /// The counter of this name; 0 if there is none.
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
    fn the_used_fraction_is_unknown_without_a_capacity() {
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
