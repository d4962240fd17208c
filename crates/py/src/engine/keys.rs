//! The keys of an engine's chunks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier::core::{Digest, Key, Namespace};
use kvtier::key::{ChunkHash, KeyId, KvRank, ObjectKey};

/// The most tenants whose namespace is cached; those of further tenants are computed for each
/// request.
const TENANTS_MAX: usize = 4096;
/// The bytes behind a chunk's hash that hold its KV cache group, big-endian, as vLLM packs them.
const GROUP_BYTES: usize = 4;

/// The keys of one configuration of an engine. Whatever decides what the bytes of a chunk mean is in
/// the digest of its namespace, so that two configurations never see each other's chunks.
#[derive(Debug)]
pub struct KeySpace {
    model: Arc<str>,
    rank: KvRank,
    chunk_bytes: u64,
    group_tokens: Vec<u64>,
    layout: Digest,
    tenants: Mutex<HashMap<String, Arc<Namespace>>>,
}

/// What the engine says about its configuration.
#[derive(Debug)]
pub struct Identity {
    /// The model's name, for people.
    pub model: String,
    /// The rank whose bytes the chunks hold.
    pub rank: i64,
    /// Tokens of a chunk of each KV cache group.
    pub group_tokens: Vec<u64>,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// The canonical text of all fields that decide what the bytes mean.
    pub fields: String,
}

/// The namespace of one tenant, and its name in keys.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub namespace: Arc<Namespace>,
    pub salt: Arc<str>,
}

/// A chunk's name as the engine passes it, and its key.
#[derive(Clone, Debug)]
pub struct EngineKey {
    pub key: Key,
    pub group: u32,
}

impl KeySpace {
    /// The keys of this configuration.
    pub fn new(identity: Identity) -> Self {
        KeySpace {
            // `@` separates the fields of a key's text.
            model: identity.model.replace('@', "_").into(),
            rank: KvRank(identity.rank),
            chunk_bytes: identity.chunk_bytes,
            group_tokens: identity.group_tokens,
            layout: Digest::derive("kvtier 2026 engine identity v1", identity.fields.as_bytes()),
            tenants: Mutex::default(),
        }
    }

    /// The digest of the fields.
    pub fn digest(&self) -> Digest {
        self.layout
    }

    /// The namespace of a tenant; the empty name is that of all requests without one.
    ///
    /// # Errors
    /// If the name cannot be part of a key.
    pub fn tenant(&self, name: &str) -> Result<Tenant, String> {
        let hash = ChunkHash::new(&[0; 32]);
        ObjectKey::new(Arc::clone(&self.model), self.rank, 0, hash, name)
            .map_err(|e| e.to_string())?;
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = tenants.get(name).cloned().unwrap_or_else(|| {
            let all = Namespace::new(name, self.layout).with_partial(false);
            let with_bytes = |ns: Namespace, group| ns.with_chunk_bytes(group, self.chunk_bytes);
            Arc::new(
                (0..self.group_tokens.len() as u32).fold(all, with_bytes).with_salts_as_tenants(),
            )
        });
        if tenants.len() < TENANTS_MAX {
            tenants.insert(name.to_owned(), Arc::clone(&namespace));
        }
        Ok(Tenant { namespace, salt: name.into() })
    }

    /// The number of chunks before the one that ends at token `end` of its request; `None` if unknown.
    pub fn depth(&self, group: u32, end: Option<u64>) -> Option<u32> {
        let tokens = *self.group_tokens.get(group as usize)?;
        let chunks = end?.div_ceil(tokens.max(1));
        u32::try_from(chunks.checked_sub(1)?).ok()
    }

    /// The key of a chunk: its hash, and behind it the group.
    ///
    /// # Errors
    /// If the name is too short or too long.
    pub fn key(&self, tenant: &Tenant, name: &[u8]) -> Result<EngineKey, String> {
        let Some((hash, group)) = name.split_last_chunk::<GROUP_BYTES>() else {
            return Err(format!("a chunk's name of {} bytes has no group", name.len()));
        };
        let group = u32::from_be_bytes(*group);
        let id = ObjectKey {
            model: Arc::clone(&self.model),
            rank: self.rank,
            group,
            hash: ChunkHash::new(hash),
            salt: Arc::clone(&tenant.salt),
        };
        id.validate().map_err(|e| e.to_string())?;
        let key = Key::new(Arc::clone(&tenant.namespace), KeyId::Object(id));
        Ok(EngineKey { key, group })
    }
}
