//! The samples of all clients, and what a table shows of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cells::Cell;
use super::contest::Sample;

/// All samples, by cell and client.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<(Cell, String), Vec<Sample>>);

impl Results {
    pub fn add(&mut self, cell: &Cell, name: &str, sample: Sample) {
        self.0.entry((cell.clone(), name.to_owned())).or_default().push(sample);
    }

    /// The median of one number.
    pub fn median(&self, cell: &Cell, name: &str, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        let mut values: Vec<f64> =
            self.0.get(&(cell.clone(), name.to_owned()))?.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// The CPU time that counts: a HEAD has no bytes.
    pub fn cost(&self, cell: &Cell, name: &str) -> Option<f64> {
        self.median(cell, name, |s| if cell.is_bare() { s.cpu_us_per_op } else { s.cpu_s_per_gb })
    }

    /// The cheapest of bare sockets, and what it costs.
    pub fn floor(&self, cell: &Cell, names: &[String]) -> Option<(String, f64)> {
        let raw = names.iter().filter(|name| name.starts_with("raw-"));
        let costs = raw.filter_map(|name| Some((name.clone(), self.cost(cell, name)?)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    pub fn json(&self) -> Value {
        let row = |((cell, name), turns): (&(Cell, String), &Vec<Sample>)| {
            let each = |f: fn(&Sample) -> f64| turns.iter().map(f).collect::<Vec<_>>();
            let some =
                |f: fn(&Sample) -> Option<f64>| turns.iter().filter_map(f).collect::<Vec<_>>();
            json!({
                "scheme": cell.scheme, "op": cell.op, "size": cell.size, "inflight": cell.inflight, "who": name,
                "ops": cell.count, "mb_per_s": each(|s| s.mb_per_s), "cpu_s_per_gb": each(|s| s.cpu_s_per_gb),
                "cpu_us_per_op": each(|s| s.cpu_us_per_op), "p50_ms": each(|s| s.p50_ms), "p99_ms": each(|s| s.p99_ms),
                "rss_over_memory_mib": each(|s| s.rss_mib), "grown_mib": some(|s| s.grown_mib),
                "threads": some(|s| s.threads), "allocations_per_op": some(|s| s.allocations_per_op),
                "requests_per_op": some(|s| s.requests_per_op),
            })
        };
        self.0.iter().map(row).collect()
    }
}
