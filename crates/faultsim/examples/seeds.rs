//! Runs the fleet with a range of seeds: `seeds FROM TO [trace]`. The exit code is 1 if a promise was
//! broken.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use kvtier_faultsim::{Scope, run, run_traced};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<u64>().ok());
    let (Some(from), Some(to)) = (number(0), number(1)) else { return ExitCode::from(2) };
    let mut found = false;
    for seed in from..to {
        let report =
            if args.len() > 2 { run_traced(Scope::Fleet, seed) } else { run(Scope::Fleet, seed) };
        report.trace.iter().for_each(|event| println!("{event}"));
        println!("{report}");
        found |= !report.findings.is_empty();
    }
    if found { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
