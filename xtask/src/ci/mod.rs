//! `cargo xtask ci`: everything a change must pass. Cheap checks come first, so that a slip shows
//! in seconds.

mod steps;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::Cmd;
use crate::testing::Count;
use crate::watchdog::cpu_of_children;
use crate::workspace::{self, Package};
use steps::{Lane, STEPS, Step};

/// The CPU time, on each core, that all steps that wait may use.
const WAITING_LIMIT_S: u64 = 60 * 60;

/// What a step did.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// Passed, and there is something to say about it in a few words.
    Noted(String),
    /// Not done on this machine, or with nothing to do, and why.
    Skipped(String),
}

/// What the steps know and gather.
#[derive(Debug)]
pub struct Run {
    pub packages: Vec<Package>,
    /// All tests that any step ran.
    pub tests: Count,
}

/// What is shown of a step at the end.
struct Line {
    name: &'static str,
    text: String,
    passed: bool,
}

/// Runs the steps in order up to the first that fails; those that [wait](Lane::Waiting) run beside
/// the others of their part of the list.
pub fn run(args: &mut Args) -> Result<()> {
    let list = args.flag("--list");
    let only = args.value("--only")?;
    args.end()?;
    if list {
        STEPS.iter().for_each(|step| println!("{}", step.name));
        return Ok(());
    }
    let chosen = chosen(only.as_deref())?;
    let mut run = Run { packages: workspace::read()?, tests: Count::default() };
    let start = Instant::now();
    let lines = with_lanes(&chosen, &mut run)?;
    summarize(&lines, chosen.len(), run.tests, start.elapsed())
}

/// All steps, or those of a list with commas.
fn chosen(only: Option<&str>) -> Result<Vec<&'static Step>> {
    let Some(names) = only else { return Ok(STEPS.iter().collect()) };
    let step = |name| STEPS.iter().find(|step| step.name == name);
    let step =
        |name| step(name).with_context(|| format!("no step `{name}`: `cargo xtask ci --list`"));
    names.split(',').map(step).collect()
}

/// Up to the first that fails.
fn in_order(steps: &[&'static Step], run: &mut Run) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for step in steps {
        lines.push(carry_out(step, run));
        if lines.last().is_some_and(|line| !line.passed) {
            break;
        }
    }
    lines
}

/// In order too, but where steps that wait follow steps that build, both kinds run at once.
fn with_lanes(steps: &[&'static Step], run: &mut Run) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for part in steps.chunk_by(|a, b| (a.lane == Lane::One) == (b.lane == Lane::One)) {
        let (waiting, others): (Vec<_>, Vec<_>) =
            part.iter().copied().partition(|step| step.lane == Lane::Waiting);
        lines.extend(match waiting.is_empty() || others.is_empty() {
            true => in_order(part, run),
            false => side_by_side(&others, &waiting, run)?,
        });
        if lines.iter().any(|line| !line.passed) {
            break;
        }
    }
    Ok(lines)
}

/// The steps that wait run in a process of their own. What it prints is shown when the others are done.
fn side_by_side(
    others: &[&'static Step],
    waiting: &[&'static Step],
    run: &mut Run,
) -> Result<Vec<Line>> {
    let names: Vec<&str> = waiting.iter().map(|step| step.name).collect();
    let own = std::env::current_exe().context("the path of this program")?;
    let cmd = Cmd::new("").arg(own.to_string_lossy()).args(["ci", "--only", &names.join(",")]);
    let cmd = cmd.limit_s(WAITING_LIMIT_S);
    println!("\n{cmd}\n    runs beside the next steps, and is shown after them");
    thread::scope(|scope| {
        let beside = scope.spawn(|| cmd.try_read());
        let mut lines = in_order(others, run);
        let (passed, text) = beside.join().expect("running a command does not panic")?;
        println!("\n{text}");
        run.tests += text.lines().rev().find_map(total_of).unwrap_or_default();
        lines.extend(waiting.iter().filter_map(|step| line_of(step, &text)));
        if !passed && lines.iter().all(|line| line.passed) {
            bail!("`{cmd}` failed, and printed of no step that it did");
        }
        Ok(lines)
    })
}

/// The line about a step in what another process printed.
fn line_of(step: &Step, text: &str) -> Option<Line> {
    let begins = |line: &&str| line.split(' ').next() == Some(step.name);
    let text = text.lines().filter_map(|line| line.strip_prefix("--- ")).find(begins)?;
    Some(Line { name: step.name, text: text.to_owned(), passed: !text.contains("  FAILED: ") })
}

/// Reads the count of tests under the table at the end.
fn total_of(line: &str) -> Option<Count> {
    let (passed, failed) = line.strip_suffix(" failed")?.split_once(" passed, ")?;
    Some(Count { passed: passed.parse().ok()?, failed: failed.parse().ok()?, ignored: 0 })
}

fn carry_out(step: &Step, run: &mut Run) -> Line {
    println!("\n=== {} ===", step.name);
    let start = Instant::now();
    let cpu = cpu_of_children();
    let outcome = (step.run)(run);
    let cpu = cpu_of_children().saturating_sub(cpu);
    let passed = outcome.is_ok();
    let line = Line { name: step.name, text: text(step, &outcome, start.elapsed(), cpu), passed };
    println!("--- {}", line.text);
    line
}

fn text(step: &Step, outcome: &Result<Outcome>, took: Duration, cpu: Duration) -> String {
    let outcome = match outcome {
        Ok(Outcome::Passed) => "ok".to_owned(),
        Ok(Outcome::Noted(note)) => format!("ok: {note}"),
        Ok(Outcome::Skipped(why)) => format!("skipped: {why}"),
        Err(error) => format!("FAILED: {error:#}"),
    };
    let [took, cpu] = [took, cpu].map(|time| time.as_secs_f64());
    format!("{:<16} {took:>7.1} s {cpu:>7.1} s  {outcome}", step.name)
}

/// The table at the end (time, CPU time, outcome); its last line is the count of all tests.
fn summarize(lines: &[Line], chosen: usize, tests: Count, took: Duration) -> Result<()> {
    println!("\n=== summary: time, CPU time ===");
    lines.iter().for_each(|line| println!("{}", line.text));
    let [took, cpu] = [took, cpu_of_children()].map(|time| time.as_secs_f64());
    println!("{:<16} {took:>7.1} s {cpu:>7.1} s", "total");
    if tests != Count::default() {
        println!("\n{} passed, {} failed", tests.passed, tests.failed);
    }
    let failed: Vec<&str> =
        lines.iter().filter(|line| !line.passed).map(|line| line.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "step {} failed, {} not run; again: cargo xtask ci --only {}",
        failed.join(" and "),
        chosen - lines.len(),
        failed.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, lane: Lane, run: fn(&mut Run) -> Result<Outcome>) -> Step {
        Step { name, lane, run }
    }

    #[test]
    fn steps_are_chosen_by_their_names() {
        let names =
            |only| -> Vec<&str> { chosen(only).unwrap().iter().map(|step| step.name).collect() };
        assert_eq!(names(None).len(), STEPS.len());
        assert_eq!(names(Some("doc,fmt")), ["doc", "fmt"]);
        assert!(chosen(Some("doc,dog")).is_err_and(|e| e.to_string().contains("`dog`")));
    }

    #[test]
    fn lines_and_counts_of_another_process_are_read() {
        let [good, bad, none] = ["python", "cufile", "py"]
            .map(|name| step(name, Lane::Waiting, |_| Ok(Outcome::Passed)));
        let took = Duration::from_millis(1500);
        let printed = |step, outcome| format!("--- {}\n", text(step, &outcome, took, took));
        let all = printed(&good, Ok(Outcome::Noted("2 tests".into())))
            + &printed(&bad, Err(anyhow::anyhow!("no")))
            + "\n12 passed, 3 failed\nxtask: step cufile failed";
        let line = line_of(&good, &all).unwrap();
        assert!(line.passed && line.text.ends_with("1.5 s  ok: 2 tests"), "{}", line.text);
        assert!(!line_of(&bad, &all).unwrap().passed);
        assert!(line_of(&none, &all).is_none());
        let count = all.lines().rev().find_map(total_of);
        assert_eq!(count, Some(Count { passed: 12, failed: 3, ignored: 0 }));
    }

    #[test]
    fn after_a_step_that_fails_none_runs() {
        let mut run = Run { packages: Vec::new(), tests: Count::default() };
        const FAILS: Step = Step { name: "b", lane: Lane::One, run: |_| bail!("no") };
        const COUNTS: Step = Step {
            name: "a",
            lane: Lane::One,
            run: |run| {
                run.tests.passed += 1;
                Ok(Outcome::Passed)
            },
        };
        let lines = with_lanes(&[&COUNTS, &FAILS, &COUNTS], &mut run).unwrap();
        assert_eq!((lines.len(), run.tests.passed), (2, 1));
        let error = summarize(&lines, 3, run.tests, Duration::ZERO).unwrap_err().to_string();
        assert_eq!(error, "step b failed, 1 not run; again: cargo xtask ci --only b");
    }
}
