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
        }
    }

    /// Sets the parent in the prefix chain and the depth.
    pub fn with_parent(mut self, parent: Digest, depth: u32) -> Self {
        self.parent = Some((parent, depth));
        self
    }
}
