use kvtier_key::Digest;

use crate::{DigestTag, TenantId};

/// Chunks of this many bytes or more (256 TiB) do not fit into an index.
pub const CHUNK_BYTES_LIMIT: u64 = 1 << 48;

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
