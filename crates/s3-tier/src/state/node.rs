//! What this node needs to share a bucket with others: its settings, its lease, its journal, its
//! part of the free space, and what an operator should see.
//!
//! All of it is filled in the background: no load, lookup or save waits for another node.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index, Refusal, Reserve, ReserveRequest};
use kvtier_key::Digest;
use kvtier_s3::Client;
use tokio::sync::Notify;

use crate::TierConfig;
use crate::state::epoch_lease::EpochLease;
use crate::state::machine::node_name;
use crate::state::node_budget::NodeBudget;
use crate::state::own_journal::NodeJournal;
use crate::state::own_object_names::OwnObjectNames;
use crate::sync_config::{Evictor, SyncConfig};

/// A node that does not evict may pass the cap by this factor, as far as it can count, because it
/// learns late what the evictor deleted. It may pass it by one chunk more.
const OVER: f64 = 1.05;

/// This node among those that share a bucket.
#[derive(Debug)]
pub struct NodeState {
    pub config: SyncConfig,
    pub own_names: OwnObjectNames,
    /// The node's name, which no other node ever had.
    pub name: String,
    pub journal: NodeJournal,
    pub lease: Mutex<EpochLease>,
    pub notes: Mutex<StatusNotes>,
    /// Held while the lease's object is written, so that the release is the last write.
    pub lease_write: tokio::sync::Mutex<()>,
    /// Held while a snapshot is written: an older one must not end after a newer one.
    pub snapshot_write: tokio::sync::Mutex<()>,
    /// Whether there is a cap: without one nothing is counted, evicted or recorded.
    pub capped: bool,
    pub is_shut_down: AtomicBool,
    /// Whether the stored snapshot was read, or cannot be: it is not overwritten before.
    pub read_snapshot: AtomicBool,
    /// When the last complete listing began, by the tier's clock.
    pub listed_ms: AtomicI64,
    /// The epoch of this node for which the order of use was read: nothing is deleted before.
    pub caught_up: AtomicU64,
    /// Notified when the lease became this node's.
    pub took_over: Notify,
    /// Notified when the tenant key is known, or changed.
    pub key_known: Notify,
    /// How much of the free space this node may fill before the next exchange.
    pub budget: NodeBudget,
    /// Notified when a round is due early, because space is short.
    pub round_requested: Notify,
    /// Notified when the bucket should be listed early: a chunk to evict has no name yet.
    pub listing_requested: Notify,
    /// Whether objects of an earlier build that contain tenants' names may exist.
    pub may_name_tenants: AtomicBool,
}

/// The first epoch: no node evicted before.
pub const FIRST: u64 = 1;
/// In place of an epoch: the holder of the lease deletes at once.
pub const ANY: u64 = u64::MAX;

/// Sentences for the status.
#[derive(Debug, Default)]
pub struct StatusNotes {
    pub caveats: Vec<String>,
    /// Why no node holds the lease.
    pub lease: Option<String>,
    /// The node that holds it.
    pub holder: Option<String>,
    /// Foreign objects among the leases.
    pub foreign_leases: Option<String>,
    /// Why the snapshot was not used.
    pub snapshot: Option<String>,
    /// Damage of a journal.
    pub journal: Option<String>,
}

impl NodeState {
    /// For a bucket under this prefix, which is empty or ends in a slash.
    pub fn new(config: &TierConfig, client: &Client, root: &str) -> Self {
        let capped = config.capacity_bytes.is_some();
        let config = config.sync;
        NodeState {
            config,
            own_names: OwnObjectNames::under(root),
            name: node_name(client),
            journal: NodeJournal::default(),
            lease: Mutex::new(EpochLease::new(config.lease_term.as_millis() as u64)),
            notes: Mutex::default(),
            lease_write: tokio::sync::Mutex::default(),
            snapshot_write: tokio::sync::Mutex::default(),
            capped,
            is_shut_down: AtomicBool::new(false),
            read_snapshot: AtomicBool::new(false),
            listed_ms: AtomicI64::new(i64::MIN),
            caught_up: AtomicU64::new(FIRST),
            took_over: Notify::new(),
            key_known: Notify::new(),
            budget: NodeBudget::default(),
            round_requested: Notify::new(),
            listing_requested: Notify::new(),
            may_name_tenants: AtomicBool::new(true),
        }
    }

    /// Whether this node evicts now; `now_ms` is on the tier's clock.
    pub fn may_evict(&self, now_ms: u64) -> bool {
        match self.config.evictor {
            Evictor::Lease => {
                self.lease().held(now_ms).is_some_and(|epoch| self.has_caught_up(epoch))
            }
            Evictor::Single => true,
            Evictor::Never => false,
        }
    }

    /// Space is short, or was freed: nodes should exchange journals soon.
    pub fn request_exchange(&self) {
        if self.budget.has_others() || self.budget.needs_exchange() {
            self.round_requested.notify_one();
        }
    }

    /// Runs the next round as early as allowed.
    pub fn request_round(&self) {
        self.round_requested.notify_one();
    }

    /// Takes a request for a listing: the one that has just ended answers it.
    pub fn take_listing_request(&self) {
        let requested = self.listing_requested.notified();
        tokio::pin!(requested);
        requested.enable();
    }

    /// Whether the order of use at the start of this epoch is known, or cannot be known.
    pub fn has_caught_up(&self, epoch: u64) -> bool {
        let caught_up = self.caught_up.load(Ordering::Relaxed);
        epoch == FIRST || caught_up == epoch || caught_up == ANY
    }

    /// Reserves space on a node that does not evict. While another node evicts, this one may pass
    /// cap and quota a little; by more only with one chunk at a time, since the evictor makes space
    /// for a large chunk only after it learned of it.
    pub fn reserve(&self, index: &mut Index, want: &ReserveRequest, limit: Option<u64>) -> Reserve {
        let usage = index.usage();
        let led = self.holder().is_some() || self.config.evictor == Evictor::Never;
        let fits = |there: u64, reserved: u64, limit: u64| {
            let with = there.saturating_add(reserved).saturating_add(want.bytes);
            let little_over = if led { (limit as f64 * OVER) as u64 } else { limit };
            with <= little_over || (led && reserved == 0 && there <= limit)
        };
        let own = (index.tenant_usage(want.tenant).bytes, index.tenant_reserved(want.tenant));
        if want.bytes > usage.capacity {
            return Reserve::Full(Refusal::TooLarge {
                bytes: want.bytes,
                bytes_max: usage.capacity,
            });
        }
        match limit {
            Some(limit) if want.bytes > limit => Reserve::Full(Refusal::Quota { bytes_max: limit }),
            Some(limit) if !fits(own.0, own.1, limit) => Reserve::Busy,
            _ if !fits(usage.used, usage.reserved, usage.capacity) => Reserve::Busy,
            _ => Reserve::Granted(index.force_reserve(want)),
        }
    }

    /// Chunks were used, in the order of a chain: its head counts as the most recent.
    pub fn touched(&self, chain: &[Digest]) {
        self.note(chain.iter().rev().map(|digest| Record::Touch(*digest)));
    }

    pub fn note(&self, records: impl IntoIterator<Item = Record>) {
        if self.capped {
            self.journal.note(records);
        }
    }

    /// A chunk was saved or found.
    pub fn inserted(&self, chunk: Chunk) {
        self.note([Record::Insert(chunk)]);
    }

    /// A chunk was deleted, or found missing.
    pub fn removed(&self, digest: Digest) {
        self.note([Record::Remove(digest)]);
    }

    /// The status, in sentences.
    pub fn reasons(&self, now_ms: u64) -> Vec<String> {
        if !self.capped {
            return Vec::new();
        }
        let notes = self.notes();
        let who = match (self.config.evictor, &notes.holder) {
            (Evictor::Single, _) => "this node evicts, by its settings".to_owned(),
            (Evictor::Never, _) => "other nodes evict, by this one's settings".to_owned(),
            (Evictor::Lease, _) if self.lease().may_act(now_ms) => {
                format!("this node evicts: {}", self.name)
            }
            (Evictor::Lease, Some(holder)) if *holder == self.name => {
                "this node has not renewed its lease in time: it evicts nothing until it has"
                    .to_owned()
            }
            (Evictor::Lease, Some(holder)) => format!("another node evicts: {holder}"),
            (Evictor::Lease, None) => "no node evicts yet".to_owned(),
        };
        let some = [
            notes.lease.clone(),
            notes.foreign_leases.clone(),
            notes.snapshot.clone(),
            notes.journal.clone(),
        ];
        std::iter::once(who)
            .chain(some.into_iter().flatten())
            .chain(notes.caveats.iter().cloned())
            .collect()
    }

    pub fn lease(&self) -> MutexGuard<'_, EpochLease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notes(&self) -> MutexGuard<'_, StatusNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn holder(&self) -> Option<String> {
        self.notes().holder.clone().filter(|holder| *holder != self.name)
    }

    /// Unix time in milliseconds by the store's clock, as far as known.
    pub fn server_ms(&self, client: &Client) -> u64 {
        client.local_ms().saturating_add_signed(client.clock_offset().saturating_mul(1000))
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::IndexConfig;
    use kvtier_s3::{BucketAddress, Config, Credentials};

    use super::*;
    use crate::state::epoch_lease::{ClaimOutcome, TopEpoch};
    use crate::state::node_budget::Exchange;

    fn node(evictor: Evictor) -> NodeState {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        let client = || Config::new(endpoint.clone(), Credentials::new("a", "b"));
        let mut config = TierConfig::new(client());
        config.sync.evictor = evictor;
        NodeState::new(&config, &Client::new(client()), "")
    }

    /// What becomes of reservations, one after the other, in a bucket of 1000 bytes with 900.
    fn granted(evictor: Evictor, bytes: &[u64]) -> Vec<bool> {
        let node = node(evictor);
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        let _ = index.insert(Chunk::new(Digest([1; 32]), 900, 900));
        let reserve = |bytes: &u64| node.reserve(&mut index, &ReserveRequest::new(*bytes), None);
        bytes.iter().map(reserve).map(|answer| matches!(answer, Reserve::Granted(_))).collect()
    }

    #[test]
    fn an_exchange_is_requested_where_others_are_or_may_be() {
        let node = node(Evictor::Lease);
        let is_requested = || {
            node.request_exchange();
            std::pin::pin!(node.round_requested.notified()).enable()
        };
        assert!(is_requested(), "there was none yet");
        let alone = Exchange { nodes: 1, free: 100, ..Exchange::default() };
        node.budget.exchanged(alone);
        assert!(!is_requested(), "it is alone");
        node.budget.exchanged(Exchange { nodes: 2, ..alone });
        assert!(is_requested(), "another waits for what it did");
    }

    #[test]
    fn where_another_node_evicts_the_cap_is_passed_by_a_twentieth_or_one_chunk() {
        assert_eq!(granted(Evictor::Never, &[60, 90, 91, 1]), [true, true, false, false]);
        assert_eq!(granted(Evictor::Never, &[500, 1]), [true, false], "one chunk");
        assert_eq!(granted(Evictor::Lease, &[60, 41, 40, 1]), [true, false, true, false]);
    }

    fn client() -> Client {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        Client::new(Config::new(endpoint, Credentials::new("a", "b")))
    }

    fn is_notified(notify: &Notify) -> bool {
        std::pin::pin!(notify.notified()).enable()
    }

    #[test]
    fn a_node_whose_lease_ran_out_is_no_other_node() {
        let node = NodeState { capped: true, ..node(Evictor::Lease) };
        let who = || node.reasons(0).remove(0);
        assert_eq!(who(), "no node evicts yet");
        node.notes().holder = Some("another".to_owned());
        assert_eq!(who(), "another node evicts: another");
        node.notes().holder = Some(node.name.clone());
        assert!(who().starts_with("this node has not renewed its lease"), "{}", who());
    }

    #[test]
    fn who_evicts_is_up_to_the_settings_and_the_lease() {
        assert!(node(Evictor::Single).may_evict(0) && !node(Evictor::Never).may_evict(0));
        let node = node(Evictor::Lease);
        assert!(!node.may_evict(0), "it has no lease");
        let top = TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false };
        node.lease().listed(0, None);
        node.lease().claimed(0, ClaimOutcome::Ours);
        node.lease().listed(0, Some(top));
        assert!(node.may_evict(0));
    }

    #[test]
    fn a_node_deletes_in_an_epoch_whose_order_of_use_it_has_read() {
        let node = node(Evictor::Lease);
        let caught_up = |epoch| {
            [FIRST, 2, 3].map(|other| {
                node.caught_up.store(epoch, Ordering::Relaxed);
                node.has_caught_up(other)
            })
        };
        assert_eq!(caught_up(FIRST), [true, false, false], "no node evicted before the first");
        assert_eq!(caught_up(2), [true, true, false]);
        assert_eq!(caught_up(ANY), [true, true, true]);
    }

    #[test]
    fn a_round_and_a_listing_are_requested_once() {
        let node = node(Evictor::Lease);
        node.request_round();
        assert!(is_notified(&node.round_requested) && !is_notified(&node.round_requested));
        node.listing_requested.notify_one();
        node.take_listing_request();
        assert!(!is_notified(&node.listing_requested), "the listing that ended answers it");
    }

    #[test]
    fn a_chunk_may_be_as_large_as_the_cap_and_the_quota() {
        let answer = |bytes, limit| {
            let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
            node(Evictor::Never).reserve(&mut index, &ReserveRequest::new(bytes), limit)
        };
        assert!(matches!(answer(1000, None), Reserve::Granted(_)));
        let too_large = answer(1001, None);
        assert!(matches!(too_large, Reserve::Full(Refusal::TooLarge { bytes_max: 1000, .. })));
        assert!(matches!(answer(100, Some(100)), Reserve::Granted(_)));
        let above = answer(101, Some(100));
        assert!(matches!(above, Reserve::Full(Refusal::Quota { bytes_max: 100 })));
    }

    #[test]
    fn what_happens_is_recorded_where_there_is_a_cap() {
        let mut node = node(Evictor::Lease);
        let [a, b] = [1, 2].map(|byte| Digest([byte; 32]));
        node.touched(&[a, b]);
        assert!(node.journal.waiting_records().is_empty());
        node.capped = true;
        node.touched(&[a, b]);
        node.inserted(Chunk::new(a, 1, 1));
        node.removed(b);
        let records = [
            Record::Touch(b),
            Record::Touch(a),
            Record::Insert(Chunk::new(a, 1, 1)),
            Record::Remove(b),
        ];
        assert_eq!(node.journal.waiting_records(), records);
    }

    #[test]
    fn the_holder_is_another_node() {
        let node = node(Evictor::Lease);
        let holder_of = |name: &str| {
            node.notes().holder = Some(name.to_owned());
            node.holder()
        };
        assert_eq!(holder_of("other").as_deref(), Some("other"));
        assert_eq!(holder_of(&node.name), None);
    }

    #[test]
    fn without_an_answer_of_the_store_its_clock_is_the_local_one() {
        let client = client();
        let apart_ms = node(Evictor::Lease).server_ms(&client).abs_diff(client.local_ms());
        assert!(apart_ms < 3_600_000, "{apart_ms} ms");
    }
}
