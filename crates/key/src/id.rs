use std::fmt;
use std::sync::Arc;

/// Why a key cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey(pub(crate) String);

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidKey {}

/// The hash that names a chunk and, through its chain, all tokens before it. Usually 32 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(Arc<[u8]>);

impl ChunkHash {
    /// A chunk hash of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        ChunkHash(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The packed rank of LMCache's `ObjectKey`: world size, global rank, local world size, local rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KvRank(pub i64);

/// The key of LMCache's multi-process mode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectKey {
    /// The model's name; may contain `/`, never `@`.
    pub model: Arc<str>,
    /// The packed rank.
    pub rank: KvRank,
    /// The object group (0 unless the model is a hybrid).
    pub group: u32,
    /// The chunk's hash.
    pub hash: ChunkHash,
    /// The cache salt; empty for none. Reaches the media only as a keyed digest.
    pub salt: Arc<str>,
}

/// What a key names, in the form its origin speaks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum KeyId {
    /// LMCache's multi-process mode, and our own.
    Object(ObjectKey),
}
