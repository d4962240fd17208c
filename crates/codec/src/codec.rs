use std::fmt::Debug;

use kvtier_key::CodecId;

use crate::Error;

/// Turns the raw payload of a chunk into the stored one and back. Stateless, and cheap to share.
///
/// ```
/// use kvtier_codec::{Codec, by_id, by_name};
///
/// let codec = by_name("lz4")?;
/// let raw = vec![7u8; 10_000];
/// let mut stored = vec![0; codec.bound(raw.len())?];
/// let len = codec.encode(&raw, &mut stored)?;
/// assert!(len < raw.len());
///
/// // The facts of a chunk name its codec.
/// let mut loaded = vec![0; raw.len()];
/// by_id(codec.id())?.decode(&stored[..len], &mut loaded)?;
/// assert_eq!(loaded, raw);
/// assert!(codec.decode(&stored[..len - 1], &mut loaded).is_err(), "torn");
/// # Ok::<(), kvtier_codec::Error>(())
/// ```
pub trait Codec: Debug + Send + Sync + 'static {
    /// What stands in the facts of chunks that it stored.
    fn id(&self) -> CodecId;

    /// Its name in configurations.
    fn name(&self) -> &'static str;

    /// The most bytes that `raw_len` raw bytes can encode to: always enough space. Errors:
    /// `Invalid`, more raw bytes than the codec takes.
    fn bound(&self, raw_len: usize) -> Result<usize, Error>;

    /// Encodes `raw` into the front of `out` and answers how many bytes that took.
    /// Errors: `Invalid`, `out` is too short or `raw` longer than the codec takes; what `out` holds
    /// is then undefined.
    fn encode(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, Error>;

    /// Decodes all of `stored` into all of `raw`. Errors: `Corrupt`, unless `stored` is the
    /// encoding of exactly `raw.len()` bytes; what `raw` holds is then undefined.
    fn decode(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error>;
}
