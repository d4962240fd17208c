//! The environment with a real SGLang whose cache runs without a GPU.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::sh::{Cmd, root};
use crate::{venv, workspace};

/// The scripts that install SGLang and drive its cache controller.
pub const SCRIPTS: &str = "crates/py/tests/sglang/engine";
/// SGLang wants all of torch: gigabytes.
const INSTALL_LIMIT_S: u64 = 60 * 60;

/// The environment's folder; SGLang is installed if that was not done before.
pub fn make() -> Result<PathBuf> {
    let home = workspace::target_dir().join("rivals/sglang");
    let install = root().join(SCRIPTS).join("install.py");
    // Another version of the script is another environment.
    let wanted = fs::read_to_string(&install)?;
    let done = home.join("installed");
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    println!("installing SGLang and torch, once: some gigabytes");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home)?;
    Cmd::new("python3 -m venv").arg(home.join("venv").to_string_lossy()).read()?;
    let python = Cmd::new("").arg(venv::python(&home).to_string_lossy());
    python.arg(install.to_string_lossy()).limit_s(INSTALL_LIMIT_S).run()?;
    fs::write(&done, wanted)?;
    Ok(home)
}

/// The search path for programs, with those of the environment: torch starts `ninja`.
pub fn search_path(home: &std::path::Path) -> String {
    let rest = std::env::var("PATH").unwrap_or_default();
    format!("{}:{rest}", home.join("venv/bin").display())
}
