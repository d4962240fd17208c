//! What the benchmarks of adapters inside an engine measured, turn by turn.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Operations whose samples say in `how` what was asked for: rows of their own.
const LOOKUPS: &[&str] = &["lookup", "exists"];

/// By size, operation and kind: what each turn gave. And the kinds that do not run here.
#[derive(Default)]
pub struct Samples {
    turns: BTreeMap<Row, Vec<Value>>,
    absent: BTreeMap<String, String>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Bytes of a chunk or page.
    pub size: u64,
    pub op: String,
    /// Which adapter was measured: ours or a rival.
    pub kind: String,
}

impl Samples {
    /// The samples of one turn.
    pub fn add(&mut self, size: u64, kind: &str, found: Vec<Value>) {
        for sample in found {
            let text = |name: &str| sample[name].as_str().unwrap_or_default().to_owned();
            let op = match text("op") {
                op if LOOKUPS.contains(&op.as_str()) => format!("{op} {}", text("how")),
                op => op,
            };
            let row = Row { size, op, kind: kind.to_owned() };
            self.turns.entry(row).or_default().push(sample);
        }
    }

    /// Notes why a kind cannot be measured.
    pub fn absent(&mut self, kind: &str, why: &anyhow::Error) {
        self.absent.entry(kind.to_owned()).or_insert_with(|| format!("{why:#}"));
    }

    /// Whether a kind cannot be measured.
    pub fn is_absent(&self, kind: &str) -> bool {
        self.absent.contains_key(kind)
    }

    /// The rows whose operation begins with this, each with its turns.
    pub fn rows(&self, op: &str) -> impl Iterator<Item = (&Row, &[Value])> {
        let rows = self.turns.iter().filter(move |(row, _)| row.op.starts_with(op));
        rows.map(|(row, turns)| (row, turns.as_slice()))
    }

    /// The rows of operations that move bytes.
    pub fn transfers(&self) -> impl Iterator<Item = (&Row, &[Value])> {
        self.rows("").filter(|(_, turns)| turns.iter().any(|turn| turn["mb_per_s"].is_number()))
    }

    /// Prints which kinds were not measured: the last line of what they said, which in Python is
    /// the error.
    pub fn print_absent(&self) {
        for (kind, why) in &self.absent {
            println!("not measured: {kind}: {}", why.lines().last().unwrap_or_default());
        }
    }

    /// All samples.
    pub fn json(&self) -> Value {
        let turn = |(row, turns): (&Row, &Vec<Value>)| json!({ "size": row.size, "op": row.op, "kind": row.kind, "turns": turns });
        self.turns.iter().map(turn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_present_and_absent_keys_are_rows_of_their_own() {
        let mut samples = Samples::default();
        let lookup = |op: &str, how: &str| json!({ "op": op, "how": how, "us": 1.0 });
        let found = vec![
            lookup("lookup", "hit"),
            lookup("exists", "absent"),
            json!({ "op": "get", "how": "file", "mb_per_s": 1.0 }),
        ];
        samples.add(1, "file", found);
        let ops: Vec<&str> = samples.rows("").map(|(row, _)| row.op.as_str()).collect();
        assert_eq!(ops, ["exists absent", "get", "lookup hit"]);
        let moved: Vec<&str> = samples.transfers().map(|(row, _)| row.op.as_str()).collect();
        assert_eq!(moved, ["get"]);
    }

    #[test]
    fn a_kind_that_does_not_run_is_left_out_with_its_first_reason() {
        let mut samples = Samples::default();
        samples.absent("kvcr", &anyhow::anyhow!("no such module"));
        samples.absent("kvcr", &anyhow::anyhow!("another"));
        assert!(samples.is_absent("kvcr") && !samples.is_absent("fs"));
        assert_eq!(samples.absent["kvcr"], "no such module");
    }
}
