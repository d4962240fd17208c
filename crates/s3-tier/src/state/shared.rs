//! What the operations and the background work share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_core::{Caps, Error, ErrorKind, Event, Gate, Key, Listeners};
use kvtier_index::{ChainPlace, Index, InsertOutcome, Reservation};
use kvtier_key::Digest;
use kvtier_mem::Arena;
use kvtier_s3::Client;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ops::evict::Outbox;
use crate::ops::save::Manner;
use crate::state::catalog::Books;
use crate::state::cluster::Truth;
use crate::state::counters::{Counters, add};
use crate::state::geometry::Geometry;
use crate::state::key_locks::{Look, Turns};
use crate::state::layout::Names;
use crate::state::scheduler::Lanes;
use crate::state::single_flight::Questions;
use crate::{Layout, TierConfig, Verify};

/// What the jobs of the tier work on.
#[derive(Debug)]
pub struct Shared {
    pub caps: Caps,
    pub client: Client,
    pub lanes: Arc<Lanes>,
    pub names: Names,
    pub layout: Layout,
    pub verify: Verify,
    pub manner: Manner,
    pub capacity_bytes: Option<u64>,
    /// Saves wait for room that comes by the second, and make none.
    pub compat: bool,
    pub geometry: Geometry,
    pub gate: Gate,
    pub bounce: Arena,
    pub counters: Counters,
    pub turns: Turns,
    pub questions: Questions,
    pub truth: Truth,
    /// Victims on their way out.
    pub outbox: Outbox,
    /// Told whenever room or bounce memory may have come free.
    pub freed: Notify,
    books: Mutex<Books>,
    pub listeners: Listeners,
    began: Instant,
    last_fault: Mutex<Option<String>>,
}

/// An object as an answer of the bucket shows it.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    pub key: &'a Key,
    pub name: &'a str,
    pub len: u64,
    pub etag: Option<&'a str>,
    /// Its bytes were checked.
    pub proven: bool,
}

impl Shared {
    pub fn new(config: &TierConfig, client: Client, parts: (Caps, Index, Gate, Arena)) -> Self {
        let (caps, index, gate, bounce) = parts;
        let names =
            Names::new(config.layout, &config.prefix, config.namespace.clone(), config.old_names);
        Shared {
            caps,
            lanes: Lanes::new(client.clone()),
            truth: Truth::new(config, names.root()),
            names,
            layout: config.layout,
            verify: config.verify,
            manner: Manner::of(config, &client),
            client,
            capacity_bytes: config.capacity_bytes,
            compat: config.compat.is_some(),
            geometry: Geometry::new(config),
            gate,
            bounce,
            counters: Counters::default(),
            turns: Turns::default(),
            questions: Questions::default(),
            outbox: Outbox::default(),
            freed: Notify::new(),
            books: Mutex::new(Books::new(index, (config.fresh_hit_max, config.fresh_miss_max))),
            listeners: Listeners::default(),
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
        self.books().known(digest, self.now_ms())
    }

    /// The name under which the key's object lies, as far as is known.
    pub fn name_of(&self, key: &Key) -> Result<String, Error> {
        let regular = self.names.of(key)?;
        let known = if self.names.is_own() { None } else { self.books().name(key.digest()) };
        Ok(known.map_or(regular, |name| name.to_string()))
    }

    /// The other names that the key's object may have.
    pub fn names_but(&self, key: &Key, name: &str) -> Vec<String> {
        let regular = if self.names.is_own() { None } else { self.names.of(key).ok() };
        regular.into_iter().chain(self.names.old(key)).filter(|other| other != name).collect()
    }

    /// Enters what was found in the bucket, unless the key changed since `look`. `false` when it is
    /// a miss all the same: the very object that failed its checks before.
    pub fn found(&self, sight: Sight<'_>, look: &Look<'_>) -> bool {
        let digest = sight.key.digest();
        let mut books = self.books();
        if !sight.proven && books.is_corrupt(digest, sight.etag) {
            return false;
        }
        // It says nothing new, and its bytes are good; but what belongs to it may not be there, or
        // not yet.
        if !look.is_current() || books.index.is_evicting(digest) {
            return !books.index.is_hidden(digest);
        }
        // Of a set that is not whole.
        if books.is_hidden(digest) {
            return false;
        }
        books.acquit(digest);
        let new = books.index.get(digest).is_none_or(|entry| entry.chunk.len != sight.len);
        if new {
            // What lies there is counted, whatever the cap says.
            let chunk = books.chunk(sight.key, sight.len);
            let _ = books.hear_of(chunk);
            add(&self.counters.added_externally, 1);
            self.listeners.push(Event::Stored { key: *digest, len: sight.len });
        }
        books.adopt(sight.key);
        self.note(&mut books, sight.key, sight.name);
        // What belongs to it may be gone.
        let whole = !books.index.is_hidden(digest);
        drop(books);
        if new {
            self.outbox.ring();
            self.listeners.notify();
        }
        whole
    }

    /// This version of the key's object has facts, and this CRC-32C. In our own layout all have.
    pub fn note_facts(&self, key: &Key, etag: &str, crc: u32) {
        if !self.names.is_own() {
            self.books().note_facts(key.digest(), etag, crc);
        }
    }

    /// Notes the name and the time of what is in the index.
    pub fn note(&self, books: &mut Books, key: &Key, name: &str) {
        books.confirm(key.digest(), self.now_ms());
        if self.names.is_own() {
            return;
        }
        books.note_name(key.digest(), name);
        if let Some(misread) = self.names.misread(key) {
            books.forget(&misread);
        }
    }

    /// The bucket has no such object, unless the key changed since `look`.
    pub fn vanished(&self, digest: &Digest, look: &Look<'_>) {
        let gone = {
            let mut books = self.books();
            if !look.is_current() {
                return;
            }
            let suspect = books.index.is_suspect(digest);
            // Counted from the question: what another node saved since is found in time.
            books.note_absent_at(*digest, look.began());
            books.changed(*digest);
            let gone = books.index.forget(digest).filter(|_| !suspect);
            if let Some(entry) = &gone {
                self.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
            }
            gone.is_some()
        };
        self.freed.notify_waiters();
        if gone {
            self.truth.removed(*digest);
            add(&self.counters.deleted_externally, 1);
            self.listeners.notify();
        }
    }

    /// The object failed its checks, unless the key changed since `look`: a miss until it is
    /// written over. Its bytes still count.
    pub fn condemn(&self, sight: Sight<'_>, look: &Look<'_>) {
        let digest = sight.key.digest();
        {
            let mut books = self.books();
            if !look.is_current() {
                return;
            }
            if let Some(entry) = books.index.get(digest) {
                self.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
            }
            if books.index.is_known(digest) {
                books.index.resize(digest, sight.len, sight.len);
            } else {
                let chunk = books.chunk(sight.key, sight.len);
                let _ = books.hear_of(chunk);
            }
            if !self.names.is_own() {
                books.note_name(digest, sight.name);
            }
            books.note_corrupt(digest, sight.etag);
        }
        add(&self.counters.corrupt_objects, 1);
        self.listeners.notify();
    }

    /// What to do about a bucket that does not exist.
    pub fn missing_bucket(&self) -> String {
        let endpoint = self.client.endpoint();
        let bucket = endpoint.bucket();
        format!(
            "the bucket {bucket} does not exist at {endpoint}: create it, or correct bucket, endpoint or region; \
             it is used as soon as it exists"
        )
    }

    /// Asks whether the bucket is there.
    pub async fn check(&self, deadline: Instant) -> Result<(), Error> {
        match self.client.until(deadline).head_bucket().await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let error = Error::new(ErrorKind::Invalid, self.missing_bucket());
                Err(error.with_op("check").with_tier(self.caps.name.clone()))
            }
            Err(e) => Err(self.error("check", None, e)),
        }
    }

    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a fault that no op hears of.
    pub fn fault(&self, what: String) {
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// An error of this tier for a failed request.
    pub fn error(&self, op: &'static str, key: Option<&Key>, e: kvtier_s3::Error) -> Error {
        add(&self.counters.errors, 1);
        self.fault(format!("{op}: {}", e.report()));
        let kind = match e.kind() {
            kvtier_s3::ErrorKind::Invalid => ErrorKind::Invalid,
            kvtier_s3::ErrorKind::Unsupported => ErrorKind::Unsupported,
            kvtier_s3::ErrorKind::Corrupt => ErrorKind::Corrupt,
            kvtier_s3::ErrorKind::Timeout => ErrorKind::Timeout,
            kvtier_s3::ErrorKind::Denied => ErrorKind::Denied,
            kvtier_s3::ErrorKind::Throttled => ErrorKind::Throttled,
            _ => ErrorKind::Io,
        };
        let error = Error::new(kind, "the request to the bucket failed")
            .with_op(op)
            .with_tier(self.caps.name.clone());
        let error = key.iter().fold(error, |error, key| error.with_key(*key.digest()));
        error.with_source(e)
    }
}

/// Enters what was just written into the room that was claimed for it; `false` when the index
/// cannot take it.
pub fn enter(
    shared: &Shared,
    (key, name): (&Key, &str),
    len: u64,
    (room, place): (Reservation, ChainPlace),
) -> bool {
    let mut books = shared.books();
    let chunk = books.chunk(key, len).with_place(place);
    let inserted = books.index.commit(room, chunk);
    books.acquit(key.digest());
    shared.note(&mut books, key, name);
    let entered = !matches!(inserted, InsertOutcome::Refused(_));
    if entered {
        shared.listeners.push(Event::Stored { key: *key.digest(), len });
    }
    drop(books);
    if entered {
        shared.truth.inserted(chunk);
        shared.listeners.notify();
    }
    entered
}
