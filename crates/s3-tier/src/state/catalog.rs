//! The tier's view of the bucket: the index, how fresh each entry is, and which objects are missing
//! or corrupt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, OTHER_TENANTS};
use kvtier_index::{Chunk, Index, IndexEntry, InsertOutcome, Quotas, TenantId, TenantKey};
use kvtier_key::Digest;
use tokio::time::Instant;

use crate::state::changed_during_listing::ChangedKeys;
use crate::state::tenants::TenantTable;

/// The most keys that are remembered as absent.
pub const ABSENT_MAX: usize = 1 << 16;
/// Time after which an object that failed its checks is read again for lookups.
const CORRUPT_FOR: Duration = Duration::from_secs(600);
/// The most corrupt objects that are remembered.
pub const CORRUPT_MAX: usize = 1 << 12;
/// Times are stored in steps of this many milliseconds.
const SEEN_STEP_MS: u64 = 16;

/// Stands for a raw length that is unknown: listings of layout `kvtier` have only the length of the
/// object, which may be that of an encoded one. No chunk has no bytes.
pub const UNKNOWN_LEN: u64 = 0;

/// The chunk's raw length; `None` if the bucket must be asked, also where this tier does not encode:
/// other nodes may.
pub fn raw_len(chunk: &Chunk) -> Option<u64> {
    (chunk.len != UNKNOWN_LEN).then_some(chunk.len)
}

/// The chunk's raw length; where it is unknown, that of its object.
pub fn best_len(chunk: &Chunk) -> u64 {
    if chunk.len == UNKNOWN_LEN { chunk.bytes } else { chunk.len }
}

/// The tier's view of the bucket.
#[derive(Debug)]
pub struct Catalog {
    pub index: Index,
    pub seen: SeenTimes,
    absent: HashMap<Digest, Instant>,
    /// Versions of objects that failed their checks.
    corrupt: HashMap<Digest, Corrupt>,
    /// By slot, in layouts whose objects may have no facts: the version of the object that had
    /// them.
    with_facts: Vec<WithFacts>,
    /// Names that the digest does not determine.
    names: HashMap<Digest, Arc<str>>,
    pub tenants: TenantTable,
    /// Keys that changed during a listing, whose pages may be older.
    pub changed_keys: ChangedKeys,
    /// Whether the whole bucket was listed once.
    pub is_listed: bool,
    fresh_hit_max: Duration,
    fresh_miss_max: Duration,
}

/// How much is remembered beside the index.
#[cfg(feature = "simulate")]
#[derive(Clone, Copy, Debug)]
pub struct CatalogLengths {
    pub absent: usize,
    pub corrupt: usize,
}

/// An object that failed its checks.
#[derive(Debug)]
struct Corrupt {
    /// Its version; empty if the store has none.
    etag: Box<str>,
    since: Instant,
}

/// An object that had facts.
#[derive(Clone, Copy, Debug, Default)]
struct WithFacts {
    /// A hash of its version; 0 if unknown.
    version: u32,
    crc: u32,
}

/// When the chunk in each slot was last seen, in steps of the tier's clock; 0 means unseen.
#[derive(Debug, Default)]
pub struct SeenTimes(Vec<u32>);

impl SeenTimes {
    /// When the slot's chunk was last seen, in milliseconds of the tier's clock; 0 if unseen.
    pub fn ms(&self, slot: u32) -> u64 {
        self.0.get(slot as usize).map_or(0, |seen| u64::from(*seen) * SEEN_STEP_MS)
    }

    /// Sets when the slot's chunk was seen.
    pub fn note(&mut self, slot: u32, now_ms: u64) {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        // At least 1, since 0 means unseen. 32 bits of steps last for two years of a process.
        self.0[slot] = (now_ms / SEEN_STEP_MS).max(1) as u32;
    }

    fn clear(&mut self, slot: u32) {
        if let Some(seen) = self.0.get_mut(slot as usize) {
            *seen = 0;
        }
    }
}

impl Catalog {
    /// An empty catalog. Hits and misses stay fresh for these times.
    pub fn new(index: Index, fresh_hit_max: Duration, fresh_miss_max: Duration) -> Self {
        Catalog {
            index,
            seen: SeenTimes::default(),
            absent: HashMap::new(),
            corrupt: HashMap::new(),
            with_facts: Vec::new(),
            names: HashMap::new(),
            tenants: TenantTable::default(),
            changed_keys: ChangedKeys::default(),
            is_listed: false,
            fresh_hit_max,
            fresh_miss_max,
        }
    }

    /// How much is remembered beside the index.
    #[cfg(feature = "simulate")]
    pub fn lengths(&self) -> CatalogLengths {
        CatalogLengths { absent: self.absent.len(), corrupt: self.corrupt.len() }
    }

    /// The raw length of a chunk of which a listing shows `listed` bytes, and the raw length `len`
    /// or none; `UNKNOWN_LEN` if the bucket must be asked. Facts and journals come first.
    pub fn raw_len_of_listed(&self, digest: &Digest, len: u64, listed: u64) -> u64 {
        let known = self.index.get(digest).map(|entry| entry.chunk);
        let known = known.filter(|known| known.bytes == listed);
        known.as_ref().and_then(raw_len).unwrap_or(len)
    }

    /// Whether the chunk exists, from fresh entries alone: its length, or `Some(None)` for a miss.
    /// `None` if the bucket must be asked.
    pub fn known(&self, digest: &Digest, now_ms: u64) -> Option<Option<u64>> {
        if let Some(entry) = self.index.get(digest) {
            return raw_len(&entry.chunk).filter(|_| self.is_fresh(&entry, now_ms)).map(Some);
        }
        if self.index.is_evicting(digest) || self.is_hidden(digest) {
            return Some(None);
        }
        // A miss expires, because any other node may save the chunk at any time.
        self.absent.get(digest).filter(|at| at.elapsed() < self.fresh_miss_max).map(|_| None)
    }

    fn is_fresh(&self, entry: &IndexEntry, now_ms: u64) -> bool {
        let seen_ms = self.seen.ms(entry.slot);
        let age_ms = now_ms.saturating_sub(seen_ms);
        // A held chunk stays, but it must have been seen once.
        seen_ms > 0 && (entry.held || u128::from(age_ms) < self.fresh_hit_max.as_millis())
    }

    /// Whether the bucket has an object of this length for the chunk, by a fresh entry whose raw
    /// length is unknown.
    pub fn has_object_of(&self, digest: &Digest, bytes: u64, now_ms: u64) -> bool {
        self.index.get(digest).is_some_and(|entry| {
            let IndexEntry { chunk, .. } = &entry;
            raw_len(chunk).is_none() && chunk.bytes == bytes && self.is_fresh(&entry, now_ms)
        })
    }

    /// Whether the object is exactly as long as its chunk, which one in clear that nothing compressed
    /// is. An encrypted one is that by chance only: encryption adds bytes.
    pub fn is_as_long_as_its_chunk(&self, digest: &Digest) -> bool {
        self.index.get(digest).is_some_and(|entry| raw_len(&entry.chunk) == Some(entry.chunk.bytes))
    }

    /// Whether it is stored and still a miss, because its atomic set is incomplete.
    pub fn is_hidden(&self, digest: &Digest) -> bool {
        self.index.slot(digest).is_some()
            && !self.index.is_suspect(digest)
            && self.index.get(digest).is_none()
    }

    /// Inserts a chunk that another node or a listing reported, as unseen.
    pub fn insert_unseen(&mut self, chunk: Chunk) -> InsertOutcome {
        let inserted = self.index.insert(chunk);
        // The slot may have held another chunk.
        if let InsertOutcome::New(slot) = inserted {
            self.seen.clear(slot);
        }
        inserted
    }

    /// Records that this version of the object has facts, with this CRC-32C.
    pub fn note_facts(&mut self, digest: &Digest, etag: &str, crc: u32) {
        let Some(slot) = self.index.slot(digest).map(|slot| slot as usize) else { return };
        if self.with_facts.len() <= slot {
            self.with_facts.resize(slot + 1, WithFacts::default());
        }
        // Not cleared when the slot is reused: the version contains the digest, so it does not
        // match then.
        self.with_facts[slot] = WithFacts { version: version(digest, etag), crc };
    }

    /// The CRC-32C of this version of the object, if it had facts; `None` for versions of other
    /// programs.
    pub fn crc_of(&self, digest: &Digest, etag: &str) -> Option<u32> {
        let known = self.index.slot(digest).and_then(|slot| self.with_facts.get(slot as usize))?;
        (known.version == version(digest, etag)).then_some(known.crc)
    }

    /// The chunk's entry for the index, with its tenant and its position in the chain. It has `len`
    /// raw bytes, and `bytes` in the bucket.
    pub fn chunk(&mut self, key: &Key, len: u64, bytes: u64) -> Chunk {
        let tenant = self.tenant(key.namespace().tenant());
        let place = self.index.place_of(key);
        Chunk::new(*key.digest(), len, bytes).with_tenant(tenant).with_place(place)
    }

    /// The identity of a tenant; `TenantId::NONE` until the tenant key is known.
    pub fn tenant(&mut self, name: &str) -> TenantId {
        self.tenants.id(name)
    }

    /// Remembers the tenants of these keys, one look-up for each run of one tenant.
    pub fn note_tenants(&mut self, keys: &[Key]) {
        let same = |a: &Key, b: &Key| a.namespace().tenant() == b.namespace().tenant();
        keys.chunk_by(same).for_each(|run| _ = self.tenant(run[0].namespace().tenant()));
    }

    /// Uses this tenant key from now on.
    pub fn set_tenant_key(&mut self, key: TenantKey) {
        self.tenants.set_key(key, &mut self.index);
    }

    /// Sets all quotas.
    pub fn set_quotas(&mut self, quotas: &Quotas) {
        self.index.set_fair_sharing(quotas.fair);
        self.set_quota(OTHER_TENANTS, quotas.others);
        quotas.by_tenant.iter().for_each(|(name, bytes)| self.set_quota(name, Some(*bytes)));
    }

    /// Sets the quota of one tenant, or of all others.
    pub fn set_quota(&mut self, name: &str, bytes: Option<u64>) {
        self.tenants.set_quota(name, bytes, &mut self.index);
    }

    /// The quota of a tenant, in bytes. An unknown tenant has none.
    pub fn quota_of(&self, tenant: TenantId) -> Option<u64> {
        self.tenants.quota_of(tenant)
    }

    /// Assigns a chunk to its key's tenant. Returns whether it had another one, or none.
    pub fn set_tenant(&mut self, key: &Key) -> bool {
        if key.namespace().tenant().is_empty() {
            return false;
        }
        let tenant = self.tenant(key.namespace().tenant());
        let known = self.index.known(key.digest()).map(|known| known.chunk);
        let moved = known.filter(|known| known.tenant != tenant && tenant != TenantId::NONE);
        moved.is_some_and(|chunk| {
            let _ = self.index.insert(chunk.with_tenant(tenant));
            true
        })
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.name(id)
    }

    /// The chunk was there at that time of the tier's clock.
    pub fn confirm(&mut self, digest: &Digest, seen_ms: u64) {
        self.note_changed(*digest);
        self.absent.remove(digest);
        // Also a chunk that its atomic set hides.
        if let Some(slot) = self.index.slot(digest) {
            // A request that began earlier may be answered later.
            self.seen.note(slot, seen_ms.max(self.seen.ms(slot)));
        }
    }

    /// The outcome of a request that changes the key is unknown: the next lookup asks the bucket.
    pub fn invalidate(&mut self, digest: &Digest) {
        self.note_changed(*digest);
        self.absent.remove(digest);
        if let Some(slot) = self.index.slot(digest) {
            self.seen.clear(slot);
        }
    }

    /// The bucket has no such object.
    pub fn note_absent(&mut self, digest: Digest) {
        self.note_absent_at(digest, Instant::now());
    }

    /// The bucket had no such object at that time.
    pub fn note_absent_at(&mut self, digest: Digest, at: Instant) {
        // Cleared as a whole: misses are cheap to learn again, and an order of age would cost
        // memory.
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.insert(digest, at);
        // The next object of the key may have another form of name.
        self.names.remove(&digest);
        self.corrupt.remove(&digest);
        self.index.clear_suspect(&digest);
    }

    /// Whether the key has no entry, and the bucket had no such object at a moment in this last time.
    pub fn was_absent_within(&self, digest: &Digest, time: Duration) -> bool {
        !self.index.is_known(digest) && self.absent_for(digest).is_some_and(|ago| ago < time)
    }

    /// Drops the entry of a victim whose object stays.
    pub fn drop_entry(&mut self, digest: &Digest) {
        self.index.finish_evict(digest);
        self.names.remove(digest);
    }

    /// The object is gone: drops its entry. A suspect stays marked.
    pub fn forget(&mut self, digest: &Digest) -> Option<IndexEntry> {
        self.names.remove(digest);
        self.index.forget(digest)
    }

    /// Remembers a name that the digest does not determine.
    pub fn note_name(&mut self, digest: &Digest, name: &str) {
        if self.index.is_known(digest)
            && self.names.get(digest).is_none_or(|known| **known != *name)
        {
            self.names.insert(*digest, name.into());
        }
    }

    /// The name of the key's object, if the digest does not determine it.
    pub fn name(&self, digest: &Digest) -> Option<Arc<str>> {
        self.names.get(digest).cloned()
    }

    /// This version of the key's object failed its checks: a miss until the version changes. There may be
    /// too many such marks: returns the chunk, if it is there, that lost its own.
    pub fn note_corrupt(&mut self, digest: &Digest, etag: Option<&str>) -> Option<Chunk> {
        self.invalidate(digest);
        let forgotten = self.index.mark_suspect(digest);
        // Forgotten marks cost one more load each: the object fails its checks again.
        if self.corrupt.len() >= CORRUPT_MAX {
            self.corrupt.clear();
        }
        self.corrupt.insert(
            *digest,
            Corrupt { etag: etag.unwrap_or_default().into(), since: Instant::now() },
        );
        forgotten.and_then(|digest| self.index.known_or_victim(&digest))
    }

    /// Whether this version failed its checks, as far as versions are known. It expires: the bytes
    /// may have been damaged on the network.
    pub fn is_corrupt(&self, digest: &Digest, etag: Option<&str>) -> bool {
        let known = self.corrupt.get(digest).filter(|known| known.since.elapsed() < CORRUPT_FOR);
        let is_same =
            |known: &Corrupt| known.etag.is_empty() || etag.is_none_or(|etag| *known.etag == *etag);
        self.index.is_suspect(digest) && known.is_some_and(is_same)
    }

    /// The length of a chunk's object, from listings, responses and saves; `None` if it may be
    /// wrong.
    pub fn listed_bytes(&self, digest: &Digest) -> Option<u64> {
        let chunk = self.index.known(digest).filter(|_| !self.index.is_suspect(digest))?.chunk;
        Some(chunk.bytes).filter(|bytes| *bytes > 0)
    }

    /// The length of a chunk's object, if its raw bytes are known to be encoded.
    pub fn encoded_bytes(&self, digest: &Digest) -> Option<u64> {
        let chunk = self.index.known(digest)?.chunk;
        (chunk.len != UNKNOWN_LEN && chunk.len != chunk.bytes).then_some(chunk.bytes)
    }

    /// The object was written again since it was marked.
    pub fn clear_corrupt(&mut self, digest: &Digest) {
        self.corrupt.remove(digest);
        self.index.clear_suspect(digest);
    }

    /// How long ago the object was found missing, or deleted here.
    pub fn absent_for(&self, digest: &Digest) -> Option<Duration> {
        self.absent.get(digest).map(Instant::elapsed)
    }

    /// The key changed: a running listing may show its older state.
    pub fn note_changed(&mut self, digest: Digest) {
        self.changed_keys.note(digest);
    }

    /// How many names are remembered.
    #[cfg(test)]
    pub fn names_len(&self) -> usize {
        self.names.len()
    }
}

/// A hash of an object's version under its key, because a slot may get another chunk; never 0.
fn version(digest: &Digest, etag: &str) -> u32 {
    let [a, b, c, d, ..] = *Digest::keyed(digest.as_bytes(), etag.as_bytes()).as_bytes();
    u32::from_le_bytes([a, b, c, d]).max(1)
}

#[cfg(test)]
mod tests;
