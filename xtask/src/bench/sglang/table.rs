//! The samples of a run, and the tables of their medians.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::adapter_plan::median;

/// By size, operation and backend: what each turn gave. And the backends that do not run here.
#[derive(Default)]
pub struct Samples {
    turns: BTreeMap<Row, Vec<Value>>,
    absent: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    size: u64,
    op: String,
    kind: String,
}

impl Samples {
    /// The samples of one turn.
    pub fn add(&mut self, size: u64, kind: &str, found: Vec<Value>) {
        for sample in found {
            let text = |name: &str| sample[name].as_str().unwrap_or_default().to_owned();
            let op = match text("op") {
                op if op == "exists" => format!("exists {}", text("how")),
                op => op,
            };
            let row = Row { size, op, kind: kind.to_owned() };
            self.turns.entry(row).or_default().push(sample);
        }
    }

    /// Notes why a backend cannot be measured.
    pub fn absent(&mut self, kind: &str, why: &anyhow::Error) {
        self.absent.entry(kind.to_owned()).or_insert_with(|| format!("{why:#}"));
    }

    /// Whether a backend cannot be measured.
    pub fn is_absent(&self, kind: &str) -> bool {
        self.absent.contains_key(kind)
    }

    /// All samples.
    pub fn json(&self) -> Value {
        let rows = self.turns.iter();
        rows.map(|(row, turns)| json!({ "size": row.size, "op": row.op, "kind": row.kind, "turns": turns })).collect()
    }
}

/// Prints a table for transfers, and one for lookups.
pub fn print(samples: &Samples) {
    for (kind, why) in &samples.absent {
        println!("not measured: {kind}: {}", why.lines().last().unwrap_or_default());
    }
    println!("\n| pages | | backend | MB/s | CPU s/GB | p50 ms a batch |\n|{}", "---|".repeat(6));
    for (row, turns) in samples.turns.iter().filter(|(row, _)| !is_lookup(row)) {
        let median = |name: &str| median(turns, name);
        println!(
            "| {} KiB | {} | {} | {:.0} | {:.3} | {:.1} |",
            row.size >> 10,
            row.op,
            row.kind,
            median("mb_per_s"),
            median("cpu_s_per_gb"),
            median("p50_ms"),
        );
    }
    println!("\n| pages | a lookup of | backend | µs |\n|{}", "---|".repeat(4));
    for (row, turns) in samples.turns.iter().filter(|(row, _)| is_lookup(row)) {
        let (pages, us) = (median(turns, "pages"), median(turns, "us"));
        let how = row.op.trim_start_matches("exists ");
        println!("| {} KiB | {pages} {how} | {} | {us:.0} |", row.size >> 10, row.kind);
    }
}

fn is_lookup(row: &Row) -> bool {
    row.op.starts_with("exists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_present_and_absent_pages_are_rows_of_their_own() {
        let mut samples = Samples::default();
        let found =
            ["present", "absent"].map(|how| json!({ "op": "exists", "how": how, "us": 1.0 }));
        samples.add(1 << 20, "kvtier", found.to_vec());
        let ops: Vec<_> = samples.turns.keys().map(|row| row.op.as_str()).collect();
        assert_eq!(ops, ["exists absent", "exists present"]);
    }

    #[test]
    fn a_backend_that_does_not_run_is_left_out_with_its_first_reason() {
        let mut samples = Samples::default();
        samples.absent("mooncake", &anyhow::anyhow!("no such module"));
        samples.absent("mooncake", &anyhow::anyhow!("another"));
        assert!(samples.is_absent("mooncake") && !samples.is_absent("file"));
        assert_eq!(samples.absent["mooncake"], "no such module");
    }
}
