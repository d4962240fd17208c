//! The keys of an engine's chunks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use kvtier::core::{Digest, Key, Namespace};
use kvtier::key::{ChunkHash, DType, KeyId, KvRank, ObjectKey};
use pyo3::prelude::*;

/// The most tenants whose namespace is cached; those of further tenants are computed for each
/// request.
const TENANTS_MAX: usize = 4096;
/// The bytes behind a chunk's hash that hold its KV cache group, big-endian, as vLLM packs them.
pub const GROUP_BYTES: usize = 4;

/// The keys of one configuration of an engine. Whatever decides what the bytes of a chunk mean is in
/// the digest of its namespace, so that two configurations never see each other's chunks.
#[derive(Debug)]
pub struct KeySpace {
    model: Arc<str>,
    rank: KvRank,
    chunk_bytes: u64,
    /// Tokens of a chunk by the id of its KV cache group.
    group_tokens: BTreeMap<u32, u64>,
    layout: Digest,
    dtype: Option<DType>,
    tenants: Mutex<HashMap<String, Arc<Namespace>>>,
}

/// What the engine says about its configuration, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct Identity {
    /// The model's name, for people.
    #[pyo3(item(0))]
    pub model: String,
    /// The rank whose bytes the chunks hold.
    #[pyo3(item(1))]
    pub rank: i64,
    /// The id of each KV cache group, as the names of its chunks end with it, and the tokens of a
    /// chunk. Engines offload some of their groups only, so ids have gaps.
    #[pyo3(item(2))]
    pub group_tokens: Vec<(u32, u64)>,
    /// Bytes of a chunk.
    #[pyo3(item(3))]
    pub chunk_bytes: u64,
    /// The canonical text of all fields that decide what the bytes mean.
    #[pyo3(item(4))]
    pub fields: String,
    /// PyTorch's name of the type of all elements, if it is known. `fields` has it already, so it
    /// changes no key; encodings that read elements need it.
    #[pyo3(item(5))]
    pub dtype: Option<String>,
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
    ///
    /// # Errors
    /// If no key can have this model or rank, if the groups are none or not apart, or if the type
    /// of the elements has no such name.
    pub fn new(identity: Identity) -> Result<Self, String> {
        let groups = identity.group_tokens.len();
        let dtype = identity.dtype.as_deref().map(element_type).transpose()?;
        let keys = KeySpace {
            // `@` separates the fields of a key's text.
            model: identity.model.replace('@', "_").into(),
            rank: KvRank(identity.rank),
            chunk_bytes: identity.chunk_bytes,
            group_tokens: identity.group_tokens.into_iter().collect(),
            layout: Digest::derive("kvtier 2026 engine identity v1", identity.fields.as_bytes()),
            dtype,
            tenants: Mutex::default(),
        };
        // Two groups of one id would have the same keys for different bytes.
        if keys.group_tokens.is_empty() || keys.group_tokens.len() < groups {
            return Err(format!("{groups} KV cache groups have {} ids", keys.group_tokens.len()));
        }
        keys.tenant("").map_err(|e| format!("the model {:?} is in no key: {e}", identity.model))?;
        Ok(keys)
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
        // A name that one key takes all keys take: the tenant is checked once a request, and not
        // for each of its chunks.
        let hash = ChunkHash::new(&[0; 32]);
        ObjectKey::new(Arc::clone(&self.model), self.rank, 0, hash, name)
            .map_err(|e| e.to_string())?;
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = tenants.get(name).cloned().unwrap_or_else(|| {
            // All rows or pages of an engine's memory have one length, so a chunk of another one is
            // none of this engine's.
            let all = Namespace::new(name, self.layout).with_partial(false);
            let all = self.dtype.into_iter().fold(all, Namespace::with_dtype);
            let with_bytes =
                |ns: Namespace, group: &u32| ns.with_chunk_bytes(*group, self.chunk_bytes);
            Arc::new(self.group_tokens.keys().fold(all, with_bytes).with_salts_as_tenants())
        });
        // Tenants come from requests: users must not be able to fill the memory with names.
        if tenants.len() < TENANTS_MAX {
            tenants.insert(name.to_owned(), Arc::clone(&namespace));
        }
        Ok(Tenant { namespace, salt: name.into() })
    }

    /// The number of chunks before the one that ends at token `end` of its request; `None` if unknown.
    pub fn depth(&self, group: u32, end: Option<u64>) -> Option<u32> {
        let tokens = *self.group_tokens.get(&group)?;
        // Rounded up: an engine may give a position inside of a chunk, such as that of a partial tail.
        let chunks = end?.div_ceil(tokens.max(1));
        u32::try_from(chunks.checked_sub(1)?).ok()
    }

    /// The key of a chunk: its hash, and behind it the group.
    ///
    /// # Errors
    /// If the name is too short or too long, or of a group that the engine did not name.
    pub fn key(&self, tenant: &Tenant, name: &[u8]) -> Result<EngineKey, String> {
        let Some((hash, group)) = name.split_last_chunk::<GROUP_BYTES>() else {
            return Err(format!("a chunk's name of {} bytes has no group", name.len()));
        };
        let group = u32::from_be_bytes(*group);
        // The layers of such a group are not in the namespace, so its bytes could be anything.
        if !self.group_tokens.contains_key(&group) {
            let known: Vec<u32> = self.group_tokens.keys().copied().collect();
            return Err(format!(
                "a chunk of group {group}, and this engine has the groups {known:?}"
            ));
        }
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

fn element_type(name: &str) -> Result<DType, String> {
    DType::from_torch_name(name).ok_or_else(|| {
        format!("{name:?} is no element type: give PyTorch's name, such as bfloat16, or none")
    })
}
