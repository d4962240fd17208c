//! `kvtier config`: what a configuration means.

mod check;
mod explain;

use anyhow::Result;

/// What to do with a configuration.
#[derive(clap::Subcommand)]
pub enum What {
    /// Prints the settings in force, who gave each, what is ignored and why, and the tiers that come of it. Exit code 2 when it is refused.
    Check(check::CheckArgs),
    /// Explains a setting: where it stands, what it takes, its default, what it does here.
    Explain(explain::ExplainArgs),
}

/// Answers whether all is well.
pub fn run(what: &What) -> Result<bool> {
    match what {
        What::Check(args) => check::run(args),
        What::Explain(args) => explain::run(args).map(|()| true),
    }
}
