//! `cargo mutants` in the copy of the working tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::config::{Config, PackageTests, Tests};
use super::copy_tree::{base, tree};
use super::mutant::Mutant;
use super::report::Verdict;
use super::switched::Change;
use crate::sh::Cmd;

/// The least time that the tests of a mutant may take. One that hangs counts as caught by its
/// timeout.
const TIMEOUT_MIN: Duration = Duration::from_secs(240);
/// How many times as long as without a mutant they may take, however busy the machine is: a slow
/// test is no caught mutant.
const TIMEOUT_FACTOR: u32 = 5;
/// The CPU time on each core that one run may take.
const LIMIT_S: u64 = 8 * 60 * 60;
/// Not changed: what only tests, simulations and people see.
const NOT_CHANGED: [&str; 5] = [
    "--exclude=**/tests.rs",
    "--exclude=**/tests/**",
    "--exclude=**/*_tests.rs",
    "--exclude-re=<impl (std::)?(fmt::)?(Debug|Display) for",
    // Compiled for the fault simulator only, whose tests are not among those that run.
    "--exclude-re=simulated::",
];
/// The files that a run leaves, and what they mean.
const OUTCOMES: [(&str, Verdict); 4] = [
    ("caught.txt", Verdict::Caught),
    ("missed.txt", Verdict::Missed),
    ("timeout.txt", Verdict::Timeout),
    ("unviable.txt", Verdict::Unviable),
];

/// What cargo builds of the copy goes to one place for all runs, without what only a debugger needs.
fn with_env(cmd: Cmd) -> Cmd {
    cmd.env("CARGO_TARGET_DIR", base().join("build").to_string_lossy())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        // That a property fails is all that counts. A case that is kept would make the tests of
        // later mutants stronger than they are.
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
}

/// `cargo mutants` on the copy.
fn cargo_mutants() -> Cmd {
    let line = "cargo mutants --colors=never --no-shuffle --dir";
    with_env(Cmd::new(line).arg(tree().to_string_lossy()))
}

/// Runs the tests without a change. cargo-mutants would do so for the package of the mutants only.
/// Returns the time that they may take with one.
fn run_unchanged(tests: &Tests) -> Result<Duration> {
    let test = |more: &str| {
        let packages = tests.packages.iter().map(|name| format!("--package={name}"));
        let cmd = Cmd::new("cargo test --quiet").args(packages).args(tests.options.clone());
        with_env(cmd.args(more.split_whitespace()).dir(tree()).limit_s(LIMIT_S))
    };
    test("--no-run").run()?;
    let began = Instant::now();
    test("").args(tests.skip_args()).run()?;
    Ok(timeout(began.elapsed()))
}

/// How long the tests of a mutant may take, if they take `unchanged` without one.
fn timeout(unchanged: Duration) -> Duration {
    TIMEOUT_MIN.max(unchanged * TIMEOUT_FACTOR)
}

/// All mutants of the modules.
pub fn list(config: &Config) -> Result<Vec<Mutant>> {
    let text = list_cmd(config).read()?;
    Ok(text.lines().filter_map(|name| Mutant::parse(name, line)).collect())
}

/// The same, with what is needed to make each of them.
pub fn list_changes(config: &Config) -> Result<Vec<Change>> {
    Change::read_all(&list_cmd(config).arg("--json").read()?, line)
}

fn list_cmd(config: &Config) -> Cmd {
    let glob = |file: &String| match file.ends_with('/') {
        true => format!("--file={file}**/*.rs"),
        false => format!("--file={file}"),
    };
    let files = config.modules.iter().flat_map(|module| &module.files).map(glob);
    // It reads the code of other packages too, unless they are named.
    let packages = config.packages.iter().map(|package| format!("--package={}", package.name));
    cargo_mutants().arg("--list").args(packages).args(files).args(NOT_CHANGED)
}

/// A line of a file in the copy.
fn line(file: &str, number: usize) -> Option<String> {
    let text = fs::read_to_string(tree().join(file)).ok()?;
    text.lines().nth(number.checked_sub(1)?).map(str::to_owned)
}

/// Runs tests on mutants of a package. First without a change: they must pass then, or all mutants
/// would seem to be caught.
pub fn run<'a>(
    package: &PackageTests,
    stage: &str,
    tests: &Tests,
    mutants: &[&'a Mutant],
) -> Result<Vec<(&'a Mutant, Verdict)>> {
    if mutants.is_empty() {
        return Ok(Vec::new());
    }
    let output = base().join("runs").join(format!("{}-{stage}", package.name));
    if output.exists() {
        fs::remove_dir_all(&output)?;
    }
    fs::create_dir_all(&output)?;
    let timeout = run_unchanged(tests).context("the tests do not pass without a mutant")?;
    let files: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
    let cmd = cargo_mutants()
        .args(["--in-place", "--baseline=skip"])
        .arg(format!("--timeout={}", timeout.as_secs()))
        .arg(format!("--output={}", output.display()))
        .args(["--package", &package.name])
        .args(tests.packages.iter().map(|name| format!("--test-package={name}")))
        .args(tests.options.iter().map(|option| format!("--cargo-arg={option}")))
        .args(mutants.iter().map(|mutant| format!("--re=^{}$", escaped(&mutant.name))))
        // Mutants that delete a field run whether their names match or not, but in these files only.
        .args(files.iter().map(|file| format!("--file={file}")))
        // What follows the first `--` is for `cargo test`.
        .arg("--")
        .args(tests.skip_args())
        .limit_s(LIMIT_S);
    // It fails when a mutant survives, too: what counts is that each has an outcome.
    let ended = cmd.run();
    let verdicts = read_verdicts(&output.join("mutants.out"))?;
    let verdict_of = |mutant: &&'a Mutant| {
        let found = verdicts.iter().find(|(name, _)| *name == mutant.name);
        found.map(|(_, verdict)| (*mutant, *verdict))
    };
    let found: Vec<_> = mutants.iter().filter_map(verdict_of).collect();
    if found.len() < mutants.len() {
        ended.context("the run was ended")?;
        bail!("{} of {} mutants have an outcome", found.len(), mutants.len());
    }
    Ok(found)
}

fn read_verdicts(out: &Path) -> Result<Vec<(String, Verdict)>> {
    let mut verdicts = Vec::new();
    for (file, verdict) in OUTCOMES {
        let text =
            fs::read_to_string(out.join(file)).with_context(|| format!("{file} of a run"))?;
        verdicts.extend(text.lines().map(|name| (name.to_owned(), verdict)));
    }
    Ok(verdicts)
}

/// A regular expression that matches `text` only.
fn escaped(text: &str) -> String {
    let mut regex = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            regex.push('\\');
        }
        regex.push(letter);
    }
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_with_a_meaning_are_escaped() {
        // `\<` and `\>` are not letters, but the beginning and the end of a word.
        let name = "a/b.rs:1:2: replace < with == in A<'_>::f";
        assert_eq!(escaped(name), r"a/b\.rs:1:2: replace < with == in A<'_>::f");
    }

    #[test]
    fn tests_that_are_slow_without_a_mutant_have_more_time_with_one() {
        let seconds = Duration::from_secs;
        assert_eq!([timeout(seconds(9)), timeout(seconds(100))], [seconds(240), seconds(500)]);
    }

    #[test]
    fn verdicts_come_from_the_files_of_a_run() {
        let dir = std::env::temp_dir().join(format!("kvtier-xtask-mutants-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (file, _) in OUTCOMES {
            fs::write(dir.join(file), "").unwrap();
        }
        fs::write(dir.join("missed.txt"), "one\ntwo\n").unwrap();
        fs::write(dir.join("caught.txt"), "three\n").unwrap();
        let verdicts = read_verdicts(&dir).unwrap();
        let missed = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Missed).count();
        assert_eq!((verdicts.len(), missed), (3, 2));
        fs::remove_dir_all(&dir).unwrap();
        assert!(read_verdicts(&dir).is_err());
    }
}
