//! `cargo xtask mutants`: a repeatable sample of small changes to the code that decides about space,
//! order of use and truth, and whether a test fails for each.
//!
//! `xtask/mutants.toml` lists the modules and the tests. [`cargo-mutants`](https://mutants.rs) makes
//! the changes, in a copy of the working tree under `target/mutants`, which keeps what it has built.
//! A mutant meets the fast tests of its package first, and the others only if it survives.

mod config;
mod copy_tree;
mod mutant;
mod report;
mod run_mutants;
mod sample;
mod switched;

use anyhow::{Result, bail};

use self::config::Config;
use self::mutant::Mutant;
use self::report::{Report, Verdict};
pub use self::switched::try_all as try_switched;
use crate::args::Args;
use crate::sh::Cmd;
use crate::versions::CARGO_MUTANTS;

/// The mutants of a sample, unless the caller names a number.
const SAMPLE: usize = 160;
/// The share of the mutants that the tests must catch.
pub const CAUGHT_MIN_PERCENT: usize = 85;

/// Which mutants are tried.
#[derive(Debug)]
pub struct Selection {
    /// About this number, from all modules in proportion; all without it.
    pub sample: Option<usize>,
    /// Another number chooses others.
    pub seed: u64,
    /// All mutants whose name contains one of these instead.
    pub only: Vec<String>,
    /// Of this package only, if it is named.
    pub package: Option<String>,
}

impl Selection {
    /// The mutants that are tried, each with the number of its module.
    fn choose(&self, config: &Config, by_module: Vec<Vec<Mutant>>) -> Vec<(usize, Mutant)> {
        let mut chosen = match self.sample {
            _ if !self.only.is_empty() => sample::named(by_module, &self.only),
            Some(count) => sample::choose(by_module, count, self.seed),
            None => sample::all(by_module).collect(),
        };
        if let Some(package) = &self.package {
            chosen.retain(|(module, _)| config.modules[*module].package == *package);
        }
        chosen
    }
}

pub fn run(args: &mut Args) -> Result<()> {
    let list = args.flag("--list");
    let (sample, seed) = (args.number("--sample")?, args.number("--seed")?);
    let mut only = Vec::new();
    while let Some(text) = args.value("--only")? {
        only.push(text);
    }
    let package = args.value("--package")?;
    let is_switched = args.flag("--switched");
    args.end()?;
    if let Some(why) = unable() {
        bail!("{why}");
    }
    if is_switched && seed.is_some() && sample.is_none() {
        bail!("--seed chooses a sample, and --switched tries all mutants without --sample: add it");
    }
    let sample = sample.map(|sample| sample as usize).or((!is_switched).then_some(SAMPLE));
    let selection = Selection { sample, seed: seed.unwrap_or(1), only, package };
    if list && is_switched {
        bail!("--list has the mutants without --switched: leave one of the two out");
    }
    if list {
        let (_, chosen) = choose(&selection)?;
        chosen.iter().for_each(|(_, mutant)| println!("{}", mutant.name));
        return Ok(());
    }
    let report = match is_switched {
        true => try_switched(&selection)?,
        false => try_all(&selection)?,
    };
    println!("{}", report.check(CAUGHT_MIN_PERCENT)?);
    Ok(())
}

/// Why this machine cannot run the step, if so.
pub fn unable() -> Option<String> {
    let has = Cmd::new("cargo mutants --version").works();
    (!has)
        .then(|| format!("no cargo-mutants (cargo install --locked cargo-mutants@{CARGO_MUTANTS})"))
}

/// Tries the mutants of a selection and prints the outcome.
pub fn try_all(selection: &Selection) -> Result<Report> {
    let (config, chosen) = choose(selection)?;
    let mut report = Report::new(config.judged);
    for (module, mutant) in &chosen {
        report.add(&config.modules[*module].name, mutant);
    }
    for package in &config.packages {
        let of_package =
            |(module, _): &&(usize, Mutant)| config.modules[*module].package == package.name;
        let mutants: Vec<&Mutant> =
            chosen.iter().filter(of_package).map(|(_, mutant)| mutant).collect();
        if mutants.is_empty() {
            continue;
        }
        let tried = run_mutants::run(package, "first", &package.first, &mutants)?;
        let survivors: Vec<&Mutant> = tried
            .into_iter()
            .filter_map(|(mutant, verdict)| report.note(mutant, verdict))
            .collect();
        for (mutant, verdict) in run_mutants::run(package, "then", &package.then, &survivors)? {
            let verdict = match verdict {
                Verdict::Caught => Verdict::CaughtLater,
                other => other,
            };
            report.note(mutant, verdict);
        }
        report.print();
    }
    Ok(report)
}

/// The mutants of a selection, each with the number of its module.
fn choose(selection: &Selection) -> Result<(Config, Vec<(usize, Mutant)>)> {
    let config = Config::read()?;
    copy_tree::update()?;
    let mut by_module: Vec<Vec<Mutant>> = config.modules.iter().map(|_| Vec::new()).collect();
    for mutant in run_mutants::list(&config)? {
        if let Some(module) = config.module_of(&mutant.file) {
            by_module[module].push(mutant);
        }
    }
    for (module, mutants) in config.modules.iter().zip(&by_module) {
        if mutants.is_empty() {
            bail!(
                "no mutants in '{}': are its files in xtask/mutants.toml still there?",
                module.name
            );
        }
        println!("{:>5} mutants in {}", mutants.len(), module.name);
    }
    let chosen = selection.choose(&config, by_module);
    Ok((config, chosen))
}
