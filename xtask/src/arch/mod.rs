//! `cargo xtask arch`: which crate may use which, what belongs in which crate, and which
//! files of a crate may import which.

mod crate_dependencies;
mod environment;
mod imports;
mod indirect;
mod nondeterminism;
mod plan;

use anyhow::Result;

use crate::sh::Cmd;
use crate::tidy;
use crate::tree::Tree;
use crate::workspace;

/// Checks the workspace against the plan.
pub fn run() -> Result<()> {
    let mut problems = crate_dependencies::check(&workspace::read()?);
    let json = Cmd::new("cargo metadata --locked --all-features --format-version 1").read()?;
    problems.extend(indirect::check(&indirect::Graph::parse(&serde_json::from_str(&json)?)?));
    let sources = tidy::sources(&Tree::read()?)?;
    problems.extend(sources.iter().flat_map(environment::check));
    problems.extend(sources.iter().flat_map(nondeterminism::check));
    problems.extend(imports::check(&sources));
    tidy::report("arch", &problems)
}
