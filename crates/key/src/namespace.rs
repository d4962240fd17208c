use crate::Digest;

/// Whose cache this is and what its chunks look like. Given when a tier opens; two namespaces never share a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    tenant: String,
    layout: Digest,
    chunk_bytes: Vec<(u32, u64)>,
    allow_partial: bool,
    digest: Digest,
}

impl Namespace {
    /// A namespace of `tenant` over the geometry whose canonical form (with the hash seed) has the digest `layout`.
    /// Partial chunks are allowed and chunk sizes unknown until told otherwise.
    pub fn new(tenant: impl Into<String>, layout: Digest) -> Self {
        let tenant = tenant.into();
        let mut bytes = Vec::with_capacity(40 + tenant.len());
        bytes.extend_from_slice(layout.as_bytes());
        bytes.extend_from_slice(tenant.as_bytes());
        let digest = Digest::of("kvtier 2026 namespace v1", &bytes);
        Namespace { tenant, layout, chunk_bytes: Vec::new(), allow_partial: true, digest }
    }

    /// A namespace of which only the digest is known, as a stored chunk carries it: its keys are right, tenant and layout are not told.
    pub fn known_by(digest: Digest) -> Self {
        Namespace {
            tenant: String::new(),
            // No real layout has it, so that nothing is taken for one of a known layout.
            layout: digest,
            chunk_bytes: Vec::new(),
            allow_partial: true,
            digest,
        }
    }

    /// Declares that a full chunk of object group `group` has exactly `bytes` bytes.
    pub fn with_chunk_bytes(mut self, group: u32, bytes: u64) -> Self {
        self.chunk_bytes.retain(|(g, _)| *g != group);
        self.chunk_bytes.push((group, bytes));
        self.chunk_bytes.sort_unstable();
        self
    }

    /// Says whether chunks shorter than the full size may be stored.
    pub fn with_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The digest of geometry and hash seed.
    pub fn layout(&self) -> Digest {
        self.layout
    }

    /// The digest of tenant and layout: what the media carry.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The declared size of a full chunk of `group` in bytes, if it is known.
    pub fn chunk_bytes(&self, group: u32) -> Option<u64> {
        self.chunk_bytes.iter().find(|(g, _)| *g == group).map(|(_, b)| *b)
    }

    /// All declared chunk sizes as (object group, bytes), by group.
    pub fn all_chunk_bytes(&self) -> &[(u32, u64)] {
        &self.chunk_bytes
    }

    /// Whether chunks shorter than the full size may be stored.
    pub fn allow_partial(&self) -> bool {
        self.allow_partial
    }
}
