//! A model of the requests of a fleet, for sizes that are not simulated. Its parameters come from two runs: 10 and 100
//! nodes over 10,000 chunks.
//!
//! - A node writes its journal once an interval, if it saved or used anything. The evictor writes more often.
//! - Other requests for journals, leases and totals: some for the fleet, and some for each node.
//! - Listings of all chunks: each node lists them from `sweep_every` after the last listing, at no more than
//!   `listings_per_second_max` pages.
//! - HEADs: deletes that happened within five seconds of a listing are unclear to each node, which asks for at most 256
//!   in an interval.
//! - Snapshots: one in `snapshot_every`, or after as many changes as a quarter of all chunks.

use crate::record::{Record, Run};

const DAY_S: f64 = 86_400.0;
/// The default settings of the tier, and constants of it.
const SWEEP_EVERY_S: f64 = 600.0;
const PAGES_PER_S: f64 = 20.0;
const INTERVAL_S: f64 = 30.0;
const SNAPSHOT_EVERY_S: f64 = 300.0;
const UNCLEAR_MAX: f64 = 256.0;
const UNCLEAR_S: f64 = 5.0;
const PREFIXES: f64 = 256.0;
const PREFIXES_FROM: f64 = 256_000.0;
const PART_CHUNKS: f64 = 55_188.0;
const SNAPSHOT_RECORDS: f64 = 65_536.0;
/// Areas whose requests grow with the fleet alone. PUTs of journals are apart.
const LINEAR: [&str; 3] = ["journals", "leases", "other"];
const PRICES: [&str; 3] = ["put", "list", "get"];

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

/// Requests a day: of the fleet, and of each node.
#[derive(Clone, Copy, Default, Debug)]
struct Line {
    fleet: f64,
    node: f64,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct FleetModel {
    /// By price.
    lines: [Line; 3],
    /// Journals that the evictor writes besides one an interval.
    evictor_puts: f64,
    /// HEADs for a delete that happened near a listing.
    heads: f64,
}

impl FleetModel {
    /// The one that two runs give.
    pub fn fit(record: &Record) -> Option<Self> {
        let (ten, hundred) = (record.run(10, 10_000, true)?, record.run(100, 10_000, true)?);
        let lines = PRICES.map(|price| {
            let areas = || LINEAR.iter().filter(|area| (**area, price) != ("journals", "put"));
            let of = |run: &Run| areas().map(|area| run.per_day(area, price)).sum::<f64>();
            let node = (of(hundred) - of(ten)) / 90.0;
            Line { fleet: of(ten) - 10.0 * node, node }
        });
        let head = |run: &Run| run.per_day("chunks", "get") / unclear(size(run));
        let more = |run: &Run| run.per_day("journals", "put") - journal_puts(size(run));
        Some(FleetModel {
            lines,
            evictor_puts: (more(ten) + more(hundred)) / 2.0,
            heads: (head(ten) + head(hundred)) / 2.0,
        })
    }

    pub fn requests(&self, size: Size) -> Requests {
        let [put, list, get] = self.lines.map(|line| line.fleet + line.node * size.nodes);
        let most = UNCLEAR_MAX * DAY_S / INTERVAL_S * size.nodes;
        Requests {
            put: put + journal_puts(size) + self.evictor_puts + snapshot_puts(size),
            list: list + size.nodes * pages(size) * sweeps(size),
            get: get + (self.heads * unclear(size)).min(most),
        }
    }
}

/// The size of a run's fleet.
pub fn size(run: &Run) -> Size {
    Size { nodes: run.get("nodes"), chunks: run.get("chunks"), churn: run.get("churn") }
}

/// Pages of one listing.
pub fn pages(size: Size) -> f64 {
    if size.chunks < PREFIXES_FROM {
        return (size.chunks / 1000.0).ceil();
    }
    1.0 + PREFIXES * (size.chunks / PREFIXES / 1000.0).ceil()
}

/// Seconds from the beginning of a listing to that of the next.
pub fn sweep_s(size: Size) -> f64 {
    SWEEP_EVERY_S + pages(size) / PAGES_PER_S
}

/// Listings of a node in a day.
fn sweeps(size: Size) -> f64 {
    DAY_S / sweep_s(size)
}

/// Deletes a day near a listing, for all nodes.
fn unclear(size: Size) -> f64 {
    let near_s = pages(size) / PAGES_PER_S + 2.0 * UNCLEAR_S;
    size.nodes * sweeps(size) * near_s * size.churn * size.chunks
}

/// One an interval of each node, or one for each of its saves where these are rarer.
fn journal_puts(size: Size) -> f64 {
    let saves_of_node = size.churn * size.chunks / size.nodes * INTERVAL_S;
    size.nodes * DAY_S / INTERVAL_S * saves_of_node.min(1.0)
}

fn snapshot_puts(size: Size) -> f64 {
    // A change is a save, its delete, or a use; a node saves one chunk and uses four.
    let changes_per_s = 6.0 * size.churn * size.chunks;
    let after_s = (size.chunks / 4.0).max(SNAPSHOT_RECORDS) / changes_per_s;
    ((size.chunks / PART_CHUNKS).ceil() + 1.0) * DAY_S / after_s.min(SNAPSHOT_EVERY_S)
}
