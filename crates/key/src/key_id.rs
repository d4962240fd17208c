use crate::engine_key::{CacheEngineKey, LayerCacheEngineKey};
use crate::object_key::ObjectKey;

/// What a key names, in the form its origin speaks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KeyId {
    /// LMCache's multi-process mode, and our own.
    Object(ObjectKey),
    /// LMCache's in-process mode: all layers of a chunk.
    Engine(CacheEngineKey),
    /// LMCache's in-process mode: one layer of a chunk.
    Layer(LayerCacheEngineKey),
}

impl From<ObjectKey> for KeyId {
    fn from(key: ObjectKey) -> Self {
        KeyId::Object(key)
    }
}

impl From<CacheEngineKey> for KeyId {
    fn from(key: CacheEngineKey) -> Self {
        KeyId::Engine(key)
    }
}

impl From<LayerCacheEngineKey> for KeyId {
    fn from(key: LayerCacheEngineKey) -> Self {
        KeyId::Layer(key)
    }
}
