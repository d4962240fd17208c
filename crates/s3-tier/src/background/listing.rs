//! Lists the bucket: the authority on what is in it. In the background, the first time as fast as
//! it goes, then now and then.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::Event;
use kvtier_index::{SlotCursor, TenantId};
use kvtier_s3::{Entry, List, Page};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::background::reconcile::{CHUNKS_PER_LOCK, ListedChunk, Reconciliation, make_recent};
use crate::state::counters::add;
use crate::state::shared::Shared;

/// How many prefixes are listed at a time.
const WIDTH: usize = 16;
/// How long to wait after a listing that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// A listing whose pages come again is given up after so many tries at the same page.
const ENDLESS_TRIES: u32 = 3;
/// How long a listing waits for the key of tenants.
const KEY_WAIT_MAX: Duration = Duration::from_secs(5);
/// Some stores list only later what was written a moment ago.
const LAG_MS: u64 = 5000;

/// One listing of the whole bucket. What was listed before of it was read from a snapshot taken at
/// `known_ms` (Unix time).
pub async fn run(shared: &Arc<Shared>, first: bool, known_ms: Option<u64>) -> bool {
    // Where names of objects spell salts that are tenants, their identities are to be known before
    // they are counted.
    let tenant = if shared.names.has_tenants() { "of a name" } else { "" };
    shared.wait_for_tenant_key(tenant, Instant::now() + KEY_WAIT_MAX).await;
    shared.catalog().changed_keys.begin();
    let listing = BucketListing {
        shared: Arc::clone(shared),
        round: Arc::default(),
        first,
        began: Instant::now(),
        began_ms: shared.now_ms(),
        pace: Arc::new(tokio::sync::Mutex::new(Instant::now())),
    };
    let listed = listing.all().await;
    if listed {
        listing.finish(known_ms);
    }
    let mut catalog = shared.catalog();
    catalog.changed_keys.end();
    if listed {
        catalog.listed = true;
        shared.cluster.listed_ms.store(listing.began_ms.cast_signed(), Ordering::Relaxed);
        add(&shared.counters.sweeps, 1);
    }
    listed
}

/// Learns from one page how names are formed; counts nothing.
pub async fn sample(shared: &Shared) {
    if let Ok(page) = shared.client.list(&List::under(shared.names.root()), None).await {
        page.entries.iter().for_each(|entry| {
            shared.names.parse_digest(&entry.key);
        });
    }
    shared.catalog().listed = true;
}

#[derive(Clone)]
struct BucketListing {
    shared: Arc<Shared>,
    round: Arc<Mutex<Reconciliation>>,
    first: bool,
    began: Instant,
    began_ms: u64,
    /// TimeRange the next request may go.
    pace: Arc<tokio::sync::Mutex<Instant>>,
}

impl BucketListing {
    fn round(&self) -> std::sync::MutexGuard<'_, Reconciliation> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists everything; `false` when the tier was closed before the end, or there is none.
    async fn all(&self) -> bool {
        let root = List::under(self.shared.names.root());
        let Some(page) = self.page(&root, None).await else { return false };
        // A bucket that is small, or whose names do not begin with a hash, is listed page after
        // page.
        if page.next.is_none() || !self.shared.names.is_own() {
            return self.rest(&root, page.next).await;
        }
        let mut lists = JoinSet::new();
        for digits in 0..=255u8 {
            if lists.len() == WIDTH
                && !lists.join_next().await.is_some_and(|done| done.unwrap_or(false))
            {
                return false;
            }
            let listing = self.clone();
            let under = List::under(format!("{}{digits:02x}/", self.shared.names.root()));
            lists.spawn(async move { listing.rest_of(&under).await });
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

    /// One page into the index, asked for until the store gives it; `None` when the tier was
    /// closed, or the listing does not end.
    async fn page(&self, under: &List, next: Option<&str>) -> Option<Page> {
        let mut endless = 0;
        while !self.shared.gate.is_closed() && endless < ENDLESS_TRIES {
            self.wait_for_turn().await;
            let sent_ms = self.shared.now_ms();
            match self.shared.client.list(under, next).await {
                Ok(page) => {
                    self.apply(&page.entries, sent_ms);
                    return Some(page);
                }
                Err(e) => {
                    endless += u32::from(e.is_endless());
                    drop(self.shared.error("list", None, e));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        None
    }

    async fn wait_for_turn(&self) {
        if self.first {
            return;
        }
        let step = Duration::from_secs(1) / self.shared.cluster.config.listings_per_second_max;
        let mut next = self.pace.lock().await;
        tokio::time::sleep_until(*next).await;
        *next = Instant::now() + step;
    }

    fn apply(&self, entries: &[Entry], sent_ms: u64) {
        let shared = &self.shared;
        let found: Vec<(ListedChunk, &str)> = entries
            .iter()
            .filter_map(|entry| Some((listed(shared, entry)?, entry.key.as_str())))
            .collect();
        add(&shared.counters.listed, found.len() as u64);
        let mut discovered = 0;
        for some in found.chunks(CHUNKS_PER_LOCK) {
            let page: Vec<ListedChunk> = some.iter().map(|(listed, _)| *listed).collect();
            let mut guard = shared.catalog();
            let catalog = &mut *guard;
            let applied = self.round().apply_page(&mut catalog.index, &catalog.changed_keys, &page);
            for ((listed, name), applied) in some.iter().zip(applied) {
                let Some((slot, new)) = applied else { continue };
                catalog.seen.note(slot, sent_ms);
                if !shared.names.is_own() {
                    catalog.note_name(&listed.digest, name);
                }
                if new {
                    shared.listeners.push(Event::Stored { key: listed.digest, len: listed.len });
                    discovered += 1;
                }
            }
        }
        add(&shared.counters.added_externally, discovered);
        shared.listeners.notify();
    }

    /// After the last page: what is not there any more goes, and what nobody here has used stands
    /// by its age.
    fn finish(&self, known_ms: Option<u64>) {
        let (shared, mut from) = (&self.shared, Some(SlotCursor::default()));
        while let Some(at) = from {
            let mut guard = shared.catalog();
            let catalog = &mut *guard;
            let is_young = |slot: u32| catalog.seen.ms(slot) + LAG_MS > self.began_ms;
            let (gone, next) = self.round().drop_unlisted(
                &mut catalog.index,
                &catalog.changed_keys,
                (at, is_young),
            );
            let mut vanished = 0;
            // Suspects were gone for everybody already.
            for entry in gone.iter().filter(|entry| !catalog.index.is_suspect(&entry.chunk.digest))
            {
                shared
                    .listeners
                    .push(Event::Gone { key: entry.chunk.digest, len: entry.chunk.len });
                vanished += 1;
            }
            // It may have been saved again when its page had gone by.
            gone.iter().for_each(|entry| catalog.note_absent_at(entry.chunk.digest, self.began));
            drop(guard);
            add(&shared.counters.deleted_externally, vanished);
            shared.listeners.notify();
            from = next;
        }
        let order = {
            let (mut guard, mut round) = (shared.catalog(), self.round());
            let catalog = &mut *guard;
            // Later ones discover what others wrote since: that is recent.
            if self.first {
                round.order(&mut catalog.index, &catalog.changed_keys, known_ms)
            } else {
                round.discovered()
            }
        };
        for slots in order.chunks(CHUNKS_PER_LOCK) {
            make_recent(&mut shared.catalog().index, slots);
        }
        shared.freed.notify_waiters();
    }
}

/// The chunk that an object is. Whose it is, names of LMCache's layouts tell.
fn listed(shared: &Shared, entry: &Entry) -> Option<ListedChunk> {
    let (digest, tenant) = match shared.names.is_own() {
        true => (shared.names.parse_digest(&entry.key)?, TenantId::NONE),
        false => {
            let key = shared.names.parse_key(&entry.key)?;
            (*key.digest(), shared.catalog().tenant(key.namespace().tenant()))
        }
    };
    Some(ListedChunk { digest, len: entry.bytes, modified: entry.modified, tenant })
}
