//! Ours beside the best other client of each cell: throughput and CPU time in one table.

use super::title;
use crate::bench::s3::cells::{Cell, Plan};
use crate::bench::s3::contest::Sample;
use crate::bench::s3::results::Results;

/// Ours; what begins with `raw-` is no client.
const OURS: &str = "kvtier";

/// Prints a row for each of our clients in each cell in which another client was measured.
pub fn print(plan: &Plan, names: &[String], results: &Results) {
    let ours = names.iter().filter(|name| name.starts_with(OURS));
    let rows: Vec<String> = plan
        .cells()
        .iter()
        .flat_map(|cell| ours.clone().filter_map(|name| row(cell, name, names, results)))
        .collect();
    if rows.is_empty() {
        return;
    }
    println!(
        "\nBeside the best other client: MB/s (HEAD and DELETE: a second) and CPU s/GB (HEAD and DELETE: µs each):\n\n\
         | | objects | at once | client | MB/s | fastest other | ratio | CPU s/GB | cheapest other | ratio |\n|{}",
        "---|".repeat(10)
    );
    rows.iter().for_each(|row| println!("{row}"));
}

fn row(cell: &Cell, ours: &str, names: &[String], results: &Results) -> Option<String> {
    let is_bare = cell.is_bare();
    let rate = |s: &Sample| if is_bare { s.mb_per_s * 1e6 / cell.size as f64 } else { s.mb_per_s };
    let cost = |s: &Sample| if is_bare { s.cpu_us_per_op } else { s.cpu_s_per_gb };
    let our_rate = results.median(cell, ours, rate)?;
    let our_cost = results.median(cell, ours, cost)?;
    let others = names.iter().filter(|name| !name.starts_with(OURS) && !name.starts_with("raw-"));
    let rates = others.clone().filter_map(|name| Some((results.median(cell, name, rate)?, name)));
    let costs = others.filter_map(|name| Some((results.median(cell, name, cost)?, name)));
    let (fastest, fast) = rates.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let (cheapest, cheap) = costs.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let digits = if is_bare { 1 } else { 3 };
    Some(format!(
        "{} {ours} | {our_rate:.0} | {fastest:.0} {fast} | {:.2} | {our_cost:.digits$} | {cheapest:.digits$} {cheap} | {:.2} |",
        title(cell),
        our_rate / fastest,
        our_cost / cheapest
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_and_the_cheapest_may_be_two_clients() {
        let cell =
            Cell { scheme: "https".into(), op: "get".into(), size: 1 << 20, inflight: 8, count: 1 };
        let mut results = Results::default();
        let names = ["raw-tokio", "kvtier", "a", "b"].map(String::from);
        for (name, mb_per_s, cpu_s_per_gb) in
            [("raw-tokio", 9.0, 0.1), ("kvtier", 3.0, 0.3), ("a", 2.0, 0.8), ("b", 1.0, 0.6)]
        {
            results.add(&cell, name, Sample { mb_per_s, cpu_s_per_gb, ..Sample::default() });
        }
        let found = row(&cell, "kvtier", &names, &results).unwrap();
        assert_eq!(
            found,
            "| https GET | 1 MiB | 8 | kvtier | 3 | 2 a | 1.50 | 0.300 | 0.600 b | 0.50 |"
        );
        assert_eq!(row(&cell, "kvtier", &names[..2], &results), None);
    }
}
