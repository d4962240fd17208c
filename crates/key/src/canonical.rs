//! The canonical form of a key, which is hashed to its digest and stored beside chunks: written and
//! read.

use std::str;
use std::sync::Arc;

use crate::{
    CacheEngineKey, ChunkHash, DType, EngineHash, InvalidKey, KeyId, KvRank, LayerCacheEngineKey,
    Namespace, ObjectKey, PyInt,
};

/// Appends the canonical form. Each kind of id has a first byte of its own; fields follow in order, those of varying length
/// after their length.
pub(crate) fn encode(ns: &Namespace, id: &KeyId, out: &mut Vec<u8>) {
    match id {
        KeyId::Object(ObjectKey { model, rank, group, hash, salt }) => {
            // The order and the widths of all fields are part of every digest on media: a change
            // makes all stored chunks misses.
            out.push(1);
            field(out, model.as_bytes());
            out.extend_from_slice(&rank.0.to_le_bytes());
            out.extend_from_slice(&group.to_le_bytes());
            field(out, hash.as_bytes());
            // The salt is a secret of a tenant, and these bytes are stored. Keyed by the namespace,
            // one salt has unrelated digests in two namespaces.
            let salted = blake3::keyed_hash(ns.digest().as_bytes(), salt.as_bytes());
            // No salt stays an empty field, and can never equal a digest of 32 bytes.
            field(out, if salt.is_empty() { &[] } else { salted.as_bytes() });
        }
        KeyId::Engine(key) => {
            out.push(2);
            encode_engine(key, out);
        }
        KeyId::Layer(LayerCacheEngineKey { key, layer }) => {
            out.push(3);
            encode_engine(key, out);
            out.extend_from_slice(&layer.to_le_bytes());
        }
    }
}

fn encode_engine(key: &CacheEngineKey, out: &mut Vec<u8>) {
    field(out, key.model.as_bytes());
    out.extend_from_slice(&key.world_size.to_le_bytes());
    out.extend_from_slice(&key.worker_id.to_le_bytes());
    // The kind comes first, so that a number and bytes of the same value are two keys.
    let (kind, bytes) = match &key.hash {
        EngineHash::Int(hash) => (u8::from(hash.is_negative()), hash.magnitude()),
        EngineHash::Bytes(hash) => (2, hash.as_bytes()),
    };
    out.push(kind);
    field(out, bytes);
    field(out, key.dtype.name().as_bytes());
    out.extend_from_slice(&(key.tags.len() as u32).to_le_bytes());
    for (name, value) in key.tags.iter() {
        field(out, name.as_bytes());
        field(out, value.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    // The length in front keeps fields apart: without it, "ab" and "c" would encode like "a" and
    // "bc".
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl KeyId {
    /// Reads what [`Key::canonical`](crate::Key::canonical) wrote. Errors: any other bytes; a key
    /// with a salt, of which the canonical form has but a digest.
    pub fn from_canonical(bytes: &[u8]) -> Result<Self, InvalidKey> {
        let mut rest = Fields(bytes);
        let id = match rest.take(1).and_then(|kind| kind.first()) {
            Some(1) => rest.object()?,
            Some(2) => rest.engine().map(KeyId::Engine).ok_or_else(torn)?,
            Some(3) => rest.layer().ok_or_else(torn)?,
            _ => return Err(torn()),
        };
        // Left-over bytes mean other fields than these: to ignore them would give two texts one
        // key.
        if rest.0.is_empty() { Ok(id) } else { Err(torn()) }
    }
}

/// What the canonical form of a key says of any key: all but the salt, of which it has a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySummary {
    /// The model.
    pub model: Arc<str>,
    /// The cache salt's digest, keyed by the namespace; `None` for keys without a salt.
    pub salt_digest: Option<[u8; 32]>,
}

impl KeySummary {
    /// Reads the canonical form of a key; `None` where it is none.
    pub fn from_canonical(bytes: &[u8]) -> Option<Self> {
        let mut rest = Fields(bytes);
        match rest.array()? {
            // Read here without `KeyId`: a salted key cannot be rebuilt, but its model is still
            // known.
            [1] => {
                let model = rest.text()?;
                // Rank, group, and hash.
                let _ = (rest.take(8)?, rest.take(4)?, rest.bytes()?);
                let salt = rest.bytes()?;
                let salt_digest = if salt.is_empty() { None } else { Some(salt.try_into().ok()?) };
                rest.0.is_empty().then_some(KeySummary { model, salt_digest })
            }
            _ => match KeyId::from_canonical(bytes).ok()? {
                KeyId::Engine(key) | KeyId::Layer(LayerCacheEngineKey { key, .. }) => {
                    Some(KeySummary { model: Arc::clone(&key.model), salt_digest: None })
                }
                _ => None,
            },
        }
    }
}

fn torn() -> InvalidKey {
    InvalidKey::new("not the canonical form of a key")
}

/// Takes fields from the front of bytes; `None` when they run out.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_le_bytes(self.array()?);
        self.take(len as usize)
    }

    fn text(&mut self) -> Option<Arc<str>> {
        str::from_utf8(self.bytes()?).ok().map(Arc::from)
    }

    fn object(&mut self) -> Result<KeyId, InvalidKey> {
        let mut fields = || {
            let model = self.text()?;
            let rank = KvRank(i64::from_le_bytes(self.array()?));
            let group = u32::from_le_bytes(self.array()?);
            let hash = ChunkHash::new(self.bytes()?);
            // All fields first, so that a torn text is called torn even if its salt is present.
            Some((model, rank, group, hash, self.bytes()?))
        };
        let (model, rank, group, hash, salt) = fields().ok_or_else(torn)?;
        if !salt.is_empty() {
            return Err(InvalidKey::new("of its salt only a digest is stored"));
        }
        ObjectKey::new(model, rank, group, hash, "").map(KeyId::Object)
    }

    fn layer(&mut self) -> Option<KeyId> {
        let key = self.engine()?;
        Some(KeyId::Layer(LayerCacheEngineKey { key, layer: i64::from_le_bytes(self.array()?) }))
    }

    fn engine(&mut self) -> Option<CacheEngineKey> {
        let model = self.text()?;
        let [world, worker] =
            [i64::from_le_bytes(self.array()?), i64::from_le_bytes(self.array()?)];
        let kind = self.take(1)?.first().copied()?;
        let hash = self.bytes()?;
        let hash = match kind {
            // The sign is in the kind; the bytes are the magnitude.
            0 | 1 => EngineHash::Int(PyInt::from_be_bytes(kind == 1, hash)?),
            2 => EngineHash::Bytes(ChunkHash::new(hash)),
            _ => return None,
        };
        let dtype = DType::from_name(&self.text()?)?;
        // The constructor checks the limits again, since these bytes come from a medium.
        let key = CacheEngineKey::new(model, world, worker, hash, dtype).ok()?;
        let tags =
            // Collecting stops at the first missing tag, so a false count cannot allocate more than
            // there are bytes.
            (0..u32::from_le_bytes(self.array()?)).map(|_| Some((self.text()?, self.text()?)));
        key.with_tags(tags.collect::<Option<Vec<_>>>()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Digest, Key, Namespace};

    use super::*;

    #[test]
    fn canonical_keys_read_back_and_cut_or_salted_ones_do_not() {
        let ns = Arc::new(Namespace::new("a", Digest::default()));
        let mp = |salt: &str| {
            KeyId::from(
                ObjectKey::from_native_name(&format!("org/m@01000100@2@abcd{salt}")).unwrap(),
            )
        };
        let engine = ["m@1@0@-1a2b@half", "org/m@2@1@ff@bfloat16@a%b@c%", "m@1@0@0@half@7"];
        let engine = engine.map(|text| KeyId::from_engine_text(text).unwrap());
        let hash = EngineHash::Bytes(ChunkHash::new(b"hash"));
        let of_bytes = CacheEngineKey::new("m", 1, 0, hash, DType::from_name("half").unwrap());
        let of_bytes = KeyId::Engine(of_bytes.unwrap());
        for id in engine.into_iter().chain([of_bytes, mp("")]) {
            let bytes = Key::new(Arc::clone(&ns), id.clone()).canonical();
            assert_eq!(KeyId::from_canonical(&bytes), Ok(id));
            assert!((0..bytes.len()).all(|len| KeyId::from_canonical(&bytes[..len]).is_err()));
            assert!(KeyId::from_canonical(&[&bytes[..], &[0]].concat()).is_err());
        }
        let salted = Key::new(Arc::clone(&ns), mp("@pepper")).canonical();
        assert!(KeyId::from_canonical(&salted).unwrap_err().to_string().contains("salt"));
        let known = Arc::new(Namespace::known_by(ns.digest()));
        assert_eq!(Key::new(known, mp("@pepper")), Key::new(ns, mp("@pepper")));
    }

    #[test]
    fn a_summary_has_the_model_and_of_the_salt_its_digest() {
        let ns = Arc::new(Namespace::new("acme", Digest::derive("layout", b"1")));
        let summary = |id: KeyId| {
            let canonical = Key::new(Arc::clone(&ns), id).canonical();
            assert!(
                (0..canonical.len())
                    .all(|end| KeySummary::from_canonical(&canonical[..end]).is_none())
            );
            KeySummary::from_canonical(&canonical).unwrap()
        };
        let mp = |salt: &str| {
            ObjectKey::new("org/m", KvRank(7), 1, ChunkHash::new(b"hash"), salt).unwrap().into()
        };
        let plain = summary(mp(""));
        let salted = summary(mp("pepper"));
        assert_eq!((&*plain.model, plain.salt_digest), ("org/m", None));
        assert_eq!(&*salted.model, "org/m");
        assert_eq!(
            salted.salt_digest,
            Some(*blake3::keyed_hash(ns.digest().as_bytes(), b"pepper").as_bytes())
        );
        let engine = summary(KeyId::from_engine_text("org/m@2@1@ff@bfloat16@7").unwrap());
        assert_eq!((&*engine.model, engine.salt_digest), ("org/m", None));
    }
}
