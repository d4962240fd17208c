use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
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

/// Which file it is and what was last written to it: a name may come to mean another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    inode: u64,
    written: (i64, i64),
}

impl FileId {
    pub fn of(meta: &Metadata) -> Self {
        FileId { inode: meta.ino(), written: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// How many names can change at a time.
const NAMES: usize = 64;

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
    names: [Mutex<()>; NAMES],
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
            names: [const { Mutex::new(()) }; NAMES],
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

    /// Held while a file gets or loses its name and the index learns of it, so that of two who change one chunk the second sees what the
    /// first did. Taken before the index, never on a mover's thread.
    pub fn name(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.names[digest.as_bytes()[1] as usize % NAMES].lock().unwrap_or_else(PoisonError::into_inner)
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
        let _one = self.name(key.digest());
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

    /// A file that the index knows could not be opened: forgets it, unless it is there again.
    pub fn vanished(&self, digest: &Digest, len: u64) {
        let _one = self.name(digest);
        if fs::exists(self.home.chunk(digest, len)).is_ok_and(|there| !there) {
            self.forget(digest, false);
        }
    }

    /// The file `seen` under this name failed its checks: distrusts the key and moves the file out of the way, unless another has taken
    /// its place since.
    pub fn condemn(&self, digest: &Digest, len: u64, seen: FileId) {
        let _one = self.name(digest);
        let path = self.home.chunk(digest, len);
        match fs::metadata(&path).map(|meta| FileId::of(&meta)) {
            Ok(there) if there != seen => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return self.forget(digest, false),
            _ => self.forget(digest, true),
        }
        match self.home.set_aside(&path) {
            Ok(()) => add(&self.counters.set_aside, 1),
            Err(e) => self.fault(format!("cannot set the corrupt chunk {digest} aside: {e}")),
        }
    }

    /// The index has it, but the medium does not or not in one piece. Its [name](Self::name) is held.
    fn forget(&self, digest: &Digest, corrupt: bool) {
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
            let _one = self.name(&digest);
            // Saved again while it waited for its end: it stays.
            if !self.index().is_leaving(&digest) {
                continue;
            }
            let gone = match fs::remove_file(self.home.chunk(&digest, len)) {
                Ok(()) => true,
                Err(e) if e.kind() == io::ErrorKind::NotFound => true,
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
    pub fn io_error(&self, op: &'static str, key: &Key, what: &'static str, e: io::Error) -> Error {
        self.fault(format!("{op}: {what}: {e}"));
        Error::new(kind_of(&e), what)
            .with_op(op)
            .with_key(*key.digest())
            .with_tier(self.caps.name.clone())
            .with_source(e)
    }
}
