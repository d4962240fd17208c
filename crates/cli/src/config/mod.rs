//! `kvtier config`: what a configuration means.

mod check;
mod explain;

use std::io::Read;

use anyhow::{Context, Result};

/// What to do with a configuration.
#[derive(clap::Subcommand)]
pub enum What {
    /// Prints the settings in force, who gave each, what is ignored and why, and the tiers that
    /// come of it. Exit code 2 when it is refused.
    Check(check::CheckArgs),
    /// Explains a setting: where it stands, what it takes, its default, what it does here.
    Explain(explain::ExplainArgs),
}

/// All of standard input.
fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

/// Answers whether all is well.
pub fn run(what: &What) -> Result<bool> {
    match what {
        What::Check(args) => check::run(args),
        What::Explain(args) => explain::run(args).map(|()| true),
    }
}
