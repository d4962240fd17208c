//! How long chunks of a namespace are, learned from those seen.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::KeyId;

use crate::config::TierConfig;

/// The most kinds of chunks that are remembered.
const KINDS_MAX: usize = 4096;

/// How long a full chunk is: as the namespace declares, else the longest save of its model, rank
/// and group, where partial chunks are not allowed.
///
/// What was learned is lost at a restart. That is harmless: facts verify every load, or its length
/// must equal that of the memory. Before the first full chunk a partial one may be saved; it never
/// makes full ones look too long.
#[derive(Debug, Default)]
pub struct Geometry {
    learned: RwLock<HashMap<u64, u64>>,
    /// Bytes of a full chunk, where the configuration states them.
    configured: Option<u64>,
    /// Whether the configuration refuses partial chunks, whatever the namespace says.
    whole_only: bool,
}

impl Geometry {
    /// From the configuration.
    pub fn new(config: &TierConfig) -> Self {
        Geometry {
            learned: RwLock::default(),
            configured: config.chunk_bytes,
            whole_only: config.whole_chunks,
        }
    }

    /// Bytes of a full chunk of this key's kind; `None` where they are unknown.
    pub fn full(&self, key: &Key) -> Option<u64> {
        let learned =
            || self.learned.read().unwrap_or_else(PoisonError::into_inner).get(&kind(key)).copied();
        self.declared(key).or_else(learned)
    }

    /// Whether no chunk of this kind can have `len` bytes.
    pub fn is_too_long(&self, key: &Key, len: u64) -> bool {
        self.declared(key).is_some_and(|full| len > full)
    }

    /// What the namespace or the configuration declares. Chunks of single layers are shorter than
    /// the configured ones.
    fn declared(&self, key: &Key) -> Option<u64> {
        let is_layer = matches!(key.id(), KeyId::Layer(_));
        key.full_bytes().or(self.configured.filter(|_| !is_layer))
    }

    /// Whether chunks of this kind may be shorter than full ones.
    pub fn allows_partial(&self, key: &Key) -> bool {
        key.namespace().allow_partial() && !self.whole_only
    }

    /// A chunk of `len` bytes was saved, or found and verified.
    pub fn learn(&self, key: &Key, len: u64) {
        if self.allows_partial(key) || self.full(key).is_some_and(|full| len <= full) {
            return;
        }
        let mut all = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        let kind = kind(key);
        if all.len() < KINDS_MAX || all.contains_key(&kind) {
            all.entry(kind).and_modify(|full| *full = len.max(*full)).or_insert(len);
        }
    }

    /// Why a chunk of `len` bytes cannot be one of this kind.
    pub fn refusal(&self, key: &Key, len: u64) -> Option<Error> {
        let full = self.full(key)?;
        let partial = self.allows_partial(key);
        (self.is_too_long(key, len) || (len < full && !partial)).then(|| {
            let what = format!(
                "chunks of this kind have {full} bytes, this one has {len}; fix the chunk size, or allow partial chunks \
                 (`save_unfull_chunk`)"
            );
            Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest())
        })
    }
}

/// All chunks that look alike.
fn kind(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.namespace().digest().as_bytes().hash(&mut hasher);
    match key.id() {
        KeyId::Object(id) => (&id.model, id.rank.0, u64::from(id.group)).hash(&mut hasher),
        KeyId::Engine(id) => (&id.model, id.worker_id, "chunk").hash(&mut hasher),
        KeyId::Layer(id) => (&id.key.model, id.key.worker_id, "layer").hash(&mut hasher),
        _ => {}
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use kvtier_key::{Digest, Namespace, ObjectKey};

    use super::*;

    /// What the configuration and the namespace say of all chunks.
    #[derive(Clone, Copy, Default)]
    struct Stated {
        configured: Option<u64>,
        whole_only: bool,
        declared: Option<u64>,
        no_partial: bool,
    }

    impl Stated {
        fn geometry(self) -> Geometry {
            let Stated { configured, whole_only, .. } = self;
            Geometry { learned: RwLock::default(), configured, whole_only }
        }

        fn key(self, text: &str) -> Key {
            let mut namespace =
                Namespace::new("t", Digest::default()).with_partial(!self.no_partial);
            if let Some(bytes) = self.declared {
                namespace = namespace.with_chunk_bytes(0, bytes);
            }
            let object = || KeyId::Object(ObjectKey::from_native_name(text).unwrap());
            Key::new(namespace.into(), KeyId::from_engine_text(text).unwrap_or_else(|_| object()))
        }
    }

    const CHUNK: &str = "m@1@0@ab@half";
    const LAYER: &str = "m@1@0@ab@half@3";

    #[test]
    fn the_namespace_comes_before_the_configuration_which_says_nothing_of_layers() {
        let stated = Stated { configured: Some(100), ..Stated::default() };
        assert_eq!(stated.geometry().full(&stated.key(CHUNK)), Some(100));
        assert_eq!(stated.geometry().full(&stated.key(LAYER)), None);
        let stated = Stated { declared: Some(70), ..stated };
        assert_eq!(stated.geometry().full(&stated.key(CHUNK)), Some(70));
        let is_too_long = |len| stated.geometry().is_too_long(&stated.key(CHUNK), len);
        assert_eq!([69, 70, 71].map(is_too_long), [false, false, true]);
        let unknown = Stated::default();
        assert!(!unknown.geometry().is_too_long(&unknown.key(CHUNK), u64::MAX));
    }

    #[test]
    fn a_partial_chunk_needs_both_to_allow_it() {
        for (whole_only, no_partial) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let stated = Stated { whole_only, no_partial, declared: Some(70), ..Stated::default() };
            let allowed = !whole_only && !no_partial;
            assert_eq!(stated.geometry().allows_partial(&stated.key(CHUNK)), allowed);
            let refused = |len| stated.geometry().refusal(&stated.key(CHUNK), len);
            assert_eq!([69, 70, 71].map(|len| refused(len).is_some()), [!allowed, false, true]);
            let error = refused(71).unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains("have 70 bytes, this one has 71"), "{text}");
        }
    }

    #[test]
    fn the_longest_chunk_of_a_kind_is_learned_where_all_are_full() {
        let stated = Stated { no_partial: true, ..Stated::default() };
        let geometry = stated.geometry();
        let learned = |key: &Key, len| {
            geometry.learn(key, len);
            geometry.full(key)
        };
        let key = stated.key(CHUNK);
        assert_eq!([50, 60, 40].map(|len| learned(&key, len)), [Some(50), Some(60), Some(60)]);
        assert!(!geometry.is_too_long(&key, 61), "what was learned may be too short");
        assert!(geometry.refusal(&key, 61).is_none());
        assert!(geometry.refusal(&key, 59).is_some());
        assert_eq!(geometry.full(&stated.key("m@1@0@cd@half")), Some(60));
        let object = "m@000000ff@0@0505";
        let others = [LAYER, "n@1@0@ab@half", "m@2@1@ab@half", object];
        assert!(others.iter().all(|text| geometry.full(&stated.key(text)).is_none()));
        assert_eq!(learned(&stated.key(object), 80), Some(80));
        assert_eq!(geometry.full(&stated.key("m@000000ff@0@0606")), Some(80));
        let others = ["n@000000ff@0@0505", "m@000000fe@0@0505", "m@000000ff@1@0505"];
        assert!(others.iter().all(|text| geometry.full(&stated.key(text)).is_none()));
        assert_eq!(learned(&stated.key(LAYER), 7), Some(7));
        assert_eq!(learned(&key, 1), Some(60));
        let partial = Stated::default();
        geometry.learn(&partial.key("p@1@0@ab@half"), 50);
        assert_eq!(geometry.full(&partial.key("p@1@0@ab@half")), None, "it may be a partial one");
    }

    #[test]
    fn the_kinds_that_are_remembered_have_a_maximum() {
        let stated = Stated { no_partial: true, ..Stated::default() };
        let geometry = stated.geometry();
        let key = |n: usize| stated.key(&format!("m{n}@1@0@ab@half"));
        for n in 0..=KINDS_MAX {
            geometry.learn(&key(n), 50);
        }
        assert_eq!(geometry.full(&key(KINDS_MAX - 1)), Some(50));
        assert_eq!(geometry.full(&key(KINDS_MAX)), None);
        geometry.learn(&key(0), 60);
        assert_eq!(geometry.full(&key(0)), Some(60), "one of those that are remembered");
    }
}
