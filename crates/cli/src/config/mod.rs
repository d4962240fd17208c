//! `kvtier config`: explains configurations.

mod check;
mod explain;

use std::io::Read;

use anyhow::{Context, Result};

/// The subcommands of `kvtier config`.
#[derive(clap::Subcommand)]
pub enum ConfigCommand {
    /// Prints the settings in force, the source of each value, settings without effect and why, and
    /// the resulting tiers. Exit code 2 if the configuration is invalid.
    Check(check::CheckArgs),
    /// Explains a setting: its place, its values, its default and its effect.
    Explain(explain::ExplainArgs),
}

/// All of standard input.
fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

/// Returns whether the configuration is valid.
pub fn run(command: &ConfigCommand) -> Result<bool> {
    match command {
        ConfigCommand::Check(args) => check::run(args),
        ConfigCommand::Explain(args) => explain::run(args).map(|()| true),
    }
}
