use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{DType, Digest, KeyId, Namespace, canonical};

const DIGEST_CONTEXT: &str = "kvtier 2026 key v1";

/// The name of one chunk in one namespace. Cheap to clone; compared and hashed by its digest.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(from = "crate::serde_forms::KeyFields", into = "crate::serde_forms::KeyFields")
)]
pub struct Key {
    ns: Arc<Namespace>,
    id: Arc<KeyId>,
    digest: Digest,
}

impl Key {
    /// The key `id` in the namespace `ns`.
    pub fn new(ns: Arc<Namespace>, id: KeyId) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // The namespace is hashed too, so equal names of two tenants are two keys on one medium.
        bytes.extend_from_slice(ns.digest().as_bytes());
        canonical::encode(&ns, &id, &mut bytes);
        let digest = Digest::derive(DIGEST_CONTEXT, &bytes);
        Key { ns, id: Arc::new(id), digest }
    }

    /// The digest of the key of this [canonical form](Self::canonical) in the namespace of this
    /// digest, whatever its salt was.
    pub fn digest_of(namespace: &Digest, canonical: &[u8]) -> Digest {
        Digest::derive(DIGEST_CONTEXT, &[namespace.as_bytes(), canonical].concat())
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.ns
    }

    /// What it names.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Bytes of a full chunk of this key's kind, as its namespace declares them. Keys of LMCache's
    /// in-process mode have no group: their chunks are of group 0. Those of single layers are
    /// shorter, and undeclared.
    pub fn full_bytes(&self) -> Option<u64> {
        match self.id() {
            KeyId::Object(id) => self.ns.chunk_bytes(id.group),
            // No object groups in that mode.
            KeyId::Engine(_) => self.ns.chunk_bytes(0),
            KeyId::Layer(_) => None,
        }
    }

    /// The type of the chunk's elements: as its namespace declares it, else as the key names it.
    pub fn dtype(&self) -> Option<DType> {
        let named = match self.id() {
            KeyId::Object(_) => None,
            KeyId::Engine(id) => Some(id.dtype),
            KeyId::Layer(id) => Some(id.key.dtype),
        };
        self.ns.dtype().or(named)
    }

    /// BLAKE3 of the canonical form: what indexes and media use.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The canonical bytes, with the salt as a keyed digest: what a stored chunk carries beside its
    /// facts.
    pub fn canonical(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        canonical::encode(&self.ns, &self.id, &mut bytes);
        bytes
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        // The digest covers namespace and id, and collisions of 256 bits are not expected:
        // comparing fields would add nothing.
        self.digest == other.digest
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.digest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use super::*;
    use crate::{ChunkHash, KvRank, ObjectKey};

    #[test]
    fn keys_without_a_group_have_the_declared_size_of_group_0() {
        let ns = Arc::new(
            Namespace::new("t", Digest::default()).with_chunk_bytes(0, 7).with_chunk_bytes(1, 9),
        );
        let full = |id: KeyId| Key::new(Arc::clone(&ns), id).full_bytes();
        let object =
            |group| ObjectKey::new("m", KvRank(0), group, ChunkHash::new(&[1; 32]), "").unwrap();
        assert_eq!([0, 1, 2].map(|group| full(object(group).into())), [Some(7), Some(9), None]);
        assert_eq!(full(KeyId::from_engine_text("m@1@0@5@half").unwrap()), Some(7));
        assert_eq!(
            full(KeyId::from_engine_text("m@1@0@5@half@3").unwrap()),
            None,
            "one layer of a chunk"
        );
    }

    #[test]
    fn keys_hash_by_their_digest() {
        let ns = Arc::new(Namespace::new("t", Digest::default()));
        let key = |text: &str| Key::new(Arc::clone(&ns), KeyId::from_engine_text(text).unwrap());
        let texts = ["m@1@0@5@half", "m@1@0@6@half", "m@1@0@5@half@3"];
        let keys: HashSet<Key> = texts.map(key).into_iter().collect();
        assert!(texts.map(key).iter().all(|key| keys.contains(key)));
        let state = BuildHasherDefault::<DefaultHasher>::default();
        let hashes: HashSet<u64> = keys.iter().map(|key| state.hash_one(key)).collect();
        assert_eq!(hashes.len(), 3);
    }
}
