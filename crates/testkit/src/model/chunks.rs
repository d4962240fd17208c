use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{
    Cursor, Error, ErrorKind, Event, HoldId, Key, KeyInfo, KeyPage, LookedUp, Mode, Presence,
    Removed, Saved, ShedReason, TenantUsage,
};
use kvtier_key::Digest;

/// The most holds at a time.
const HOLDS_MAX: usize = 65_536;

/// The model tier's chunks, holds and recency: plain maps, every question answered by looking at
/// everything.
#[derive(Debug, Default)]
pub struct ChunkStore {
    chunks: HashMap<Digest, ModelChunk>,
    /// By age, for listing.
    order: BTreeMap<u64, Digest>,
    holds: HashMap<HoldId, (Instant, Vec<Digest>)>,
    capacity: Option<u64>,
    clock: u64,
    /// Events that listeners have not received yet.
    pub events: Vec<Event>,
}

#[derive(Debug)]
struct ModelChunk {
    bytes: std::sync::Arc<[u8]>,
    tenant: String,
    born: u64,
    touched: u64,
}

impl ChunkStore {
    pub fn new(capacity: Option<u64>) -> Self {
        ChunkStore { capacity, ..ChunkStore::default() }
    }

    pub fn used(&self) -> u64 {
        self.chunks.values().map(|c| c.bytes.len() as u64).sum()
    }

    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn is_held(&self, key: &Digest) -> bool {
        let now = Instant::now();
        // Expired holds count no more, whether or not they were purged.
        self.holds.values().any(|(until, keys)| *until > now && keys.contains(key))
    }

    pub fn load(&mut self, key: &Digest) -> Option<std::sync::Arc<[u8]>> {
        let now = self.tick();
        let chunk = self.chunks.get_mut(key)?;
        chunk.touched = now;
        Some(chunk.bytes.clone())
    }

    pub fn touched(&mut self, key: &Digest) {
        self.events.push(Event::Touched { key: *key });
    }

    pub fn save(&mut self, key: &Key, bytes: Vec<u8>) -> Saved {
        let digest = *key.digest();
        let len = bytes.len() as u64;
        let now = self.tick();
        if let Some(chunk) = self.chunks.get_mut(&digest).filter(|c| c.bytes.len() == bytes.len()) {
            chunk.touched = now;
            return Saved::Present;
        }
        if self.capacity.is_some_and(|max| len > max) {
            return Saved::Shed(ShedReason::TooLarge);
        }
        // A chunk of another length under the same key is replaced, and both changes are reported.
        self.drop_chunk(&digest);
        // Slow and plain on purpose: the sum and the oldest chunk are computed anew each time, so
        // that neither can be wrong.
        while self.capacity.is_some_and(|max| self.used() + len > max) {
            let free = self.chunks.iter().filter(|(key, _)| !self.is_held(key));
            match free.min_by_key(|(_, chunk)| chunk.touched).map(|(key, _)| *key) {
                Some(oldest) => self.drop_chunk(&oldest),
                None => return Saved::Shed(ShedReason::Full),
            }
        }
        let tenant = key.namespace().tenant().to_owned();
        self.chunks
            .insert(digest, ModelChunk { bytes: bytes.into(), tenant, born: now, touched: now });
        // By time of storing: an order that does not change while a listing is under way.
        self.order.insert(now, digest);
        self.events.push(Event::Stored { key: digest, len });
        Saved::Stored
    }

    fn drop_chunk(&mut self, key: &Digest) {
        if let Some(chunk) = self.chunks.remove(key) {
            self.order.remove(&chunk.born);
            self.events.push(Event::Gone { key: *key, len: chunk.bytes.len() as u64 });
        }
    }

    pub fn lookup(&mut self, keys: &[Key], mode: Mode) -> Vec<Presence> {
        let mut found = vec![Presence::Unknown; keys.len()];
        for (key, presence) in keys.iter().zip(&mut found) {
            let chunk = self.chunks.get(key.digest());
            *presence =
                chunk.map_or(Presence::Miss, |c| Presence::Hit { len: c.bytes.len() as u64 });
            if mode == Mode::Prefix && chunk.is_none() {
                break;
            }
        }
        found
    }

    pub fn hold(
        &mut self,
        keys: &[Key],
        found: Vec<Presence>,
        time: Duration,
    ) -> Result<LookedUp, Error> {
        // Unique in the process, so that a hold of one tier means nothing to another.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let now = Instant::now();
        // Before the limit is checked, which counts living holds only.
        self.holds.retain(|_, (until, _)| *until > now);
        let hits =
            keys.iter().zip(&found).filter(|(_, p)| p.is_hit()).map(|(key, _)| *key.digest());
        let hits: Vec<_> = hits.collect();
        if hits.is_empty() {
            return Ok(LookedUp::new(found, None));
        }
        if self.holds.len() >= HOLDS_MAX {
            return Err(Error::new(
                ErrorKind::Throttled,
                format!("{HOLDS_MAX} holds already; release some"),
            ));
        }
        let id = HoldId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.holds.insert(id, (now + time, hits));
        Ok(LookedUp::new(found, Some(id)))
    }

    pub fn release(&mut self, hold: HoldId) {
        self.holds.remove(&hold);
    }

    pub fn release_keys(&mut self, hold: HoldId, keys: &[Digest]) {
        let Some((_, held)) = self.holds.get_mut(&hold) else { return };
        for key in keys {
            // One at a time: a key that was held twice is released twice.
            held.iter().position(|own| own == key).map(|place| held.remove(place));
        }
        if held.is_empty() {
            self.holds.remove(&hold);
        }
    }

    pub fn remove(&mut self, keys: &[Key]) -> Removed {
        let mut counts = Removed::default();
        for key in keys {
            if !self.chunks.contains_key(key.digest()) {
                counts.absent += 1;
            } else if self.is_held(key.digest()) {
                counts.held += 1;
            } else {
                self.drop_chunk(key.digest());
                counts.removed += 1;
            }
        }
        counts
    }

    pub fn page(&self, from: Cursor, max: usize) -> KeyPage {
        let mut rest = self.order.range(from.0..);
        let info = |(_, key): (&u64, &Digest)| KeyInfo {
            key: *key,
            len: self.chunks[key].bytes.len() as u64,
        };
        let keys = rest.by_ref().take(max).map(info).collect();
        // The cursor is a time, not a place: chunks that are removed between two pages move
        // nothing.
        KeyPage { keys, next: rest.next().map(|(born, _)| Cursor(*born)) }
    }

    pub fn tenants(&self) -> Vec<TenantUsage> {
        let mut all = BTreeMap::<&str, (u64, u64)>::new();
        for chunk in self.chunks.values() {
            let (bytes, chunks) = all.entry(&chunk.tenant).or_default();
            *bytes += chunk.bytes.len() as u64;
            *chunks += 1;
        }
        let usage = |(tenant, (used_bytes, chunks)): (&str, _)| TenantUsage {
            tenant: tenant.into(),
            used_bytes,
            chunks,
        };
        all.into_iter().map(usage).collect()
    }
}
