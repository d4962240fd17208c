use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Caps, Clock, Error, ErrorKind, Event, Gate, Key, Listeners};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index};
use kvtier_key::Digest;
use kvtier_mem::Arena;

use crate::changes::ChangeLog;
use crate::config::Durability;
use crate::counters::{Counters, add};
use crate::data_dir::{DataDir, FileId, kind_of};
use crate::full_device::FullDevice;
use crate::geometry::Geometry;
use crate::history::Journal;
use crate::ledger::Ledger;
use crate::ledger_check::LedgerCheck;
use crate::load_buffers::BounceMemory;
use crate::readers::Readers;
use crate::scan_throttle::ScanThrottle;
use crate::tenants::Tenants;
use crate::wait_queue::WaitQueue;
use crate::{DiskConfig, Mover};

/// How many different chunk lengths are tried for a key that another process may have written.
const LENGTHS_MAX: usize = 8;

/// The most corrupt files that could not be moved away and are remembered. The chunk of one that is
/// forgotten stays a miss here until this process saves it.
pub const CORRUPT_MAX: usize = 4096;

/// How many names can change at a time.
const NAMES: usize = 64;

/// What the jobs of a directory tier work on.
#[derive(Debug)]
pub struct Shared<M> {
    pub caps: Caps,
    pub capacity_bytes: u64,
    pub deletes_per_second_max: u32,
    pub space_wait_max: Duration,
    pub durability: Durability,
    pub data_dir: DataDir,
    pub ledger: Ledger,
    pub journal: Journal,
    /// What all processes published and deleted.
    pub changes: ChangeLog,
    pub tenants: Tenants,
    pub mover: M,
    pub gate: Gate,
    pub counters: Counters,
    /// Page pairs for [tail | footer], one an op.
    pub tails: Arena,
    /// Memory for chunks whose own is not aligned.
    pub bounce: Arena,
    pub bounce_bytes: usize,
    pub readers: Arc<Readers>,
    /// Bytes of the quarantine, as of the last look.
    pub quarantine_bytes: AtomicU64,
    /// What chunks look like here.
    pub geometry: Geometry,
    /// Saves that wait for room below the cap.
    pub space_queue: WaitQueue,
    /// Ops that wait for `tails` or `bounce`.
    pub memory_queue: WaitQueue,
    pub scan_throttle: ScanThrottle,
    /// How right the ledger is.
    pub ledger_check: LedgerCheck,
    /// When the medium was full last, although the cap was not reached.
    pub full_device: FullDevice,
    pub index: Mutex<Index>,
    names: [Mutex<()>; NAMES],
    /// Locked before the index.
    corrupt: Mutex<HashMap<Digest, FileId>>,
    lengths: RwLock<Vec<u64>>,
    pub listeners: Listeners,
    pub clock: Clock,
    began: Instant,
    pub last_fault: Mutex<Option<String>>,
    /// How often `.kvtier` was deleted under us, and made again.
    pub restored: AtomicU64,
    /// `.kvtier` was made, or can be written for the first time, and not all that follows from it
    /// has succeeded.
    pub restore_is_due: Mutex<bool>,
    turn: AtomicU64,
}

/// What a directory keeps on the medium about itself.
pub struct DirState {
    pub data_dir: DataDir,
    pub ledger: Ledger,
    pub ledger_check: LedgerCheck,
    pub journal: Journal,
    pub changes: ChangeLog,
    pub tenants: Tenants,
    /// Bytes of the quarantine.
    pub quarantine_bytes: u64,
    pub geometry: Geometry,
}

impl<M: Mover> Shared<M> {
    pub fn new(
        caps: Caps,
        config: &DiskConfig,
        mover: M,
        dir_state: DirState,
        parts: (Index, Gate, Arena, Arena),
    ) -> Self {
        let (index, gate, tails, bounce) = parts;
        let DirState {
            data_dir,
            ledger,
            ledger_check,
            journal,
            changes,
            tenants,
            quarantine_bytes,
            geometry,
        } = dir_state;
        let read_only = data_dir.is_read_only();
        Shared {
            caps,
            capacity_bytes: config.capacity_bytes,
            deletes_per_second_max: config.deletes_per_second_max,
            space_wait_max: config.space_wait_max,
            durability: config.durability,
            data_dir,
            ledger,
            journal,
            changes,
            tenants,
            mover,
            gate,
            counters: Counters::default(),
            tails,
            bounce,
            bounce_bytes: config.bounce_bytes,
            readers: Arc::default(),
            quarantine_bytes: AtomicU64::new(quarantine_bytes),
            geometry,
            space_queue: WaitQueue::default(),
            memory_queue: WaitQueue::default(),
            scan_throttle: ScanThrottle::default(),
            ledger_check,
            full_device: FullDevice::default(),
            index: Mutex::new(index),
            names: [const { Mutex::new(()) }; NAMES],
            corrupt: Mutex::default(),
            lengths: RwLock::default(),
            listeners: Listeners::default(),
            began: config.clock.now(),
            clock: config.clock.clone(),
            last_fault: Mutex::default(),
            restored: AtomicU64::new(0),
            restore_is_due: Mutex::new(read_only),
            turn: AtomicU64::new(0),
        }
    }

    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory for payloads that are not aligned.
    pub fn bounce_memory(&self) -> BounceMemory<'_> {
        BounceMemory { arena: &self.bounce, bytes: self.bounce_bytes }
    }

    /// Held while a file gets or loses its name and the index learns of it, so that of two who
    /// change one chunk the second sees what the first did. Taken before the index, never on a
    /// mover's thread.
    pub fn name(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.names[digest.as_bytes()[1] as usize % NAMES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds on the index's clock.
    pub fn now_ms(&self) -> u64 {
        self.clock.elapsed(self.began).as_millis() as u64
    }

    /// The payload length to show for an entry: where only the file can tell it, that of what the
    /// file has beside its headers.
    pub fn reported_len(&self, chunk: &Chunk) -> u64 {
        if chunk.len > 0 {
            return chunk.len;
        }
        let bytes = self.data_dir.bytes_on_disk(&chunk.digest, 0).ok().flatten().unwrap_or(0);
        bytes.saturating_sub(self.data_dir.file_len(0))
    }

    /// The payload length of a chunk that the index knows; `None` also where only the file can
    /// tell.
    pub fn known_len(&self, digest: &Digest) -> Option<u64> {
        self.index().get(digest).map(|entry| entry.chunk.len).filter(|len| *len > 0)
    }

    /// The chunk's entry in the index, tenant and place in the chain included.
    pub fn chunk(&self, key: &Key, len: u64) -> Chunk {
        Chunk::new(*key.digest(), len, self.data_dir.file_len(len))
            .with_tenant(self.tenants.id(key.namespace().tenant()))
    }

    /// Why a chunk does not fit what others of its kind look like here; `len` is that of a save.
    pub fn misfit(&self, key: &Key, len: Option<u64>) -> Option<Error> {
        self.geometry
            .refusal(&self.data_dir, &self.tenants, key, len)
            .map(|error| error.with_key(*key.digest()))
    }

    /// Notes for everybody what a save of `len` bytes tells of its kind of chunks. `Invalid` when
    /// others noted something else. A medium that cannot note it now is asked again at the next
    /// save.
    pub fn learn_geometry(&self, key: &Key, len: u64) -> Result<(), Error> {
        match self.geometry.learn(&self.data_dir, &self.tenants, key, len) {
            Err(e) if e.kind() == ErrorKind::Invalid => {
                Err(e.with_op("save").with_key(*key.digest()))
            }
            Err(e) => {
                self.fault(format!("cannot note the geometry of chunks: {e}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Remembers that chunks of this length exist, so that those of other processes are found by
    /// name.
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

    /// ScanThrottle for a chunk that the index does not know: one that another process wrote, of a length
    /// that `hint` or experience suggests. Takes it into the index.
    pub fn find_on_disk(&self, key: &Key, hint: Option<u64>) -> Option<u64> {
        let found = self.find_on_disk_quietly(key, hint);
        self.listeners.notify();
        found
    }

    fn find_on_disk_quietly(&self, key: &Key, hint: Option<u64>) -> Option<u64> {
        if let Some(foreign) = self.data_dir.foreign() {
            return self.find_foreign(foreign, key);
        }
        let mut lengths = self.lengths.read().unwrap_or_else(PoisonError::into_inner).clone();
        lengths.extend(hint);
        lengths.extend(key.namespace().all_chunk_bytes().iter().map(|(_, bytes)| *bytes));
        lengths.sort_unstable();
        lengths.dedup();
        let _one = self.name(key.digest());
        // What waits for the others of its set is there, and a miss.
        if self.is_hidden(key.digest()) {
            return None;
        }
        let find = |len: u64| Some((len, self.data_dir.find(key.digest(), len).ok().flatten()?));
        let (len, file) = lengths.into_iter().find_map(find)?;
        self.clear_corrupt_if_replaced(key.digest(), file);
        let mut index = self.index();
        // A victim's file is still there, and about to be deleted.
        if index.is_suspect(key.digest()) || index.is_evicting(key.digest()) {
            return None;
        }
        let _ = index.insert(self.chunk(key, len));
        let hidden = index.is_hidden(key.digest());
        self.listeners.push(Event::Stored { key: *key.digest(), len });
        drop(index);
        self.learn_length(len);
        (!hidden).then_some(len)
    }

    /// Whether a chunk that the index knows is a miss because another of its set is not there.
    fn is_hidden(&self, digest: &Digest) -> bool {
        let index = self.index();
        index.is_known(digest) && index.is_hidden(digest)
    }

    /// A file that the index knows could not be opened: forgets it, unless it is there again.
    pub fn forget_missing(&self, digest: &Digest, len: u64) {
        let one = self.name(digest);
        if self.data_dir.find(digest, len).is_ok_and(|there| there.is_none()) {
            let _moving = self.ledger_check.moving();
            let gone = self.forget(digest, false);
            gone.into_iter().for_each(|chunk| self.lost(digest, chunk.bytes));
        }
        drop(one);
        self.listeners.notify();
    }

    /// The same where another process said that it deleted the file, and has counted that. The
    /// caller notifies the listeners.
    pub fn removed_by_another(&self, digest: &Digest, len: u64) {
        let _one = self.name(digest);
        if self.data_dir.find(digest, len).is_ok_and(|there| there.is_none()) {
            self.forget(digest, false);
        }
    }

    /// The file `seen` under this name failed its checks: distrusts the key and moves the file out
    /// of the way. `false` when another file has the name by now, or none: then what was read
    /// is no chunk of anybody's any more.
    pub fn quarantine_corrupt(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        let was_current = self.quarantine_corrupt_quietly(digest, len, seen);
        self.listeners.notify();
        was_current
    }

    fn quarantine_corrupt_quietly(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        let _one = self.name(digest);
        let was_known = match self.data_dir.find(digest, len) {
            Ok(Some(there)) if there != seen => return false,
            Ok(None) => {
                let _moving = self.ledger_check.moving();
                let gone = self.forget(digest, false);
                gone.into_iter().for_each(|chunk| self.lost(digest, chunk.bytes));
                return false;
            }
            _ => self.mark_corrupt(digest, seen),
        };
        if self.data_dir.is_read_only() {
            return true;
        }
        match self.quarantine(digest, len, was_known) {
            Ok(()) => {
                self.append_change(Record::Remove(*digest));
                let is_torn = self
                    .data_dir
                    .removed_stale
                    .crashed_before_s
                    .is_some_and(|booted| seen.was_written_before(booted));
                add(
                    if is_torn { &self.counters.torn_by_crash } else { &self.counters.quarantined },
                    1,
                );
                self.clear_corrupt(digest);
            }
            Err(e) => self.failed(&format!("cannot set the corrupt chunk {digest} aside"), &e),
        }
        true
    }

    /// The bytes of this file are wrong, or cannot be read: the key is a miss as long as its name
    /// means this file. Its [name](Self::name) is held. Answers whether the index had it.
    pub fn mark_corrupt(&self, digest: &Digest, file: FileId) -> bool {
        let was_known = self.forget(digest, true).is_some();
        let mut corrupt = self.corrupt();
        if corrupt.len() >= CORRUPT_MAX {
            // A save of our own made the others good.
            let index = self.index();
            corrupt.retain(|digest, _| index.is_suspect(digest));
        }
        if corrupt.len() < CORRUPT_MAX || corrupt.contains_key(digest) {
            corrupt.insert(*digest, file);
        }
        was_known
    }

    /// The key is a miss no more if its name means another `file` now: another process saved the
    /// chunk again.
    pub fn clear_corrupt_if_replaced(&self, digest: &Digest, file: FileId) {
        if self.corrupt().get(digest).is_some_and(|wrong| *wrong != file) {
            self.clear_corrupt(digest);
        }
    }

    fn clear_corrupt(&self, digest: &Digest) {
        self.corrupt().remove(digest);
        self.index().clear_suspect(digest);
    }

    fn corrupt(&self) -> MutexGuard<'_, HashMap<Digest, FileId>> {
        self.corrupt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the chunk still is that very file, as it was written then. Who could not see the
    /// bytes of an open file must ask: another process may have taken the name away and written
    /// over it meanwhile.
    pub fn is_still(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        matches!(self.data_dir.find(digest, len), Ok(Some(there)) if there == seen)
    }

    /// The index has it, but the medium does not or not in one piece. Its [name](Self::name) is
    /// held, and listeners are notified by the caller once it is not. Answers what the index
    /// had.
    pub fn forget(&self, digest: &Digest, corrupt: bool) -> Option<Chunk> {
        let mut index = self.index();
        if corrupt {
            index.mark_suspect(digest);
        }
        let gone = index.forget(digest);
        if let Some(entry) = &gone {
            self.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
        }
        drop(index);
        self.space_queue.notify();
        if gone.is_some() {
            self.journal.note([Record::Remove(*digest)]);
        }
        gone.map(|entry| entry.chunk)
    }

    /// Counts a fault and keeps it for `status`.
    pub fn fault(&self, what: String) {
        tracing::warn!(tier = %self.caps.name, "{what}");
        add(&self.counters.io_errors, 1);
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// Counts a failed system call, and notes when it shows that the file system is read-only: that
    /// is a state and no fault.
    pub fn failed(&self, what: &str, e: &io::Error) {
        if !self.note_read_only(e) {
            self.fault(format!("{what}: {e}"));
        }
    }

    /// Whether the error says that the file system is read-only; then saves are shed from now on,
    /// until it is writable again.
    pub fn note_read_only(&self, e: &io::Error) -> bool {
        let is_read_only = e.kind() == io::ErrorKind::ReadOnlyFilesystem;
        if is_read_only {
            self.data_dir.set_read_only(true);
        }
        is_read_only
    }

    /// An error of this tier for a failed system call or transfer.
    pub fn io_error(&self, op: &'static str, key: &Key, what: &'static str, e: io::Error) -> Error {
        self.failed(&format!("{op}: {what}"), &e);
        Error::new(kind_of(&e), what)
            .with_op(op)
            .with_key(*key.digest())
            .with_tier(self.caps.name.clone())
            .with_source(e)
    }
}
