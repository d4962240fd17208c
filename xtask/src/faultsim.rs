//! `cargo xtask faultsim`: seeds of the fault simulator, and known defects that are put back to show that
//! it finds them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::{Cmd, root};

/// Patches that put a defect back, one a file.
const DEFECTS: &str = "crates/faultsim/defects";
/// Copies of the workspace, and what is built from them.
const COPIES: &str = "target/faultsim";
/// What can be simulated; the first is the default.
const SCOPES: [&str; 4] = ["fleet", "directory", "layouts", "stack"];

pub fn run(args: &mut Args) -> Result<()> {
    let with_defects = args.flag("--defects");
    let seeds = args.number("--seeds")?.unwrap_or(100);
    let scope = args.value("--scope")?.unwrap_or_else(|| SCOPES[0].to_owned());
    args.end()?;
    if !SCOPES.contains(&scope.as_str()) {
        bail!("no scope '{scope}'; there are: {}", SCOPES.join(", "));
    }
    if with_defects {
        return defects()?.iter().try_for_each(|defect| find(defect, seeds));
    }
    simulator(root()).args(["0".to_owned(), seeds.to_string(), "run".to_owned(), scope]).run()
}

/// The simulator of a workspace.
fn simulator(workspace: &Path) -> Cmd {
    let line = "cargo run --quiet --locked -p kvtier-faultsim --example seeds --";
    Cmd::new(line).dir(workspace)
}

/// The patches, in order.
fn defects() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root().join(DEFECTS)).context("the defects")?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    paths.sort();
    Ok(paths)
}

/// Puts a defect into a copy of the last commit and runs seeds until one finds it.
fn find(defect: &Path, seeds: u64) -> Result<()> {
    let name = defect.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let copy = root().join(COPIES).join(&name);
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    fs::create_dir_all(&copy)?;
    let archive = copy.with_extension("tar").to_string_lossy().into_owned();
    Cmd::new("git archive --format=tar -o").arg(&archive).arg("HEAD").run()?;
    Cmd::new("tar -xf").arg(&archive).dir(&copy).run()?;
    Cmd::new("patch -p1 -i").arg(defect.to_string_lossy()).dir(&copy).run()?;
    // A patch for another scope than the first begins with its name.
    let scope = SCOPES.iter().find(|scope| name.starts_with(&format!("{scope}-")));
    let scope = scope.unwrap_or(&SCOPES[0]).to_string();
    println!("{name}:");
    let found = simulator(&copy)
        .args(["0".to_owned(), seeds.to_string(), "until-found".to_owned(), scope])
        .env("CARGO_TARGET_DIR", root().join(COPIES).join("build").to_string_lossy())
        .run();
    found.with_context(|| format!("{seeds} seeds do not find the defect {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defect_can_be_put_back() {
        let defects = defects().unwrap();
        assert!(!defects.is_empty());
        for defect in defects {
            Cmd::new("git apply --check").arg(defect.to_string_lossy()).run().unwrap();
        }
    }
}
