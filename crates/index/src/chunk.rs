use std::fmt;
use std::num::NonZeroU64;

use kvtier_key::Digest;

use crate::ChainPlace;

/// Chunks of this many bytes or more (256 TiB) have no place in an index.
pub const CHUNK_BYTES_LIMIT: u64 = 1 << 48;

/// Whose chunk it is: 128 bits of a keyed digest of the tenant's name, see
/// [`TenantKey`](crate::TenantKey); 0 for none, or one that is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u128);

impl TenantId {
    /// Of chunks without a tenant, and of those whose tenant is unknown.
    pub const NONE: TenantId = TenantId(0);

    /// The 16 bytes as the media have them, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) answered.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        TenantId(u128::from_le_bytes(bytes))
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenantId({self})")
    }
}

/// The first eight bytes of a digest: enough to find a parent that is present, never enough to name
/// a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DigestTag(NonZeroU64);

impl DigestTag {
    /// The tag of `digest`.
    pub fn from_digest(digest: &Digest) -> Self {
        let (head, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
        DigestTag(NonZeroU64::new(u64::from_le_bytes(*head)).unwrap_or(NonZeroU64::MIN))
    }

    /// The tag as the number that is stored; never 0.
    pub fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// Reads a stored tag; 0 is no tag.
    pub fn from_u64(tag: u64) -> Option<Self> {
        NonZeroU64::new(tag).map(DigestTag)
    }
}

/// What an index knows of one chunk: what a tier inserts, what a listing answers, what journal and
/// snapshot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// The key's digest.
    pub digest: Digest,
    /// Length of the payload in bytes, below [`TOO_LONG_BYTES`].
    pub len: u64,
    /// What it costs the medium in bytes (with padding, footer, headers), below
    /// [`TOO_LONG_BYTES`].
    pub bytes: u64,
    /// Whose it is.
    pub tenant: TenantId,
    /// The chunk before this one in its prefix chain, where that is known.
    pub parent: Option<DigestTag>,
    /// How many chunks lie before it in its chain; 0 for the first, or where the chain is unknown.
    pub depth: u32,
}

impl Chunk {
    /// A chunk whose payload of `len` bytes costs the medium `bytes` bytes: of tenant 0, its chain
    /// unknown.
    pub fn new(digest: Digest, len: u64, bytes: u64) -> Self {
        Chunk { digest, len, bytes, tenant: TenantId::NONE, parent: None, depth: 0 }
    }

    /// Sets whose it is.
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets the chunk before this one in its prefix chain, and how many lie before this one.
    pub fn with_parent(self, parent: &Digest, depth: u32) -> Self {
        self.with_parent_tag(DigestTag::from_digest(parent), depth)
    }

    /// Sets its place in its prefix chain.
    pub fn with_place(mut self, place: ChainPlace) -> Self {
        (self.parent, self.depth) = (place.parent, place.depth);
        self
    }

    /// [`with_parent`](Self::with_parent) where only the parent's tag is known.
    pub fn with_parent_tag(mut self, parent: DigestTag, depth: u32) -> Self {
        (self.parent, self.depth) = (Some(parent), depth);
        self
    }
}

/// A chunk that is in the index, or was until just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexEntry {
    /// Its slot: dense, and given to another chunk once this one is gone.
    pub slot: u32,
    /// The chunk.
    pub chunk: Chunk,
    /// Whether a hold keeps it from eviction and remove.
    pub held: bool,
}
