//! Measures the cost of an operation at a million entries: kvtier's policies and other caches, on one thread.
//!
//! Keys are uniform 64-bit numbers, values have 8 bytes. `hit` looks up a random present key and marks it as used. `batch` looks up the
//! 16 keys of a random request and marks them as used together, if the cache supports that; the keys of a request are random but fixed.
//! `insert` adds a new key to a full cache, which evicts another one. kvtier's rows are a policy with a table whose indices are its slots;
//! the last rows are the whole index, which also stores 32-byte digests, lengths, tenants and chains. Times are CPU time of the thread,
//! the best of ten rounds. The rounds of all caches alternate, so that load on the machine affects all of them.

mod caches;

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use caches::{Cache, all};

/// Entries in each cache.
pub const ENTRIES: usize = 1_000_000;
const OPS: u64 = 1_000_000;
const ROUNDS: usize = 10;
/// Keys of a request.
pub const BATCH: usize = 16;

fn main() {
    // With arguments, only the caches whose names contain one of them.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_selected =
        |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut rows: Vec<Row> =
        all().into_iter().filter(|(name, _)| is_selected(name)).map(|(name, cache)| Row::new(name, cache)).collect();
    for round in 0..ROUNDS as u64 {
        rows.iter_mut().for_each(|row| row.hits(round));
        rows.iter_mut().for_each(|row| row.batches(round));
    }
    for _ in 0..ROUNDS {
        rows.iter_mut().for_each(Row::inserts);
    }
    let base =
        |of: fn(&Row) -> f64| rows.iter().find(|row| row.name == "schnellru").map_or(1.0, of);
    let hit = base(|row| row.hit);
    let batch = base(|row| row.batch);
    let insert = base(|row| row.insert);
    println!("{ENTRIES} entries, ns an operation; in brackets against schnellru\n");
    println!(
        "{:<24}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>14}",
        "cache", "hit", "", "batch", "", "insert", "", "bytes/entry"
    );
    for row in &rows {
        let bytes = row.bytes.map_or(String::from("-"), |bytes| format!("{bytes:.1}"));
        println!(
            "{:<24}{:>8.0}{:>8}{:>8.0}{:>8}{:>8.0}{:>8}{bytes:>14}",
            row.name,
            row.hit,
            format!("[{:.2}]", row.hit / hit),
            row.batch,
            format!("[{:.2}]", row.batch / batch),
            row.insert,
            format!("[{:.2}]", row.insert / insert),
        );
    }
}

struct Row {
    name: &'static str,
    cache: Box<dyn Cache>,
    /// The keys present after the cache was filled, in random order; each 16 of them are a request.
    present: Vec<u64>,
    /// Keys from here on are new.
    next: u64,
    hit: f64,
    batch: f64,
    insert: f64,
    bytes: Option<f64>,
}

impl Row {
    /// Fills the cache twice with different keys, so that all of its structures have their final size.
    fn new( name: &'static str, mut cache: Box<dyn Cache>) -> Self {
        let next = 2 * ENTRIES as u64;
        (0..next).for_each(|n| cache.insert(key(n)));
        let mut present: Vec<u64> = (0..next).map(key).filter(|key| cache.hit(*key)).collect();
        present.sort_unstable_by_key(|key| scatter(*key));
        assert!(
            present.len() > ENTRIES * 9 / 10,
            "{name}: only {} of {ENTRIES} are present",
            present.len()
        );
        Row {
            name,
            cache,
            present,
            next,
            hit: f64::MAX,
            batch: f64::MAX,
            insert: f64::MAX,
            bytes: None,
        }
    }

    fn hits(&mut self, round: u64) {
        let cache = &mut self.cache;
        let present = &self.present;
        let mut hits = 0;
        let took = timed(|| {
            for n in 0..OPS {
                let at = scatter(n + round * OPS) % present.len() as u64;
                hits += u64::from(cache.hit(present[at as usize]));
            }
        });
        assert!(hits == OPS, "{}: {hits} hits of {OPS}", self.name);
        self.hit = self.hit.min(took);
    }

    fn batches(&mut self, round: u64) {
        let cache = &mut self.cache;
        let present = &self.present;
        let mut hits = 0;
        let took = timed(|| {
            for n in (0..OPS).step_by(BATCH) {
                let request = scatter(n + round * OPS) as usize % (present.len() / BATCH);
                hits += if cache.hit_all(&present[request * BATCH..][..BATCH]) {
                    BATCH as u64
                } else {
                    0
                };
            }
        });
        assert!(hits == OPS, "{}: {hits} hits of {OPS}", self.name);
        self.batch = self.batch.min(took);
    }

    fn inserts(&mut self) {
        let cache = &mut self.cache;
        let from = self.next;
        let took = timed(|| (from..from + OPS).for_each(|n| cache.insert(key(n))));
        self.insert = self.insert.min(took);
        self.next += OPS;
        self.bytes = self.cache.bytes().map(|bytes| bytes as f64 / ENTRIES as f64);
    }
}

/// Nanoseconds of CPU time per operation, for [`OPS`] operations.
fn timed(work: impl FnOnce()) -> f64 {
    let now = || {
        Duration::from(
            clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the thread has a clock"),
        )
    };
    let begin = now();
    work();
    (now() - begin).as_nanos() as f64 / OPS as f64
}

fn scatter(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// The `n`-th key: uniform and unique.
fn key(n: u64) -> u64 {
    scatter(n + 1)
}
