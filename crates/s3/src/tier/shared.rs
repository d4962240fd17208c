use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Caps, Error, ErrorKind, Event, Gate, Key, Listener};
use kvtier_index::{Entry, Index};
use kvtier_key::Digest;
use kvtier_mem::Arena;
use tokio::sync::Notify;

use super::books::Books;
use super::counters::{Counters, add};
use super::layout::Names;
use super::{Layout, TierConfig, Verify};
use crate::Client;

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
            // What lies there is counted, whatever the cap says: the next save evicts for it.
            let _ = books.index.insert(chunk);
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
