//! `cargo xtask mutants --switched`: all changes in one build, each behind a switch that the environment turns on.
//!
//! So a change costs no build, and meets only the tests that run the changed code: quick tests of its
//! own crate first. Changes to constants have no switch; they are counted, and `cargo xtask mutants` tries them.

mod change;
mod edits;
mod sites;
mod switched_tree;
mod test_programs;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use self::change::Change;
use self::switched_tree::{Switched, tree};
use self::test_programs::{Ended, Program, Test, on_all_cores, programs, try_each};
use super::config::Config;
use super::report::{Report, Verdict};
use super::{copy_tree, run_mutants};
use crate::sh::Cmd;

/// The tests of a change run in parts of at most so much time, the quick ones first: most changes are
/// caught by the first part.
const PARTS: [Duration; 4] =
    [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(4), Duration::MAX];
/// How many times as long as without a change tests may take, and the least time that they have.
const TIMEOUT_FACTOR: u32 = 12;
const TIMEOUT_MIN: Duration = Duration::from_secs(25);

/// Tries all changes of the packages with these names, or of all.
pub fn try_all(config: Config, package: Option<&str>) -> Result<Report> {
    copy_tree::update()?;
    let mut changes = run_mutants::list_changes(&config)?;
    let of = |file: &str| config.module_of(file).map(|module| &config.modules[module]);
    changes.retain(|change| {
        of(&change.mutant.file).is_some_and(|module| package.is_none_or(|p| module.package == p))
    });
    let packages = packages(&config, package)?;
    let switched = Switched::make(&changes, &cargo("check --keep-going", &packages))?;
    println!(
        "{} changes have a switch, {} do not compile, {} can have none",
        switched.inside.len(),
        switched.unviable.len(),
        switched.without_switch.len()
    );
    let (is_built, messages) =
        cargo("test --no-run --lib --tests", &packages).limit_s(3600).try_read()?;
    if !is_built {
        bail!("the tests do not build with the switches:\n{messages}");
    }
    let tests = try_each(&programs(&messages), changes.len())?;
    let mut report = Report::new(config.judged.clone());
    for (at, change) in changes.iter().enumerate() {
        if let Some(module) =
            of(&change.mutant.file).filter(|_| !switched.without_switch.contains(&(at + 1)))
        {
            report.add(&module.name, &change.mutant);
        }
    }
    let inside: Vec<usize> = switched.inside.iter().copied().collect();
    let verdicts = on_all_cores(inside.len(), |_, at| {
        let change = &changes[inside[at] - 1];
        let verdict = try_change(inside[at], change, &tests)?;
        if verdict == Verdict::Missed {
            println!("survivor: {}", change.mutant.name);
        }
        Ok(verdict)
    })?;
    for (switch, verdict) in inside.iter().zip(verdicts) {
        report.note(&changes[switch - 1].mutant, verdict);
    }
    for switch in &switched.unviable {
        report.note(&changes[switch - 1].mutant, Verdict::Unviable);
    }
    Ok(report)
}

/// The packages whose tests run.
fn packages(config: &Config, package: Option<&str>) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for of in config.packages.iter().filter(|of| package.is_none_or(|package| of.name == package)) {
        names.extend(of.first.packages.iter().chain(&of.then.packages).cloned());
    }
    names.sort();
    names.dedup();
    if names.is_empty() {
        bail!("no package '{}' in xtask/mutants.toml", package.unwrap_or_default());
    }
    Ok(names)
}

/// `cargo` in the copy, with messages that are read.
fn cargo(what: &str, packages: &[String]) -> Cmd {
    let line = format!("cargo {what} --locked --message-format=json");
    let simulate = packages.iter().any(|name| name == "kvtier-disk");
    Cmd::new(&line)
        .args(packages.iter().map(|name| format!("--package={name}")))
        .args(simulate.then_some("--features=kvtier-disk/simulate"))
        .dir(tree())
        .env("CARGO_TARGET_DIR", copy_tree::base().join("switched-build").to_string_lossy())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        // Changed code has parts that are never reached, and the switch reads memory.
        .rustflags("--cap-lints=warn")
}

/// Runs the tests that ask for a switch, with the switch on, until one fails.
fn try_change(switch: usize, change: &Change, tests: &[Test]) -> Result<Verdict> {
    let own = change.mutant.file.split('/').nth(1).context("a file of a crate")?;
    let mut asking: Vec<&Test> =
        tests.iter().filter(|test| test.asks_for.contains(&switch)).collect();
    asking.sort_by_key(|test| (test.program.folder != own, test.takes));
    let mut rest = asking.as_slice();
    for most in PARTS {
        let mut time = Duration::ZERO;
        let fits = |test: &&&Test| {
            time += test.takes;
            time <= most
        };
        let count = rest.iter().take_while(fits).count();
        let (part, after) = rest.split_at(count);
        rest = after;
        match run_part(switch, part)? {
            Ended::Passed => {}
            Ended::Failed => return Ok(Verdict::Caught),
            Ended::TimedOut => return Ok(Verdict::Timeout),
        }
    }
    Ok(Verdict::Missed)
}

fn run_part(switch: usize, tests: &[&Test]) -> Result<Ended> {
    let mut by_program: BTreeMap<&std::path::Path, (&Program, Vec<&Test>)> = BTreeMap::new();
    for test in tests {
        let of = by_program.entry(&test.program.path);
        of.or_insert_with(|| (&test.program, Vec::new())).1.push(test);
    }
    for (program, tests) in by_program.into_values() {
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        let takes: Duration = tests.iter().map(|test| test.takes).sum();
        let limit = TIMEOUT_MIN.max(takes * TIMEOUT_FACTOR);
        let ended = program.run(&names, &[("KVTIER_MUTANT", switch.to_string())], limit)?;
        if ended != Ended::Passed {
            return Ok(ended);
        }
    }
    Ok(Ended::Passed)
}
