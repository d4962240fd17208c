//! `cargo xtask release`: the command as it is released, and what debuggers need beside it;
//! `--check` packs the crates as they are published.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::Cmd;
use crate::workspace::{self, Package};

/// A released program is smaller than this.
const PROGRAM_BYTES_MAX: u64 = 40_000_000;

/// Builds the command with all that a release has and cuts its line tables off into a file of their
/// own.
pub fn run(args: &mut Args) -> Result<()> {
    let check = args.flag("--check");
    args.end()?;
    if check {
        return pack();
    }
    Cmd::new(
        "cargo build --locked --profile dist -p kvtier-cli --bin kvtier --features aws-config",
    )
    .run()?;
    let target = workspace::target_dir();
    split(&target.join("dist/kvtier"), &target.join("release-files"))
}

/// Packs every published crate as `cargo publish` would upload it, without a network and without
/// building it: crates of this workspace are resolved from one another's packed files.
fn pack() -> Result<()> {
    let packages = workspace::read()?;
    let published: Vec<&Package> = packages.iter().filter(|package| package.published).collect();
    if let Some(package) = published.iter().find(|package| !package.missing.is_empty()) {
        bail!("{} lacks {}", package.name, package.missing.join(", "));
    }
    let names = published.iter().flat_map(|package| ["-p", package.name.as_str()]);
    Cmd::new("cargo package --locked --offline --no-verify --allow-dirty").args(names).run()?;
    let folder = workspace::target_dir().join("package");
    println!("release: {} crates packed in {}", published.len(), folder.display());
    Ok(())
}

/// Puts the program without line tables, and a file of them that debuggers find by the program's
/// link, into `folder`.
fn split(built: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let text = |path: &Path| path.display().to_string();
    let program = folder.join("kvtier");
    let symbols = folder.join("kvtier.debug");
    Cmd::new("objcopy --only-keep-debug").arg(text(built)).arg(text(&symbols)).run()?;
    let link = format!("--add-gnu-debuglink={}", symbols.display());
    Cmd::new("objcopy --strip-debug").arg(link).arg(text(built)).arg(text(&program)).run()?;
    let bytes = |path: &Path| Ok::<u64, anyhow::Error>(std::fs::metadata(path)?.len());
    let program_bytes = bytes(&program)?;
    let symbols_bytes = bytes(&symbols)?;
    println!(
        "release: {} of {program_bytes} bytes, {} of {symbols_bytes} bytes",
        program.display(),
        symbols.display()
    );
    if program_bytes >= PROGRAM_BYTES_MAX {
        bail!(
            "{} has {program_bytes} bytes; it must stay below {PROGRAM_BYTES_MAX}",
            program.display()
        );
    }
    Ok(())
}
