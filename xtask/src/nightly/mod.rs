//! `cargo xtask nightly`: checks that take longer than a change can wait.
//!
//! Each has a row in `docs/TESTING.md` with the date, machine and outcome of its last run.

mod asan;
mod botocore;
mod items;
mod lmcache;
mod ptxas;
mod python;
mod sglang;
mod vllm;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::ci::Outcome;
use crate::testing::Count;
use crate::workspace::{self, Package};
use items::{ITEMS, Item};

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

/// The outcome of an item that runs tests.
fn tested(count: Count) -> Outcome {
    match count.passed {
        0 => Outcome::Skipped("no such tests yet".into()),
        passed => Outcome::Noted(format!("{passed} tests")),
    }
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
