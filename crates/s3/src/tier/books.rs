use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::Key;
use kvtier_index::{Chunk, Index, TenantId};
use kvtier_key::Digest;

/// The most keys remembered as absent.
const ABSENT_MAX: usize = 1 << 16;
/// The most keys remembered as changed while the first listing runs.
const CHANGED_MAX: usize = 1 << 20;
/// The most versions of corrupt objects remembered.
const CORRUPT_MAX: usize = 1 << 12;
/// What was seen is noted in steps of this many milliseconds.
const SEEN_STEP_MS: u64 = 16;

/// What is known of the bucket.
#[derive(Debug)]
pub struct Books {
    pub index: Index,
    /// When the chunk in each slot was last seen, in steps of the tier's clock; 0 for one to be asked for.
    seen: Vec<u32>,
    absent: HashMap<Digest, Instant>,
    /// Versions of objects that failed their checks.
    corrupt: HashMap<Digest, Box<str>>,
    /// Names that do not follow from the digest.
    names: HashMap<Digest, Arc<str>>,
    tenants: HashMap<TenantId, String>,
    /// What changed while the first listing runs, whose pages may be older; `None` once it is over.
    changed: Option<HashSet<Digest>>,
    fresh_hit_max: Duration,
    fresh_miss_max: Duration,
}

impl Books {
    /// Books of a bucket about which nothing is known. What was seen counts for so long.
    pub fn new(index: Index, (fresh_hit_max, fresh_miss_max): (Duration, Duration)) -> Self {
        Books {
            index,
            seen: Vec::new(),
            absent: HashMap::new(),
            corrupt: HashMap::new(),
            names: HashMap::new(),
            tenants: HashMap::new(),
            changed: Some(HashSet::new()),
            fresh_hit_max,
            fresh_miss_max,
        }
    }

    /// What is known of a key without asking: `Some(None)` that it is not there.
    pub fn known(&self, digest: &Digest, now_ms: u64) -> Option<Option<u64>> {
        if let Some(entry) = self.index.get(digest) {
            let seen = self.seen.get(entry.slot as usize).copied().unwrap_or(0);
            let age_ms = now_ms.saturating_sub(u64::from(seen) * SEEN_STEP_MS);
            let fresh = entry.held || (seen > 0 && u128::from(age_ms) <= self.fresh_hit_max.as_millis());
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

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.get(&id).cloned().unwrap_or_default()
    }

    /// The chunk was seen just now.
    pub fn confirm(&mut self, digest: &Digest, now_ms: u64) {
        self.changed(*digest);
        self.absent.remove(digest);
        if let Some(entry) = self.index.get(digest) {
            self.note_seen(entry.slot, now_ms);
        }
    }

    fn note_seen(&mut self, slot: u32, now_ms: u64) {
        let slot = slot as usize;
        if self.seen.len() <= slot {
            self.seen.resize(slot + 1, 0);
        }
        self.seen[slot] = (now_ms / SEEN_STEP_MS).max(1) as u32;
    }

    /// Nobody knows what became of a request that changes the key: the next to ask asks the bucket.
    pub fn doubt(&mut self, digest: &Digest) {
        self.changed(*digest);
        self.absent.remove(digest);
        if let Some(entry) = self.index.get(digest)
            && let Some(seen) = self.seen.get_mut(entry.slot as usize)
        {
            *seen = 0;
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

    /// The key changed: a listing that is under way may tell of it as it was before.
    pub fn changed(&mut self, digest: Digest) {
        if let Some(changed) = &mut self.changed
            && changed.len() < CHANGED_MAX
        {
            changed.insert(digest);
        }
    }

    /// Enters a page of the first listing: names that tell their chunks, and lengths.
    pub fn list(&mut self, found: impl Iterator<Item = (Digest, u64, Option<Arc<str>>)>, now_ms: u64) {
        let full = self.changed.as_ref().is_none_or(|changed| changed.len() >= CHANGED_MAX);
        for (digest, len, name) in found {
            let changed = self.changed.as_ref().is_some_and(|changed| changed.contains(&digest));
            if full || changed || self.index.is_known(&digest) {
                continue;
            }
            if let kvtier_index::Inserted::New(slot) = self.index.insert(Chunk::new(digest, len, len)) {
                self.note_seen(slot, now_ms);
                if let Some(name) = name {
                    self.names.insert(digest, name);
                }
            }
        }
    }

    /// The first listing is over.
    pub fn listed(&mut self) {
        self.changed = None;
    }

    /// Whether it is.
    pub fn is_listed(&self) -> bool {
        self.changed.is_none()
    }
}
