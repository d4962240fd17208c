use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use kvtier_index::TenantKey;
use kvtier_key::{KeyId, Namespace};

use super::*;
use crate::test_shared::{EventLog, shared};

/// A tier with this layout, and a key.
struct Fixture {
    shared: Shared,
    log: Arc<EventLog>,
    key: Key,
}

impl Fixture {
    fn new(layout: Layout) -> Self {
        let (shared, log) =
            (shared(|config| config.layout = layout), Arc::new(EventLog::default()));
        shared.listeners.add(log.clone());
        let id = KeyId::from_engine_text("m@1@0@ab@half").unwrap();
        let key = Key::new(Namespace::new("", Digest::default()).into(), id);
        Fixture { shared, log, key }
    }

    fn seen(&self, len: u64, bytes: u64, verified: bool) -> FoundObject<'_> {
        FoundObject { key: &self.key, name: "n", len, bytes, etag: Some("one"), verified }
    }

    fn is_found(&self, len: u64, bytes: u64, verified: bool) -> bool {
        let version = self.shared.key_locks.read(self.key.digest());
        self.shared.record_found(self.seen(len, bytes, verified), &version)
    }

    fn mark_unusable(&self) {
        let version = self.shared.key_locks.read(self.key.digest());
        self.shared.mark_unusable(self.seen(10, 20, false), &version);
    }

    /// The lengths in the index.
    fn lengths(&self) -> Option<(u64, u64)> {
        let known = self.shared.catalog().index.known(self.key.digest());
        known.map(|entry| (entry.chunk.len, entry.chunk.bytes))
    }

    fn added(&self) -> u64 {
        self.shared.counters.added_externally.load(Ordering::Relaxed)
    }

    /// The events since the last call.
    fn events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.log.0.lock().unwrap())
    }

    fn stored(&self, len: u64) -> Event {
        Event::Stored { key: *self.key.digest(), len }
    }

    fn gone(&self, len: u64) -> Event {
        Event::Gone { key: *self.key.digest(), len }
    }
}

#[test]
fn an_object_that_was_found_is_new_where_its_lengths_are() {
    let tier = Fixture::new(Layout::Kvtier);
    assert!(tier.is_found(10, 20, false));
    assert_eq!((tier.lengths(), tier.added()), (Some((10, 20)), 1));
    assert_eq!(tier.events(), [tier.stored(10)]);
    assert!(tier.is_found(10, 20, false) && tier.is_found(UNKNOWN_LEN, 20, false));
    assert_eq!((tier.lengths(), tier.added()), (Some((10, 20)), 1));
    assert!(tier.events().is_empty());
    assert!(tier.is_found(10, 30, false));
    assert_eq!((tier.lengths(), tier.added()), (Some((10, 30)), 2));
    assert!(tier.is_found(12, 30, false));
    assert_eq!((tier.lengths(), tier.added()), (Some((12, 30)), 3));
}

#[test]
fn a_response_shows_the_raw_length_that_a_listing_did_not() {
    let tier = Fixture::new(Layout::Kvtier);
    let listed = Chunk::new(*tier.key.digest(), UNKNOWN_LEN, 20);
    let _ = tier.shared.catalog().insert_unseen(listed);
    assert!(tier.is_found(10, 20, false));
    assert_eq!((tier.lengths(), tier.added()), (Some((10, 20)), 0));
}

#[test]
fn an_answer_from_before_a_write_changes_nothing() {
    let tier = Fixture::new(Layout::Kvtier);
    let digest = tier.key.digest();
    let version = tier.shared.key_locks.read(digest);
    drop(tier.shared.key_locks.try_write(digest).unwrap());
    assert!(tier.shared.record_found(tier.seen(10, 20, false), &version), "its bytes are good");
    tier.shared.mark_unusable(tier.seen(10, 20, false), &version);
    assert_eq!(tier.lengths(), None);
    assert!(tier.is_found(10, 20, false));
    tier.shared.record_missing(digest, &version);
    assert_eq!(tier.lengths(), Some((10, 20)));
}

/// A process that was stopped between a request and its answer: another node may have removed the chunk.
#[tokio::test(start_paused = true)]
async fn a_chunk_is_fresh_from_the_request_on_that_showed_it() {
    let tier = Fixture::new(Layout::Kvtier);
    // The first milliseconds of a tier stand for "never seen".
    tokio::time::advance(Duration::from_secs(1)).await;
    let is_fresh = || tier.shared.known(tier.key.digest()).is_some();
    let version = tier.shared.key_locks.read(tier.key.digest());
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(tier.shared.record_found(tier.seen(10, 20, false), &version) && is_fresh());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!is_fresh());
}

#[test]
fn an_unusable_object_is_gone_until_its_bytes_are_good() {
    let tier = Fixture::new(Layout::Kvtier);
    assert!(tier.is_found(10, 20, false));
    tier.mark_unusable();
    assert_eq!(tier.events(), [tier.stored(10), tier.gone(10)]);
    tier.mark_unusable();
    assert!(!tier.is_found(10, 20, false));
    assert!(tier.events().is_empty(), "it is reported once");
    tier.shared.report_stored(&tier.shared.catalog(), &Chunk::new(*tier.key.digest(), 10, 20));
    tier.shared.listeners.notify();
    assert!(tier.events().is_empty());
    assert!(tier.is_found(10, 20, true));
    assert_eq!(tier.events(), [tier.stored(10)]);
}

#[test]
fn a_missing_object_loses_its_entry() {
    let tier = Fixture::new(Layout::Kvtier);
    assert!(tier.is_found(10, 20, false));
    let version = tier.shared.key_locks.read(tier.key.digest());
    tier.shared.record_missing(tier.key.digest(), &version);
    assert_eq!(tier.lengths(), None);
    assert_eq!(tier.events(), [tier.stored(10), tier.gone(10)]);
    assert!(tier.shared.catalog().absent_for(tier.key.digest()).is_some());
}

#[test]
fn names_and_facts_are_noted_where_the_digest_does_not_determine_them() {
    for (layout, is_own) in [(Layout::Kvtier, true), (Layout::LmcacheMp, false)] {
        let tier = Fixture::new(layout);
        tier.mark_unusable();
        tier.shared.note_facts(&tier.key, "one", 7);
        let catalog = tier.shared.catalog();
        assert_eq!(catalog.name(tier.key.digest()).is_none(), is_own);
        let crc = catalog.crc_of(tier.key.digest(), "one");
        assert_eq!(crc, Some(7).filter(|_| !is_own));
    }
}

#[test]
fn a_listing_shows_no_raw_length_where_the_object_may_be_encoded() {
    let encoded = (1..).find(|bytes| may_be_encoded(*bytes)).unwrap();
    let plain = (1000..).find(|bytes| !may_be_encoded(*bytes)).unwrap();
    let listed = |layout| {
        let tier = shared(|config| config.layout = layout);
        [encoded, plain].map(|bytes| tier.listed_len(bytes))
    };
    assert_eq!(listed(Layout::Kvtier), [UNKNOWN_LEN, plain]);
    assert_eq!(listed(Layout::LmcacheMp), [encoded, plain]);
}

#[tokio::test(start_paused = true)]
async fn only_a_tenant_waits_for_the_tenant_key() {
    let shared = shared(|_| {});
    let until = Instant::now() + Duration::from_secs(5);
    shared.wait_for_tenant_key("", until).await;
    assert_eq!(shared.now_ms(), 0);
    shared.wait_for_tenant_key("alice", until).await;
    assert!((5000..5100).contains(&shared.now_ms()), "{}", shared.now_ms());
}

#[test]
fn a_failed_request_is_an_error_of_the_same_kind_and_a_fault() {
    let shared = shared(|_| {});
    assert_eq!(shared.last_fault(), None);
    let kind = |kind| {
        let error = kvtier_s3::Error::new(kind, "no answer");
        shared.error("load", None, error).kind()
    };
    assert_eq!(kind(kvtier_s3::ErrorKind::Invalid), ErrorKind::Invalid);
    assert_eq!(kind(kvtier_s3::ErrorKind::Unsupported), ErrorKind::Unsupported);
    assert_eq!(kind(kvtier_s3::ErrorKind::Corrupt), ErrorKind::Corrupt);
    assert_eq!(kind(kvtier_s3::ErrorKind::Timeout), ErrorKind::Timeout);
    assert_eq!(kind(kvtier_s3::ErrorKind::Denied), ErrorKind::Denied);
    assert_eq!(kind(kvtier_s3::ErrorKind::Throttled), ErrorKind::Throttled);
    assert_eq!(kind(kvtier_s3::ErrorKind::NotFound), ErrorKind::Io);
    let fault = shared.last_fault().unwrap();
    assert!(fault.contains("load") && fault.contains("no answer"), "{fault}");
    shared.fault("another".to_owned());
    assert_eq!(shared.last_fault().as_deref(), Some("another"));
}

/// Deleted with the next save or listing only: a tenant stayed above its quota until then.
#[test]
fn a_chunk_that_moves_to_its_tenant_wakes_the_eviction() {
    let mut tier = Fixture::new(Layout::Kvtier);
    tier.shared.catalog().set_tenant_key(TenantKey::new([1; 32]));
    tier.key = Key::new(Namespace::new("alice", Digest::default()).into(), tier.key.id().clone());
    let is_woken = || {
        let mut context = Context::from_waker(Waker::noop());
        pin!(tier.shared.eviction_queue.notified()).poll(&mut context).is_ready()
    };
    let _ = tier.shared.catalog().insert_unseen(Chunk::new(*tier.key.digest(), 10, 20));
    assert!(!is_woken());
    assert!(tier.is_found(10, 20, false) && is_woken());
    assert!(tier.is_found(10, 20, false) && !is_woken(), "it has its tenant");
}
