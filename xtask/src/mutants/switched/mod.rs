//! `cargo xtask mutants --switched`: all changes in one build, each behind a switch that the environment turns on.
//!
//! So a change costs no build, and meets only the tests that run the changed code: the
//! quick ones first, until one fails or their time is up. Changes to constants have no switch; they are
//! counted, and `cargo xtask mutants` tries them.

mod change;
mod edits;
mod objections;
mod sites;
mod switched_tree;
mod test_programs;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};

pub use self::change::Change;
use self::switched_tree::{Switched, tree};
use self::test_programs::{Ended, Program, Test, on_all_cores, programs, try_each};
use super::config::Config;
use super::mutant::Mutant;
use super::report::{Report, Verdict};
use super::{Selection, copy_tree, run_mutants};
use crate::sh::Cmd;

/// The tests of a change run in parts of at most this time, the quick ones first: most changes are
/// caught by the first part.
const QUICK: [Duration; 3] =
    [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(4)];
/// The parts for changes that survive these. What only tests after them would catch counts as a
/// survivor.
const SLOW: [Duration; 1] = [Duration::from_secs(20)];
/// Tests of other crates run as if they took this many times as long: those of the crate itself are
/// the likelier ones to fail.
const OTHERS_FACTOR: u32 = 3;
/// Tests in the file of the change run first if they are shorter.
const BESIDE_MAX: Duration = Duration::from_secs(1);
/// After this number of changes, a line says how far the run is.
const PROGRESS_EACH: usize = 50;
/// How many times as long as without a change tests may take, and the least time that they have.
const TIMEOUT_FACTOR: u32 = 12;
const TIMEOUT_MIN: Duration = Duration::from_secs(25);

/// Tries the mutants of a selection.
pub fn try_all(selection: &Selection) -> Result<Report> {
    let config = Config::read()?;
    let packages = packages(&config, selection.package.as_deref())?;
    copy_tree::update()?;
    let changes = run_mutants::list_changes(&config)?;
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
    try_chosen(&config, selection, &changes, &switched, &tests)
}

/// Tries those of the changes with a switch that the selection chooses.
fn try_chosen(
    config: &Config,
    selection: &Selection,
    changes: &[Change],
    switched: &Switched,
    tests: &[Test],
) -> Result<Report> {
    let mut switches = BTreeMap::new();
    let mut by_module: Vec<Vec<Mutant>> = config.modules.iter().map(|_| Vec::new()).collect();
    for (change, switch) in changes.iter().zip(1..) {
        let module = config.module_of(&change.mutant.file);
        if let Some(module) = module.filter(|_| !switched.without_switch.contains(&switch)) {
            by_module[module].push(change.mutant.clone());
            switches.insert(change.mutant.name.as_str(), switch);
        }
    }
    let mut report = Report::new(config.judged.clone());
    let mut left = Vec::new();
    for (module, mutant) in selection.choose(config, by_module) {
        report.add(&config.modules[module].name, &mutant);
        let switch = switches[mutant.name.as_str()];
        match switched.unviable.contains(&switch) {
            true => _ = report.note(&mutant, Verdict::Unviable),
            false => left.push(Attempt { switch, change: &changes[switch - 1], passed: 0 }),
        }
    }
    for parts in [QUICK.as_slice(), &SLOW] {
        left = try_parts(left, parts, tests, &mut report)?;
        report.print();
    }
    Ok(report)
}

/// A change that is tried.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    switch: usize,
    change: &'a Change,
    /// How many of its tests have passed with it.
    passed: usize,
}

/// Runs the next parts of the tests of each change, and notes the outcome. Returns the survivors.
fn try_parts<'a>(
    attempts: Vec<Attempt<'a>>,
    parts: &[Duration],
    tests: &[Test],
    report: &mut Report,
) -> Result<Vec<Attempt<'a>>> {
    let tried = on_all_cores(attempts.len(), |_, at| {
        let Attempt { switch, change, passed } = attempts[at];
        let asking = asking(switch, change, tests);
        let (verdict, more) = try_change(switch, &asking[passed..], parts)?;
        if verdict == Verdict::Missed {
            println!("survivor: {}", change.mutant.name);
        }
        if at % PROGRESS_EACH == 0 {
            println!("change {at} of {}", attempts.len());
        }
        Ok((verdict, Attempt { passed: passed + more, ..attempts[at] }))
    })?;
    let mut survivors = Vec::new();
    for (verdict, attempt) in tried {
        if report.note(&attempt.change.mutant, verdict).is_some() {
            survivors.push(attempt);
        }
    }
    Ok(survivors)
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

/// The tests that ask for a switch, in the order in which they run: first the quick ones in the file of the change.
fn asking<'a>(switch: usize, change: &Change, tests: &'a [Test]) -> Vec<&'a Test> {
    let file = change.mutant.file.as_str();
    let own = file.split('/').nth(1);
    let module = module_of(file);
    let mut asking: Vec<&Test> =
        tests.iter().filter(|test| test.asks_for.contains(&switch)).collect();
    asking.sort_by_key(|test| {
        let is_own = Some(test.program.folder.as_str()) == own;
        let is_beside = is_own
            && test.takes < BESIDE_MAX
            && module.as_ref().is_some_and(|path| test.name.starts_with(path));
        let takes = if is_own { test.takes } else { test.takes * OTHERS_FACTOR };
        (!is_beside, takes)
    });
    asking
}

/// How the names begin of the tests in a file of a library.
fn module_of(file: &str) -> Option<String> {
    let (_, path) = file.split_once("/src/")?;
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    Some(format!("{}::", path.replace('/', "::")))
}

/// Runs tests with a switch on, part by part, until one fails. Also returns how many passed.
fn try_change(switch: usize, tests: &[&Test], parts: &[Duration]) -> Result<(Verdict, usize)> {
    let mut rest = tests;
    for most in parts {
        let mut time = Duration::ZERO;
        let fits = |test: &&&Test| {
            time += test.takes;
            time <= *most
        };
        let count = rest.iter().take_while(fits).count();
        let (part, after) = rest.split_at(count);
        rest = after;
        match run_part(switch, part)? {
            Ended::Passed => {}
            Ended::Failed => return Ok((Verdict::Caught, 0)),
            Ended::TimedOut => return Ok((Verdict::Timeout, 0)),
        }
    }
    Ok((Verdict::Missed, tests.len() - rest.len()))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::change::Genre;
    use super::*;

    fn test(folder: &str, name: &str, ms: u64) -> Test {
        let (path, dir) = (PathBuf::new(), PathBuf::new());
        Test {
            program: Program { folder: folder.into(), path, dir },
            name: name.into(),
            takes: Duration::from_millis(ms),
            asks_for: BTreeSet::from([7]),
        }
    }

    #[test]
    fn quick_tests_beside_the_change_run_first_and_those_of_other_crates_late() {
        let name = "crates/disk/src/space/on_full.rs:1:2: replace a with b";
        let mutant = Mutant::parse(name, |_, _| Some("a".into())).unwrap();
        let (genre, line, column, replacement) = (Genre::Binary, 1, 1, "b".into());
        let change = Change { mutant, genre, line, column, replacement };
        let tests = [
            test("disk", "open::tests::quick", 10),
            test("file", "space::on_full::tests::of_another_crate", 10),
            test("disk", "space::on_full::tests::long", 5000),
            test("disk", "space::on_full::tests::short", 900),
            test("disk", "space::tests::slower", 20),
        ];
        let order: Vec<&str> = asking(7, &change, &tests)
            .iter()
            .map(|test| test.name.rsplit("::").next().unwrap())
            .collect();
        assert_eq!(order, ["short", "quick", "slower", "of_another_crate", "long"]);
        assert!(asking(8, &change, &tests).is_empty());
    }
}
