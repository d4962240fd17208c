//! The GPU's kernel under NVIDIA's own assembler: what our stand-in runs is PTX to NVIDIA too, for
//! every kind of GPU that is sold.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};
use crate::versions::PTXAS;
use crate::workspace::{self, Package};

const WHEEL: Venv = Venv { name: "ptxas", packages: &[PTXAS], alone: true };
const KERNEL: &str = "crates/gds/src/checksum/crc32c.ptx";
/// From the oldest that CUDA 13 supports.
const GPUS: [&str; 7] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

pub fn run(_: &[Package]) -> Result<Outcome> {
    let home = match venv::make(&WHEEL) {
        Ok(home) => home,
        Err(e) => {
            return Ok(Outcome::Skipped(format!(
                "the Python package {PTXAS} cannot be had: {e:#}"
            )));
        }
    };
    let ptxas =
        find(&home.join("venv/lib"), "ptxas")?.with_context(|| format!("no ptxas in {PTXAS}"))?;
    fs::set_permissions(&ptxas, fs::Permissions::from_mode(0o755))?;
    let out = workspace::target_dir().join("crc32c.cubin");
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for gpu in GPUS {
        let cmd = Cmd::new("")
            .arg(text(&ptxas))
            .args(["-v", "-arch", gpu])
            .arg(text(&root().join(KERNEL)));
        let (fine, said) = cmd.arg("-o").arg(text(&out)).try_read()?;
        // Memory of its own would be a kernel that no longer fits the registers.
        if !fine || !said.contains("0 bytes spill stores, 0 bytes spill loads") {
            bail!("for {gpu}: {said}");
        }
    }
    Ok(Outcome::Noted(format!("{} kinds of GPU, {}", GPUS.len(), PTXAS)))
}

fn find(dir: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let found =
            if path.is_dir() { find(&path, name)? } else { path.ends_with(name).then_some(path) };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_where_the_step_reads_it() {
        assert!(root().join(KERNEL).is_file(), "{KERNEL}");
    }
}
