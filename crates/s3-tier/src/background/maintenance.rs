//! Periodic work: writes the journal, merges those of other nodes, writes snapshots, and lists the
//! bucket.
//!
//! Work runs in rounds, by default one in 30 s. A round writes this node's journal, then reads the
//! journals of others, then resolves unclear chunks, then renews this node's budget.
//! The order matters:
//!
//! - A node announces itself before it lists journals for the first time. Of two nodes that start
//!   together, at least one finds the other.
//! - The evictor deletes nothing before it has read the last snapshot and all journals
//!   (`catch_up`): its predecessor merged the uses of other nodes into the snapshot and deleted
//!   their journals. Without them recently used chunks would be evicted.
//! - A snapshot overwrites another one only if this node has read that one, and only while it holds
//!   the lease.
//! - Journals are deleted only after a snapshot that contains them was written, and after a time in
//!   which all nodes have read them.
//! - A node that looked at no journals for as long as they stay (its process was stopped, or the store
//!   did not answer) reads the snapshot again: it has what was deleted meanwhile.
//! - A node that follows another evictor than before reads the predecessor's journal for some more
//!   rounds, because the new evictor does not repeat it.
//!
//! Each failure is reported in the status and tried again. A snapshot that cannot be read is given
//! up after some attempts, since the listing restores all but the order of use.
//!
//! A round is due early when a save waits for space (`round_requested`), limited to one in a tenth
//! of the interval.

mod peers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_s3::Put;
use tokio::time::Instant;

use self::peers::Look;
use crate::background::fleet_totals::{DIRECT_NODES_MAX, FleetTotals};
use crate::background::peer_journals::merge;
use crate::background::peer_journals::merge::JournalMerger;
use crate::background::{
    agree_on_tenant_key, election, fleet_totals, listing, own_objects, snapshot, unfinished_uploads,
};
use crate::state::counters::add;
use crate::state::listing_lag::ListingLag;
use crate::state::machine::of_process;
use crate::state::node::{ANY, FIRST};
use crate::state::node_budget::Exchange;
use crate::state::shared::Shared;

/// Interval between searches for unfinished uploads.
const UPLOADS_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Records after which a snapshot is due at once, at least.
const SNAPSHOT_RECORDS: u64 = 1 << 16;
/// In a large bucket as many records as this part of its chunks: a snapshot has all chunks, and would
/// be written without end.
const SNAPSHOT_RECORDS_PART: u64 = 4;
/// First pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, after many failures.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Interval between checks for a bucket that does not exist.
const MISSING_PAUSE: Duration = Duration::from_secs(2);
/// Intervals for which journal objects stay, so that all nodes read them.
const JOURNALS_STAY: u32 = 3;
/// The most old objects of its own journal that a node deletes in a round.
const DELETES_MAX: usize = 4;
/// Attempts to read the snapshot before the first listing starts without it.
const STARTS_MAX: u32 = 5;
/// Attempts to read the snapshot before it is given up.
const TRIES_MAX: u32 = 20;
/// The first round follows after this part of an interval; the time doubles with each next round.
const EARLY_PART: u32 = 30;
/// What a round showed of other nodes holds for twice the time to the next one, and this part of an interval:
/// longer only if the process was stopped, or the store is slow.
const LATE_PART: u32 = 10;
/// The shortest pause between rounds while saves wait for space, as a part of the interval.
const HURRY_PART: u32 = 10;
/// The shortest pause before a listing that is requested, ...
const EARLY_LISTING_MIN: Duration = Duration::from_secs(10);
/// ... also as a multiple of the time that the last one took.
const EARLY_LISTING_PART: u32 = 4;
/// The shortest pause while no other node is known: such a round is little more than one listing.
const ALONE_PAUSE: Duration = Duration::from_millis(100);

/// Restores the index, then keeps it up to date until the tier is closed.
pub async fn run(shared: Arc<Shared>) {
    if !shared.node.capped {
        // One page shows whether names of an older form exist.
        return listing::sample(&shared).await;
    }
    let every = shared.node.config.journal_every;
    let mut maintenance = Maintenance::new(Arc::clone(&shared));
    // Before the listing: it drops what it does not find, and places what it discovers by age
    // relative to the snapshot.
    maintenance.start().await;
    let listing = list(Arc::clone(&shared), maintenance.known_ms);
    let listing = tokio::spawn(of_process(&shared.client, listing));
    let mut last = Instant::now();
    maintenance.began = last;
    // Soon, so that nodes that start together learn of each other before they use up their budgets.
    let mut due = last + every / EARLY_PART;
    while !shared.gate.is_closed() {
        tokio::select! {
            // A round that is due comes first, however often it is requested.
            biased;
            () = tokio::time::sleep_until(due) => {}
            // A new evictor catches up at once.
            () = shared.node.took_over.notified() => {
                maintenance.catch_up().await;
                continue;
            }
            // A save waits for space that another node may have freed.
            () = shared.node.round_requested.notified() => {
                due = due.min(last + hurried_pause(&shared));
                continue;
            }
        }
        maintenance.round(maintenance.began.elapsed() < every).await;
        last = Instant::now();
        due = last + maintenance.pause();
        due = maintenance.renewal_due.take().map_or(due, |renewal| renewal.min(due));
    }
    // It may be inside a long pause. What it has applied so far stays right.
    listing.abort();
}

/// The shortest time between two rounds.
fn hurried_pause(shared: &Shared) -> Duration {
    let pause = shared.node.config.journal_every / HURRY_PART;
    let budget = &shared.node.budget;
    // A store that does not answer is not asked without a pause.
    let is_alone = !budget.has_others() && !budget.needs_exchange();
    if is_alone { pause.min(ALONE_PAUSE) } else { pause }
}

/// Lists the bucket repeatedly.
async fn list(shared: Arc<Shared>, known_ms: Option<u64>) {
    let mut first = true;
    let mut again = PAUSE;
    let every = shared.node.config.sweep_every;
    while !shared.gate.is_closed() {
        let mut listed = None;
        let began = Instant::now();
        if shared.names.can_parse() {
            let done = listing::run(&shared, first, known_ms).await;
            shared.node.take_listing_request();
            listed = Some(done);
            // The first listing that reaches its end is the first one; until then each attempt runs
            // at full speed.
            first &= !done;
            shared.eviction_queue.notify();
        }
        let pause = match listed {
            // Names of LMCache's layouts cannot be parsed before the first key sets the namespace.
            None => PAUSE,
            Some(true) => every,
            // It costs many requests, and did not reach its end.
            Some(false) => again,
        };
        again = match listed {
            Some(false) => (2 * again).min(every.max(PAUSE)),
            _ => PAUSE,
        };
        if shared.names.is_own() || listed != Some(true) {
            tokio::time::sleep(pause).await;
            continue;
        }
        // Chunks that came by journals have no names here before the next listing, and cannot be evicted.
        let soonest = EARLY_LISTING_MIN.max(EARLY_LISTING_PART * began.elapsed()).min(pause);
        tokio::time::sleep(soonest).await;
        let requested = shared.node.listing_requested.notified();
        let _ = tokio::time::timeout(pause - soonest, requested).await;
    }
}

/// Checks the bucket's settings until they are known, and aborts unfinished uploads every day.
pub async fn rescan(shared: Arc<Shared>) {
    let mut known = false;
    let mut pause = PAUSE;
    while !shared.gate.is_closed() {
        if !known {
            known = record(&shared, "settings", check_settings(&shared).await);
        }
        let done = record(&shared, "uploads", unfinished_uploads::abort(&shared).await);
        pause = match shared.client.is_bucket_missing() {
            true => MISSING_PAUSE,
            false if known && done => UPLOADS_EVERY,
            false => (2 * pause).min(PAUSE_MAX),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the bucket's settings, and keeps warnings of those that make it larger than the cap.
async fn check_settings(shared: &Shared) -> kvtier_s3::Result<()> {
    let caveats = shared.client.settings().await?.caveats(shared.names.root());
    shared.node.notes().caveats = caveats;
    Ok(())
}

/// The last round of an orderly shutdown. A snapshot that takes longer than `snapshot_max` is
/// abandoned: the last one and the journals contain as much, and the lease must be released.
pub async fn shutdown(shared: &Shared, snapshot_max: Duration) {
    // First, since it costs one PUT and is what other nodes miss most.
    record(shared, "journal", flush(shared).await.map(drop));
    if shared.node.may_evict(shared.now_ms()) && shared.node.read_snapshot.load(Ordering::Relaxed) {
        let written = tokio::time::timeout(snapshot_max, snapshot::write(shared)).await;
        record(shared, "snapshot", written.unwrap_or(Ok(None)).map(drop));
    }
    record(shared, "lease", election::give_up(shared).await);
}

/// Whether a listing is not allowed: such a node never sees others, and goes by its own count.
fn is_refused(e: &kvtier_s3::Error) -> bool {
    e.kind() == kvtier_s3::ErrorKind::Denied
}

/// Whether it succeeded; a failure is kept for the status.
fn record(shared: &Shared, what: &'static str, done: kvtier_s3::Result<()>) -> bool {
    done.map_err(|e| drop(shared.error(what, None, e))).is_ok()
}

/// Announces this node to others, with an empty journal. Returns the object's name.
async fn announce_node(shared: &Shared) -> kvtier_s3::Result<Option<String>> {
    let name = shared.node.own_names.journal(&shared.node.name, 0);
    own_objects::put(&shared.client, &name, Vec::new(), &Put::default()).await?;
    Ok(Some(name))
}

/// Writes the records since the last flush. Returns the object's name.
async fn flush(shared: &Shared) -> kvtier_s3::Result<Option<String>> {
    let node = &shared.node;
    // Numbered when it is taken: a name is never used for other records, even if the answer to its
    // PUT is lost.
    let taken = node.journal.take();
    let Some((number, records)) = taken else { return Ok(None) };
    let bytes = node.journal.encode(node.server_ms(&shared.client), &records);
    let name = node.own_names.journal(&node.name, number);
    if let Err(e) = own_objects::put(&shared.client, &name, bytes, &Put::default()).await {
        // They go out with the next number. Readers take records twice without harm.
        node.journal.restore(records);
        return Err(e);
    }
    add(&shared.counters.journaled, records.len() as u64);
    node.journal.wrote(number);
    Ok(Some(name))
}

/// Bounds the journal where no evictor merges and deletes its objects. What could not be deleted is tried
/// again in the next round, also of a node that has nothing to write.
async fn delete_old_objects(shared: &Shared) {
    let node = &shared.node;
    for _ in 0..DELETES_MAX {
        let Some(old) = node.journal.beyond_max() else { return };
        let deleted = shared.client.delete(&node.own_names.journal(&node.name, old)).await;
        if !record(shared, "journal", deleted) {
            return;
        }
        node.journal.deleted(old);
    }
}

struct Maintenance {
    shared: Arc<Shared>,
    merger: JournalMerger,
    /// When the last snapshot was taken, and how many records it contained.
    snapshot: (Instant, u64),
    /// Records of other nodes that were merged.
    merged: u64,
    /// When the snapshot was taken that was read or written last.
    known_ms: Option<u64>,
    /// This node's epoch for which the snapshot was read again.
    epoch: u64,
    /// Failed reads in a row.
    failed: u32,
    /// The evictor that this node follows, the one before, and how often the journal of that one is
    /// still read.
    follows: Option<String>,
    followed: Option<(String, u32)>,
    /// Nodes, this one included, as of the last listing of all journals.
    nodes: usize,
    lag: ListingLag,
    /// When its rounds began.
    began: Instant,
    /// The last look at the journals or totals of others that succeeded.
    last_look: Instant,
    /// Others can see this node.
    is_announced: bool,
    /// When the budget's renewal is due, where a lag of listings has put it off.
    renewal_due: Option<Instant>,
    /// The totals that renewed the budget last.
    totals: Option<FleetTotals>,
    /// The snapshot that was read is of an earlier build, and contains names of tenants.
    names_tenants: bool,
}

impl Maintenance {
    fn new(shared: Arc<Shared>) -> Self {
        let snapshot = (Instant::now(), 0);
        Maintenance {
            lag: ListingLag::new(JOURNALS_STAY * shared.node.config.journal_every),
            began: snapshot.0,
            last_look: snapshot.0,
            is_announced: false,
            renewal_due: None,
            merger: JournalMerger::default(),
            snapshot,
            merged: 0,
            known_ms: None,
            epoch: FIRST,
            failed: 0,
            follows: None,
            followed: None,
            nodes: 1,
            totals: None,
            names_tenants: false,
            shared,
        }
    }

    /// Reads the snapshot, once the store answers, and the journals. After some failures the
    /// listing starts without the snapshot.
    async fn start(&mut self) {
        let mut began = Instant::now();
        while !self.learn().await && self.failed < STARTS_MAX && !self.shared.gate.is_closed() {
            // It may take long, and the cap must hold meanwhile.
            // Evicting in a wrong order costs hits; not evicting would break the cap.
            self.shared.node.caught_up.store(ANY, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
            began = Instant::now();
        }
        self.last_look = began;
        // Before journals of others are listed: of two nodes that start together, at least one
        // finds the other.
        self.announce().await;
        let looked_at = Instant::now();
        let has_counted = self.count_nodes().await;
        let totals = self.read_totals(true).await;
        let names = &self.shared.node.own_names;
        let directory = totals
            .as_ref()
            .map_or_else(|| names.journals(), |totals| names.journals_of(&totals.node));
        let look = self.merge(&directory).await;
        // A node that saw none since the store did not answer is not alone.
        let has_looked = look.is_refused || look.succeeded && self.read_what_was_missed().await;
        if has_counted && has_looked {
            self.exchanged(looked_at, true, totals);
        }
    }

    async fn announce(&mut self) {
        let sent = Instant::now();
        let announced = announce_node(&self.shared).await;
        self.is_announced = self.stored(announced, sent);
        self.lag.announced();
    }

    /// The time until the next round. Other nodes may start at the same time: the first ones follow
    /// closely.
    fn pause(&self) -> Duration {
        let every = self.shared.node.config.journal_every;
        self.began.elapsed().clamp(every / EARLY_PART, every)
    }

    /// Writes the journal; whether that succeeded.
    async fn write_journal(&mut self) -> bool {
        let sent = Instant::now();
        let written = flush(&self.shared).await;
        self.stored(written, sent)
    }

    /// An object of the journal that was sent then is stored, or not; whether it is.
    fn stored(&mut self, written: kvtier_s3::Result<Option<String>>, sent: Instant) -> bool {
        let written = written.map(|name| {
            name.into_iter().for_each(|name| self.lag.stored(name, sent));
        });
        record(&self.shared, "journal", written)
    }

    /// The journals of others are read, or the totals of all: this node's budget is renewed, unless they
    /// cannot see it. The first was listed at `looked_at`.
    fn exchanged(&mut self, looked_at: Instant, is_early: bool, totals: Option<FleetTotals>) {
        if !self.is_announced {
            return;
        }
        let shared = &self.shared;
        self.renewal_due = self.lag.puts_off_renewal(&shared.node.budget);
        if self.renewal_due.is_some() {
            return;
        }
        let listings_lag = self.lag.is_seen();
        let late = shared.node.config.journal_every / LATE_PART;
        let holds_until = Some(looked_at + 2 * self.pause() + late);
        let usage = shared.catalog().index.usage();
        let exchange = match &totals {
            // What was saved since they were read counts on.
            Some(_) if totals == self.totals => return,
            Some(FleetTotals { used, .. }) => {
                let exchange = Exchange::by_totals(self.nodes, *used, usage.capacity);
                Exchange { listings_lag, holds_until, ..exchange }
            }
            None => Exchange {
                nodes: self.nodes,
                // As all nodes have reported it by now; each may fill a part of it until the next
                // exchange.
                free: usage.capacity.saturating_sub(usage.used.saturating_add(usage.reserved)),
                is_early,
                is_by_totals: false,
                listings_lag,
                holds_until,
            },
        };
        shared.node.budget.exchanged(exchange);
        self.totals = totals;
        self.lag.renewed();
        shared.freed.notify_waiters();
    }

    /// Reads the first snapshot, unless that is done; `false` when it must be tried again.
    async fn learn(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        if shared.node.read_snapshot.load(Ordering::Relaxed) {
            return true;
        }
        match snapshot::read(&shared, self.known_ms, self.merger.last_writes()).await {
            Ok(read) => {
                (self.known_ms, self.names_tenants) =
                    (read.map(|read| read.at_ms), read.is_some_and(|read| read.names_tenants));
            }
            // After giving up, the listing restores all but the order of use.
            Err(e) => {
                let again = self.tries_again(&e);
                drop(shared.error("restore", None, e));
                if again {
                    return false;
                }
            }
        }
        // Read or given up: the listing may now place what it discovers.
        self.failed = 0;
        shared.node.read_snapshot.store(true, Ordering::Relaxed);
        true
    }

    /// Whether a snapshot that was not readable is tried again. It stays in the bucket until
    /// another replaces it, so attempts end at some time.
    fn tries_again(&mut self, e: &kvtier_s3::Error) -> bool {
        self.failed += 1;
        e.is_retryable() && e.kind() != kvtier_s3::ErrorKind::Corrupt && self.failed < TRIES_MAX
    }

    /// A new evictor learns the order of use before it deletes: its predecessor merged the journals
    /// of other nodes into the snapshot and deleted them. `false`: the snapshot must be read again
    /// later.
    async fn catch_up(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let held = shared.node.lease().held(shared.now_ms());
        // Once for each epoch: while the lease stays, all deletes are this node's own.
        let Some(epoch) = held.filter(|epoch| *epoch != self.epoch) else { return true };
        let is_done = self.read_again_or_give_up().await;
        // What cannot be read is not waited for.
        // From here on `may_evict` holds for this epoch.
        shared.node.caught_up.store(epoch, Ordering::Relaxed);
        shared.eviction_queue.notify();
        shared.freed.notify_waiters();
        if is_done {
            self.epoch = epoch;
        }
        is_done
    }

    /// `false`: the snapshot must be read again later. `true` also after many attempts.
    async fn read_again_or_give_up(&mut self) -> bool {
        if let Err(e) = self.read_again().await {
            let again = self.tries_again(&e);
            drop(self.shared.error("restore", None, e));
            if again {
                return false;
            }
        }
        self.failed = 0;
        true
    }

    /// Reads the last snapshot and all journals. The order is that of the snapshot, with later uses
    /// applied on top.
    async fn read_again(&mut self) -> kvtier_s3::Result<()> {
        let shared = Arc::clone(&self.shared);
        let read = snapshot::read(&shared, self.known_ms, self.merger.last_writes()).await?;
        self.names_tenants |= read.is_some_and(|read| read.names_tenants);
        let read_ms = read.map(|read| read.at_ms);
        self.merge(&shared.node.own_names.journals()).await;
        if let Some(at_ms) = read_ms.filter(|_| read_ms != self.known_ms) {
            // Its writer lacked what other nodes had not written yet.
            let since_ms =
                at_ms.saturating_sub((2 * shared.node.config.journal_every).as_millis() as u64);
            self.merger.reapply_since(&shared, since_ms).await?;
            merge::touch_again(&shared, &shared.node.journal.waiting_records());
            self.known_ms = read_ms;
        }
        Ok(())
    }

    /// One round. An `early` one looks for other nodes, and writes the journal only if there are
    /// some or this node wrote much.
    async fn round(&mut self, early: bool) {
        let shared = Arc::clone(&self.shared);
        let cap = shared.catalog().index.usage().capacity;
        // Before others are read: two nodes that exchange at the same time then see each other.
        let flushes = !early || shared.node.budget.is_journal_due(cap);
        let flushed = !flushes || self.write_journal().await;
        if !self.is_announced {
            self.announce().await;
        }
        let caught_up = self.learn().await && self.catch_up().await;
        // Asked after the catch-up, which may have taken long.
        let leads = shared.node.may_evict(shared.now_ms());
        let looked_at = Instant::now();
        // Others may start now, whom the evictor has not counted yet.
        if early && !leads && self.nodes > DIRECT_NODES_MAX {
            self.count_nodes().await;
        }
        let totals = if leads { None } else { self.read_totals(early).await };
        let mut look = Look::default();
        if let Some(directory) = self.journals_to_read(leads || early, totals.as_ref()) {
            look = self.merge(&directory).await;
            self.follow_previous(directory == shared.node.own_names.journals()).await;
            self.merger.resolve_conflicts(&shared).await;
        }
        // The early round has just found another node, which needs what this one wrote.
        if !flushes && self.nodes > 1 {
            self.write_journal().await;
        }
        // Totals have what was missed.
        let counts_all = look.is_refused
            || look.succeeded && (totals.is_some() || self.read_what_was_missed().await);
        if look.succeeded && counts_all {
            self.last_look = looked_at;
        }
        // Totals that cannot have what this node saved renew no budget, nor does a look that failed.
        if counts_all && (flushed || totals.is_none()) {
            self.exchanged(looked_at, early, totals);
        }
        // A count that lacks saves would renew the budgets of all. Without new totals they age.
        if leads && caught_up && look.has_all && self.nodes > DIRECT_NODES_MAX {
            record(&shared, "totals", fleet_totals::write(&shared, self.nodes).await);
        }
        // A snapshot whose order is unknown is not overwritten.
        if leads && caught_up && self.is_snapshot_due() {
            record(&shared, "snapshot", self.snapshot().await);
        }
        // After the look at others, which a delete that hangs must not delay.
        if flushes && flushed {
            delete_old_objects(&shared).await;
        }
        if leads && shared.node.may_name_tenants.load(Ordering::Relaxed) {
            let removed =
                record(&shared, "tenants", agree_on_tenant_key::remove_names(&shared).await);
            shared.node.may_name_tenants.store(!removed, Ordering::Relaxed);
        }
    }

    fn known(&self) -> u64 {
        self.merged + self.shared.node.journal.noted()
    }

    fn is_snapshot_due(&self) -> bool {
        let new = self.known() - self.snapshot.1;
        let chunks = self.shared.catalog().index.usage().entries as u64;
        let many = SNAPSHOT_RECORDS.max(chunks / SNAPSHOT_RECORDS_PART);
        // A snapshot of an earlier build contains names of tenants.
        self.names_tenants
            || new >= many
            || (new > 0 && self.snapshot.0.elapsed() >= self.shared.node.config.snapshot_every)
    }

    /// Writes a snapshot, and deletes the journals that it contains.
    async fn snapshot(&mut self) -> kvtier_s3::Result<()> {
        let shared = Arc::clone(&self.shared);
        let known = self.known();
        // Journals that are in no snapshot stay.
        // `known` was taken before: records that arrive during the write count for the next
        // snapshot.
        let Some(at_ms) = snapshot::write(&shared).await? else { return Ok(()) };
        self.known_ms = Some(at_ms);
        self.snapshot = (Instant::now(), known);
        let age_s = peers::AGE_CUT_S
            + (JOURNALS_STAY * shared.node.config.journal_every).as_secs().cast_signed();
        let own = shared.node.own_names.journals_of(&shared.node.name);
        for some in self.merger.superfluous(&own, age_s).chunks(1000) {
            shared.client.delete_many(some).await?;
        }
        self.names_tenants = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
