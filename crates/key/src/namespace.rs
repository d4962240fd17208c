use std::fmt;
use std::sync::Arc;

use crate::{DType, Digest, KeyId};

/// The tenant and the geometry of a cache. A tier gets it when it opens; two namespaces never
/// share a chunk. `Debug` does not show the tenant, which may be a cache salt.
///
/// ```
/// use std::sync::Arc;
/// use kvtier_key::hash::Algorithm;
/// use kvtier_key::{Namespace, presets};
///
/// let geometry = presets::geometry("llama-3-8b")?;
/// let layout = geometry.layout(Algorithm::Blake3, None);
/// let ns = Namespace::new("tenant-a", layout).with_chunk_bytes(0, geometry.chunk_bytes()?);
/// assert_ne!(ns.digest(), Namespace::new("tenant-b", layout).digest());
/// assert_eq!(Arc::new(ns).chunk_bytes(0), Some(geometry.chunk_bytes()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        from = "crate::serde_forms::NamespaceFields",
        into = "crate::serde_forms::NamespaceFields"
    )
)]
pub struct Namespace {
    tenant: String,
    layout: Digest,
    chunk_bytes: Vec<(u32, u64)>,
    allow_partial: bool,
    by_salt: bool,
    dtype: Option<DType>,
    digest: Digest,
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Namespace");
        shown
            .field("digest", &self.digest)
            .field("layout", &self.layout)
            .field("chunk_bytes", &self.chunk_bytes);
        shown.field("allow_partial", &self.allow_partial).field("by_salt", &self.by_salt);
        shown.field("dtype", &self.dtype).finish()
    }
}

impl Namespace {
    /// A namespace of `tenant` over the geometry whose canonical form (with the hash seed) has the
    /// digest `layout`. Unless changed, partial chunks are allowed and chunk sizes are unknown.
    pub fn new(tenant: impl Into<String>, layout: Digest) -> Self {
        let tenant = tenant.into();
        let mut bytes = Vec::with_capacity(40 + tenant.len());
        // The layout first, because it has a fixed length: two pairs of layout and tenant cannot
        // give the same bytes.
        bytes.extend_from_slice(layout.as_bytes());
        bytes.extend_from_slice(tenant.as_bytes());
        let digest = Digest::derive("kvtier 2026 namespace v1", &bytes);
        Namespace {
            tenant,
            layout,
            chunk_bytes: Vec::new(),
            allow_partial: true,
            by_salt: false,
            dtype: None,
            digest,
        }
    }

    /// A namespace of which only the digest is known, as a stored chunk carries it: its keys are
    /// valid, tenant and layout are empty.
    pub fn known_by(digest: Digest) -> Self {
        Namespace {
            tenant: String::new(),
            // No real layout has it, so that nothing is taken for one of a known layout.
            layout: digest,
            chunk_bytes: Vec::new(),
            allow_partial: true,
            by_salt: false,
            dtype: None,
            digest,
        }
    }

    /// Declares that a full chunk of object group `group` has exactly `bytes` bytes.
    pub fn with_chunk_bytes(mut self, group: u32, bytes: u64) -> Self {
        // The latest declaration of a group counts. Sorted, so that equal namespaces compare equal
        // in whatever order they were built.
        self.chunk_bytes.retain(|(g, _)| *g != group);
        self.chunk_bytes.push((group, bytes));
        self.chunk_bytes.sort_unstable();
        self
    }

    /// Declares that all chunks are elements of this type. It changes no digest: the layout's
    /// digest contains the type already. Encodings that read elements need it.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Says whether chunks shorter than the full size may be stored.
    pub fn with_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// Makes every cache salt a tenant. In layouts whose names have salts and no tenants, as
    /// LMCache's, this namespace then represents those of all salts, see [`Namespace::for_key`].
    pub fn with_salts_as_tenants(mut self) -> Self {
        self.by_salt = true;
        self
    }

    /// Whether every cache salt is a tenant.
    pub fn has_salts_as_tenants(&self) -> bool {
        self.by_salt
    }

    /// The namespace of the key `id`: that of its salt if salts are tenants, otherwise this one.
    pub fn for_key(self: &Arc<Self>, id: &KeyId) -> Arc<Namespace> {
        match id {
            // A key whose salt is this tenant shares this namespace: to build one hashes and
            // allocates.
            KeyId::Object(id) if self.by_salt && *id.salt != *self.tenant => {
                // All but the tenant stays as declared: a salt changes who may see a chunk, not its
                // shape.
                let mut own =
                    Namespace::new(&*id.salt, self.layout).with_partial(self.allow_partial);
                own.chunk_bytes.clone_from(&self.chunk_bytes);
                own.dtype = self.dtype;
                Arc::new(own.with_salts_as_tenants())
            }
            _ => Arc::clone(self),
        }
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

    /// The declared type of all elements, if it is known.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkHash, KvRank, ObjectKey};

    #[test]
    fn neither_a_namespace_nor_a_key_shows_its_salt() {
        let ns = Arc::new(Namespace::new("hidden pepper", Digest::default()));
        let id =
            ObjectKey::new("m", KvRank(0), 0, ChunkHash::new(&[1; 32]), "hidden pepper").unwrap();
        let key = crate::Key::new(Arc::clone(&ns), id.clone().into());
        for shown in
            [format!("{ns:?}"), format!("{id:?}"), format!("{key:?}"), format!("{:?}", key.id())]
        {
            assert!(!shown.contains("pepper"), "{shown}");
        }
    }

    #[test]
    fn the_type_of_the_elements_is_in_no_digest() {
        let plain = Namespace::new("t", Digest::derive("layout", b"x"));
        let typed = plain.clone().with_dtype(DType::Fp8E5M2);
        assert_eq!(typed.digest(), plain.digest());
        let [plain, typed] =
            [plain, typed].map(|ns| crate::Key::from_name(&Arc::new(ns), "chunk 0"));
        assert_eq!(typed.canonical(), plain.canonical());
        assert_eq!((typed.dtype(), plain.dtype()), (Some(DType::Fp8E5M2), None));
        assert_eq!(typed, plain);
    }

    #[test]
    fn one_namespace_stands_for_those_of_all_salts() {
        let layout = Digest::derive("layout", b"x");
        let all = Arc::new(
            Namespace::new("", layout)
                .with_partial(false)
                .with_chunk_bytes(0, 7)
                .with_dtype(DType::BFloat16)
                .with_salts_as_tenants(),
        );
        let id = |salt: &str| {
            KeyId::Object(
                ObjectKey::new("m", KvRank(0), 0, ChunkHash::new(&[1; 32]), salt).unwrap(),
            )
        };
        assert!(Arc::ptr_eq(&all.for_key(&id("")), &all));
        let alice = all.for_key(&id("alice"));
        assert_eq!(
            (alice.tenant(), alice.digest()),
            ("alice", Namespace::new("alice", layout).digest())
        );
        assert_eq!((alice.allow_partial(), alice.chunk_bytes(0)), (false, Some(7)));
        assert_eq!(alice.dtype(), Some(DType::BFloat16));
        assert_eq!(alice.for_key(&id("")), all, "from any of them to any other");
        let one = Arc::new(Namespace::new("t", layout));
        assert!(Arc::ptr_eq(&one.for_key(&id("alice")), &one), "its tenant is not the salt");
    }

    #[test]
    fn a_namespace_says_what_it_was_declared_with() {
        let layout = Digest::derive("layout", b"x");
        let plain = Namespace::new("t", layout);
        assert_eq!((plain.layout(), plain.has_salts_as_tenants()), (layout, false));
        assert!(plain.all_chunk_bytes().is_empty());
        let declared = plain.with_chunk_bytes(3, 70).with_salts_as_tenants();
        assert_eq!(declared.all_chunk_bytes(), [(3, 70)]);
        assert!(declared.has_salts_as_tenants());
    }
}
