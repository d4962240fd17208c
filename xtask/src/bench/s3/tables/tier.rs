//! The tier beside LMCache's adapter and beside the bare client: what counts, and what was wanted.

use crate::bench::s3::cells::{Cell, LMCACHE, Plan, TIER};
use crate::bench::s3::contest::Sample;
use crate::bench::s3::results::Results;

/// Our client without a tier.
const CLIENT: &str = "kvtier";
/// Throughput that is wanted, as a multiple of LMCache's.
const FASTER_MIN: f64 = 1.6;
/// How much faster many objects are to be deleted than by a request for each.
const DELETES_FASTER_MIN: f64 = 10.0;
/// CPU seconds a GB that a tier may add to the client: for a load, and for a save, whose checksum
/// comes before its bytes go.
const ADDED_MAX: [(&str, f64); 2] = [("get", 0.03), ("put", 0.08)];

/// The most that is wanted of LMCache's CPU time a GB.
fn share_max(cell: &Cell) -> f64 {
    match (cell.size >> 20, cell.op.as_str()) {
        (..=3, _) => 0.30,
        (..=31, _) => 0.42,
        (_, "put") => 0.45,
        _ => 0.42,
    }
}

/// Prints a row for each cell in which the tier and LMCache were measured.
pub fn print(plan: &Plan, results: &Results) {
    let cells = plan.cells();
    cells
        .iter()
        .filter(|cell| cell.op == "delete")
        .filter_map(|cell| deletes(cell, results))
        .for_each(|line| println!("\n{line}"));
    let rows: Vec<String> =
        cells.iter().filter(|cell| !cell.is_bare()).filter_map(|cell| row(cell, results)).collect();
    if rows.is_empty() {
        return;
    }
    println!(
        "\nThe tier, its checksums on, beside LMCache 0.5.6's S3 adapter:\n\n\
         | | chunks | at once | tier CPU s/GB | LMCache | ratio (wanted) | over the client (wanted) | tier MB/s | LMCache | ratio \
         (wanted) | threads | LMCache | memory MiB | LMCache | requests | allocations |\n|{}",
        "---|".repeat(16)
    );
    rows.iter().for_each(|row| println!("{row}"));
}

fn deletes(cell: &Cell, results: &Results) -> Option<String> {
    let of = |name| Some(results.median(cell, name, |s| s.mb_per_s)? * 1e6 / cell.size as f64);
    let ours = of(TIER)?;
    let singly = of(CLIENT)?;
    let theirs = of(LMCACHE);
    let theirs =
        theirs.map_or("-".into(), |theirs| format!("{theirs:.0} ({:.0} times)", ours / theirs));
    Some(format!(
        "Deleting {} objects, objects a second: the tier {ours:.0}; our client with a request for each, {} at once, {singly:.0} ({:.0} times; \
         wanted {DELETES_FASTER_MIN}); LMCache {theirs}",
        cell.count,
        cell.inflight,
        ours / singly
    ))
}

fn row(cell: &Cell, results: &Results) -> Option<String> {
    let of = |name, number: fn(&Sample) -> f64| results.median(cell, name, number);
    let some = |name, number: fn(&Sample) -> Option<f64>| {
        let found = results.median(cell, name, |sample| number(sample).unwrap_or(f64::NAN));
        found.filter(|value| !value.is_nan())
    };
    let ours = of(TIER, |s| s.cpu_s_per_gb)?;
    let theirs = of(LMCACHE, |s| s.cpu_s_per_gb)?;
    let fast = of(TIER, |s| s.mb_per_s)?;
    let slow = of(LMCACHE, |s| s.mb_per_s)?;
    let added_max = ADDED_MAX.iter().find(|(op, _)| *op == cell.op)?.1;
    let added =
        of(CLIENT, |s| s.cpu_s_per_gb).map(|client| format!("{:+.3} ({added_max})", ours - client));
    let plain = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    Some(format!(
        "| {} | {} | {} | **{ours:.3}** | {theirs:.3} | {:.2} ({:.2}) | {} | {fast:.0} | {slow:.0} | {:.2} ({FASTER_MIN}) | {} | {} | {} | {} | \
         {} | {} |",
        cell.op,
        cell.bytes(),
        cell.inflight,
        ours / theirs,
        share_max(cell),
        added.unwrap_or("-".into()),
        fast / slow,
        plain(some(TIER, |s| s.threads), 0),
        plain(some(LMCACHE, |s| s.threads), 0),
        plain(some(TIER, |s| s.grown_mib), 1),
        plain(some(LMCACHE, |s| s.grown_mib), 0),
        plain(some(TIER, |s| s.requests_per_op), 2),
        plain(some(TIER, |s| s.allocations_per_op), 0),
    ))
}
