use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kvtier_codec::TierEncoding;
use kvtier_core::{Caps, Clock, Error, ErrorKind, Event, Key, Listeners};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index};
use kvtier_key::{BlockSums, Digest, Facts};

use crate::active_reads::Readers;
use crate::change_log::ChangeLog;
use crate::config::Durability;
use crate::counters::{Counters, add};
use crate::data_dir::{DataDir, kind_of};
use crate::geometry_agreement::AgreedGeometry;
use crate::index_age::IndexAge;
use crate::known_lengths::KnownLengths;
use crate::last_fault::LastFault;
use crate::name_locks::NameLocks;
use crate::space_state::SpaceState;
use crate::tenant_key::Tenants;
use crate::transfer_memory::TransferMemory;
use crate::use_order::Journal;
use crate::{DiskConfig, Mover};

/// The state of a directory tier, shared by its operations and threads.
///
/// It has no lock of its own: each field locks what it holds. Locks that are held together are taken
/// in this order: [`RecreateState::is_due`] or the relist throttle, which long tasks hold; the reader
/// of the [change log](ChangeLog), which applies records as it reads; a chunk's
/// [name](NameLocks::name); [`LedgerValidity::moving`](crate::ledger::validity::LedgerValidity::moving); then
/// one of these, which take no other of this list: the ledger's totals, the writer of the change log
/// and its pending records, the corrupt files, and last the index. None but the first two is held
/// while a listener is notified.
#[derive(Debug)]
pub struct Shared<M> {
    // Fixed while the tier is open.
    pub caps: Caps,
    pub limits: DiskLimits,
    pub mover: M,
    /// How chunks are encoded and decoded.
    pub encoding: Arc<TierEncoding>,
    /// Whether chunks that are stored as they are may be loaded: not in a tier that encrypts.
    pub takes_plain: bool,
    pub clock: Clock,
    /// When the index's clock began.
    began: Instant,

    /// Files, the index, and files that failed a check: one lock for each chunk's name, one for the
    /// corrupt files, one for the index.
    pub chunks: NameLocks,
    /// Chunks that loads read now.
    pub readers: Arc<Readers>,
    pub listeners: Listeners,

    /// The bytes below the cap: the ledger of all processes, and the saves that wait for space.
    pub space: SpaceState,
    /// The tier's own buffers, and the operations that wait for one.
    pub memory: TransferMemory,

    /// The directory: where its files are, and whether it can be written.
    pub data_dir: DataDir,
    /// The order of use, for the next start.
    pub journal: Journal,
    /// The log of what all processes published and deleted.
    pub changes: ChangeLog,
    pub tenants: Tenants,
    /// The geometry of the directory's chunks.
    pub geometry: AgreedGeometry,
    /// Lengths under which chunks of peers are looked for.
    pub lengths: KnownLengths,
    /// How old the index is, for lookups that may not wait.
    pub index_age: IndexAge,
    /// One lock for those that create `.kvtier` again.
    pub recreation: RecreateState,

    pub counters: Counters,
    pub last_fault: LastFault,
}

/// What the configuration limits, beside what [`Caps`] has.
#[derive(Clone, Copy, Debug)]
pub struct DiskLimits {
    pub capacity_bytes: u64,
    pub deletes_per_second_max: u32,
    /// How long a save waits for space that others free.
    pub space_wait_max: Duration,
    pub durability: Durability,
}

/// How far `.kvtier` is created again.
#[derive(Debug)]
pub struct RecreateState {
    /// How often it was deleted under the open tier and created again.
    pub times: AtomicU64,
    /// It was created again or became writable, and not all of the steps that follow have succeeded.
    /// Locked during those steps, so that concurrent callers wait for the first.
    pub is_due: Mutex<bool>,
}

impl RecreateState {
    pub fn new(is_due: bool) -> Self {
        RecreateState { times: AtomicU64::new(0), is_due: Mutex::new(is_due) }
    }
}

/// A directory that was just opened: its chunks, as listed, and its other files.
pub struct DirState {
    /// When the listing began, and with it the index's clock.
    pub began: Instant,
    pub index: Index,
    pub data_dir: DataDir,
    pub space: SpaceState,
    pub journal: Journal,
    pub changes: ChangeLog,
    pub tenants: Tenants,
    pub geometry: AgreedGeometry,
}

impl<M: Mover> Shared<M> {
    pub fn new(
        caps: Caps,
        config: &DiskConfig,
        mover: M,
        dir_state: DirState,
        memory: TransferMemory,
    ) -> Self {
        let DirState { began, index, data_dir, space, journal, changes, tenants, geometry } =
            dir_state;
        let limits = DiskLimits {
            capacity_bytes: config.capacity_bytes,
            deletes_per_second_max: config.deletes_per_second_max,
            space_wait_max: config.space_wait_max,
            durability: config.durability,
        };
        // Of any chunk.
        let plain = Facts::plain(Digest::default(), Digest::default(), BlockSums::from_bytes(&[]));
        // A directory that is read-only at the start was never attached.
        let recreation = RecreateState::new(data_dir.is_read_only());
        Shared {
            caps,
            limits,
            mover,
            takes_plain: config.encoding.check(&plain).is_ok(),
            encoding: Arc::clone(&config.encoding),
            began,
            clock: config.clock.clone(),
            chunks: NameLocks::new(index),
            readers: Arc::default(),
            listeners: Listeners::default(),
            space,
            memory,
            data_dir,
            journal,
            changes,
            tenants,
            geometry,
            lengths: KnownLengths::default(),
            index_age: IndexAge::default(),
            recreation,
            counters: Counters::default(),
            last_fault: LastFault::default(),
        }
    }

    /// Locks the index.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.chunks.index()
    }

    /// Locks a chunk's [name](NameLocks::name).
    pub fn name(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.chunks.name(digest)
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
        // A chunk of a foreign layout that no load has accepted: only its file shows a length.
        let bytes = self.data_dir.bytes_on_disk(&chunk.digest, 0).ok().flatten().unwrap_or(0);
        bytes.saturating_sub(self.data_dir.file_len(0))
    }

    /// The payload length of a chunk in the index; `None` also where the index has no length.
    pub fn known_len(&self, digest: &Digest) -> Option<u64> {
        self.index().get(digest).map(|entry| entry.chunk.len).filter(|len| *len > 0)
    }

    /// The entry in the index of a chunk whose files have `bytes`, tenant and place in the chain included.
    pub fn chunk(&self, key: &Key, len: u64, bytes: u64) -> Chunk {
        Chunk::new(*key.digest(), len, bytes).with_tenant(self.tenants.id(key.namespace().tenant()))
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
                self.fault(format!("cannot note the geometry of chunks: {}", e.report()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Removes a chunk from the index if its file is missing.
    pub fn forget_missing(&self, digest: &Digest, len: u64) {
        let one = self.name(digest);
        if self.data_dir.find(digest, len).is_ok_and(|there| there.is_none()) {
            // Held from the change of the index to that of the ledger: a recount concludes that
            // both agree, and must not run between the two.
            let _moving = self.space.ledger_validity.moving();
            let gone = self.forget(digest, false);
            gone.into_iter().for_each(|chunk| self.lost(digest, chunk.bytes));
        }
        drop(one);
        self.listeners.notify();
    }

    /// The same where a peer reported that the file is gone: this releases no bytes. The caller notifies the
    /// listeners.
    ///
    /// # Errors
    /// Those of the look for the file.
    pub fn removed_by_another(&self, digest: &Digest, len: u64) -> io::Result<()> {
        let _one = self.name(digest);
        if self.data_dir.find(digest, len)?.is_none() {
            self.forget(digest, false);
        }
        Ok(())
    }

    /// Reports a chunk that is there. A suspect is reported when it is good again.
    pub fn report_stored(&self, index: &Index, chunk: &Chunk) {
        let Chunk { digest: key, len, .. } = *chunk;
        if !index.is_suspect(&key) {
            self.listeners.push(Event::Stored { key, len });
        }
    }

    /// Marks a chunk as corrupt. One whose mark is dropped for it is there again.
    pub fn mark_suspect(&self, index: &mut Index, digest: &Digest) {
        let dropped = index.mark_suspect(digest);
        if let Some(chunk) = dropped.and_then(|digest| index.known_or_victim(&digest)) {
            self.report_stored(index, &chunk);
        }
    }

    /// Removes a chunk from the index whose file is missing or `corrupt`. The caller holds its
    /// [name](Self::name), and notifies the listeners after releasing it. Returns the index's entry.
    pub fn forget(&self, digest: &Digest, corrupt: bool) -> Option<Chunk> {
        let mut index = self.index();
        // Then it was reported when it was marked.
        let was_suspect = index.is_suspect(digest);
        if corrupt {
            // The mark stays after the entry is gone: a lookup or a listing must not enter the same
            // file again.
            self.mark_suspect(&mut index, digest);
        }
        let gone = index.forget(digest);
        if let Some(entry) = gone.as_ref().filter(|_| !was_suspect) {
            self.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
        }
        drop(index);
        // The bytes of the entry are free in the index, so a save that waits may fit now.
        self.space.queue.notify();
        if gone.is_some() {
            self.journal.note([Record::Remove(*digest)]);
        }
        gone.map(|entry| entry.chunk)
    }

    /// Counts a fault and keeps it for `status`.
    pub fn fault(&self, what: String) {
        tracing::warn!(tier = %self.caps.name, "{what}");
        add(&self.counters.io_errors, 1);
        self.last_fault.set(what);
    }

    /// Counts a failed system call. An error of a read-only file system is noted as a state instead.
    pub fn failed(&self, what: &str, e: &io::Error) {
        if !self.note_read_only(e) {
            let causes = std::iter::successors(std::error::Error::source(e), |e| e.source());
            let what = format!("{what}: {e}");
            self.fault(causes.fold(what, |what, cause| format!("{what}: {cause}")));
        }
    }

    /// Whether the error means a read-only file system. Then saves are shed until it is writable
    /// again.
    pub fn note_read_only(&self, e: &io::Error) -> bool {
        let is_read_only = e.kind() == io::ErrorKind::ReadOnlyFilesystem;
        if is_read_only {
            // Kernels remount a file system read-only after an error. That is a state of the tier,
            // not one fault for each save.
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
