use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvtier_core::{Caps, Clock, Error, ErrorKind, Event, Key, Listeners};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index};
use kvtier_key::Digest;
use kvtier_mem::Arena;

use crate::active_reads::Readers;
use crate::changes::ChangeLog;
use crate::chunk_lengths::Geometry;
use crate::config::Durability;
use crate::counters::{Counters, add};
use crate::data_dir::{DataDir, FileId, kind_of};
use crate::full_device_status::FullDevice;
use crate::history::Journal;
use crate::ledger::Ledger;
use crate::ledger_recount::LedgerCheck;
use crate::load_buffers::BounceMemory;
use crate::scan_throttle::ScanThrottle;
use crate::tenant_key::Tenants;
use crate::wait_queue::WaitQueue;
use crate::{DiskConfig, Mover};

/// How many different chunk lengths are tried for a key that a peer may have saved.
const LENGTHS_MAX: usize = 8;

/// The most corrupt files that are remembered because they could not be quarantined. The chunk of a
/// forgotten one stays a miss here until this process saves it.
pub const CORRUPT_MAX: usize = 4096;

/// How many locks guard the chunks' names.
const NAMES: usize = 64;

/// The state of a directory tier, shared by its operations and threads.
///
/// Locks are taken in this order: a chunk's [name](Shared::name), [`LedgerCheck::moving`], the
/// corrupt files, the index. None is held while a listener is notified.
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
    /// The log of what all processes published and deleted.
    pub changes: ChangeLog,
    pub tenants: Tenants,
    pub mover: M,
    pub counters: Counters,
    /// Page pairs for [tail | footer], one for each operation.
    pub tails: Arena,
    /// Memory for chunks whose own memory is not aligned.
    pub bounce: Arena,
    pub bounce_bytes: usize,
    pub readers: Arc<Readers>,
    /// Bytes in quarantine, as counted last.
    pub quarantine_bytes: AtomicU64,
    /// The geometry of the directory's chunks.
    pub geometry: Geometry,
    /// Saves that wait for space below the cap.
    pub space_queue: WaitQueue,
    /// Operations that wait for `tails` or `bounce`.
    pub memory_queue: WaitQueue,
    pub scan_throttle: ScanThrottle,
    /// Whether the ledger may be wrong.
    pub ledger_check: LedgerCheck,
    /// When the device was full last, below the cap.
    pub full_device: FullDevice,
    pub index: Mutex<Index>,
    names: [Mutex<()>; NAMES],
    /// Locked before the index.
    corrupt_files: Mutex<HashMap<Digest, FileId>>,
    lengths: RwLock<Vec<u64>>,
    pub listeners: Listeners,
    pub clock: Clock,
    began: Instant,
    pub last_fault: Mutex<Option<String>>,
    /// How often `.kvtier` was deleted under the open tier and created again.
    pub restored: AtomicU64,
    /// `.kvtier` was created again or became writable, and not all of the steps that follow have
    /// succeeded.
    pub restore_is_due: Mutex<bool>,
    /// Which length is replaced next.
    next_length: AtomicU64,
}

/// The directory's files besides chunks, opened.
pub struct DirState {
    pub data_dir: DataDir,
    pub ledger: Ledger,
    pub ledger_check: LedgerCheck,
    pub journal: Journal,
    pub changes: ChangeLog,
    pub tenants: Tenants,
    /// Bytes in quarantine.
    pub quarantine_bytes: u64,
    pub geometry: Geometry,
}

impl<M: Mover> Shared<M> {
    pub fn new(
        caps: Caps,
        config: &DiskConfig,
        mover: M,
        dir_state: DirState,
        parts: (Index, Arena, Arena),
    ) -> Self {
        let (index, tails, bounce) = parts;
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
            corrupt_files: Mutex::default(),
            lengths: RwLock::default(),
            listeners: Listeners::default(),
            began: config.clock.now(),
            clock: config.clock.clone(),
            last_fault: Mutex::default(),
            restored: AtomicU64::new(0),
            restore_is_due: Mutex::new(read_only),
            next_length: AtomicU64::new(0),
        }
    }

    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory for payloads that are not aligned.
    pub fn bounce_memory(&self) -> BounceMemory<'_> {
        BounceMemory { arena: &self.bounce, bytes: self.bounce_bytes }
    }

    /// Locks a chunk's name. Held while a file gets or loses its name and the index follows, so that
    /// the second of two concurrent changes of one chunk sees the first. Taken before the index,
    /// never on a mover's thread.
    pub fn name(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.names[digest.as_bytes()[1] as usize % NAMES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds on the index's clock.
    pub fn now_ms(&self) -> u64 {
        self.clock.elapsed(self.began).as_millis() as u64
    }

    /// The payload length to report for an entry. Where the index has none, it is the file's length
    /// without headers.
    pub fn reported_len(&self, chunk: &Chunk) -> u64 {
        if chunk.len > 0 {
            return chunk.len;
        }
        let bytes = self.data_dir.bytes_on_disk(&chunk.digest, 0).ok().flatten().unwrap_or(0);
        bytes.saturating_sub(self.data_dir.file_len(0))
    }

    /// The payload length of a chunk in the index; `None` also where the index has no length.
    pub fn known_len(&self, digest: &Digest) -> Option<u64> {
        self.index().get(digest).map(|entry| entry.chunk.len).filter(|len| *len > 0)
    }

    /// The chunk's entry in the index, tenant and place in the chain included.
    pub fn chunk(&self, key: &Key, len: u64) -> Chunk {
        Chunk::new(*key.digest(), len, self.data_dir.file_len(len))
            .with_tenant(self.tenants.id(key.namespace().tenant()))
    }

    /// Why a chunk does not fit the directory's geometry; `len` is the length of a save.
    pub fn misfit(&self, key: &Key, len: Option<u64>) -> Option<Error> {
        self.geometry
            .refusal(&self.data_dir, &self.tenants, key, len)
            .map(|error| error.with_key(*key.digest()))
    }

    /// Notes the geometry of a saved chunk for all processes. A failed write is tried again at the
    /// next save.
    ///
    /// # Errors
    /// `Invalid` when a peer noted another geometry.
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

    /// Remembers that chunks of this length exist, so that those of peers are found by name.
    pub fn learn_length(&self, len: u64) {
        if self.lengths.read().unwrap_or_else(PoisonError::into_inner).contains(&len) {
            return;
        }
        let mut all = self.lengths.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() < LENGTHS_MAX {
            all.push(len);
        } else {
            all[self.next_length.fetch_add(1, Ordering::Relaxed) as usize % LENGTHS_MAX] = len;
        }
    }

    /// Looks on the medium for a chunk that the index lacks, of a length that `hint` or earlier chunks
    /// suggest, and enters it into the index. Returns its length.
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
        // A chunk of an incomplete atomic set is stored, and still a miss.
        if self.is_hidden(key.digest()) {
            return None;
        }
        let find = |len: u64| Some((len, self.data_dir.find(key.digest(), len).ok().flatten()?));
        let (len, file) = lengths.into_iter().find_map(find)?;
        self.clear_corrupt_if_replaced(key.digest(), file);
        let mut index = self.index();
        // A victim's file still exists, and is about to be deleted.
        if index.is_suspect(key.digest()) || index.is_evicting(key.digest()) {
            return None;
        }
        let _ = index.insert(self.chunk(key, len));
        self.ledger_check.found_unknown();
        let hidden = index.is_hidden(key.digest());
        self.listeners.push(Event::Stored { key: *key.digest(), len });
        drop(index);
        self.learn_length(len);
        (!hidden).then_some(len)
    }

    /// Whether a chunk in the index is a miss because its atomic set is incomplete.
    fn is_hidden(&self, digest: &Digest) -> bool {
        let index = self.index();
        index.is_known(digest) && index.is_hidden(digest)
    }

    /// Removes a chunk from the index if its file is missing.
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

    /// The same where a peer reported that it deleted the file, and released its bytes. The caller
    /// notifies the listeners.
    pub fn removed_by_another(&self, digest: &Digest, len: u64) {
        let _one = self.name(digest);
        if self.data_dir.find(digest, len).is_ok_and(|there| there.is_none()) {
            self.forget(digest, false);
        }
    }

    /// Marks a chunk corrupt whose file `seen` failed its checks, and quarantines the file. `false`
    /// when the name means another file by now, or none: then the checked bytes are no chunk's any
    /// more.
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
            Err(e) => self.failed(&format!("cannot quarantine the corrupt chunk {digest}"), &e),
        }
        true
    }

    /// Marks a chunk corrupt: it is a miss as long as its name means this file. The caller holds its
    /// [name](Self::name). Returns whether the index had the chunk.
    pub fn mark_corrupt(&self, digest: &Digest, file: FileId) -> bool {
        let was_known = self.forget(digest, true).is_some();
        let mut corrupt_files = self.corrupt_files();
        if corrupt_files.len() >= CORRUPT_MAX {
            // A save of this process replaced the other files.
            let index = self.index();
            corrupt_files.retain(|digest, _| index.is_suspect(digest));
        }
        if corrupt_files.len() < CORRUPT_MAX || corrupt_files.contains_key(digest) {
            corrupt_files.insert(*digest, file);
        }
        was_known
    }

    /// Clears a corrupt chunk if its name means another `file` now: a peer saved the chunk again.
    pub fn clear_corrupt_if_replaced(&self, digest: &Digest, file: FileId) {
        if self.corrupt_files().get(digest).is_some_and(|wrong| *wrong != file) {
            self.clear_corrupt(digest);
        }
    }

    fn clear_corrupt(&self, digest: &Digest) {
        self.corrupt_files().remove(digest);
        self.index().clear_suspect(digest);
    }

    fn corrupt_files(&self) -> MutexGuard<'_, HashMap<Digest, FileId>> {
        self.corrupt_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the chunk's name still means this file, unchanged. A load whose bytes the CPU did not
    /// see must check: a peer may have renamed the file and written over it meanwhile.
    pub fn is_still(&self, digest: &Digest, len: u64, seen: FileId) -> bool {
        matches!(self.data_dir.find(digest, len), Ok(Some(there)) if there == seen)
    }

    /// Removes a chunk from the index whose file is missing or `corrupt`. The caller holds its
    /// [name](Self::name), and notifies the listeners after releasing it. Returns the index's entry.
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

    /// Counts a failed system call. An error of a read-only file system is noted as a state instead.
    pub fn failed(&self, what: &str, e: &io::Error) {
        if !self.note_read_only(e) {
            self.fault(format!("{what}: {e}"));
        }
    }

    /// Whether the error means a read-only file system. Then saves are shed until it is writable
    /// again.
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
