use std::fmt;
use std::num::NonZeroU64;

use kvtier_key::Digest;

/// Chunks of this many bytes or more (256 TiB) do not fit into an index.
pub const CHUNK_BYTES_LIMIT: u64 = 1 << 48;

/// The tenant of a chunk: 128 bits of a keyed digest of its name, see
/// [`TenantKey`](crate::TenantKey); 0 for none or an unknown one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u128);

impl TenantId {
    /// For chunks without a tenant, and for those with an unknown one.
    pub const NONE: TenantId = TenantId(0);

    /// The 16 bytes on the media, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Parses [`to_bytes`](Self::to_bytes)' result.
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
        // 0 means "no parent" in records, so a digest that begins with eight zeros has the tag 1.
        DigestTag(NonZeroU64::new(u64::from_le_bytes(*head)).unwrap_or(NonZeroU64::MIN))
    }

    /// The tag as a number; never 0.
    pub fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// The tag of this number; 0 is no tag.
    pub fn from_u64(tag: u64) -> Option<Self> {
        NonZeroU64::new(tag).map(DigestTag)
    }
}

/// The position of a chunk in its prefix chain; the default is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChainPlace {
    /// The previous chunk; `None` for the first, or if the chain is unknown.
    pub parent: Option<DigestTag>,
    /// The number of chunks before it; 0 for the first, or if the chain is unknown.
    pub depth: u32,
    /// Whether the caller gave it; otherwise it was inferred.
    pub explicit: bool,
}

impl ChainPlace {
    /// The position after `parent`, with `depth` chunks before it, as given by the caller.
    pub fn new(parent: Option<DigestTag>, depth: u32) -> Self {
        ChainPlace { parent, depth, explicit: true }
    }

    /// The position of the first chunk of a batch: after `parent`, with `depth` chunks before it.
    pub fn after(parent: Option<&Digest>, depth: u32) -> Self {
        ChainPlace::new(parent.map(DigestTag::from_digest), depth)
    }

    pub(crate) fn inferred(parent: DigestTag, depth: u32) -> Self {
        ChainPlace { parent: Some(parent), depth, explicit: false }
    }
}

/// The facts of a chunk in an index, a listing, a journal and a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// The key's digest.
    pub digest: Digest,
    /// Length of the payload in bytes, below [`CHUNK_BYTES_LIMIT`].
    pub len: u64,
    /// Its cost on the medium in bytes (with padding, footer, headers), below
    /// [`CHUNK_BYTES_LIMIT`].
    pub bytes: u64,
    /// Its tenant.
    pub tenant: TenantId,
    /// The previous chunk in its prefix chain, if known.
    pub parent: Option<DigestTag>,
    /// The number of chunks before it in its chain; 0 for the first, or if the chain is unknown.
    pub depth: u32,
}

impl Chunk {
    /// A chunk whose payload of `len` bytes costs the medium `bytes` bytes: without a tenant and a
    /// chain.
    pub fn new(digest: Digest, len: u64, bytes: u64) -> Self {
        Chunk { digest, len, bytes, tenant: TenantId::NONE, parent: None, depth: 0 }
    }

    /// Sets the tenant.
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets the previous chunk in its prefix chain, and the number of chunks before this one.
    pub fn with_parent(self, parent: &Digest, depth: u32) -> Self {
        self.with_parent_tag(DigestTag::from_digest(parent), depth)
    }

    /// Sets its position in its prefix chain.
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

/// A chunk that is in the index, or was until the call that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexEntry {
    /// Its slot: dense, and reused once the chunk is gone.
    pub slot: u32,
    /// The chunk.
    pub chunk: Chunk,
    /// Whether a hold protects it.
    pub held: bool,
}
