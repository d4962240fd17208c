//! The keys of replayed blocks.

use std::sync::Arc;

use kvtier::config::LmcacheMode;
use kvtier::core::key::{
    CacheEngineKey, ChunkHash, DType, EngineHash, KeyId, KvRank, ObjectKey, PyInt,
};
use kvtier::core::{Digest, Key, Namespace};

/// The keys of replayed blocks; those of a process and of its peer are the same.
#[derive(Clone, Debug)]
pub struct Keys {
    ns: Arc<Namespace>,
    mode: LmcacheMode,
}

impl Keys {
    /// Keys of this mode for blocks of `chunk` bytes.
    pub fn new(chunk: usize, mode: LmcacheMode) -> Self {
        // A namespace for each size: a replay with another block size must not find blocks of this
        // one.
        let layout = Digest::derive("kvtier replay layout", &(chunk as u64).to_le_bytes());
        let ns = Arc::new(
            Namespace::new("replay", layout).with_chunk_bytes(0, chunk as u64).with_partial(false),
        );
        Keys { ns, mode }
    }

    /// The key of block `id`.
    pub fn key(&self, id: u64) -> Key {
        let hash = Digest::derive("kvtier replay block", &id.to_le_bytes());
        let id = match self.mode {
            LmcacheMode::InProcess => KeyId::Engine(in_process(&hash)),
            _ => {
                let hash = ChunkHash::new(hash.as_bytes());
                KeyId::Object(ObjectKey {
                    model: "replay".into(),
                    rank: KvRank(0),
                    group: 0,
                    hash,
                    salt: "".into(),
                })
            }
        };
        Key::new(Arc::clone(&self.ns), id)
    }
}

/// Bytes as elements: then a block of any length is a whole number of them.
fn in_process(hash: &Digest) -> CacheEngineKey {
    let hash = EngineHash::Int(
        PyInt::from_be_bytes(false, hash.as_bytes()).expect("a digest is a short number"),
    );
    let model = "replay".into();
    let tags = Arc::new([]);
    CacheEngineKey { model, world_size: 1, worker_id: 0, hash, dtype: DType::UInt8, tags }
}
