//! The key of LMCache's multi-process mode, and its parts.

use std::fmt;
use std::sync::Arc;

use crate::inline_bytes::SmallBytes;
use crate::invalid_key::InvalidKey;

/// The longest model name in bytes.
pub const MODEL_BYTES_MAX: usize = 512;
/// The longest cache salt in characters, as LMCache has it.
pub const SALT_CHARS_MAX: usize = 128;
/// The longest chunk hash in bytes.
pub const HASH_BYTES_MAX: usize = 512;

/// The hash that names a chunk and, through its chain, all tokens before it. Usually 32 bytes;
/// these are kept inline.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(SmallBytes);

impl ChunkHash {
    /// A chunk hash of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        ChunkHash(SmallBytes::new(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The packed rank of LMCache's `ObjectKey`: world size, global rank, local world size, local rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct KvRank(pub i64);

impl KvRank {
    /// Packs the four as LMCache does: 8 bits each and nothing masked, so values above 255 change
    /// the adjacent field.
    pub fn pack(world: i32, rank: i32, local_world: i32, local_rank: i32) -> Self {
        let [world, rank, local_world, local_rank] =
            [world, rank, local_world, local_rank].map(i64::from);
        // Each shifted part fits into 64 bits. A negative rank sets all bits above it, as in
        // Python.
        KvRank(world << 24 | rank << 16 | local_world << 8 | local_rank)
    }

    /// The world size as LMCache reads it back: 8 bits.
    pub fn world_size(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// The key of LMCache's multi-process mode. `Debug` does not show the salt.
///
/// ```
/// use kvtier_key::{ChunkHash, KvRank, ObjectKey};
///
/// let key = ObjectKey::new("org/m", KvRank::pack(2, 1, 2, 1), 0, ChunkHash::new(&[0xab; 4]), "")?;
/// assert_eq!(key.native_name()?, "org/m@02010201@0@abababab");
/// assert_eq!(ObjectKey::from_native_name("org/m@02010201@0@abababab")?, key);
/// # Ok::<(), kvtier_key::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        try_from = "crate::serde_forms::ObjectFields",
        into = "crate::serde_forms::ObjectFields"
    )
)]
pub struct ObjectKey {
    /// The model's name; may contain `/`, never `@`.
    pub model: Arc<str>,
    /// The packed rank.
    pub rank: KvRank,
    /// The object group (0 unless the model is a hybrid).
    pub group: u32,
    /// The chunk's hash.
    pub hash: ChunkHash,
    /// The cache salt; empty for none. Reaches the media only as a keyed digest.
    pub salt: Arc<str>,
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ObjectKey");
        shown
            .field("model", &self.model)
            .field("rank", &self.rank)
            .field("group", &self.group)
            .field("hash", &self.hash);
        // Logs show keys, and a salt may be a tenant's secret.
        shown.field("has_salt", &!self.salt.is_empty()).finish()
    }
}

impl ObjectKey {
    /// A key whose parts LMCache's rules and our limits allow: no `@` in the model and at most
    /// [`MODEL_BYTES_MAX`]; no `@`, `/`, `\` or NUL in the salt and at most [`SALT_CHARS_MAX`];
    /// a hash of at most [`HASH_BYTES_MAX`].
    pub fn new(
        model: impl Into<Arc<str>>,
        rank: KvRank,
        group: u32,
        hash: ChunkHash,
        salt: impl Into<Arc<str>>,
    ) -> Result<Self, InvalidKey> {
        let key = ObjectKey { model: model.into(), rank, group, hash, salt: salt.into() };
        key.validate()?;
        Ok(key)
    }

    /// Checks the rules of [`ObjectKey::new`] on a key that was put together by hand.
    pub fn validate(&self) -> Result<(), InvalidKey> {
        check_model(&self.model)?;
        // Names are split at the first `@`, so such a model would read back as another key.
        if self.model.contains('@') {
            return Err(InvalidKey::new(format!(
                "model name {:?} contains '@', which separates fields",
                self.model
            )));
        }
        // The salt goes into file names as it is. The message does not show it.
        if self.salt.contains(['@', '/', '\\', '\0']) {
            return Err(InvalidKey::new("cache salt contains one of '@', '/', '\\' and NUL"));
        }
        // Characters and not bytes: LMCache counts with Python's `len`.
        if self.salt.chars().count() > SALT_CHARS_MAX {
            return Err(InvalidKey::new(format!(
                "cache salt is longer than {SALT_CHARS_MAX} characters"
            )));
        }
        check_hash(self.hash.as_bytes())
    }
}

pub(crate) fn check_model(model: &str) -> Result<(), InvalidKey> {
    if model.len() <= MODEL_BYTES_MAX {
        return Ok(());
    }
    Err(InvalidKey::new(format!(
        "model name of {} bytes is longer than {MODEL_BYTES_MAX}",
        model.len()
    )))
}

pub(crate) fn check_hash(hash: &[u8]) -> Result<(), InvalidKey> {
    if hash.len() <= HASH_BYTES_MAX {
        return Ok(());
    }
    Err(InvalidKey::new(format!(
        "chunk hash of {} bytes is longer than {HASH_BYTES_MAX}",
        hash.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_above_255_change_the_adjacent_field_as_in_lmcache() {
        assert_eq!(KvRank::pack(4, 3, 2, 1).0, 0x0403_0201);
        // Both have the lowest bit of the adjacent field, which stays set.
        assert_eq!(KvRank::pack(1, 0x101, 0, 0).0, 0x0101_0000);
        assert_eq!(KvRank::pack(0, 1, 0x101, 0).0, 0x0001_0100);
        assert_eq!(KvRank::pack(0, 0, 1, 0x101).0, 0x0101);
        assert_eq!(KvRank::pack(0, 0, 0, -1).0, -1);
    }

    #[test]
    fn a_hash_has_at_most_512_bytes() {
        let is_ok = |bytes: usize| {
            let hash = ChunkHash::new(&vec![1; bytes]);
            ObjectKey::new("m", KvRank(0), 0, hash, "").is_ok()
        };
        assert_eq!([HASH_BYTES_MAX, HASH_BYTES_MAX + 1].map(is_ok), [true, false]);
    }
}
