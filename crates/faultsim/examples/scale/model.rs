//! A model of the requests of a fleet of more than eight nodes, for sizes that are not simulated. It follows what a node
//! does; its three parameters, all of them durations, come from one run: 10 nodes over 100,000 chunks.
//!
//! - Lease: each node lists it every quarter of a term, and the evictor writes it then.
//! - Follower: one round an interval. It reads the totals, lists the evictor's journal, and reads each object of that
//!   once. It writes its own journal if it saved anything, or found a chunk missing by a HEAD.
//! - Evictor: rounds that follow each other closely, as long as there are new saves (`Evictor`). In each it lists the
//!   journals of all, reads those of followers, and writes its own and the totals.
//! - Listings of all chunks: each node lists them from `sweep_every` after the last listing, at no more than
//!   `listings_per_second_max` pages. Journals that are not deleted yet are on the pages too.
//! - HEADs: a follower that listed a chunk shortly before its delete cannot know which was later, and asks (`Evictor`
//!   has how long is shortly). A round asks for at most 256, and at most 4,096 wait.
//! - Snapshots: one in `snapshot_every`, or after as many changes as a quarter of all chunks.

use crate::record::{Record, Run};

const DAY_S: f64 = 86_400.0;
/// The default settings of the tier, and constants of it.
const SWEEP_EVERY_S: f64 = 600.0;
const PAGES_PER_S: f64 = 20.0;
const PAGE_CHUNKS: f64 = 1000.0;
const INTERVAL_S: f64 = 30.0;
const TERM_S: f64 = 30.0;
const SNAPSHOT_EVERY_S: f64 = 300.0;
const FULL: f64 = 0.98;
/// From the beginning of a listing to the next round of the node, as seen in a run of 60 nodes. Both count from the start
/// of the node: rounds follow 32 s after it, and their durations add. It changes by a third of a second from one listing to
/// the next, so it is that of nodes that run for less than an hour.
const ROUND_AFTER_LISTING_S: f64 = 4.0;
/// Times of two nodes that are closer are not comparable.
const UNCLEAR_S: f64 = 5.0;
const UNCLEAR_MAX: f64 = 256.0;
const UNCLEAR_WAITING_MAX: f64 = 4096.0;
const PREFIXES: f64 = 256.0;
const PREFIXES_FROM: f64 = 256_000.0;
const PART_CHUNKS: f64 = 55_188.0;
const SNAPSHOT_RECORDS: f64 = 65_536.0;
/// Journals stay for three intervals, and then until the next snapshot.
const JOURNALS_STAY_S: f64 = 3.0 * INTERVAL_S + SNAPSHOT_EVERY_S / 2.0;

/// The size of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub nodes: f64,
    pub chunks: f64,
    /// The share of the cap that all nodes together save in a second.
    pub churn: f64,
}

/// Requests that sharing the bucket costs the fleet in a day. Saves and loads of chunks are not among them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Requests {
    pub put: f64,
    pub list: f64,
    pub get: f64,
}

/// Dollars for 1,000 requests.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    pub put: f64,
    pub get: f64,
}

/// List prices of the region us-east-1, November 2026. DELETE is free.
pub const STANDARD: Prices = Prices { put: 0.005, get: 0.0004 };
pub const EXPRESS: Prices = Prices { put: 0.00113, get: 0.00003 };

impl Requests {
    /// Those of a run.
    pub fn of(run: &Run) -> Self {
        let mut all = Requests::default();
        for area in ["chunks", "journals", "leases", "snapshots", "other"] {
            // A PUT of a chunk is a save.
            all.put += if area == "chunks" { 0.0 } else { run.per_day(area, "put") };
            all.list += run.per_day(area, "list");
            all.get += run.per_day(area, "get");
        }
        all
    }

    pub fn dollars(&self, prices: Prices) -> f64 {
        ((self.put + self.list) * prices.put + self.get * prices.get) / 1000.0
    }
}

impl Size {
    /// That of a run.
    pub fn of(run: &Run) -> Self {
        Size { nodes: run.get("nodes"), chunks: run.get("chunks"), churn: run.get("churn") }
    }

    /// All nodes but the evictor.
    fn followers(self) -> f64 {
        self.nodes - 1.0
    }

    /// Saves a second of all nodes. As many are deleted.
    fn saves(self) -> f64 {
        self.churn * self.chunks
    }

    /// Saves a second of one node.
    fn saves_of_node(self) -> f64 {
        self.saves() / self.nodes
    }

    /// Pages of one listing, with this many objects of journals.
    fn pages(self, journals: f64) -> f64 {
        let objects = FULL * self.chunks;
        if objects < PREFIXES_FROM {
            return ((objects + journals) / PAGE_CHUNKS).ceil();
        }
        1.0 + PREFIXES * (objects / PREFIXES / PAGE_CHUNKS).ceil()
    }

    /// Seconds from the beginning of a listing to that of the next.
    pub fn sweep_s(self) -> f64 {
        SWEEP_EVERY_S + self.pages(0.0) / PAGES_PER_S
    }

    fn snapshots(self) -> f64 {
        // A change is a save, its delete, or a use; a node saves one chunk and uses four.
        let changes_per_s = 6.0 * self.saves();
        let after_s = (self.chunks / 4.0).max(SNAPSHOT_RECORDS) / changes_per_s;
        DAY_S / after_s.min(SNAPSHOT_EVERY_S)
    }
}

/// The evictor, as the size of the fleet makes it.
#[derive(Clone, Copy, Debug)]
struct Evictor {
    /// From one round to the next.
    round_s: f64,
    /// From one journal to the next: a round after which nothing was saved or deleted writes none.
    journal_s: f64,
    /// A chunk that was listed this long before its delete is unclear.
    unclear_s: f64,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct FleetModel {
    /// From one listing of the lease to the next.
    lease_s: f64,
    /// From one round of a follower to the next.
    round_s: f64,
    /// From one round of the evictor to the next while there are new saves: a tenth of an interval, and the round itself.
    hurried_s: f64,
}

impl FleetModel {
    /// The one that a run gives.
    pub fn fit(record: &Record) -> Option<Self> {
        let run = record.run(10, 100_000, true)?;
        let size = Size::of(run);
        let every_s = |area: &str, price: &str| DAY_S / run.per_day(area, price);
        Some(FleetModel {
            lease_s: size.nodes * every_s("leases", "list"),
            round_s: size.followers() * every_s("other", "get"),
            hurried_s: every_s("other", "put"),
        })
    }

    pub fn requests(&self, size: Size) -> Requests {
        let (nodes, followers) = (size.nodes, size.followers());
        let evictor = self.evictor(size);
        let rounds = DAY_S / self.round_s;
        let evictor_rounds = DAY_S / evictor.round_s;
        let evictor_journals = DAY_S / evictor.journal_s;
        let journals = followers * self.journals_of_follower(size, evictor.unclear_s);
        let pages = size.pages((journals + evictor_journals) / DAY_S * JOURNALS_STAY_S);
        let sweeps = DAY_S / size.sweep_s();
        let heads = sweeps * (evictor.unclear_s * size.saves()).min(unclear_max(size));
        let snapshots = size.snapshots();
        let parts = (size.chunks / PART_CHUNKS).ceil();
        Requests {
            // Journals, totals, the lease, snapshots.
            put: journals
                + evictor_journals
                + evictor_rounds
                + DAY_S / (TERM_S / 4.0)
                + (parts + 1.0) * snapshots,
            list: nodes * (DAY_S / self.lease_s + sweeps * pages)
                + followers * rounds
                + evictor_rounds
                + snapshots,
            // Totals, the journals of the evictor, those of followers, HEADs.
            get: followers * (rounds + evictor_journals + heads) + journals,
        }
    }

    fn evictor(&self, size: Size) -> Evictor {
        let own = size.saves_of_node();
        // A round that finds a journal with saves deletes as much, and the next follows it closely. So does a save of
        // the evictor itself. Else the next one is due after an interval, or with the evictor's next save.
        let found = size.followers() * self.saves_in_round(size) / self.round_s * self.hurried_s;
        let end_s = (1.0 / own).min(INTERVAL_S).max(self.hurried_s);
        let waited = |until_s: f64| until_s - own * until_s * until_s / 2.0;
        let is_quiet = (-found).exp();
        let chain_s = self.hurried_s + is_quiet * (waited(end_s) - waited(self.hurried_s));
        // Its listing shows saves before journals do: they are deleted at once, and the next round finds few new ones.
        let found_since = size.saves() * self.hurried_s * self.hurried_s / (2.0 * INTERVAL_S);
        let sweep_s = size.sweep_s();
        let waits_s = (-found_since).exp() * waited(end_s);
        let round_s = chain_s * sweep_s / (sweep_s - waits_s);
        let is_idle = is_quiet * (1.0 - own * INTERVAL_S).max(0.0);
        // What has happened in one moment may be of an earlier build, which gives all records of an interval one time.
        let is_one_moment = (1.0 - own * round_s).max(0.0);
        Evictor {
            round_s,
            journal_s: round_s / (1.0 - is_idle),
            unclear_s: UNCLEAR_S + is_one_moment * INTERVAL_S,
        }
    }

    /// The share of a follower's rounds before which it saved anything.
    fn saves_in_round(&self, size: Size) -> f64 {
        (self.round_s * size.saves_of_node()).min(1.0)
    }

    /// In a day: those with saves, and those with chunks that a round found missing.
    fn journals_of_follower(&self, size: Size, unclear_s: f64) -> f64 {
        let with_saves = self.saves_in_round(size);
        let asking = self.asking_rounds(size.pages(0.0) / PAGES_PER_S + unclear_s);
        DAY_S / self.round_s * with_saves + DAY_S / size.sweep_s() * asking * (1.0 - with_saves)
    }

    /// Rounds after a listing in which a follower asks, if deletes are unclear for this time. The evictor deletes once a
    /// round, and the journal of its next round shows it.
    fn asking_rounds(&self, unclear_s: f64) -> f64 {
        let shown = |until_s: f64| until_s.clamp(self.hurried_s, self.hurried_s + unclear_s);
        let mut asking = 0.0;
        let mut round_s = ROUND_AFTER_LISTING_S;
        while shown(round_s - self.round_s) < self.hurried_s + unclear_s {
            let deletes_s = shown(round_s) - shown(round_s - self.round_s);
            asking += (deletes_s / self.hurried_s).min(1.0);
            round_s += self.round_s;
        }
        asking
    }
}

/// HEADs for one listing, at most.
fn unclear_max(size: Size) -> f64 {
    let rounds = size.pages(0.0) / PAGES_PER_S / INTERVAL_S;
    rounds * UNCLEAR_MAX + UNCLEAR_WAITING_MAX
}
