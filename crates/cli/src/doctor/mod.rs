//! `kvtier doctor`: what a medium can do, and the settings that follow from it.

mod file;

use anyhow::Result;

/// What to look at.
#[derive(clap::Subcommand)]
pub enum What {
    /// A directory for the file tier: what its file system and this machine can do, how fast it is, and what to set.
    File(file::FileArgs),
}

/// Looks, and prints what it found.
pub fn run(what: &What) -> Result<()> {
    match what {
        What::File(args) => file::run(args),
    }
}
