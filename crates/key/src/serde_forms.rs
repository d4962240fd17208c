//! How keys look to serde, with feature `serde`: hashes, digests and whole numbers as text, keys as
//! their fields, checked again when they are read. Every key comes back as it was.
//!
//! The forms spell the cache salt and the tenant, since a key without them would be another key.
//! They are for the memory and the sockets of the process that has the key anyway; what is written
//! to a medium or a log is [`Key::canonical`] or the [`Digest`].

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{
    CacheEngineKey, ChunkHash, DType, Digest, EngineHash, InvalidKey, Key, KeyId, KvRank,
    Namespace, ObjectKey, PyInt,
};

/// Implements both traits by a text: what writes it, what reads it, and what it is called in
/// errors.
macro_rules! as_text {
    ($type:ty, $write:expr, $read:expr, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$write(self))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $read(&text).ok_or_else(|| D::Error::custom(concat!("this is no ", $what)))
            }
        }
    };
}

as_text!(Digest, Digest::to_hex, Digest::from_hex, "digest of 64 hexadecimal digits");
as_text!(
    ChunkHash,
    |hash: &ChunkHash| to_hex(hash.as_bytes()),
    chunk_hash,
    "chunk hash in hexadecimal digits"
);
as_text!(PyInt, PyInt::to_string, whole_number, "whole number in decimal digits");
as_text!(
    DType,
    |dtype: &DType| dtype.name(),
    DType::from_name,
    "element type by LMCache's name for it"
);

fn to_hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn chunk_hash(text: &str) -> Option<ChunkHash> {
    // No `from_str_radix`, which takes a sign, and no Python rules, which take blanks.
    let digits: Vec<u8> =
        text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    digits.len().is_multiple_of(2).then(|| ChunkHash::new(&bytes))
}

fn whole_number(text: &str) -> Option<PyInt> {
    PyInt::from_decimal(text).filter(|_| text.ends_with(|digit: char| digit.is_ascii_digit()))
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "ObjectKey", deny_unknown_fields)]
pub(crate) struct ObjectFields {
    model: String,
    rank: KvRank,
    group: u32,
    hash: ChunkHash,
    salt: String,
}

impl From<ObjectKey> for ObjectFields {
    fn from(key: ObjectKey) -> Self {
        let ObjectKey { model, rank, group, hash, salt } = key;
        ObjectFields { model: model.as_ref().into(), rank, group, hash, salt: salt.as_ref().into() }
    }
}

impl TryFrom<ObjectFields> for ObjectKey {
    type Error = InvalidKey;

    fn try_from(fields: ObjectFields) -> Result<Self, InvalidKey> {
        // Through the constructor: what is read may come from another program, and has to obey the
        // limits.
        ObjectKey::new(fields.model, fields.rank, fields.group, fields.hash, fields.salt)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "CacheEngineKey", deny_unknown_fields)]
pub(crate) struct EngineFields {
    model: String,
    world_size: i64,
    worker_id: i64,
    hash: EngineHash,
    dtype: DType,
    tags: Vec<(String, String)>,
}

impl From<CacheEngineKey> for EngineFields {
    fn from(key: CacheEngineKey) -> Self {
        let tag = |(name, value): &crate::Tag| (name.as_ref().into(), value.as_ref().into());
        EngineFields {
            model: key.model.as_ref().into(),
            world_size: key.world_size,
            worker_id: key.worker_id,
            tags: key.tags.iter().map(tag).collect(),
            hash: key.hash,
            dtype: key.dtype,
        }
    }
}

impl TryFrom<EngineFields> for CacheEngineKey {
    type Error = InvalidKey;

    fn try_from(fields: EngineFields) -> Result<Self, InvalidKey> {
        let EngineFields { model, world_size, worker_id, hash, dtype, tags } = fields;
        CacheEngineKey::new(model, world_size, worker_id, hash, dtype)?.with_tags(tags)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Namespace", deny_unknown_fields)]
pub(crate) struct NamespaceFields {
    tenant: String,
    layout: Digest,
    chunk_bytes: Vec<(u32, u64)>,
    allow_partial: bool,
    salts_as_tenants: bool,
    /// The digest of a namespace of which nothing else is known.
    known_by: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dtype: Option<DType>,
}

impl From<Namespace> for NamespaceFields {
    fn from(ns: Namespace) -> Self {
        // A namespace from `known_by` has a digest that its fields do not give, so the digest is
        // written too.
        let plain = Namespace::new(ns.tenant(), ns.layout());
        NamespaceFields {
            tenant: ns.tenant().into(),
            layout: ns.layout(),
            chunk_bytes: ns.all_chunk_bytes().into(),
            allow_partial: ns.allow_partial(),
            salts_as_tenants: ns.has_salts_as_tenants(),
            known_by: (plain.digest() != ns.digest()).then(|| ns.digest()),
            dtype: ns.dtype(),
        }
    }
}

impl From<NamespaceFields> for Namespace {
    fn from(fields: NamespaceFields) -> Self {
        let ns = fields
            .known_by
            // Derived again from the fields. A digest is read only where it is all that is known.
            .map_or_else(|| Namespace::new(fields.tenant, fields.layout), Namespace::known_by);
        let ns = ns.with_partial(fields.allow_partial);
        let ns = fields
            .chunk_bytes
            .into_iter()
            .fold(ns, |ns, (group, bytes)| ns.with_chunk_bytes(group, bytes));
        let ns = fields.dtype.into_iter().fold(ns, Namespace::with_dtype);
        if fields.salts_as_tenants { ns.with_salts_as_tenants() } else { ns }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Key", deny_unknown_fields)]
pub(crate) struct KeyFields {
    namespace: Namespace,
    id: KeyId,
}

impl From<Key> for KeyFields {
    fn from(key: Key) -> Self {
        KeyFields { namespace: key.namespace().as_ref().clone(), id: key.id().clone() }
    }
}

impl From<KeyFields> for Key {
    fn from(fields: KeyFields) -> Self {
        Key::new(fields.namespace.into(), fields.id)
    }
}
