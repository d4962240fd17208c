//! Keys and memory for the tests.

use std::sync::Arc;

use kvtier_core::{Digest, Key, Load, Namespace};
use kvtier_key::{ChunkHash, KvRank, ObjectKey};
use kvtier_mem::{Arena, ArenaConfig};

/// Key number `n`.
pub fn key(n: u64) -> Key {
    let id = ObjectKey::new("model", KvRank(0), 0, ChunkHash::new(&n.to_le_bytes()), "").unwrap();
    Key::new(Arc::new(Namespace::new("test", Digest::default())), id.into())
}

/// A small arena.
pub fn arena() -> Arena {
    Arena::new(ArenaConfig::heap(1 << 20)).unwrap()
}

/// The op that loads key `n` into a lease of a page.
pub fn load(arena: &Arena, n: u64) -> Load {
    Load { key: key(n), into: vec![arena.lease(4096).unwrap()] }
}

/// Whether all memory is back.
pub fn all_free(arena: &Arena) -> bool {
    arena.stats().free == arena.stats().capacity
}
