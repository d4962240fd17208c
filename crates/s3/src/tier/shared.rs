use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Caps, Error, ErrorKind, Event, Gate, Key, Listener};
use kvtier_index::{Chunk, Entry, Index, Reserve, TenantId};
use kvtier_key::{Digest, Facts};
use kvtier_mem::Arena;
use tokio::sync::Notify;

use super::layout::Names;
use super::{Layout, TierConfig, Verify};
use crate::{Client, Object};

/// The metadata field that holds the facts, behind `x-amz-meta-`.
pub const FACTS: &str = "kvtier";
/// The most keys remembered as absent.
const ABSENT_MAX: usize = 1 << 16;
/// The most keys remembered as changed while the first listing runs.
const CHANGED_MAX: usize = 1 << 20;

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// What the tier counts; every field only grows.
        #[derive(Debug, Default)]
        pub struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            /// All counters by name, in a fixed order.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters!(
    hits,
    misses_absent,
    misses_corrupt,
    misses_length,
    loaded_bytes,
    unverified,
    stored,
    present,
    shed,
    saved_bytes,
    evicted,
    delete_failures,
    vanished,
    discovered,
    listed,
    errors,
);

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What the jobs of the tier work on.
#[derive(Debug)]
pub struct Shared {
    pub caps: Caps,
    pub client: Client,
    pub names: Names,
    pub layout: Layout,
    pub verify: Verify,
    pub if_absent: bool,
    pub capacity_bytes: Option<u64>,
    pub gate: Gate,
    pub bounce: Arena,
    pub counters: Counters,
    /// Told whenever room may have come free.
    pub room: Notify,
    fresh_hit_max: Duration,
    fresh_miss_max: Duration,
    books: Mutex<Books>,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
    began: Instant,
    last_fault: Mutex<Option<String>>,
}

/// What is known of the bucket.
#[derive(Debug)]
pub struct Books {
    pub index: Index,
    /// When the chunk in each slot was last seen, in milliseconds of the tier's clock.
    seen: Vec<u64>,
    absent: HashMap<Digest, Instant>,
    /// Names that do not follow from the digest.
    names: HashMap<Digest, Arc<str>>,
    tenants: HashMap<TenantId, String>,
    /// What changed while the first listing runs, whose pages may be older; `None` once it is over.
    changed: Option<HashSet<Digest>>,
}

impl Shared {
    pub fn new(config: TierConfig, client: Client, parts: (Caps, Index, Gate, Arena)) -> Self {
        let (caps, index, gate, bounce) = parts;
        let books = Books {
            index,
            seen: Vec::new(),
            absent: HashMap::new(),
            names: HashMap::new(),
            tenants: HashMap::new(),
            changed: Some(HashSet::new()),
        };
        Shared {
            caps,
            client,
            names: Names::new(config.layout, &config.prefix),
            layout: config.layout,
            verify: config.verify,
            if_absent: config.if_absent,
            capacity_bytes: config.capacity_bytes,
            gate,
            bounce,
            counters: Counters::default(),
            room: Notify::new(),
            fresh_hit_max: config.fresh_hit_max,
            fresh_miss_max: config.fresh_miss_max,
            books: Mutex::new(books),
            listeners: RwLock::default(),
            began: Instant::now(),
            last_fault: Mutex::default(),
        }
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds on the index's clock.
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// What is known of a key without asking: `Some(None)` that it is not there.
    pub fn known(&self, digest: &Digest) -> Option<Option<u64>> {
        let (now, books) = (self.now_ms(), self.books());
        if let Some(entry) = books.index.get(digest) {
            let seen = books.seen.get(entry.slot as usize).copied().unwrap_or(0);
            let fresh = entry.held || u128::from(now.saturating_sub(seen)) <= self.fresh_hit_max.as_millis();
            return fresh.then_some(Some(entry.chunk.len));
        }
        if books.index.is_suspect(digest) || books.index.is_leaving(digest) {
            return Some(None);
        }
        books.absent.get(digest).filter(|at| at.elapsed() <= self.fresh_miss_max).map(|_| None)
    }

    /// Enters what was found in the bucket. `proven`: its bytes were checked, so it is no suspect any more.
    pub fn found(&self, key: &Key, len: u64, proven: bool) {
        let mut books = self.books();
        let known = books.index.get(key.digest()).map(|e| e.chunk.len);
        if known != Some(len) {
            if books.index.is_leaving(key.digest()) || (!proven && books.index.is_suspect(key.digest())) {
                return;
            }
            let chunk = books.chunk(key, len);
            match books.index.reserve(self.now_ms(), 0) {
                Reserve::Granted(room) => drop(books.index.commit(room, chunk)),
                Reserve::Evict(victims) => {
                    victims.iter().for_each(|v| drop(books.index.restored(&v.chunk.digest)));
                    let _ = books.index.insert(chunk);
                }
                _ => drop(books.index.insert(chunk)),
            }
            self.note_name(&mut books, key);
            add(&self.counters.discovered, 1);
        }
        books.confirm(key.digest(), self.now_ms());
        drop(books);
        if known != Some(len) {
            self.tell(&[Event::Stored { key: *key.digest(), len }]);
        }
    }

    /// Remembers a name that the digest does not tell.
    pub fn note_name(&self, books: &mut Books, key: &Key) {
        if !self.names.is_own()
            && let Ok(name) = self.names.of(key)
        {
            books.names.insert(*key.digest(), name.into());
        }
    }

    /// The bucket has no such object.
    pub fn vanished(&self, digest: &Digest) {
        let gone = {
            let mut books = self.books();
            books.note_absent(*digest);
            books.names.remove(digest);
            books.index.forget(digest)
        };
        self.room.notify_waiters();
        if let Some(entry) = gone {
            add(&self.counters.vanished, 1);
            self.tell(&[Event::Gone { key: *digest, len: entry.chunk.len }]);
        }
    }

    /// The key's object failed its checks: a miss until it is overwritten.
    pub fn condemn(&self, digest: &Digest) {
        let mut books = self.books();
        books.index.suspect(digest);
        let gone = books.index.forget(digest);
        drop(books);
        self.room.notify_waiters();
        if let Some(entry) = gone {
            self.tell(&[Event::Gone { key: *digest, len: entry.chunk.len }]);
        }
    }

    /// Deletes victims; answers how many went. What could not be deleted is there as before.
    pub async fn delete(&self, client: &Client, victims: Vec<Entry>) -> Result<usize, Error> {
        let (mut gone, mut trouble) = (0, None);
        for batch in victims.chunks(1000) {
            let names: Vec<_> = batch.iter().map(|v| self.name_of(&v.chunk.digest)).collect();
            let refused = match client.delete_many(&names).await {
                Ok(refused) => refused,
                Err(e) => {
                    trouble = Some(self.error("remove", None, e));
                    names.iter().map(|name| crate::Refused { key: name.clone(), code: String::new() }).collect()
                }
            };
            let kept: HashSet<&str> = refused.iter().map(|r| r.key.as_str()).collect();
            let mut events = Vec::with_capacity(batch.len());
            let mut books = self.books();
            for (victim, name) in batch.iter().zip(&names) {
                let digest = victim.chunk.digest;
                if kept.contains(name.as_str()) {
                    books.index.restored(&digest);
                } else if books.index.evicted(&digest) {
                    books.changed(digest);
                    books.note_absent(digest);
                    books.names.remove(&digest);
                    events.push(Event::Gone { key: digest, len: victim.chunk.len });
                }
            }
            drop(books);
            add(&self.counters.delete_failures, kept.len() as u64);
            gone += names.len() - kept.len();
            self.tell(&events);
        }
        self.room.notify_waiters();
        trouble.map_or(Ok(gone), Err)
    }

    fn name_of(&self, digest: &Digest) -> String {
        let known = self.books().names.get(digest).map(|name| name.to_string());
        known.unwrap_or_else(|| self.names.of_digest(digest))
    }

    pub fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub fn tell(&self, events: &[Event]) {
        if !events.is_empty() {
            self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|l| l.hear(events));
        }
    }

    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An error of this tier for a failed request.
    pub fn error(&self, op: &'static str, key: Option<&Key>, e: crate::Error) -> Error {
        add(&self.counters.errors, 1);
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{op}: {e}"));
        let kind = match e.kind() {
            crate::ErrorKind::Invalid => ErrorKind::Invalid,
            crate::ErrorKind::Unsupported => ErrorKind::Unsupported,
            crate::ErrorKind::Corrupt => ErrorKind::Corrupt,
            crate::ErrorKind::Timeout => ErrorKind::Timeout,
            crate::ErrorKind::Denied => ErrorKind::Denied,
            crate::ErrorKind::Throttled => ErrorKind::Throttled,
            _ => ErrorKind::Io,
        };
        let error = Error::new(kind, "the store did not do it").with_op(op).with_tier(self.caps.name.clone());
        let error = key.iter().fold(error, |error, key| error.with_key(*key.digest()));
        error.with_source(e)
    }
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

    fn note_absent(&mut self, digest: Digest) {
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

/// What an object's head says of the chunk in it.
pub enum Told {
    /// These are its facts.
    Facts(Box<Facts>),
    /// Another program wrote it.
    Nothing,
    /// It is not the key's, or not what it says.
    Wrong,
}

/// Reads an object's facts and checks all of them but the sums.
pub fn told(object: &Object, key: &Key) -> Told {
    use base64::Engine;
    let Some(text) = object.meta(FACTS) else { return Told::Nothing };
    let Some(facts) = base64::engine::general_purpose::STANDARD.decode(text).ok().and_then(|b| Facts::decode(&b).ok())
    else {
        return Told::Wrong;
    };
    let same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && facts.raw_len == object.total()
        && facts.sums.len() == object.total()
        && facts.codec.0 == 0
        && facts.key_id == 0;
    if same { Told::Facts(Box::new(facts)) } else { Told::Wrong }
}
