//! The tables of medians.

use super::super::adapter_plan::median;
use super::super::adapter_samples::Samples;

/// Prints a table for transfers, one for lookups, and one for the scheduler's thread.
pub fn print(samples: &Samples) {
    samples.print_absent();
    println!(
        "\n| chunks | | tier | MB/s | CPU s/GB | p50 ms a job | µs a chunk in the scheduler |"
    );
    println!("|{}", "---|".repeat(7));
    for (row, turns) in samples.transfers() {
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
    for (row, turns) in samples.rows("lookup") {
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
    for (row, turns) in samples.rows("long job") {
        let [store, load] = ["store_us", "load_us"].map(|name| median(turns, name));
        println!("| {} KiB | {} | {store:.0} | {load:.0} |", row.size >> 10, row.kind);
    }
}
