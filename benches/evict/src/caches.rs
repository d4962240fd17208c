//! The caches that are compared.

use hashbrown::HashTable;
use kvtier_evict::{ArcPolicy, KvPolicy, Lru, Policy, PolicyKind, S3Fifo, Sieve, SlotInfo};
use kvtier_index::{Chunk, Index, IndexConfig, Reserve};
use kvtier_key::Digest;

use crate::{BATCH, ENTRIES};

/// A cache to measure.
pub trait Cache {
    /// Looks up a key and marks it as used; returns whether it is present.
    fn hit(&mut self, key: u64) -> bool;
    /// Looks up the keys of a request; returns whether all are present.
    fn hit_all(&mut self, keys: &[u64]) -> bool {
        keys.iter().fold(true, |all, key| self.hit(*key) && all)
    }
    /// Adds an absent key, which evicts another one.
    fn insert(&mut self, key: u64);
    /// Heap memory, if the cache reports it.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

/// All caches, by name.
pub fn all() -> Vec<(&'static str, Box<dyn Cache>)> {
    let mut all: Vec<(&'static str, Box<dyn Cache>)> = vec![
        (
            "schnellru",
            Box::new(schnellru::LruMap::<u64, u64>::new(schnellru::ByLength::new(ENTRIES as u32))),
        ),
        ("kvtier lru", Box::new(PolicyCache::new(Lru::new()))),
        ("kvtier default", Box::new(PolicyCache::new(KvPolicy::new()))),
        ("kvtier arc", Box::new(PolicyCache::new(ArcPolicy::new()))),
        ("kvtier s3-fifo", Box::new(PolicyCache::new(S3Fifo::new()))),
        ("kvtier sieve", Box::new(PolicyCache::new(Sieve::new()))),
        ("quick_cache", Box::new(quick_cache::unsync::Cache::<u64, u64>::new(ENTRIES))),
        ("moka", Box::new(moka::sync::Cache::<u64, u64>::new(ENTRIES as u64))),
    ];
    #[cfg(feature = "foyer")]
    all.push(("foyer-memory", Box::new(foyer())));
    all.push(("kvtier index, lru", Box::new(IndexCache::new(PolicyKind::Lru))));
    all.push(("kvtier index, default", Box::new(IndexCache::new(PolicyKind::Default))));
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

/// A policy of kvtier over a table of keys and values, as in schnellru: a slot is an index of the table, so that a victim is found without a
/// lookup. (Keys are uniform: each is its own hash.)
struct PolicyCache<P> {
    policy: P,
    table: HashTable<(u64, u64)>,
}

impl<P: Policy> PolicyCache<P> {
    fn new(policy: P) -> Self {
        PolicyCache { policy, table: HashTable::with_capacity(ENTRIES) }
    }

    fn slot(&self, key: u64) -> Option<u32> {
        self.table.find_bucket_index(key, |(other, _)| *other == key).map(|at| at as u32)
    }
}

impl<P: Policy> Cache for PolicyCache<P> {
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
            let ((old, _), _) = entry.ok().expect("the victim is in the table").remove();
            self.policy.evict(slot, old);
        }
        assert!(
            self.table.capacity() > self.table.len(),
            "rehashing the table would move its slots"
        );
        let slot = self.table.insert_unique(key, (key, key), |(key, _)| *key).bucket_index() as u32;
        self.policy.insert(SlotInfo::new(slot, 1).with_tag(key));
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.policy.memory_bytes() + self.table.allocation_size())
    }
}

/// The whole index.
struct IndexCache(Index);

impl IndexCache {
    fn new(kind: PolicyKind) -> Self {
        let config = IndexConfig::new(ENTRIES as u64).with_high_mark(1.0).with_batch_max(1e-6);
        IndexCache(Index::new(config, kind.build()).expect("the configuration is valid"))
    }
}

fn digest(key: u64) -> Digest {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    Digest(bytes)
}

impl Cache for IndexCache {
    fn hit(&mut self, key: u64) -> bool {
        let digest = digest(key);
        let is_present = self.0.get(&digest).is_some();
        self.0.touch_batch(&[digest]);
        is_present
    }

    fn hit_all(&mut self, keys: &[u64]) -> bool {
        let digests: [Digest; BATCH] = std::array::from_fn(|at| digest(keys[at]));
        self.0.prefetch(&digests);
        let is_present =
            digests.iter().fold(true, |all, digest| self.0.get(digest).is_some() && all);
        self.0.touch_batch(&digests);
        is_present
    }

    fn insert(&mut self, key: u64) {
        let reservation = loop {
            match self.0.reserve(0, 1) {
                Reserve::Granted(reservation) => break reservation,
                Reserve::Evict(victims) => {
                    victims.iter().for_each(|v| _ = self.0.finish_evict(&v.chunk.digest))
                }
                other => panic!("{other:?}"),
            }
        };
        let _ = self.0.commit(reservation, Chunk::new(digest(key), 1, 1));
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.memory_bytes())
    }
}
