use std::sync::Arc;

use crate::object_key::{check_hash, check_model};
use crate::{ChunkHash, DType, InvalidKey, PyInt};

/// The most tags a key may have, and the most bytes in a tag's name or value.
pub const TAGS_MAX: usize = 64;
/// The most bytes in a tag's name or value.
pub const TAG_BYTES_MAX: usize = 1024;

/// The chunk hash of LMCache's in-process mode: a whole number, or bytes where the engine hashes to
/// bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum EngineHash {
    /// A whole number, signed.
    Int(PyInt),
    /// Bytes. Their text reads back as a number: LMCache cannot distinguish the two in a name.
    Bytes(ChunkHash),
}

/// One tag of a key: name and value.
pub type Tag = (Arc<str>, Arc<str>);

/// The key of LMCache's in-process mode.
///
/// ```
/// use kvtier_key::CacheEngineKey;
///
/// let key = CacheEngineKey::from_text("llama@2@1@1f@bfloat16")?;
/// assert_eq!(key.text(), "llama@2@1@1f@bfloat16");
/// assert_eq!(key.split_layers(32).count(), 32);
/// # Ok::<(), kvtier_key::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        try_from = "crate::serde_forms::EngineFields",
        into = "crate::serde_forms::EngineFields"
    )
)]
pub struct CacheEngineKey {
    /// The model's name; a name with `@` can be written but never read back.
    pub model: Arc<str>,
    /// Number of workers.
    pub world_size: i64,
    /// Which worker.
    pub worker_id: i64,
    /// The chunk's hash.
    pub hash: EngineHash,
    /// The element type.
    pub dtype: DType,
    /// The request's tags (`lmcache.tag.*`, without that prefix), in order, each name once.
    pub tags: Arc<[Tag]>,
}

impl CacheEngineKey {
    /// A key without tags. Errors: a model or hash longer than our limits.
    pub fn new(
        model: impl Into<Arc<str>>,
        world_size: i64,
        worker_id: i64,
        hash: EngineHash,
        dtype: DType,
    ) -> Result<Self, InvalidKey> {
        let key = CacheEngineKey {
            model: model.into(),
            world_size,
            worker_id,
            hash,
            dtype,
            tags: Arc::new([]),
        };
        // `@` is allowed in this model: LMCache writes such names in this mode, although it cannot
        // read them.
        check_model(&key.model)?;
        // A `PyInt` has its own bound.
        if let EngineHash::Bytes(bytes) = &key.hash {
            check_hash(bytes.as_bytes())?;
        }
        Ok(key)
    }

    /// Sets the tags. Of equal names the last value counts, at the first one's place, as in a
    /// Python `dict`. Errors: more than [`TAGS_MAX`], or one longer than [`TAG_BYTES_MAX`].
    pub fn with_tags<N: AsRef<str>, V: AsRef<str>>(
        mut self,
        tags: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, InvalidKey> {
        let mut list: Vec<Tag> = Vec::new();
        for (name, value) in tags {
            let name = name.as_ref();
            let value = value.as_ref();
            if name.len().max(value.len()) > TAG_BYTES_MAX {
                return Err(InvalidKey::new(format!(
                    "a tag's name or value is longer than {TAG_BYTES_MAX} bytes"
                )));
            }
            // A linear search over at most `TAGS_MAX` tags keeps the order, which the text form
            // shows.
            match list.iter().position(|(known, _)| **known == *name) {
                Some(at) => list[at].1 = value.into(),
                None if list.len() < TAGS_MAX => list.push((name.into(), value.into())),
                None => return Err(InvalidKey::new(format!("more than {TAGS_MAX} tags"))),
            }
        }
        self.tags = list.into();
        Ok(self)
    }

    /// The same chunk of another worker.
    pub fn with_worker(mut self, worker_id: i64) -> Self {
        self.worker_id = worker_id;
        self
    }

    /// One layer of this chunk.
    pub fn layer(&self, layer: i64) -> LayerCacheEngineKey {
        LayerCacheEngineKey { key: self.clone(), layer }
    }

    /// The layers 0 to `layers` of this chunk, in order.
    pub fn split_layers(&self, layers: u32) -> impl Iterator<Item = LayerCacheEngineKey> + '_ {
        (0..layers).map(|layer| self.layer(layer.into()))
    }
}

/// The key of one layer of a chunk, in LMCache's in-process mode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LayerCacheEngineKey {
    /// The chunk.
    pub key: CacheEngineKey,
    /// The layer.
    pub layer: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_at_most_its_most_bytes() {
        let longest = "x".repeat(TAG_BYTES_MAX);
        let longer = "x".repeat(TAG_BYTES_MAX + 1);
        let hash = EngineHash::Int(PyInt::from(1u64));
        let key = CacheEngineKey::new("llama", 1, 0, hash, DType::BFloat16).unwrap();
        let takes = |name: &str, value: &str| key.clone().with_tags([(name, value)]).is_ok();
        assert!(takes(&longest, "") && takes("", &longest) && takes(&longest, &longest));
        assert!(!takes(&longer, "") && !takes("", &longer));
    }
}
