//! The storage backend for SGLang under SGLang's own classes with torch, and under its cache
//! controller.

use anyhow::Result;

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::workspace::Package;
use crate::{sglang_venv, venv, wheel};

const TESTS_LIMIT_S: u64 = 20 * 60;

/// Runs the contract tests without stand-ins, and those of the controller.
pub fn engine(_: &[Package]) -> Result<Outcome> {
    let home = sglang_venv::make()?;
    let module = wheel::stage("dev")?;
    let scripts = root().join(sglang_venv::SCRIPTS);
    let contract = scripts.parent().unwrap_or(&scripts).to_path_buf();
    let mut lines = Vec::new();
    for tests in [contract, scripts] {
        let cmd = Cmd::new("").arg(venv::python(&home).to_string_lossy());
        let cmd = cmd.args(["-W", "ignore", "-m", "unittest", "discover", "-v", "-s"]);
        let cmd = cmd
            .arg(tests.to_string_lossy())
            .env("PYTHONPATH", module.to_string_lossy())
            .env("PATH", sglang_venv::search_path(&home))
            .env("KVTIER_SGLANG_ENGINE", "1");
        lines.push(wheel::unittest(cmd.limit_s(TESTS_LIMIT_S))?.whole()?.to_string());
    }
    Ok(Outcome::Noted(lines.join("; ")))
}
