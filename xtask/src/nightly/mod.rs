//! `cargo xtask nightly`: checks that take longer than a change can wait.
//!
//! Each has a row in `docs/TESTING.md` with the date, machine and outcome of its last run.

mod asan;
mod botocore;
mod items;
mod lmcache;
mod ptxas;
mod python;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::ci::Outcome;
use crate::workspace::{self, Package};

struct Item {
    name: &'static str,
    what: &'static str,
    run: fn(&[Package]) -> Result<Outcome>,
}

const ITEMS: &[Item] = &[
    Item {
        name: "long-tests",
        what: "all tests with KVTIER_NIGHTLY=1: soaks and long loops",
        run: items::long_tests,
    },
    Item {
        name: "fault-seeds",
        what: "fault schedules over 10,000 seeds",
        run: items::fault_seeds,
    },
    Item {
        name: "crashes",
        what: "file systems that lose what was not synced, a thousand times",
        run: items::crashes,
    },
    Item {
        name: "shuttle",
        what: "thread interleavings with KVTIER_NIGHTLY=1",
        run: items::shuttle,
    },
    Item {
        name: "asan",
        what: "AddressSanitizer on the crates with unsafe, with a canary",
        run: asan::run,
    },
    Item {
        name: "valgrind",
        what: "memcheck on the allocators and arenas of kvtier-mem",
        run: items::valgrind,
    },
    Item { name: "miri", what: "Miri on the crates that need no kernel", run: items::miri },
    Item { name: "fuzz", what: "every fuzz target for 10 minutes", run: items::fuzz },
    Item {
        name: "real-servers",
        what: "the S3 client on Ceph, Swift, Garage and moto: plain, TLS, HTTP/2",
        run: items::real_servers,
    },
    Item {
        name: "lmcache-files",
        what: "the real LMCache reads our files and we read its",
        run: lmcache::files,
    },
    Item {
        name: "lmcache-bucket",
        what: "the real LMCache's S3 adapter and our tier on one bucket",
        run: lmcache::bucket,
    },
    Item {
        name: "lmcache-wheel",
        what: "the Python module inside the real LMCache",
        run: lmcache::wheel,
    },
    Item {
        name: "python",
        what: "the Python module's tests with KVTIER_NIGHTLY=1",
        run: python::long,
    },
    Item {
        name: "wheel",
        what: "the wheel for manylinux_2_28 with the command, installed and tested",
        run: python::wheel,
    },
    Item {
        name: "python-valgrind",
        what: "memcheck on the Python module's tests, with a canary",
        run: python::valgrind,
    },
    Item {
        name: "botocore",
        what: "the S3 client's signatures beside botocore's",
        run: botocore::run,
    },
    Item {
        name: "ptxas",
        what: "NVIDIA's assembler takes the kernel that sums on the GPU",
        run: ptxas::run,
    },
    Item {
        name: "clippy-each",
        what: "each crate is clean with its own features only",
        run: items::clippy_each,
    },
    Item { name: "test-each", what: "the tests of each crate build alone", run: items::test_each },
    Item { name: "features", what: "all pairs of features", run: items::features },
    Item {
        name: "bench-smoke",
        what: "every benchmark once, unoptimised",
        run: items::bench_smoke,
    },
];

/// Runs all items, or one, and goes on past failures: a night is too long to lose to the first.
pub fn run(args: &mut Args) -> Result<()> {
    let list = args.flag("--list");
    let only = args.value("--only")?;
    args.end()?;
    if list {
        ITEMS.iter().for_each(|item| println!("{:<16} {}", item.name, item.what));
        return Ok(());
    }
    let packages = workspace::read()?;
    let chosen: Vec<&Item> =
        ITEMS.iter().filter(|item| only.as_deref().is_none_or(|name| name == item.name)).collect();
    if chosen.is_empty() {
        bail!("no such item; see `cargo xtask nightly --list`");
    }
    let (lines, failed): (Vec<String>, Vec<bool>) =
        chosen.iter().map(|item| carry_out(item, &packages)).unzip();
    println!("\n=== summary (enter it in docs/TESTING.md) ===\n{}", lines.join("\n"));
    match failed.iter().filter(|failed| **failed).count() {
        0 => Ok(()),
        count => bail!("{count} of {} nightly items failed", chosen.len()),
    }
}

/// The item's line of the summary, and whether it failed.
fn carry_out(item: &Item, packages: &[Package]) -> (String, bool) {
    println!("\n=== {}: {} ===", item.name, item.what);
    let start = Instant::now();
    let outcome = (item.run)(packages);
    let text = match &outcome {
        Ok(Outcome::Passed) => "ok".to_owned(),
        Ok(Outcome::Noted(note)) => format!("ok: {note}"),
        Ok(Outcome::Skipped(why)) => format!("skipped: {why}"),
        Err(error) => format!("FAILED: {error:#}"),
    };
    let line = format!("{:<15} {:>7.1} s  {text}", item.name, start.elapsed().as_secs_f64());
    println!("--- {line}");
    (line, outcome.is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a night proves is worth nothing if it is not recorded when it was last proven.
    #[test]
    fn every_item_has_a_row_in_the_testing_document() {
        let text = std::fs::read_to_string(crate::sh::root().join("docs/TESTING.md")).unwrap();
        for item in ITEMS {
            let row = format!("| `{}` |", item.name);
            assert!(text.contains(&row), "docs/TESTING.md has no row that begins with {row}");
        }
    }
}
