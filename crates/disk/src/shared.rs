use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use kvtier_core::{Caps, Error, Event, Gate, Key, Listener};
use kvtier_index::{Chunk, Entry, Index, TenantId};
use kvtier_key::Digest;
use kvtier_mem::Arena;

use crate::Mover;
use crate::counters::{Counters, add};
use crate::home::{Home, kind_of};
use crate::name;

/// How many different chunk lengths are tried for a key that another process may have written.
const LENGTHS_MAX: usize = 8;

/// What the jobs of a directory tier work on.
#[derive(Debug)]
pub struct Shared<M> {
    pub caps: Caps,
    pub home: Home,
    pub mover: M,
    pub gate: Gate,
    pub counters: Counters,
    /// Page pairs for [tail | footer], one an op.
    pub tails: Arena,
    /// Memory for chunks whose own is not aligned.
    pub bounce: Arena,
    pub room_freed: Condvar,
    index: Mutex<Index>,
    tenants: RwLock<Vec<String>>,
    lengths: RwLock<Vec<u64>>,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
    began: Instant,
    pub last_fault: Mutex<Option<String>>,
    turn: AtomicU64,
}

impl<M: Mover> Shared<M> {
    pub fn new(caps: Caps, home: Home, mover: M, parts: (Index, Gate, Arena, Arena)) -> Self {
        let (index, gate, tails, bounce) = parts;
        Shared {
            caps,
            home,
            mover,
            gate,
            counters: Counters::default(),
            tails,
            bounce,
            room_freed: Condvar::new(),
            index: Mutex::new(index),
            tenants: RwLock::new(vec![String::new()]),
            lengths: RwLock::default(),
            listeners: RwLock::default(),
            began: Instant::now(),
            last_fault: Mutex::default(),
            turn: AtomicU64::new(0),
        }
    }

    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds on the index's clock.
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// The chunk's entry in the index, tenant and place in the chain included.
    pub fn chunk(&self, key: &Key, len: u64) -> Chunk {
        Chunk::new(*key.digest(), len, name::file_len(len)).with_tenant(self.tenant(key.namespace().tenant()))
    }

    fn tenant(&self, tenant: &str) -> TenantId {
        let find = |all: &[String]| all.iter().position(|t| t == tenant).map(|i| TenantId(i as u32));
        if let Some(id) = find(&self.tenants.read().unwrap_or_else(PoisonError::into_inner)) {
            return id;
        }
        let mut all = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        find(&all).unwrap_or_else(|| {
            all.push(tenant.to_owned());
            TenantId(all.len() as u32 - 1)
        })
    }

    pub fn tenant_names(&self) -> Vec<String> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers that chunks of this length exist, so that those of other processes are found by name.
    pub fn learn_length(&self, len: u64) {
        if self.lengths.read().unwrap_or_else(PoisonError::into_inner).contains(&len) {
            return;
        }
        let mut all = self.lengths.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() < LENGTHS_MAX {
            all.push(len);
        } else {
            all[self.turn.fetch_add(1, Ordering::Relaxed) as usize % LENGTHS_MAX] = len;
        }
    }

    /// Looks for a chunk that the index does not know: one that another process wrote, of a length that `hint` or experience
    /// suggests. Takes it into the index.
    pub fn discover(&self, key: &Key, hint: Option<u64>) -> Option<u64> {
        let mut lengths = self.lengths.read().unwrap_or_else(PoisonError::into_inner).clone();
        lengths.extend(hint);
        lengths.extend(key.namespace().all_chunk_bytes().iter().map(|(_, bytes)| *bytes));
        lengths.sort_unstable();
        lengths.dedup();
        let len = lengths.into_iter().find(|len| fs::exists(self.home.chunk(key.digest(), *len)).unwrap_or(false))?;
        let mut index = self.index();
        if index.is_suspect(key.digest()) {
            return None;
        }
        let _ = index.insert(self.chunk(key, len));
        drop(index);
        self.learn_length(len);
        self.tell(&[Event::Stored { key: *key.digest(), len }]);
        Some(len)
    }

    /// The index has it, but the medium does not or not in one piece.
    pub fn forget(&self, digest: &Digest, corrupt: bool) {
        let mut index = self.index();
        if corrupt {
            index.suspect(digest);
        }
        let gone = index.forget(digest);
        drop(index);
        self.room_freed.notify_all();
        if let Some(entry) = gone {
            self.tell(&[Event::Gone { key: *digest, len: entry.chunk.len }]);
        }
    }

    /// Deletes what the index marked as leaving, and says so. What cannot be deleted stays. Answers how many are gone.
    pub fn delete(&self, victims: Vec<Entry>) -> usize {
        let mut events = Vec::with_capacity(victims.len());
        for victim in victims {
            let Chunk { digest, len, .. } = victim.chunk;
            let gone = match fs::remove_file(self.home.chunk(&digest, len)) {
                Ok(()) => true,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => true,
                Err(e) => {
                    self.fault(format!("cannot delete the file of {digest}: {e}"));
                    false
                }
            };
            let mut index = self.index();
            if gone && index.evicted(&digest) {
                events.push(Event::Gone { key: digest, len });
            } else if !gone {
                index.restored(&digest);
            }
        }
        self.room_freed.notify_all();
        self.tell(&events);
        events.len()
    }

    /// Makes room: deletes what eviction chose.
    pub fn evict(&self, victims: Vec<Entry>) {
        let gone = self.delete(victims);
        add(&self.counters.evicted, gone as u64);
    }

    pub fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub fn tell(&self, events: &[Event]) {
        if !events.is_empty() {
            self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|l| l.hear(events));
        }
    }

    /// Counts a fault and keeps it for `status`.
    pub fn fault(&self, what: String) {
        tracing::warn!(tier = %self.caps.name, "{what}");
        add(&self.counters.io_errors, 1);
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// An error of this tier for a failed system call or transfer.
    pub fn io_error(&self, op: &'static str, key: &Key, what: &'static str, e: std::io::Error) -> Error {
        self.fault(format!("{op}: {what}: {e}"));
        Error::new(kind_of(&e), what)
            .with_op(op)
            .with_key(*key.digest())
            .with_tier(self.caps.name.clone())
            .with_source(e)
    }
}
