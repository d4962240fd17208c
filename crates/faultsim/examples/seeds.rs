//! Runs a scope with a range of seeds: `seeds FROM TO [trace | until-found | findings | run] [SCOPE]`, by default
//! one of `fleet`. The exit code is 1 if a promise was broken. With `until-found` it is 1 if none was. With
//! `findings` only seeds that break a promise are printed.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use kvtier_faultsim::{Scope, run, run_and_shorten, run_traced};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |arg| arg.parse());
    let (Ok(from), Ok(to)) = (number(0, 0), number(1, 1)) else { return ExitCode::from(2) };
    let mode = args.get(2).map(String::as_str);
    let simulate = if mode == Some("trace") { run_traced } else { run };
    let Some(scope) = args.get(3).map_or(Some(Scope::Fleet), |name| Scope::named(name)) else {
        return ExitCode::from(2);
    };
    let mut found = false;
    for seed in from..to {
        let report = simulate(scope, seed);
        report.trace.iter().for_each(|event| println!("{event}"));
        if mode != Some("findings") || !report.findings.is_empty() {
            println!("{report}");
        }
        if !report.findings.is_empty() && mode != Some("until-found") {
            // It prints the shortest schedule, too.
            println!("again: kvtier sim-fault --seed {seed} --scope {}", scope.name());
        }
        found |= !report.findings.is_empty();
        if found && mode == Some("until-found") {
            // The same seed finds it again; this has the faults that it needs.
            if let Some(faults) = run_and_shorten(scope, seed).schedule {
                faults.iter().for_each(|fault| println!("    {fault}"));
                println!("found by seed {seed} of {}, with {} faults", scope.name(), faults.len());
            }
            break;
        }
    }
    if found == (mode == Some("until-found")) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
