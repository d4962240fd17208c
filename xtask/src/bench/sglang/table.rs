//! The tables of medians.

use super::super::adapter_plan::median;
use super::super::adapter_samples::Samples;

/// Prints a table for transfers, and one for lookups.
pub fn print(samples: &Samples) {
    samples.print_absent();
    println!("\n| pages | | backend | MB/s | CPU s/GB | p50 ms a batch |\n|{}", "---|".repeat(6));
    for (row, turns) in samples.transfers() {
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
    for (row, turns) in samples.rows("exists ") {
        let [pages, us] = ["pages", "us"].map(|name| median(turns, name));
        let how = row.op.trim_start_matches("exists ");
        println!("| {} KiB | {pages} {how} | {} | {us:.0} |", row.size >> 10, row.kind);
    }
}
