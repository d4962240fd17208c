//! `cargo xtask ci`: everything a change must pass. Cheap checks come first, so that a slip shows
//! in seconds.

mod steps;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::args::Args;
use crate::testing::Count;
use crate::workspace::{self, Package};
use steps::{STEPS, Step};

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

struct Line {
    name: &'static str,
    outcome: Result<Outcome>,
    took: Duration,
}

/// Runs the steps in order up to the first that fails.
pub fn run(args: &mut Args) -> Result<()> {
    let list = args.flag("--list");
    let only = args.value("--only")?;
    args.end()?;
    if list {
        STEPS.iter().for_each(|step| println!("{}", step.name));
        return Ok(());
    }
    let chosen: Vec<&Step> =
        STEPS.iter().filter(|step| only.as_deref().is_none_or(|name| name == step.name)).collect();
    if chosen.is_empty() {
        bail!("no such step; see `cargo xtask ci --list`");
    }
    let mut run = Run { packages: workspace::read()?, tests: Count::default() };
    let mut lines = Vec::new();
    for step in &chosen {
        lines.push(carry_out(step, &mut run));
        if lines.last().is_some_and(|line| line.outcome.is_err()) {
            break;
        }
    }
    summarize(&lines, chosen.len(), run.tests)
}

fn carry_out(step: &Step, run: &mut Run) -> Line {
    println!("\n=== {} ===", step.name);
    let start = Instant::now();
    let outcome = (step.run)(run);
    let line = Line { name: step.name, outcome, took: start.elapsed() };
    println!("--- {}", line.text());
    line
}

impl Line {
    fn text(&self) -> String {
        let outcome = match &self.outcome {
            Ok(Outcome::Passed) => "ok".to_owned(),
            Ok(Outcome::Noted(note)) => format!("ok: {note}"),
            Ok(Outcome::Skipped(why)) => format!("skipped: {why}"),
            Err(error) => format!("FAILED: {error:#}"),
        };
        format!("{:<12} {:>7.1} s  {outcome}", self.name, self.took.as_secs_f64())
    }
}

/// The table at the end; its last line is the count of all tests.
fn summarize(lines: &[Line], chosen: usize, tests: Count) -> Result<()> {
    println!("\n=== summary ===");
    lines.iter().for_each(|line| println!("{}", line.text()));
    let total: Duration = lines.iter().map(|line| line.took).sum();
    println!("{:<12} {:>7.1} s", "total", total.as_secs_f64());
    let failed = lines.last().filter(|line| line.outcome.is_err());
    if tests != Count::default() {
        println!("\n{} passed, {} failed", tests.passed, tests.failed);
    }
    match failed {
        Some(line) => bail!(
            "step {} failed, {} not run; again: cargo xtask ci --only {}",
            line.name,
            chosen - lines.len(),
            line.name
        ),
        None => Ok(()),
    }
}
