//! `cargo xtask arch`: which crate may use which, and what belongs in which crate.

mod arrows;
mod environment;
mod graph;
mod table;

use anyhow::Result;

use crate::sh::Cmd;
use crate::tidy;
use crate::tree::Tree;
use crate::workspace;

/// Checks the workspace against the plan.
pub fn run() -> Result<()> {
    let mut problems = arrows::check(&workspace::read()?);
    let json = Cmd::new("cargo metadata --locked --all-features --format-version 1").read()?;
    problems.extend(graph::check(&graph::Graph::parse(&serde_json::from_str(&json)?)?));
    for source in tidy::sources(&Tree::read()?)? {
        problems.extend(environment::check(&source));
    }
    tidy::report("arch", &problems)
}
