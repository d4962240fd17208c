//! `cargo xtask scale`: measures fleets by their size, and writes the tables and pictures of
//! `docs/SCALE.md`.

use std::fs;

use anyhow::Result;

use crate::args::Args;
use crate::sh::{Cmd, root};

/// Where the page and its pictures are.
const DOCS: &str = "docs";
/// The page.
const PAGE: &str = "SCALE.md";
/// A copy of the page, which the nightly run writes.
const COPY: &str = "target/scale";

pub fn run(args: &mut Args) -> Result<()> {
    let renders = args.flag("--render");
    args.end()?;
    simulator().args([if renders { "render" } else { "whole" }, DOCS]).run()
}

/// Measures everything, and changes no file that is committed. Fails where the model and the runs differ
/// by more than a tenth.
pub fn measure_beside_the_docs() -> Result<()> {
    let copy = root().join(COPY);
    fs::create_dir_all(&copy)?;
    fs::copy(root().join(DOCS).join(PAGE), copy.join(PAGE))?;
    simulator().args(["whole", COPY]).run()
}

/// The program that measures. Optimised: it simulates days of requests.
fn simulator() -> Cmd {
    Cmd::new("cargo run --quiet --release --locked -p kvtier-faultsim --example scale --")
}
