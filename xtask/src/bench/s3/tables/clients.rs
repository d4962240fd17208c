//! Tables: CPU time of each client with its ratio to the floor, and MB/s.

use super::title;
use crate::bench::s3::cells::{Cell, Plan};
use crate::bench::s3::results::Results;

/// The name of our own samples.
const OURS: &str = "kvtier";

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
    use crate::bench::s3::contest::Sample;

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
