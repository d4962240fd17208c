//! `kvtier sim-fault`: one seed of the deterministic fault simulator.

use anyhow::{Result, anyhow};
use clap::Args;
use kvtier_faultsim::{Report, Scope, SomeFaults};

use crate::{BadInput, stdout};

/// The arguments of `sim-fault`.
#[derive(Debug, Args)]
pub struct SimFaultArgs {
    /// The seed: the same one gives the same run.
    #[arg(long)]
    seed: u64,
    /// What is simulated.
    #[arg(long, default_value = "fleet", value_parser = scope)]
    scope: Scope,
    /// Only these faults of the seed, as a shortened schedule names them.
    #[arg(long, value_name = "NUMBERS")]
    faults: Option<SomeFaults>,
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
    let report = match (&args.faults, args.json) {
        (Some(some), _) => kvtier_faultsim::run_some(args.scope, args.seed, some)
            .map_err(|error| BadInput(error.to_string()))?,
        (None, true) => kvtier_faultsim::run(args.scope, args.seed),
        (None, false) => kvtier_faultsim::run_and_shorten(args.scope, args.seed),
    };
    print(&report, args.json)
}

/// Prints a report; whether no promise was broken.
fn print(report: &Report, json: bool) -> Result<bool> {
    if json {
        stdout::line(&report.to_json())?;
        return Ok(report.findings.is_empty());
    }
    stdout::line(&report.to_string())?;
    if !report.trace.is_empty() {
        stdout::line("  the last events:")?;
    }
    for event in &report.trace {
        stdout::line(event)?;
    }
    Ok(report.findings.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Then the command ends with 1.
    #[test]
    fn a_report_with_a_finding_is_no_success() {
        let mut report = kvtier_faultsim::run(Scope::Stack, 3);
        assert!(print(&report, false).unwrap() && print(&report, true).unwrap());
        let at = report.virtual_time;
        report.findings.push(kvtier_faultsim::Finding { at, kind: "cap", what: "made up".into() });
        assert!(!print(&report, false).unwrap() && !print(&report, true).unwrap());
    }
}
