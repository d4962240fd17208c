//! The samples of a run, and the tables of their medians.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::adapter_plan::median;

/// By size, operation and tier: what each turn gave. And the tiers that do not run here.
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
                op if op == "lookup" => format!("lookup {}", text("how")),
                op => op,
            };
            let row = Row { size, op, kind: kind.to_owned() };
            self.turns.entry(row).or_default().push(sample);
        }
    }

    /// Notes why a tier cannot be measured.
    pub fn absent(&mut self, kind: &str, why: &anyhow::Error) {
        self.absent.entry(kind.to_owned()).or_insert_with(|| format!("{why:#}"));
    }

    /// Whether a tier cannot be measured.
    pub fn is_absent(&self, kind: &str) -> bool {
        self.absent.contains_key(kind)
    }

    /// All samples.
    pub fn json(&self) -> Value {
        let rows = self.turns.iter();
        rows.map(|(row, turns)| json!({ "size": row.size, "op": row.op, "kind": row.kind, "turns": turns })).collect()
    }
}

/// Prints a table for transfers, one for lookups, and one for the scheduler's thread.
pub fn print(samples: &Samples) {
    for (kind, why) in &samples.absent {
        println!("not measured: {kind}: {}", why.lines().next().unwrap_or_default());
    }
    println!(
        "\n| chunks | | tier | MB/s | CPU s/GB | p50 ms a job | µs a chunk in the scheduler |"
    );
    println!("|{}", "---|".repeat(7));
    for (row, turns) in samples.turns.iter().filter(|(row, _)| is_transfer(row)) {
        let median = |name: &str| median(turns, name);
        println!(
            "| {} KiB | {} | {} | {:.0} | {:.3} | {:.1} | {:.1} |",
            row.size >> 10,
            row.op,
            row.kind,
            median("mb_per_s"),
            median("cpu_s_per_gb"),
            median("p50_ms"),
            median("scheduler_us_per_chunk"),
        );
    }
    println!(
        "\n| chunks | 1,000 keys | tier | µs a key | ms until answered | steps to the first answer |"
    );
    println!("|{}", "---|".repeat(6));
    for (row, turns) in samples.turns.iter().filter(|(row, _)| row.op.starts_with("lookup")) {
        let median = |name: &str| median(turns, name);
        println!(
            "| {} KiB | {} | {} | {:.2} | {:.2} | {} |",
            row.size >> 10,
            row.op,
            row.kind,
            median("us_per_key"),
            median("ms_until_answered"),
            median("steps_to_first_answer"),
        );
    }
    println!(
        "\n| chunks | tier | µs in the scheduler for a store of 64 chunks | for a load |\n|{}",
        "---|".repeat(4)
    );
    for (row, turns) in samples.turns.iter().filter(|(row, _)| row.op == "long job") {
        let [store, load] = ["store_us", "load_us"].map(|name| median(turns, name));
        println!("| {} KiB | {} | {store:.0} | {load:.0} |", row.size >> 10, row.kind);
    }
}

fn is_transfer(row: &Row) -> bool {
    matches!(row.op.as_str(), "store" | "load")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_present_and_absent_keys_are_rows_of_their_own() {
        let mut samples = Samples::default();
        let found =
            ["hit", "miss"].map(|how| json!({ "op": "lookup", "how": how, "us_per_key": 1.0 }));
        samples.add(1 << 20, "kvtier", found.to_vec());
        let ops: Vec<_> = samples.turns.keys().map(|row| row.op.as_str()).collect();
        assert_eq!(ops, ["lookup hit", "lookup miss"]);
    }

    #[test]
    fn a_tier_that_does_not_run_is_left_out_with_its_first_reason() {
        let mut samples = Samples::default();
        samples.absent("kvcr", &anyhow::anyhow!("no such module"));
        samples.absent("kvcr", &anyhow::anyhow!("another"));
        assert!(samples.is_absent("kvcr") && !samples.is_absent("fs"));
        assert_eq!(samples.absent["kvcr"], "no such module");
    }
}
