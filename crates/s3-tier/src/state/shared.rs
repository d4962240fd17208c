//! The state that operations and background work share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_codec::may_be_encoded;
use kvtier_core::{Caps, Error, ErrorKind, Event, Gate, HoldId, Key, Listeners};
use kvtier_index::{ChainPlace, Chunk, Index, InsertOutcome, Reservation};
use kvtier_key::Digest;
use kvtier_mem::Arena;
use kvtier_s3::Client;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::state::catalog::{Catalog, UNKNOWN_LEN, best_len};
use crate::state::chunk_lengths::Geometry;
use crate::state::counters::{Counters, add};
use crate::state::encoding::Encoding;
use crate::state::eviction_queue::EvictionQueue;
use crate::state::head_single_flight::HeadSingleFlight;
use crate::state::key_locks::{KeyLocks, ReadVersion};
use crate::state::machine;
use crate::state::node::NodeState;
use crate::state::object_names::ObjectNames;
use crate::state::scheduler::RequestScheduler;
use crate::state::transfer_settings::TransferSettings;
use crate::{Layout, TierConfig, Verify};

/// The state of a tier.
#[derive(Debug)]
pub struct Shared {
    pub caps: Caps,
    pub client: Client,
    pub scheduler: Arc<RequestScheduler>,
    pub names: ObjectNames,
    pub layout: Layout,
    pub verify: Verify,
    pub transfer: TransferSettings,
    pub capacity_bytes: Option<u64>,
    /// Whether eviction follows LMCache: saves wait for it and cause none.
    pub compat: bool,
    pub geometry: Geometry,
    pub gate: Gate,
    pub bounce: Arena,
    pub encoding: Encoding,
    pub counters: Counters,
    pub key_locks: KeyLocks,
    pub heads: HeadSingleFlight,
    pub node: NodeState,
    /// Victims that wait to be deleted.
    pub eviction_queue: EvictionQueue,
    /// Notified when space or bounce memory may be free.
    pub freed: Notify,
    catalog: Mutex<Catalog>,
    pub listeners: Listeners,
    began: Instant,
    last_fault: Mutex<Option<String>>,
}

/// An object as a response of the bucket shows it.
#[derive(Clone, Copy, Debug)]
pub struct FoundObject<'a> {
    pub key: &'a Key,
    pub name: &'a str,
    /// Raw bytes; `UNKNOWN_LEN` where the response does not say.
    pub len: u64,
    /// Bytes of the object.
    pub bytes: u64,
    pub etag: Option<&'a str>,
    /// Its bytes were checked.
    pub verified: bool,
}

/// The parts of [`Shared`] that are made before it.
#[derive(Debug)]
pub struct SharedParts {
    pub caps: Caps,
    pub index: Index,
    pub gate: Gate,
    pub bounce: Arena,
}

impl Shared {
    pub fn new(config: &TierConfig, client: Client, parts: SharedParts) -> Self {
        let SharedParts { caps, index, gate, bounce } = parts;
        let names = ObjectNames::new(
            config.layout,
            &config.prefix,
            config.namespace.clone(),
            config.old_names,
        );
        Shared {
            caps,
            scheduler: RequestScheduler::new(client.clone()),
            node: NodeState::new(config, &client, names.root()),
            names,
            layout: config.layout,
            verify: config.verify,
            transfer: TransferSettings::new(config, &client),
            client,
            capacity_bytes: config.capacity_bytes,
            compat: config.compat.is_some(),
            geometry: Geometry::new(config),
            gate,
            bounce,
            encoding: Encoding::new(config),
            counters: Counters::default(),
            key_locks: KeyLocks::default(),
            heads: HeadSingleFlight::default(),
            eviction_queue: EvictionQueue::default(),
            freed: Notify::new(),
            catalog: Mutex::new(Catalog::new(index, config.fresh_hit_max, config.fresh_miss_max)),
            listeners: Listeners::default(),
            began: Instant::now(),
            last_fault: Mutex::default(),
        }
    }

    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The raw length that a listing shows of an object of `bytes` bytes: in layout `kvtier` none
    /// where that is a length of encoded chunks. A tier that encrypts gets none of any object: one in
    /// clear is a miss there, which a response shows.
    pub fn listed_len(&self, bytes: u64) -> u64 {
        let is_known = self.layout != Layout::Kvtier
            || !may_be_encoded(bytes) && !self.encoding.tier.encrypts();
        if is_known { bytes } else { UNKNOWN_LEN }
    }

    /// Releases a hold.
    pub fn release(&self, hold: HoldId) {
        self.catalog().index.release(kvtier_index::IndexHoldId::from_u64(hold.0));
    }

    /// Milliseconds on the index's clock.
    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// What the index's clock says at that time.
    pub fn ms_at(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.began);
        machine::monotonic(&self.client, passed).as_millis() as u64
    }

    /// Whether the chunk exists, from fresh entries alone: its length, or `Some(None)` for a miss.
    /// `None` if the bucket must be asked.
    pub fn known(&self, digest: &Digest) -> Option<Option<u64>> {
        let (mut catalog, now_ms) = (self.catalog(), self.now_ms());
        catalog.index.expire_holds(now_ms);
        catalog.known(digest, now_ms)
    }

    /// The name of the key's object, as far as known.
    pub fn name_of(&self, key: &Key) -> Result<String, Error> {
        let regular = self.names.format(key)?;
        let known = if self.names.is_own() { None } else { self.catalog().name(key.digest()) };
        Ok(known.map_or(regular, |name| name.to_string()))
    }

    /// The name of a chunk's object. `None` for one whose digest does not determine it, of which no listing and
    /// no operation has shown the name: it came by a peer's journal.
    pub fn object_name(&self, catalog: &Catalog, digest: &Digest) -> Option<String> {
        let known = catalog.name(digest).map(|name| name.to_string());
        known.or_else(|| self.names.is_own().then(|| self.names.format_digest(digest)))
    }

    /// The other names that the key's object may have.
    pub fn names_but(&self, key: &Key, name: &str) -> Vec<String> {
        let regular = if self.names.is_own() { None } else { self.names.format(key).ok() };
        regular.into_iter().chain(self.names.old_name(key)).filter(|other| other != name).collect()
    }

    /// Enters an object that the bucket has, unless the key changed since `version`. `false` if it
    /// is still a miss: this version failed its checks before, or its atomic set is incomplete.
    pub fn record_found(&self, seen: FoundObject<'_>, version: &ReadVersion<'_>) -> bool {
        let digest = seen.key.digest();
        let mut catalog = self.catalog();
        if !seen.verified && catalog.is_corrupt(digest, seen.etag) {
            return false;
        }
        // The response may be older than the index, but its bytes are good. Its atomic set may be
        // incomplete.
        if !version.is_current() || catalog.index.is_evicting(digest) {
            return !catalog.index.is_hidden(digest);
        }
        // Its atomic set is incomplete.
        if catalog.is_hidden(digest) {
            return false;
        }
        let was_suspect = catalog.index.is_suspect(digest);
        catalog.clear_corrupt(digest);
        let known = catalog.index.get(digest).map(|entry| (entry.chunk.len, entry.chunk.bytes));
        let new = match known {
            Some((_, bytes)) if bytes != seen.bytes => true,
            Some((len, _)) if len == seen.len || seen.len == UNKNOWN_LEN => false,
            // Only a listing showed it: now its raw length is known.
            Some((UNKNOWN_LEN, _)) => !catalog.index.resize(digest, seen.len, seen.bytes),
            _ => true,
        };
        // A suspect was reported as gone when it was marked.
        let is_back = was_suspect && known.is_some();
        if new {
            // A stored chunk counts, even above the cap.
            let chunk = catalog.chunk(seen.key, seen.len, seen.bytes);
            let _ = catalog.insert_unseen(chunk);
            add(&self.counters.added_externally, 1);
        }
        let there = catalog.index.known(digest).map(|entry| entry.chunk);
        if let Some(chunk) = there.filter(|_| new || is_back) {
            self.report_stored(&catalog, &chunk);
        }
        // Not before the object is found: the eviction for a quota that is passed by this would race its load.
        let moved = catalog.set_tenant(seen.key);
        // Counted from the request: another node may have removed the chunk since.
        self.note(&mut catalog, seen.key, seen.name, version.began());
        // Its atomic set may be incomplete by now.
        let whole = !catalog.index.is_hidden(digest);
        drop(catalog);
        if new || moved {
            self.eviction_queue.notify();
        }
        self.listeners.notify();
        whole
    }

    /// Reports a chunk that is there. A suspect is reported when it is good again.
    pub fn report_stored(&self, catalog: &Catalog, chunk: &Chunk) {
        if !catalog.index.is_suspect(&chunk.digest) {
            self.listeners.push(Event::Stored { key: chunk.digest, len: best_len(chunk) });
        }
    }

    /// This version of the key's object has facts, with this CRC-32C. In layout `kvtier` all have.
    pub fn note_facts(&self, key: &Key, etag: &str, crc: u32) {
        if !self.names.is_own() {
            self.catalog().note_facts(key.digest(), etag, crc);
        }
    }

    /// Records the name of an indexed chunk, and that it was there at that time.
    pub fn note(&self, catalog: &mut Catalog, key: &Key, name: &str, seen: Instant) {
        catalog.confirm(key.digest(), self.ms_at(seen));
        if self.names.is_own() {
            return;
        }
        catalog.note_name(key.digest(), name);
        if let Some(misread) = self.names.misread(key) {
            let is_suspect = catalog.index.is_suspect(&misread);
            let entry = catalog.forget(&misread).filter(|_| !is_suspect);
            let gone = entry.map(|e| Event::Gone { key: misread, len: best_len(&e.chunk) });
            gone.into_iter().for_each(|gone| self.listeners.push(gone));
        }
    }

    /// The bucket has no such object, unless the key changed since `version`.
    pub fn record_missing(&self, digest: &Digest, version: &ReadVersion<'_>) {
        let gone = {
            let mut catalog = self.catalog();
            if !version.is_current() {
                return;
            }
            let suspect = catalog.index.is_suspect(digest);
            // Counted from the request: what another node saves later is found in time.
            catalog.note_absent_at(*digest, version.began());
            catalog.note_changed(*digest);
            let gone = catalog.index.forget(digest).filter(|_| !suspect);
            if let Some(entry) = &gone {
                self.listeners.push(Event::Gone { key: *digest, len: best_len(&entry.chunk) });
            }
            gone.is_some()
        };
        self.freed.notify_waiters();
        if gone {
            self.node.removed(*digest);
            add(&self.counters.deleted_externally, 1);
            self.listeners.notify();
        }
    }

    /// The object failed its checks, or cannot be decoded here, unless the key changed since
    /// `version`: a miss until it is overwritten. Its bytes still count.
    pub fn mark_unusable(&self, seen: FoundObject<'_>, version: &ReadVersion<'_>) {
        let digest = seen.key.digest();
        {
            let mut catalog = self.catalog();
            if !version.is_current() {
                return;
            }
            // A victim's end is not reported yet.
            let index = &catalog.index;
            let known = index.known_or_victim(digest);
            if let Some(chunk) = known.filter(|_| !index.is_suspect(digest)) {
                self.listeners.push(Event::Gone { key: *digest, len: best_len(&chunk) });
            }
            if catalog.index.is_known(digest) {
                catalog.index.resize(digest, seen.len, seen.bytes);
            } else {
                let chunk = catalog.chunk(seen.key, seen.len, seen.bytes);
                let _ = catalog.insert_unseen(chunk);
            }
            if !self.names.is_own() {
                catalog.note_name(digest, seen.name);
            }
            if let Some(forgotten) = catalog.note_corrupt(digest, seen.etag) {
                self.report_stored(&catalog, &forgotten);
            }
        }
        self.listeners.notify();
    }

    /// A sentence about a bucket that does not exist.
    pub fn missing_bucket(&self) -> String {
        let endpoint = self.client.endpoint();
        let bucket = endpoint.bucket();
        format!(
            "the bucket {bucket} does not exist at {endpoint}: create it, or correct bucket, endpoint or region; \
             it is used as soon as it exists"
        )
    }

    /// Waits until the identity of this tenant is known, but not beyond `until`.
    pub async fn wait_for_tenant_key(&self, tenant: &str, until: Instant) {
        loop {
            let known = self.node.key_known.notified();
            tokio::pin!(known);
            known.as_mut().enable();
            if !self.catalog().tenants.lacks_key(tenant) {
                return;
            }
            self.catalog().tenant(tenant);
            if tokio::time::timeout_at(until, known).await.is_err() {
                return;
            }
        }
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

    /// Records a fault that no operation reports.
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

/// A chunk and the name of its object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectName<'a> {
    pub key: &'a Key,
    pub name: &'a str,
}

/// The lengths of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLengths {
    /// Of its raw bytes.
    pub raw: u64,
    /// Of its object.
    pub stored: u64,
}

/// Commits a reservation for a chunk that was written; `false` if the index refuses it.
pub fn enter(
    shared: &Shared,
    object: ObjectName<'_>,
    lens: ChunkLengths,
    space: Reservation,
    place: ChainPlace,
) -> bool {
    let ObjectName { key, name } = object;
    let mut catalog = shared.catalog();
    let chunk = catalog.chunk(key, lens.raw, lens.stored).with_place(place);
    let inserted = catalog.index.commit(space, chunk);
    catalog.clear_corrupt(key.digest());
    shared.note(&mut catalog, key, name, Instant::now());
    let entered = !matches!(inserted, InsertOutcome::Refused(_));
    if entered {
        shared.report_stored(&catalog, &chunk);
    }
    drop(catalog);
    if entered {
        shared.node.inserted(chunk);
        shared.listeners.notify();
    }
    entered
}

#[cfg(test)]
mod tests;
