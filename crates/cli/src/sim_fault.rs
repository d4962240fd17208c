//! `kvtier sim-fault`: one seed of the deterministic fault simulator.

use anyhow::{Result, anyhow};
use clap::Args;
use kvtier_faultsim::Scope;

use crate::stdout;

/// The arguments of `sim-fault`.
#[derive(Debug, Args)]
pub struct SimFaultArgs {
    /// The seed: the same one gives the same run.
    #[arg(long)]
    seed: u64,
    /// What is simulated.
    #[arg(long, default_value = "fleet", value_parser = scope)]
    scope: Scope,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn scope(name: &str) -> Result<Scope> {
    let names: Vec<&str> = Scope::ALL.iter().map(|scope| scope.name()).collect();
    Scope::named(name).ok_or_else(|| anyhow!("no such scope; there are: {}", names.join(", ")))
}

/// Runs the simulation; whether no promise was broken. For a reader it prints the shortest schedule of
/// faults that breaks one, and the last events before.
pub fn run(args: &SimFaultArgs) -> Result<bool> {
    if args.json {
        let report = kvtier_faultsim::run(args.scope, args.seed);
        stdout::line(&report.to_json())?;
        return Ok(report.findings.is_empty());
    }
    let report = kvtier_faultsim::run_and_shorten(args.scope, args.seed);
    stdout::line(&report.to_string())?;
    if !report.trace.is_empty() {
        stdout::line("  the last events:")?;
    }
    for event in &report.trace {
        stdout::line(event)?;
    }
    Ok(report.findings.is_empty())
}
