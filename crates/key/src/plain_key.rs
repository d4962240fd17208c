//! Keys and namespaces from plain names, for programs without LMCache's keys.

use std::sync::Arc;

use crate::{ChunkHash, Digest, Key, KeyId, KvRank, Namespace, ObjectKey};

/// The contexts of the digests below; stored chunks depend on them.
const LAYOUT_CONTEXT: &str = "kvtier 2026 plain namespace v1";
const HASH_CONTEXT: &str = "kvtier 2026 plain key v1";

impl Namespace {
    /// The namespace of this name, without a tenant. Put into the name all that makes bytes
    /// interchangeable: the model, its data type, the tensor layout, the size of a chunk in tokens.
    pub fn from_name(name: impl AsRef<[u8]>) -> Arc<Self> {
        Arc::new(Namespace::new("", Digest::derive(LAYOUT_CONTEXT, name.as_ref())))
    }
}

impl Key {
    /// The key of this name in a namespace. The name is any text or bytes; the media keep a digest
    /// of it.
    ///
    /// ```
    /// use kvtier_key::{Key, Namespace};
    ///
    /// let ns = Namespace::from_name("llama-3-8b bf16, 256 tokens");
    /// let key = Key::from_name(&ns, "prompt 7, chunk 0");
    /// assert_eq!(key, Key::from_name(&ns, b"prompt 7, chunk 0"));
    /// assert_ne!(key, Key::from_name(&Namespace::from_name("mistral"), "prompt 7, chunk 0"));
    /// ```
    pub fn from_name(ns: &Arc<Namespace>, name: impl AsRef<[u8]>) -> Self {
        let digest = Digest::derive(HASH_CONTEXT, name.as_ref());
        // The kind of key that every layout can name: model and salt are constant, and all of the
        // name is in the hash.
        let id = ObjectKey {
            model: "plain".into(),
            rank: KvRank(0),
            group: 0,
            hash: ChunkHash::new(digest.as_bytes()),
            salt: "".into(),
        };
        Key::new(Arc::clone(ns), KeyId::Object(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_keys_are_valid_and_never_change() {
        let key = Key::from_name(&Namespace::from_name("model"), "chunk");
        let KeyId::Object(id) = key.id() else { panic!("an object key") };
        id.validate().unwrap();
        assert_eq!(
            key.digest().to_string(),
            "a9c9fd6f225f5fc04e93953a52fb70cf955e251bc91d7284b2fb76fd632b8825",
            "chunks on media would not be found again"
        );
        assert_ne!(key, Key::from_name(&Namespace::from_name("model"), "chunk2"));
        assert_ne!(key, Key::from_name(&Namespace::from_name("mode"), "lchunk"));
    }
}
