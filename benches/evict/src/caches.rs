//! The caches that are compared.

use hashbrown::HashTable;
use kvtier_evict::{ArcPolicy, SlotInfo, KvPolicy, Lru, Policy, PolicyKind, S3Fifo, Sieve};
use kvtier_index::{Chunk, Index, IndexConfig, Reserve};
use kvtier_key::Digest;

use crate::{BATCH, ENTRIES};

/// What is measured.
pub trait Cache {
    /// Looks a key up as used; whether it is there.
    fn hit(&mut self, key: u64) -> bool;
    /// Looks up many, as one request does; whether all were there.
    fn hit_all(&mut self, keys: &[u64]) -> bool {
        keys.iter().fold(true, |all, key| self.hit(*key) && all)
    }
    /// Adds a key that is not there; something else goes.
    fn insert(&mut self, key: u64);
    /// Heap memory, where the cache says.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

/// All of them, by name.
pub fn all() -> Vec<(&'static str, Box<dyn Cache>)> {
    let mut all: Vec<(&'static str, Box<dyn Cache>)> = vec![
        ("schnellru", Box::new(schnellru::LruMap::<u64, u64>::new(schnellru::ByLength::new(ENTRIES as u32)))),
        ("kvtier lru", Box::new(Slots::new(Lru::new()))),
        ("kvtier default", Box::new(Slots::new(KvPolicy::new()))),
        ("kvtier arc", Box::new(Slots::new(ArcPolicy::new()))),
        ("kvtier s3-fifo", Box::new(Slots::new(S3Fifo::new()))),
        ("kvtier sieve", Box::new(Slots::new(Sieve::new()))),
        ("quick_cache", Box::new(quick_cache::unsync::Cache::<u64, u64>::new(ENTRIES))),
        ("moka", Box::new(moka::sync::Cache::<u64, u64>::new(ENTRIES as u64))),
    ];
    #[cfg(feature = "foyer")]
    all.push(("foyer-memory", Box::new(foyer())));
    all.push(("kvtier index, lru", Box::new(Whole::new(PolicyKind::Lru))));
    all.push(("kvtier index, default", Box::new(Whole::new(PolicyKind::Default))));
    all
}

impl Cache for schnellru::LruMap<u64, u64> {
    fn hit(&mut self, key: u64) -> bool {
        self.get(&key).is_some()
    }

    fn insert(&mut self, key: u64) {
        schnellru::LruMap::insert(self, key, key);
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.memory_usage())
    }
}

impl Cache for quick_cache::unsync::Cache<u64, u64> {
    fn hit(&mut self, key: u64) -> bool {
        self.get(&key).is_some()
    }

    fn insert(&mut self, key: u64) {
        quick_cache::unsync::Cache::insert(self, key, key);
    }
}

impl Cache for moka::sync::Cache<u64, u64> {
    fn hit(&mut self, key: u64) -> bool {
        self.get(&key).is_some()
    }

    fn insert(&mut self, key: u64) {
        moka::sync::Cache::insert(self, key, key);
    }
}

#[cfg(feature = "foyer")]
fn foyer() -> foyer_memory::Cache<u64, u64> {
    let lru = foyer_memory::LruConfig::default();
    foyer_memory::CacheBuilder::new(ENTRIES).with_shards(1).with_eviction_config(lru).build()
}

#[cfg(feature = "foyer")]
impl Cache for foyer_memory::Cache<u64, u64> {
    fn hit(&mut self, key: u64) -> bool {
        self.get(&key).is_some()
    }

    fn insert(&mut self, key: u64) {
        foyer_memory::Cache::insert(self, key, key);
    }
}

/// One of our policies over a table of keys and values, laid out as schnellru's: a slot is a place in the table, so that who is given up is
/// found in it at once. (Keys are uniform: each is its own hash.)
struct Slots<P> {
    policy: P,
    table: HashTable<(u64, u64)>,
}

impl<P: Policy> Slots<P> {
    fn new(policy: P) -> Self {
        Slots { policy, table: HashTable::with_capacity(ENTRIES) }
    }

    fn slot(&self, key: u64) -> Option<u32> {
        self.table.find_bucket_index(key, |(there, _)| *there == key).map(|at| at as u32)
    }
}

impl<P: Policy> Cache for Slots<P> {
    fn hit(&mut self, key: u64) -> bool {
        self.slot(key).map(|slot| self.policy.touch(slot)).is_some()
    }

    fn hit_all(&mut self, keys: &[u64]) -> bool {
        let mut slots = [0; BATCH];
        let mut all = true;
        for (key, slot) in keys.iter().zip(&mut slots) {
            match self.slot(*key) {
                Some(found) => *slot = found,
                None => all = false,
            }
        }
        self.policy.touch_chain(&slots[..keys.len()]);
        all
    }

    fn insert(&mut self, key: u64) {
        if self.table.len() == ENTRIES {
            let slot = self.policy.victim().expect("a full cache has a victim");
            let entry = self.table.get_bucket_entry(slot as usize);
            let ((old, _), _) = entry.ok().expect("who is given up is there").remove();
            self.policy.evict(slot, old);
        }
        assert!(self.table.capacity() > self.table.len(), "a table that is hashed anew moves its slots");
        let slot = self.table.insert_unique(key, (key, key), |(key, _)| *key).bucket_index() as u32;
        self.policy.insert(SlotInfo::new(slot, 1).with_tag(key));
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.policy.memory_bytes() + self.table.allocation_size())
    }
}

/// The whole index.
struct Whole(Index);

impl Whole {
    fn new(kind: PolicyKind) -> Self {
        let config = IndexConfig::new(ENTRIES as u64).with_high_mark(1.0).with_batch_max(1e-6);
        Whole(Index::new(config, kind.build()).expect("the configuration is valid"))
    }
}

fn digest(key: u64) -> Digest {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    Digest(bytes)
}

impl Cache for Whole {
    fn hit(&mut self, key: u64) -> bool {
        let digest = digest(key);
        let there = self.0.get(&digest).is_some();
        self.0.touch_batch(&[digest]);
        there
    }

    fn hit_all(&mut self, keys: &[u64]) -> bool {
        let digests: [Digest; BATCH] = std::array::from_fn(|at| digest(keys[at]));
        self.0.prefetch(&digests);
        let there = digests.iter().fold(true, |all, digest| self.0.get(digest).is_some() && all);
        self.0.touch_batch(&digests);
        there
    }

    fn insert(&mut self, key: u64) {
        let room = loop {
            match self.0.reserve(0, 1) {
                Reserve::Granted(room) => break room,
                Reserve::Evict(victims) => victims.iter().for_each(|v| _ = self.0.finish_evict(&v.chunk.digest)),
                other => panic!("{other:?}"),
            }
        };
        let _ = self.0.commit(room, Chunk::new(digest(key), 1, 1));
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.memory_bytes())
    }
}
