//! Python environments below `rivals` in the target directory, for programs that we are measured
//! beside or tested against.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::sh::Cmd;
use crate::{versions, workspace};

/// Installing takes gigabytes: LMCache wants all of torch.
const INSTALL_LIMIT_S: u64 = 30 * 60;

/// An environment and what is installed in it.
pub struct Venv {
    pub name: &'static str,
    pub packages: &'static [&'static str],
    /// Without what the packages say they need.
    pub alone: bool,
}

/// The incumbent, with its block device extension.
pub const LMCACHE: Venv = Venv { name: "lmcache", packages: versions::LMCACHE, alone: false };

/// The environment's folder; made and filled if that was not done before.
pub fn make(wanted: &Venv) -> Result<PathBuf> {
    let home = workspace::target_dir().join("rivals").join(wanted.name);
    fs::create_dir_all(&home)?;
    let done = home.join("installed");
    let packages = wanted.packages.join(" ");
    if fs::read_to_string(&done).is_ok_and(|there| there == packages) {
        return Ok(home);
    }
    let venv = home.join("venv");
    Cmd::new("python3 -m venv").arg(venv.to_string_lossy()).read()?;
    let pip = Cmd::new("").arg(venv.join("bin/pip").to_string_lossy()).args(["install", "--quiet"]);
    let pip = if wanted.alone { pip.arg("--no-deps") } else { pip };
    pip.args(wanted.packages.iter().copied()).limit_s(INSTALL_LIMIT_S).read()?;
    fs::write(done, packages)?;
    Ok(home)
}

/// The environment's interpreter.
pub fn python(home: &Path) -> PathBuf {
    home.join("venv/bin/python3")
}

/// These programs talk a lot; what went wrong is still said.
pub fn quiet(cmd: Cmd) -> Cmd {
    cmd.env("PYTHONWARNINGS", "ignore")
        .env("LMCACHE_LOG_LEVEL", "ERROR")
        .env("NIXL_LOG_LEVEL", "ERROR")
}
