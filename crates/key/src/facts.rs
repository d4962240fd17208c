use std::fmt;

use crate::{BlockSums, Digest};

/// The most bytes an encoded facts record may have.
pub const FACTS_BYTES_MAX: usize = 1024;

/// Which codec turned the raw payload into the stored one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodecId(pub u16);

/// What is known of one stored chunk; one format on all media.
///
/// ```
/// use kvtier_key::{BlockSums, Facts, Key, Namespace};
///
/// let ns = Namespace::from_name("model");
/// let key = Key::from_name(&ns, "chunk 0");
/// let chunk = vec![42; 4096];
/// let facts = Facts::plain(*key.digest(), ns.digest(), BlockSums::from_bytes(&chunk));
///
/// // A load decodes the record and compares what it read.
/// let stored = facts.encode();
/// let read = Facts::decode(&stored)?;
/// assert_eq!((read.key, read.raw_len), (*key.digest(), 4096));
/// assert_eq!(read.sums, BlockSums::from_bytes(&chunk));
/// assert!(Facts::decode(&stored[1..]).is_err(), "torn");
/// # Ok::<(), kvtier_key::FactsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Digest of the key.
    pub key: Digest,
    /// Digest of the namespace.
    pub namespace: Digest,
    /// Length of the payload as `save` was given it, in bytes.
    pub raw_len: u64,
    /// The codec of the stored payload; 0 = as it is.
    pub codec: CodecId,
    /// Which encryption key; 0 = none.
    pub key_id: u32,
    /// Digest of the chunk before this one in its prefix chain, and this one's depth there.
    pub parent: Option<(Digest, u32)>,
    /// Sums of the *stored* payload; its length is the stored length.
    pub sums: BlockSums,
    /// CRC32C of the raw payload, which proves what a codec decodes to. None where the stored
    /// payload is the raw one, and where an encryption's tag proves it.
    pub raw_crc: Option<u32>,
}

/// What stages made of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedPayload {
    /// Which stages.
    pub codec: CodecId,
    /// Which encryption key; 0 = none.
    pub key_id: u32,
    /// Length of the payload as `save` was given it, in bytes.
    pub raw_len: u64,
    /// CRC32C of those bytes; none with an encryption.
    pub raw_crc: Option<u32>,
}

/// Why bytes are no facts record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FactsError {
    /// Too short, too long, or cut off.
    Length,
    /// Not our magic.
    Magic,
    /// A version this build does not read.
    Version,
    /// Its own checksum does not match.
    Checksum,
    /// Fields contradict one another.
    Fields,
}

impl fmt::Display for FactsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FactsError::Length => "facts record has the wrong length",
            FactsError::Magic => "not a facts record",
            FactsError::Version => "facts record of a version this build does not read",
            FactsError::Checksum => "facts record fails its checksum",
            FactsError::Fields => "facts record contradicts itself",
        })
    }
}

impl std::error::Error for FactsError {}

impl Facts {
    /// Facts of a payload stored as it is.
    pub fn plain(key: Digest, namespace: Digest, sums: BlockSums) -> Self {
        Facts {
            key,
            namespace,
            raw_len: sums.len(),
            codec: CodecId(0),
            key_id: 0,
            parent: None,
            sums,
            raw_crc: None,
        }
    }

    /// Facts of an encoded payload, whose stored bytes have these `sums`.
    ///
    /// ```
    /// use kvtier_key::{BlockSums, CodecId, Digest, EncodedPayload, Facts};
    ///
    /// let (raw, stored) = ([7; 4096], [1, 2, 3]);
    /// let raw_crc = Some(BlockSums::from_bytes(&raw).whole());
    /// let payload = EncodedPayload { codec: CodecId(2), key_id: 0, raw_len: 4096, raw_crc };
    /// let sums = BlockSums::from_bytes(&stored);
    /// let facts = Facts::encoded(Digest::default(), Digest::default(), payload, sums);
    /// assert_eq!((facts.raw_len, facts.stored_len()), (4096, 3));
    /// assert_eq!(Facts::decode(&facts.encode()), Ok(facts));
    /// ```
    pub fn encoded(
        key: Digest,
        namespace: Digest,
        payload: EncodedPayload,
        sums: BlockSums,
    ) -> Self {
        let EncodedPayload { codec, key_id, raw_len, raw_crc } = payload;
        Facts { codec, key_id, raw_len, raw_crc, ..Facts::plain(key, namespace, sums) }
    }

    /// Length of the stored payload in bytes.
    pub fn stored_len(&self) -> u64 {
        self.sums.len()
    }

    /// Whether the stored payload is the raw one.
    pub fn is_plain(&self) -> bool {
        self.codec == CodecId(0) && self.key_id == 0
    }

    /// Sets the parent in the prefix chain and the depth.
    pub fn with_parent(mut self, parent: Digest, depth: u32) -> Self {
        self.parent = Some((parent, depth));
        self
    }
}
