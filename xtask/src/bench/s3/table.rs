use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::contest::Sample;
use super::plan::{Cell, Plan};

/// The name of our own samples.
const OURS: &str = "kvtier";

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
    fn cost(&self, cell: &Cell, name: &str) -> Option<f64> {
        self.median(cell, name, |s| if cell.is_bare() { s.cpu_us_per_op } else { s.cpu_s_per_gb })
    }

    /// The cheapest of bare sockets, and what it costs.
    fn floor(&self, cell: &Cell, names: &[String]) -> Option<(String, f64)> {
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

/// Prints tables as Markdown: CPU time with its ratio to the floor, and MB/s.
pub fn print(plan: &Plan, names: &[String], results: &Results) {
    let shown: Vec<&String> = names.iter().filter(|name| !name.starts_with("raw-")).collect();
    let head: String = shown.iter().map(|name| format!(" {name} |")).collect();
    let lines = "---|".repeat(shown.len());
    println!(
        "\nCPU s/GB (HEAD: µs each), and how many times the floor:\n\n| | objects | at once | floor |{head}\n|---|---|---|---|{lines}"
    );
    plan.cells()
        .iter()
        .filter_map(|cell| cost(cell, names, &shown, results))
        .for_each(|row| println!("{row}"));
    println!(
        "\nMB/s (HEAD: a second):\n\n| | objects | at once | best socket |{head}\n|---|---|---|---|{lines}"
    );
    plan.cells()
        .iter()
        .filter_map(|cell| rate(cell, names, &shown, results))
        .for_each(|row| println!("{row}"));
}

/// The first three columns of a row.
pub fn title(cell: &Cell) -> String {
    let size = if cell.op == "head" { "-".to_owned() } else { cell.bytes() };
    format!("| {} {} | {size} | {} |", cell.scheme, cell.op.to_uppercase(), cell.inflight)
}

fn cost(cell: &Cell, names: &[String], shown: &[&String], results: &Results) -> Option<String> {
    let (who, floor) = results.floor(cell, names)?;
    let digits = if cell.op == "head" { 1 } else { 3 };
    let each = |name: &&String| match results.cost(cell, name) {
        Some(cost) if **name == OURS => format!(" **{cost:.digits$}** ({:.2}) |", cost / floor),
        Some(cost) => format!(" {cost:.digits$} ({:.2}) |", cost / floor),
        None => " - |".to_owned(),
    };
    let who = who.trim_start_matches("raw-").to_owned();
    Some(format!(
        "{} {floor:.digits$} {who} |{}",
        title(cell),
        shown.iter().map(each).collect::<String>()
    ))
}

fn rate(cell: &Cell, names: &[String], shown: &[&String], results: &Results) -> Option<String> {
    let heads = |mb_per_s: f64| {
        if cell.op == "head" { mb_per_s * 1e6 / cell.size as f64 } else { mb_per_s }
    };
    let of = |name: &str| results.median(cell, name, |s| heads(s.mb_per_s));
    let raw = names.iter().filter(|name| name.starts_with("raw-"));
    let best = raw.filter_map(|name| of(name)).reduce(f64::max)?;
    let each = |name: &&String| of(name).map_or(" - |".to_owned(), |rate| format!(" {rate:.0} |"));
    Some(format!("{} {best:.0} |{}", title(cell), shown.iter().map(each).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_cheapest_socket_by_its_median() {
        let cell =
            Cell { scheme: "http".into(), op: "get".into(), size: 65536, inflight: 1, count: 1 };
        let mut results = Results::default();
        for (name, cost) in
            [("raw-a", 3.0), ("raw-a", 1.0), ("raw-a", 2.0), ("raw-b", 1.9), ("kvtier", 1.0)]
        {
            results.add(&cell, name, Sample { cpu_s_per_gb: cost, ..Sample::default() });
        }
        let names = ["raw-a", "raw-b", "kvtier"].map(String::from);
        assert_eq!(results.floor(&cell, &names), Some(("raw-b".into(), 1.9)));
        let row = cost(&cell, &names, &[&names[2]], &results).unwrap();
        assert_eq!(row, "| http GET | 64 KiB | 1 | 1.900 b | **1.000** (0.53) |");
    }
}
