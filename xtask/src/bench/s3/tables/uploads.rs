//! The table `uploads`: small objects over a server that answers late, where the time is that of
//! the round trips.

use crate::bench::s3::cells::{Cell, Plan};
use crate::bench::s3::results::Results;

/// Prints a row for each client: seconds for all uploads and CPU time, by uploads in flight.
pub fn print(plan: &Plan, names: &[String], results: &Results) {
    let cells = plan.cells();
    let count = cells.first().map_or(0, |cell| cell.count);
    let latency_ms = plan.preset.latency_ms;
    let head: String = cells.iter().map(heading).collect();
    println!(
        "\n{count} uploads to a server that answers each after {latency_ms} ms; connections are open before the clock starts:\n\n\
         | client |{head}\n|---|{}",
        "---|".repeat(4 * cells.len())
    );
    for name in names {
        let row: String = cells.iter().map(|cell| figures(cell, name, results)).collect();
        println!("| {name} |{row}");
    }
}

fn heading(cell: &Cell) -> String {
    let what = format!("{} {}, {} at once", cell.scheme, cell.bytes(), cell.inflight);
    format!(" {what}: s | MB/s | CPU s | p99 ms |")
}

fn figures(cell: &Cell, name: &str, results: &Results) -> String {
    let mb = (cell.count * cell.size) as f64 / 1e6;
    let found = |of: fn(&crate::bench::s3::contest::Sample) -> f64| results.median(cell, name, of);
    let Some((rate, cpu, p99)) = found(|s| s.mb_per_s)
        .zip(found(|s| s.cpu_s_per_gb))
        .zip(found(|s| s.p99_ms))
        .map(|((a, b), c)| (a, b, c))
    else {
        return " - | - | - | - |".into();
    };
    format!(" {:.2} | {rate:.1} | {:.3} | {p99:.0} |", mb / rate, cpu * mb / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use crate::bench::s3::contest::Sample;

    #[test]
    fn seconds_are_those_of_all_uploads() {
        let plan = Plan::new(&mut Args::of(&["--table", "uploads"])).unwrap();
        let cells = plan.cells();
        assert_eq!(
            cells.iter().map(|cell| (cell.size, cell.inflight, cell.count)).collect::<Vec<_>>(),
            [(1_000_000, 1, 100), (1_000_000, 10, 100)]
        );
        assert!(
            plan.with_awscrt && plan.with_boto3 && plan.is_alone() && plan.preset.latency_ms == 80
        );
        let mut results = Results::default();
        let sample =
            Sample { mb_per_s: 12.5, cpu_s_per_gb: 2.0, p99_ms: 81.0, ..Sample::default() };
        results.add(&cells[0], "kvtier", sample);
        assert_eq!(figures(&cells[0], "kvtier", &results), " 8.00 | 12.5 | 0.200 | 81 |");
        assert_eq!(figures(&cells[1], "kvtier", &results), " - | - | - | - |");
        assert!(Plan::new(&mut Args::of(&["--table", "downloads"])).is_err());
    }
}
