//! The environment with a real vLLM that runs without a GPU, and a small model for it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::sh::{Cmd, root};
use crate::{venv, workspace};

/// The scripts that install vLLM, make the model, and test the engine.
pub const SCRIPTS: &str = "crates/py/tests/vllm/engine";
/// vLLM wants all of torch: gigabytes.
const INSTALL_LIMIT_S: u64 = 60 * 60;

/// The environment's folder; vLLM is installed and the model made if that was not done before.
pub fn make() -> Result<PathBuf> {
    let home = workspace::target_dir().join("rivals/vllm");
    let scripts = root().join(SCRIPTS);
    let [install, make_model] = ["install.py", "make_model.py"].map(|name| scripts.join(name));
    // Another version of the scripts is another environment.
    let wanted = fs::read_to_string(&install)? + &fs::read_to_string(&make_model)?;
    let done = home.join("installed");
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    println!("installing vLLM and torch, once: some gigabytes");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home)?;
    Cmd::new("python3 -m venv").arg(home.join("venv").to_string_lossy()).read()?;
    let python = || Cmd::new("").arg(venv::python(&home).to_string_lossy());
    python().arg(install.to_string_lossy()).limit_s(INSTALL_LIMIT_S).run()?;
    python().arg(make_model.to_string_lossy()).arg(model(&home).to_string_lossy()).run()?;
    fs::write(&done, wanted)?;
    Ok(home)
}

/// The folder of the model.
pub fn model(home: &Path) -> PathBuf {
    home.join("model")
}
