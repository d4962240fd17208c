use std::fmt;

use kvtier_key::Digest;

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The chunk is there now: it was saved, found, or is good again. Also of a chunk that was there, when
    /// another save replaces it.
    Stored {
        /// The key.
        key: Digest,
        /// Payload length in bytes. A tier over a bucket has of another node's chunk only the
        /// length of its object until a journal, a lookup or a load shows that of the payload. Until
        /// then this is the bytes that the encoded chunk takes. A tier over a directory in a layout of
        /// another program has 0 of a file of which it has read only the name. A lookup answers no such
        /// length.
        len: u64,
    },
    /// The chunk was requested and found.
    Touched {
        /// The key.
        key: Digest,
    },
    /// The chunk is gone: evicted, removed, found corrupt or missing, or of no use here. A tier without
    /// a cap that has too many chunks to list forgets the oldest.
    Gone {
        /// The key.
        key: Digest,
        /// Payload length in bytes, or that of the object, as in [`Event::Stored`]. The two events of
        /// one chunk may differ, since the payload's length may have become known meanwhile.
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
