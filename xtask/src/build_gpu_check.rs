//! `cargo xtask gpu-check`: one program for a machine with a GPU, tried here over the stand-ins.

use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use crate::args::Args;
use crate::sh::Cmd;
use crate::workspace;

/// MiB that the trial here moves each way.
const TRIAL_MIB: &str = "64";

/// Builds the program, runs it here over the stand-ins, and says where it is. `--dev` builds it
/// without optimisation.
pub fn run(args: &mut Args) -> Result<()> {
    let dev = args.flag("--dev");
    args.end()?;
    let (profile, folder) = if dev { ("dev", "debug") } else { ("release", "release") };
    Cmd::new("cargo build --locked -p kvtier-gds --example gpu_check --profile")
        .arg(profile)
        .limit_s(3600)
        .run()?;
    let target = workspace::target_dir().join(folder);
    let program = target.join("examples/gpu_check");
    let dir = target.join("gpu-check");
    show(&target, &dir)?;
    println!(
        "gpu-check: over stand-ins, since this says nothing of a GPU: no rate below means anything"
    );
    let run = Cmd::new("")
        .arg(program.display().to_string())
        .arg(dir.display().to_string())
        .arg(TRIAL_MIB);
    let outcome = run.env("LD_LIBRARY_PATH", dir.display().to_string()).run();
    let _ = std::fs::remove_dir_all(&dir);
    outcome?;
    println!(
        "gpu-check: copy {} to a machine with a GPU and run it there: gpu_check DIRECTORY MIB",
        program.display()
    );
    Ok(())
}

/// Shows the stand-ins' library, which cargo built with the program, under both its names.
fn show(target: &Path, dir: &Path) -> Result<()> {
    let library = target.join("deps/libkvtier_fakegpu.so");
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for name in ["libcuda.so.1", "libcufile.so.0"] {
        let link = dir.join(name);
        let _ = std::fs::remove_file(&link);
        symlink(&library, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}
