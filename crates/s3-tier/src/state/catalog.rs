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

    /// Assigns a chunk to its key's tenant.
    pub fn set_tenant(&mut self, key: &Key) {
        if key.namespace().tenant().is_empty() {
            return;
        }
        let tenant = self.tenant(key.namespace().tenant());
        let known = self.index.known(key.digest()).map(|known| known.chunk);
        if let Some(chunk) =
            known.filter(|known| known.tenant != tenant && tenant != TenantId::NONE)
        {
            let _ = self.index.insert(chunk.with_tenant(tenant));
        }
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.name(id)
    }

    /// The chunk was seen now.
    pub fn confirm(&mut self, digest: &Digest, now_ms: u64) {
        self.note_changed(*digest);
        self.absent.remove(digest);
        // Also a chunk that its atomic set hides.
        if let Some(slot) = self.index.slot(digest) {
            self.seen.note(slot, now_ms);
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
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::{IndexConfig, TenantNames};
    use kvtier_key::{KeyId, Namespace};

    use super::*;

    fn catalog() -> Catalog {
        let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
        Catalog::new(index, Duration::from_secs(60), Duration::from_secs(1))
    }

    fn chunk(n: u32) -> Chunk {
        Chunk::new(Digest::derive("test", &n.to_le_bytes()), 10, 10)
    }

    #[test]
    fn a_reported_chunk_is_unseen_in_a_reused_slot_too() {
        let mut catalog = catalog();
        let a = chunk(1);
        let b = chunk(2);
        let InsertOutcome::New(slot) = catalog.insert_unseen(a) else { panic!("new") };
        catalog.confirm(&a.digest, 1000);
        assert_eq!(catalog.known(&a.digest, 1000), Some(Some(10)));
        catalog.forget(&a.digest).unwrap();
        assert_eq!(catalog.insert_unseen(b), InsertOutcome::New(slot), "the slot is reused");
        assert_eq!(catalog.known(&b.digest, 1000), None, "unseen");
    }

    #[test]
    fn a_held_chunk_stays_fresh_unless_it_is_invalidated() {
        let mut catalog = catalog();
        let a = chunk(1);
        let _ = catalog.insert_unseen(a);
        catalog.index.hold(&[a.digest], u64::MAX).unwrap();
        assert_eq!(catalog.known(&a.digest, 500), None, "reported, and held");
        catalog.confirm(&a.digest, 500);
        assert_eq!(catalog.known(&a.digest, 10_000_000), Some(Some(10)));
        catalog.invalidate(&a.digest);
        assert_eq!(catalog.known(&a.digest, 500), None);
    }

    #[test]
    fn without_freshness_every_lookup_asks() {
        let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
        let mut catalog = Catalog::new(index, Duration::ZERO, Duration::ZERO);
        let a = chunk(1);
        let _ = catalog.insert_unseen(a);
        for now_ms in [0, 1, SEEN_STEP_MS, 10 * SEEN_STEP_MS] {
            catalog.confirm(&a.digest, now_ms);
            assert_eq!(catalog.known(&a.digest, now_ms), None, "at {now_ms} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_corrupt_object_is_checked_again_after_a_while() {
        let mut catalog = catalog();
        let a = chunk(1);
        let _ = catalog.insert_unseen(a);
        assert_eq!(catalog.note_corrupt(&a.digest, Some("one")), None);
        assert!(catalog.is_corrupt(&a.digest, Some("one")) && catalog.is_corrupt(&a.digest, None));
        assert!(!catalog.is_corrupt(&a.digest, Some("two")), "another version");
        tokio::time::advance(CORRUPT_FOR).await;
        assert!(!catalog.is_corrupt(&a.digest, Some("one")));
        assert_eq!(catalog.note_corrupt(&a.digest, None), None);
        assert!(catalog.is_corrupt(&a.digest, Some("one")), "no version is known");
    }

    /// What a listing shows of it may be older.
    #[tokio::test(start_paused = true)]
    async fn a_key_that_was_absent_a_moment_ago_is_remembered_until_it_is_there_again() {
        let mut catalog = catalog();
        let (a, time) = (chunk(1), Duration::from_secs(5));
        assert!(!catalog.was_absent_within(&a.digest, time));
        catalog.note_absent(a.digest);
        tokio::time::advance(time / 2).await;
        assert!(catalog.was_absent_within(&a.digest, time));
        let _ = catalog.insert_unseen(a);
        assert!(!catalog.was_absent_within(&a.digest, time), "it is there again");
        catalog.forget(&a.digest).unwrap();
        tokio::time::advance(time / 2).await;
        assert!(!catalog.was_absent_within(&a.digest, time), "too long ago");
    }

    #[test]
    fn names_are_dropped_with_their_chunks() {
        let mut catalog = catalog();
        let a = chunk(1);
        catalog.note_name(&a.digest, "unknown");
        assert_eq!(catalog.names_len(), 0);
        let _ = catalog.insert_unseen(a);
        catalog.note_name(&a.digest, "m@1");
        catalog.forget(&a.digest).unwrap();
        assert_eq!(catalog.names_len(), 0);
    }

    fn key(tenant: &str) -> Key {
        let id = KeyId::from_engine_text("m@1@0@ab@half").unwrap();
        Key::new(Namespace::new(tenant, Digest::default()).into(), id)
    }

    /// A catalog with this chunk.
    fn with(chunk: Chunk) -> Catalog {
        let mut catalog = catalog();
        let _ = catalog.insert_unseen(chunk);
        catalog
    }

    #[test]
    fn a_chunk_is_a_hit_for_as_long_as_hits_are_fresh() {
        let a = chunk(1);
        let mut catalog = with(a);
        catalog.confirm(&a.digest, 160_000);
        assert_eq!(catalog.seen.ms(catalog.index.slot(&a.digest).unwrap()), 160_000);
        assert_eq!(catalog.known(&a.digest, 219_999), Some(Some(10)));
        assert_eq!(catalog.known(&a.digest, 220_000), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_miss_expires() {
        let mut catalog = catalog();
        let a = chunk(1);
        assert_eq!(catalog.known(&a.digest, 0), None);
        catalog.note_absent(a.digest);
        assert_eq!(catalog.known(&a.digest, 0), Some(None));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(catalog.known(&a.digest, 0), Some(None));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(catalog.known(&a.digest, 0), None);
    }

    #[test]
    fn a_victim_is_a_miss_and_so_is_a_member_of_an_incomplete_set() {
        let [a, b, c, missing] = [1, 2, 3, 4].map(chunk);
        let mut catalog = with(a);
        let _ = catalog.index.begin_evict(&a.digest);
        assert_eq!(catalog.known(&a.digest, 0), Some(None), "a victim");
        catalog.index.declare_set(&[b.digest, missing.digest]).unwrap().unwrap();
        let _ = (catalog.insert_unseen(b), catalog.insert_unseen(c));
        assert_eq!(catalog.known(&b.digest, 0), Some(None), "a member");
        assert!(catalog.is_hidden(&b.digest));
        assert!(!catalog.is_hidden(&missing.digest) && !catalog.is_hidden(&c.digest));
        assert_eq!(catalog.note_corrupt(&c.digest, None), None);
        assert!(!catalog.is_hidden(&c.digest), "it is corrupt");
    }

    #[test]
    fn an_object_without_a_known_raw_length_is_found_by_its_own() {
        let [encoded, plain] = [Chunk::new(chunk(1).digest, UNKNOWN_LEN, 20), chunk(2)];
        let mut catalog = with(encoded);
        let _ = catalog.insert_unseen(plain);
        assert!(!catalog.has_object_of(&encoded.digest, 20, 16), "unseen");
        [encoded, plain].iter().for_each(|chunk| catalog.confirm(&chunk.digest, 16));
        assert!(catalog.has_object_of(&encoded.digest, 20, 16));
        assert!(!catalog.has_object_of(&encoded.digest, 21, 16));
        assert!(!catalog.has_object_of(&encoded.digest, 20, 100_000), "too long ago");
        assert!(!catalog.has_object_of(&plain.digest, 10, 16), "its raw length is known");
    }

    #[test]
    fn facts_are_those_of_one_version_of_one_object() {
        let [a, b] = [1, 2].map(chunk);
        let mut catalog = with(a);
        let _ = catalog.insert_unseen(b);
        catalog.note_facts(&chunk(3).digest, "one", 3);
        catalog.note_facts(&b.digest, "one", 7);
        assert_eq!(catalog.crc_of(&b.digest, "one"), Some(7));
        assert_eq!(catalog.crc_of(&b.digest, "two"), None);
        assert_eq!(catalog.crc_of(&a.digest, "one"), None);
        assert_eq!(catalog.crc_of(&chunk(3).digest, "one"), None);
    }

    #[test]
    fn chunks_count_for_the_tenants_of_their_keys() {
        let (alice, bob) = (key("alice"), key("bob"));
        let mut catalog = with(Chunk::new(*alice.digest(), 10, 10));
        catalog.note_tenants(&[alice.clone(), alice.clone(), bob]);
        assert_eq!(catalog.tenant("alice"), TenantId::NONE, "the tenant key is unknown");
        catalog.set_tenant_key(TenantKey::new([1; 32]));
        let ids = TenantNames::new(TenantKey::new([1; 32]));
        let ids = ["alice", "bob"].map(|name| ids.id(name));
        assert_eq!(ids.map(|id| catalog.tenant_name(id)), ["alice", "bob"]);
        assert_eq!(catalog.tenant("alice"), ids[0]);
        let tenant_of =
            |catalog: &Catalog| catalog.index.known(alice.digest()).unwrap().chunk.tenant;
        assert_eq!(tenant_of(&catalog), TenantId::NONE);
        catalog.set_tenant(&key(""));
        catalog.set_tenant(&alice);
        assert_eq!(tenant_of(&catalog), ids[0]);
    }

    #[test]
    fn a_chunk_keeps_its_tenant_while_the_tenant_key_is_unknown() {
        let alice = key("alice");
        let mut catalog = with(Chunk::new(*alice.digest(), 10, 10).with_tenant(TenantId(7)));
        catalog.set_tenant(&alice);
        assert_eq!(catalog.index.known(alice.digest()).unwrap().chunk.tenant, TenantId(7));
    }

    #[test]
    fn quotas_are_those_of_single_tenants_then_that_of_the_others() {
        let mut catalog = catalog();
        catalog.set_tenant_key(TenantKey::new([1; 32]));
        let mut quotas = Quotas::new();
        quotas.others = Some(50);
        quotas.by_tenant.insert("alice".to_owned(), 100);
        catalog.set_quotas(&quotas);
        let ids = ["alice", "bob"].map(|name| catalog.tenant(name));
        assert_eq!(ids.map(|id| catalog.quota_of(id)), [Some(100), Some(50)]);
        catalog.set_quota("alice", None);
        catalog.set_quota("bob", Some(70));
        assert_eq!(ids.map(|id| catalog.quota_of(id)), [Some(50), Some(70)]);
    }

    #[test]
    fn misses_are_forgotten_only_where_there_are_too_many() {
        let mut catalog = catalog();
        let digest = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            Digest(bytes)
        };
        (0..ABSENT_MAX).for_each(|n| catalog.note_absent(digest(n)));
        assert_eq!(catalog.absent.len(), ABSENT_MAX);
        catalog.note_absent(digest(ABSENT_MAX));
        assert!(catalog.absent.len() == 1 && catalog.absent_for(&digest(ABSENT_MAX)).is_some());
    }

    #[test]
    fn a_name_is_the_last_that_was_noted() {
        let a = chunk(1);
        let mut catalog = with(a);
        assert_eq!(catalog.name(&a.digest), None);
        for name in ["m@1", "m@2", "m@2"] {
            catalog.note_name(&a.digest, name);
            assert_eq!(catalog.name(&a.digest).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_second_corrupt_object_leaves_the_mark_of_the_first_until_it_is_cleared() {
        let [a, b] = [1, 2].map(chunk);
        let mut catalog = with(a);
        let _ = catalog.insert_unseen(b);
        for chunk in [a, b] {
            assert_eq!(catalog.note_corrupt(&chunk.digest, Some("one")), None);
        }
        assert!([a, b].iter().all(|chunk| catalog.is_corrupt(&chunk.digest, Some("one"))));
        catalog.clear_corrupt(&a.digest);
        assert!(!catalog.is_corrupt(&a.digest, None) && !catalog.index.is_suspect(&a.digest));
        assert!(catalog.corrupt.len() == 1 && catalog.is_corrupt(&b.digest, None));
    }

    #[test]
    fn the_length_of_an_object_may_be_unknown_and_so_may_that_of_its_chunk() {
        let lengths = [(10, 10), (10, 6), (UNKNOWN_LEN, 6), (10, 0)];
        let answers = lengths.map(|(len, bytes)| {
            let a = Chunk::new(chunk(1).digest, len, bytes);
            let catalog = with(a);
            (catalog.listed_bytes(&a.digest), catalog.encoded_bytes(&a.digest))
        });
        assert_eq!(
            answers,
            [(Some(10), None), (Some(6), Some(6)), (Some(6), None), (None, Some(0))]
        );
    }

    #[test]
    fn a_key_that_changed_is_noted_for_a_running_listing() {
        let mut catalog = catalog();
        catalog.changed_keys.begin();
        catalog.note_changed(chunk(1).digest);
        assert!(catalog.changed_keys.has(&chunk(1).digest));
        assert!(!catalog.changed_keys.has(&chunk(2).digest));
    }

    #[cfg(feature = "simulate")]
    #[test]
    fn a_simulation_sees_how_much_is_remembered() {
        let mut catalog = catalog();
        catalog.note_absent(chunk(1).digest);
        catalog.note_absent(chunk(2).digest);
        assert_eq!(catalog.note_corrupt(&chunk(3).digest, None), None);
        assert_eq!((catalog.lengths().absent, catalog.lengths().corrupt), (2, 1));
    }
}
