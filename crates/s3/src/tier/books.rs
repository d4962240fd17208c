use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::Key;
use kvtier_index::{Chunk, Index, TenantId};
use kvtier_key::Digest;

use super::truth::Watch;

/// The most keys remembered as absent.
const ABSENT_MAX: usize = 1 << 16;
/// The most versions of corrupt objects remembered.
const CORRUPT_MAX: usize = 1 << 12;
/// What was seen is noted in steps of this many milliseconds.
const SEEN_STEP_MS: u64 = 16;

/// What is known of the bucket.
#[derive(Debug)]
pub struct Books {
    pub index: Index,
    pub seen: Seen,
    absent: HashMap<Digest, Instant>,
    /// Versions of objects that failed their checks.
    corrupt: HashMap<Digest, Box<str>>,
    /// Names that do not follow from the digest.
    names: HashMap<Digest, Arc<str>>,
    tenants: HashMap<TenantId, String>,
    /// What changed while a listing runs, whose pages may be older.
    pub watch: Watch,
    /// Whether the whole bucket was listed once.
    pub listed: bool,
    fresh_hit_max: Duration,
    fresh_miss_max: Duration,
}

/// When the chunk in each slot was last seen, in steps of the tier's clock; 0 for one to be asked for.
#[derive(Debug, Default)]
pub struct Seen(Vec<u32>);

impl Seen {
    /// When the slot's chunk was last seen, in milliseconds of the tier's clock; 0 if that is unknown.
    pub fn ms(&self, slot: u32) -> u64 {
        self.0.get(slot as usize).map_or(0, |seen| u64::from(*seen) * SEEN_STEP_MS)
    }

    /// The slot's chunk was seen then.
    pub fn note(&mut self, slot: u32, now_ms: u64) {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = (now_ms / SEEN_STEP_MS).max(1) as u32;
    }

    fn doubt(&mut self, slot: u32) {
        if let Some(seen) = self.0.get_mut(slot as usize) {
            *seen = 0;
        }
    }
}

impl Books {
    /// Books of a bucket about which nothing is known. What was seen counts for so long.
    pub fn new(index: Index, (fresh_hit_max, fresh_miss_max): (Duration, Duration)) -> Self {
        Books {
            index,
            seen: Seen::default(),
            absent: HashMap::new(),
            corrupt: HashMap::new(),
            names: HashMap::new(),
            tenants: HashMap::new(),
            watch: Watch::default(),
            listed: false,
            fresh_hit_max,
            fresh_miss_max,
        }
    }

    /// What is known of a key without asking: `Some(None)` that it is not there.
    pub fn known(&self, digest: &Digest, now_ms: u64) -> Option<Option<u64>> {
        if let Some(entry) = self.index.get(digest) {
            let seen_ms = self.seen.ms(entry.slot);
            let age_ms = now_ms.saturating_sub(seen_ms);
            let fresh = entry.held || (seen_ms > 0 && u128::from(age_ms) <= self.fresh_hit_max.as_millis());
            return fresh.then_some(Some(entry.chunk.len));
        }
        if self.index.is_leaving(digest) {
            return Some(None);
        }
        self.absent.get(digest).filter(|at| at.elapsed() <= self.fresh_miss_max).map(|_| None)
    }

    /// The chunk's entry in the index, its tenant included.
    pub fn chunk(&mut self, key: &Key, len: u64) -> Chunk {
        Chunk::new(*key.digest(), len, len).with_tenant(self.tenant(key.namespace().tenant()))
    }

    fn tenant(&mut self, name: &str) -> TenantId {
        if name.is_empty() {
            return TenantId(0);
        }
        let digest = Digest::of("kvtier tenant", name.as_bytes());
        let [a, b, c, d, ..] = *digest.as_bytes();
        let id = TenantId(u32::from_le_bytes([a, b, c, d]).max(1));
        self.tenants.entry(id).or_insert_with(|| name.to_owned());
        id
    }

    /// The tenants that were ever met, by their numbers.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, String)> + '_ {
        self.tenants.iter().map(|(id, name)| (*id, name.clone()))
    }

    /// Remembers what a tenant is called.
    pub fn note_tenant(&mut self, id: TenantId, name: &str) {
        self.tenants.entry(id).or_insert_with(|| name.to_owned());
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.get(&id).cloned().unwrap_or_default()
    }

    /// The chunk was seen just now.
    pub fn confirm(&mut self, digest: &Digest, now_ms: u64) {
        self.changed(*digest);
        self.absent.remove(digest);
        if let Some(entry) = self.index.get(digest) {
            self.seen.note(entry.slot, now_ms);
        }
    }

    /// Nobody knows what became of a request that changes the key: the next to ask asks the bucket.
    pub fn doubt(&mut self, digest: &Digest) {
        self.changed(*digest);
        self.absent.remove(digest);
        if let Some(entry) = self.index.get(digest) {
            self.seen.doubt(entry.slot);
        }
    }

    /// The bucket has no such object.
    pub fn note_absent(&mut self, digest: Digest) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.insert(digest, Instant::now());
        self.names.remove(&digest);
        self.corrupt.remove(&digest);
        self.index.acquit(&digest);
    }

    /// A victim is not remembered any more, though it is there.
    pub fn forget(&mut self, digest: &Digest) {
        self.index.evicted(digest);
        self.names.remove(digest);
    }

    /// Remembers a name that the digest does not tell.
    pub fn note_name(&mut self, digest: &Digest, name: &str) {
        if self.names.get(digest).is_none_or(|known| **known != *name) {
            self.names.insert(*digest, name.into());
        }
    }

    /// The name under which the key was found, where the digest does not tell it.
    pub fn name(&self, digest: &Digest) -> Option<Arc<str>> {
        self.names.get(digest).cloned()
    }

    /// The key's object, of that version, failed its checks: a miss until it is another.
    pub fn note_corrupt(&mut self, digest: &Digest, etag: Option<&str>) {
        self.changed(*digest);
        self.index.suspect(digest);
        if self.corrupt.len() >= CORRUPT_MAX {
            self.corrupt.clear();
        }
        self.corrupt.insert(*digest, etag.unwrap_or_default().into());
    }

    /// Whether the object of this version is the one that failed its checks, as far as can be told.
    pub fn is_corrupt(&self, digest: &Digest, etag: Option<&str>) -> bool {
        let known = self.corrupt.get(digest).filter(|known| !known.is_empty());
        self.index.is_suspect(digest) && (etag.is_none() || known.is_none_or(|known| Some(&**known) == etag))
    }

    /// What lies there now was written since.
    pub fn acquit(&mut self, digest: &Digest) {
        self.corrupt.remove(digest);
        self.index.acquit(digest);
    }

    /// Whether the bucket was found to have no such object, or it was deleted here, not longer ago than that.
    pub fn was_absent_within(&self, digest: &Digest, time: Duration) -> bool {
        self.absent.get(digest).is_some_and(|at| at.elapsed() <= time)
    }

    /// The key changed: a listing that is under way may tell of it as it was before.
    pub fn changed(&mut self, digest: Digest) {
        self.watch.note(digest);
    }

    /// Whether the whole bucket was listed once.
    pub fn is_listed(&self) -> bool {
        self.listed
    }
}
