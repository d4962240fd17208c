//! A chunk that is copied: where it is stored, and its identity.

use std::sync::Arc;

use kvtier::codec::Undecoded;
use kvtier::core::{Digest, Key, Namespace};
use kvtier::file::inspect::ChunkName;
use kvtier::key::{Facts, KeyId};

use crate::encoding_args::next_step;

/// A chunk to be copied.
pub struct SourceChunk {
    pub label: String,
    pub at: Location,
    pub identity: ChunkIdentity,
    /// Length of the payload in bytes; the file of a chunk without facts may be longer, by zeros.
    pub len: u64,
    /// Whether it carries facts.
    pub proven: bool,
}

/// The identity of a chunk.
pub struct ChunkIdentity {
    /// The key's digest.
    pub digest: Digest,
    /// The namespace's digest.
    pub namespace: Digest,
    /// The key, if the medium has it; else why not.
    pub key: Result<Key, String>,
    /// The key's canonical form, which has a salt as a digest only; `None` where the medium
    /// does not have it.
    pub canonical: Option<Vec<u8>>,
}

impl ChunkIdentity {
    /// The identity of a chunk with facts, from at most the canonical form of its key; `reason` says
    /// why the medium does not have that.
    pub fn of(facts: &Facts, canonical: Option<Vec<u8>>, reason: &str) -> Self {
        let digest = facts.key;
        let namespace = facts.namespace;
        // A key that does not have the digest of the facts is not the chunk's. Bytes without a key
        // are better than bytes under a wrong one.
        let canonical = canonical.filter(|bytes| Key::digest_of(&namespace, bytes) == digest);
        let key = canonical.as_ref().ok_or_else(|| reason.to_owned()).and_then(|bytes| {
            let id = KeyId::from_canonical(bytes).map_err(|e| e.to_string())?;
            Ok(Key::new(Arc::new(Namespace::known_by(namespace)), id))
        });
        ChunkIdentity { digest, namespace, key, canonical }
    }
}

impl From<Key> for ChunkIdentity {
    fn from(key: Key) -> Self {
        let digest = *key.digest();
        let namespace = key.namespace().digest();
        let canonical = Some(key.canonical());
        ChunkIdentity { digest, namespace, key: Ok(key), canonical }
    }
}

/// Where a chunk is stored.
pub enum Location {
    File(ChunkName),
    /// An object of this name and length.
    Object(String, u64),
    /// Where in an archive its record begins.
    Record(u64),
}

/// What reading a chunk gave.
pub enum ChunkRead {
    /// Its bytes, and whether facts prove them.
    Payload(Vec<u8>, bool),
    Damaged,
    Gone,
    /// It cannot be decoded here, for this reason.
    Undecodable(String),
}

impl ChunkRead {
    /// A chunk that cannot be decoded here.
    pub fn undecoded(why: Undecoded) -> Self {
        ChunkRead::Undecodable(next_step(&why))
    }
}
