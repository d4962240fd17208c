//! A real engine, vLLM on the CPU, with the Python module as its storage.

use anyhow::Result;

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::workspace::Package;
use crate::{venv, vllm_venv, wheel};

/// Each test starts an engine several times.
const TESTS_LIMIT_S: u64 = 60 * 60;

/// Runs the tests that start engines. None may be skipped.
pub fn engine(_: &[Package]) -> Result<Outcome> {
    let home = vllm_venv::make()?;
    let module = wheel::stage("dev")?;
    let tests = Cmd::new("").arg(venv::python(&home).to_string_lossy());
    let scripts = root().join(vllm_venv::SCRIPTS);
    let tests =
        tests.args(["-m", "unittest", "discover", "-v", "-s"]).arg(scripts.to_string_lossy());
    let tests = tests
        .env("PYTHONPATH", module.to_string_lossy())
        .env("KVTIER_VLLM_MODEL", vllm_venv::model(&home).to_string_lossy());
    Ok(Outcome::Noted(wheel::unittest(tests.limit_s(TESTS_LIMIT_S))?.whole()?.to_string()))
}
