//! Lists the bucket. The listing is the authority on what the bucket stores: the index is corrected
//! from it (`reconcile`). The first listing runs at full speed, later ones at a limited rate.
//!
//! A listing takes minutes while saves and deletes go on, so a page may be older than the index.
//! Three rules keep it from undoing newer changes:
//!
//! - From the start of a listing `ChangedKeys` records each key that changes. Pages do not touch
//!   those keys. A listing starts with the request of its first page, so an attempt that failed protects
//!   no key from the one that succeeds.
//! - Chunks that no page listed are dropped only after the last page of a listing that reached its
//!   end.
//! - Stores may list an object some seconds after it was written. A chunk seen less than `LAG_MS`
//!   before the listing began stays. One that was found absent so shortly before its page is not entered.
//!
//! The catalog is locked for some thousand chunks at a time, so that loads and saves go on
//! meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::Event;
use kvtier_index::{Chunk, SlotCursor, TenantId};
use kvtier_key::Digest;
use kvtier_s3::{Entry, List, Page};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::background::reconcile::{CHUNKS_PER_LOCK, ListedChunk, Reconciliation, make_recent};
use crate::state::catalog::best_len;
use crate::state::counters::add;
use crate::state::listing_lag::LAG;
use crate::state::machine::of_process;
use crate::state::shared::Shared;

/// Prefixes listed at a time.
const WIDTH: usize = 16;
/// Chunks below which a later listing goes page after page: 256 prefixes would be more requests, and it
/// need not be fast.
const PREFIXES_FROM: usize = 256_000;
/// Pause after a request that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Attempts at one page of a listing that repeats itself before the listing ends.
const ENDLESS_TRIES: u32 = 3;
/// The longest wait for the tenant key.
const KEY_WAIT_MAX: Duration = Duration::from_secs(5);
const LAG_MS: u64 = LAG.as_millis() as u64;

/// Lists the whole bucket once. `known_ms` (Unix time) is when the snapshot was taken that filled
/// the index before. Returns whether the listing reached its end.
pub async fn run(shared: &Arc<Shared>, first: bool, known_ms: Option<u64>) -> bool {
    // Names may contain salts that are tenants. Their identities must be known before they are
    // counted.
    let tenant = if shared.names.has_tenants() { "of a name" } else { "" };
    shared.wait_for_tenant_key(tenant, Instant::now() + KEY_WAIT_MAX).await;
    let mut listing = BucketListing {
        shared: Arc::clone(shared),
        round: Arc::default(),
        first,
        began: Instant::now(),
        began_ms: shared.now_ms(),
        pace: Arc::new(tokio::sync::Mutex::new(Instant::now())),
    };
    // A listing that did not reach its end corrects what it saw and drops nothing.
    let listed = listing.all().await;
    if listed {
        listing.finish(known_ms);
    }
    let mut catalog = shared.catalog();
    // After the drops: keys that change during them must be protected too.
    catalog.changed_keys.end();
    if listed {
        catalog.is_listed = true;
        shared.node.listed_ms.store(listing.began_ms.cast_signed(), Ordering::Relaxed);
        add(&shared.counters.sweeps, 1);
    }
    listed
}

/// Lists one page to detect which forms of names the bucket has; counts nothing.
pub async fn sample(shared: &Shared) {
    if let Ok(page) = shared.client.list(&List::under(shared.names.root()), None).await {
        page.entries.iter().for_each(|entry| {
            shared.names.parse_digest(&entry.key);
        });
    }
    shared.catalog().is_listed = true;
}

/// Attempts at one page.
#[derive(Default)]
struct PageTries {
    /// Those that showed a listing that repeats itself.
    endless: u32,
}

#[derive(Clone)]
struct BucketListing {
    shared: Arc<Shared>,
    round: Arc<Mutex<Reconciliation>>,
    first: bool,
    began: Instant,
    began_ms: u64,
    /// The earliest time of the next request.
    pace: Arc<tokio::sync::Mutex<Instant>>,
}

impl BucketListing {
    fn round(&self) -> std::sync::MutexGuard<'_, Reconciliation> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists everything; `false` when the tier was closed, or the listing does not end.
    async fn all(&mut self) -> bool {
        let root = List::under(self.shared.names.root());
        let Some(page) = self.first_page(&root).await else { return false };
        // A small bucket is listed page after page, and so is one whose names do not begin with a
        // hash.
        let is_small = !self.first && self.shared.catalog().index.usage().entries < PREFIXES_FROM;
        if page.next.is_none() || !self.shared.names.is_own() || is_small {
            return self.rest(&root, page.next).await;
        }
        let mut lists = JoinSet::new();
        // One prefix for each first byte of a digest. Digests are uniform, so the parts have about
        // the same length.
        for digits in 0..=255u8 {
            // One prefix that fails ends the listing: chunks of a missing part would count as deleted.
            if lists.len() == WIDTH
                && !lists.join_next().await.is_some_and(|done| done.unwrap_or(false))
            {
                return false;
            }
            let listing = self.clone();
            let under = List::under(format!("{}{digits:02x}/", self.shared.names.root()));
            let part = async move { listing.rest_of(&under).await };
            lists.spawn(of_process(&self.shared.client, part));
        }
        lists.join_all().await.into_iter().all(|listed| listed)
    }

    async fn rest_of(&self, under: &List) -> bool {
        match self.page(under, None).await {
            Some(page) => self.rest(under, page.next).await,
            None => false,
        }
    }

    async fn rest(&self, under: &List, mut next: Option<String>) -> bool {
        while next.is_some() {
            match self.page(under, next.as_deref()).await {
                Some(page) => next = page.next,
                None => return false,
            }
        }
        true
    }

    /// The page with which the listing begins, as [`page`](BucketListing::page).
    async fn first_page(&mut self, root: &List) -> Option<Page> {
        let mut tries = PageTries::default();
        while self.tries_again(&tries) {
            self.wait_for_turn().await;
            // Before the request, so that no change is missed between it and the page.
            self.shared.catalog().changed_keys.begin();
            self.began = Instant::now();
            self.began_ms = self.shared.now_ms();
            match self.try_page(root, None, &mut tries).await {
                None => tokio::time::sleep(PAUSE).await,
                page => return page,
            }
        }
        None
    }

    /// Applies one page to the index. Repeats the request until the store answers; `None` when the
    /// tier was closed, or the listing does not end.
    async fn page(&self, under: &List, next: Option<&str>) -> Option<Page> {
        let mut tries = PageTries::default();
        while self.tries_again(&tries) {
            self.wait_for_turn().await;
            match self.try_page(under, next, &mut tries).await {
                None => tokio::time::sleep(PAUSE).await,
                page => return page,
            }
        }
        None
    }

    fn tries_again(&self, tries: &PageTries) -> bool {
        !self.shared.gate.is_closed() && tries.endless < ENDLESS_TRIES
    }

    /// Requests a page, and applies it to the index.
    async fn try_page(
        &self,
        under: &List,
        next: Option<&str>,
        tries: &mut PageTries,
    ) -> Option<Page> {
        // The time of the request and not of the response: the page shows the bucket at some
        // moment after this.
        let (sent, sent_ms) = (Instant::now(), self.shared.now_ms());
        match self.shared.client.list(under, next).await {
            Ok(page) => {
                self.apply(&page.entries, sent, sent_ms);
                Some(page)
            }
            Err(e) => {
                tries.endless += u32::from(e.is_endless());
                drop(self.shared.error("list", None, e));
                None
            }
        }
    }

    async fn wait_for_turn(&self) {
        if self.first {
            return;
        }
        let step = Duration::from_secs(1) / self.shared.node.config.listings_per_second_max;
        // The lock is held while waiting. So the requests of all prefixes together keep the rate,
        // in order.
        let mut next = self.pace.lock().await;
        tokio::time::sleep_until(*next).await;
        *next = Instant::now() + step;
    }

    fn apply(&self, entries: &[Entry], sent: Instant, sent_ms: u64) {
        let shared = &self.shared;
        // Parsed before the catalog is locked below: `listed` locks it for tenants.
        let found: Vec<(ListedChunk, &str)> = entries
            .iter()
            .filter_map(|entry| Some((listed(shared, entry)?, entry.key.as_str())))
            .collect();
        add(&shared.counters.listed, found.len() as u64);
        let mut discovered = 0;
        for some in found.chunks(CHUNKS_PER_LOCK) {
            let mut guard = shared.catalog();
            let catalog = &mut *guard;
            // A chunk that this process is saving now is entered, and reported once, by its save.
            let is_ours = |digest: &Digest| {
                !catalog.index.is_known(digest) && shared.key_locks.is_written(digest)
            };
            // Deletes appear late in the listings of some stores, too.
            let late = sent.elapsed() + LAG;
            let is_new =
                |digest: &Digest| !is_ours(digest) && !catalog.was_absent_within(digest, late);
            let some: Vec<_> = some.iter().filter(|(listed, _)| is_new(&listed.digest)).collect();
            let page: Vec<ListedChunk> = some.iter().map(|(listed, _)| *listed).collect();
            let applied = self.round().apply_page(&mut catalog.index, &catalog.changed_keys, &page);
            for ((listed, name), applied) in some.iter().zip(applied) {
                // Also of those that the page does not change.
                if !shared.names.is_own() && catalog.name(&listed.digest).is_none() {
                    catalog.note_name(&listed.digest, name);
                }
                let Some((slot, new)) = applied else { continue };
                // A listed chunk was there when the page was requested: fresh from that time on.
                catalog.seen.note(slot, sent_ms);
                if !shared.names.is_own() {
                    catalog.note_name(&listed.digest, name);
                }
                if new {
                    let ListedChunk { digest, len, bytes, .. } = *listed;
                    shared.report_stored(catalog, &Chunk::new(digest, len, bytes));
                    discovered += 1;
                }
            }
        }
        add(&shared.counters.added_externally, discovered);
        shared.listeners.notify();
    }

    /// After the last page: drops chunks that were not listed, and sorts unused ones by age.
    fn finish(&self, known_ms: Option<u64>) {
        let shared = &self.shared;
        // Only a listing that reached its end gets here. A part of one would drop everything it did
        // not reach.
        let mut from = Some(SlotCursor::default());
        while let Some(at) = from {
            let mut guard = shared.catalog();
            let catalog = &mut *guard;
            // Not one that a request showed which began long before the chunk was saved: it counts again when a
            // lookup, a journal or the next listing shows it.
            let is_young = |slot: u32| catalog.seen.ms(slot) + LAG_MS > self.began_ms;
            let (gone, next) =
                self.round().drop_unlisted(&mut catalog.index, &catalog.changed_keys, at, is_young);
            let mut vanished = 0;
            // Suspects were reported as gone before.
            for entry in gone.iter().filter(|entry| !catalog.index.is_suspect(&entry.chunk.digest))
            {
                shared
                    .listeners
                    .push(Event::Gone { key: entry.chunk.digest, len: best_len(&entry.chunk) });
                vanished += 1;
            }
            // It may have been saved again after its page.
            gone.iter().for_each(|entry| catalog.note_absent_at(entry.chunk.digest, self.began));
            drop(guard);
            add(&shared.counters.deleted_externally, vanished);
            shared.listeners.notify();
            from = next;
        }
        let order = {
            let mut guard = shared.catalog();
            let mut round = self.round();
            let catalog = &mut *guard;
            // Later listings discover what others wrote since, which is recent.
            if self.first {
                round.order(&mut catalog.index, &catalog.changed_keys, known_ms)
            } else {
                round.discovered()
            }
        };
        // In parts, as everywhere: loads and saves need the catalog meanwhile.
        for slots in order.chunks(CHUNKS_PER_LOCK) {
            make_recent(&mut shared.catalog().index, slots);
        }
        shared.freed.notify_waiters();
    }
}

/// The chunk in an object. In LMCache's layouts the name contains the tenant.
fn listed(shared: &Shared, entry: &Entry) -> Option<ListedChunk> {
    let (digest, tenant) = match shared.names.is_own() {
        true => (shared.names.parse_digest(&entry.key)?, TenantId::NONE),
        false => {
            let key = shared.names.parse_key(&entry.key)?;
            (*key.digest(), shared.catalog().tenant(key.namespace().tenant()))
        }
    };
    let len = shared.listed_len(entry.bytes);
    Some(ListedChunk { digest, len, bytes: entry.bytes, modified: entry.modified, tenant })
}
