//! `vllm-contract`: the Python module's tier for vLLM, driven by the real classes of the versions of
//! vLLM that it supports. Only the modules that the tests import are kept of a wheel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};

use crate::versions;
use crate::wheel::{self, Tests};
use crate::workspace;

/// What these modules import, beside torch, for which the tests have a stand-in.
const NEEDS: Venv = Venv { name: "vllm-contract", packages: versions::VLLM_NEEDS, alone: true };
const TESTS: &str = "crates/py/tests/vllm";
/// A wheel has hundreds of megabytes.
const DOWNLOAD_LIMIT_S: u64 = 10 * 60;
const TESTS_LIMIT_S: u64 = 10 * 60;

/// `cargo xtask test-vllm`: the contract tests, or those whose names hold a word (`-k WORD`).
pub fn run(args: &mut Args) -> Result<()> {
    let only = args.value("-k")?;
    args.end()?;
    match contract(only.as_deref())? {
        Ok(passed) => println!("{passed} tests passed"),
        Err(why) => bail!("{why}"),
    }
    Ok(())
}

/// Builds the module and runs the contract tests with each version. Returns the number of tests, or
/// why they cannot run.
pub fn contract(only: Option<&str>) -> Result<Result<u64, String>> {
    let unpacked: Result<Vec<PathBuf>> =
        versions::VLLM_CONTRACT.iter().map(|package| modules(package)).collect();
    let unpacked = match unpacked {
        Ok(unpacked) => unpacked,
        Err(e) => return Ok(Err(format!("the wheels of vLLM cannot be had: {e:#}"))),
    };
    let python = venv::python(&venv::make(&NEEDS)?);
    let module = wheel::stage("dev")?;
    let mut passed = 0;
    for vllm in unpacked {
        let cmd = wheel::discover(&text(&python), TESTS);
        let cmd = only.into_iter().fold(cmd, |cmd, word| cmd.args(["-k", word]));
        let cmd = cmd.env("PYTHONPATH", text(&module)).env("KVTIER_VLLM", text(&vllm));
        let tests: Tests = wheel::unittest(cmd.limit_s(TESTS_LIMIT_S))?.whole()?;
        passed += tests.passed;
    }
    Ok(Ok(passed))
}

/// The folder with the modules of a package; downloaded and unpacked if that was not done before.
fn modules(package: &str) -> Result<PathBuf> {
    let script = root().join(TESTS).join("unpack.py");
    let home = workspace::target_dir().join("vllm-contract").join(package.replace("==", "-"));
    let (unpacked, done) = (home.join("modules"), home.join("unpacked"));
    // Another list of modules is another folder's content.
    let wanted = fs::read_to_string(&script)?;
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(unpacked);
    }
    let python = venv::python(&venv::make(&NEEDS)?);
    let wheels = home.join("wheel");
    for old in [&unpacked, &wheels] {
        let _ = fs::remove_dir_all(old);
    }
    fs::create_dir_all(&wheels)?;
    Cmd::new("")
        .arg(text(&python))
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(text(&wheels))
        .arg(package)
        .limit_s(DOWNLOAD_LIMIT_S)
        .read()?;
    let wheel = fs::read_dir(&wheels)?.next().context("pip downloaded nothing")??.path();
    Cmd::new("")
        .arg(text(&python))
        .arg(text(&script))
        .arg(text(&wheel))
        .arg(text(&unpacked))
        .read()?;
    fs::remove_dir_all(&wheels)?;
    fs::write(done, wanted)?;
    Ok(unpacked)
}

/// A path for a command line.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
