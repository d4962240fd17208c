use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use kvtier_core::Key;
use kvtier_index::{Chunk, Index, TenantId};
use kvtier_key::Digest;

/// The most keys remembered as absent.
const ABSENT_MAX: usize = 1 << 16;
/// The most keys remembered as changed while the first listing runs.
const CHANGED_MAX: usize = 1 << 20;

/// What is known of the bucket.
#[derive(Debug)]
pub struct Books {
    pub index: Index,
    /// When the chunk in each slot was last seen, in milliseconds of the tier's clock.
    pub seen: Vec<u64>,
    pub absent: HashMap<Digest, Instant>,
    /// Names that do not follow from the digest.
    pub names: HashMap<Digest, Arc<str>>,
    pub tenants: HashMap<TenantId, String>,
    /// What changed while the first listing runs, whose pages may be older; `None` once it is over.
    pub changed: Option<HashSet<Digest>>,
}

impl Books {
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
            let slot = entry.slot as usize;
            if self.seen.len() <= slot {
                self.seen.resize(slot + 1, 0);
            }
            self.seen[slot] = now_ms;
        }
    }

    pub fn note_absent(&mut self, digest: Digest) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.insert(digest, Instant::now());
    }

    /// The key changed: a listing that is under way may tell of it as it was before.
    pub fn changed(&mut self, digest: Digest) {
        if let Some(changed) = &mut self.changed
            && changed.len() < CHANGED_MAX
        {
            changed.insert(digest);
        }
    }

    /// Enters a page of the first listing.
    pub fn list(&mut self, found: impl Iterator<Item = (Digest, u64)>, now_ms: u64) {
        let full = self.changed.as_ref().is_none_or(|changed| changed.len() >= CHANGED_MAX);
        for (digest, len) in found {
            let changed = self.changed.as_ref().is_some_and(|changed| changed.contains(&digest));
            if full || changed || self.index.get(&digest).is_some() {
                continue;
            }
            if let kvtier_index::Inserted::New(slot) = self.index.insert(Chunk::new(digest, len, len)) {
                let slot = slot as usize;
                self.seen.resize(self.seen.len().max(slot + 1), 0);
                self.seen[slot] = now_ms;
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
