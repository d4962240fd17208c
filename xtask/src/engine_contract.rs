//! `vllm-contract` and `sglang-contract`: the Python module's adapters inside inference engines,
//! driven by the real classes of the versions that they support. Only the modules that the tests
//! import are kept of an engine's wheel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};

use crate::versions;
use crate::wheel::{self, Tests};
use crate::workspace;

/// Unpacks the modules that are listed in the folder of the tests.
const UNPACK: &str = "crates/py/tests/unpack_wheel.py";
/// A wheel has hundreds of megabytes.
const DOWNLOAD_LIMIT_S: u64 = 10 * 60;
const TESTS_LIMIT_S: u64 = 10 * 60;

/// The tests of one engine.
pub struct Contract {
    engine: &'static str,
    /// The folder with the tests.
    tests: &'static str,
    /// A package for each version of the engine.
    packages: &'static [&'static str],
    /// What the modules import, beside torch, for which the tests have a stand-in.
    needs: Venv,
    /// The variable that names the folder with the modules.
    modules: &'static str,
}

pub const VLLM: Contract = Contract {
    engine: "vllm",
    tests: "crates/py/tests/vllm",
    packages: versions::VLLM_CONTRACT,
    needs: Venv { name: "vllm-contract", packages: versions::VLLM_NEEDS, alone: true },
    modules: "KVTIER_VLLM",
};

pub const SGLANG: Contract = Contract {
    engine: "sglang",
    tests: "crates/py/tests/sglang",
    packages: versions::SGLANG_CONTRACT,
    needs: Venv { name: "sglang-contract", packages: versions::SGLANG_NEEDS, alone: true },
    modules: "KVTIER_SGLANG",
};

/// `cargo xtask test-vllm` and `test-sglang`: the contract tests, or those whose names hold a word
/// (`-k WORD`).
pub fn run(args: &mut Args, contract: &Contract) -> Result<()> {
    let only = args.value("-k")?;
    args.end()?;
    match contract.run(only.as_deref())? {
        Ok(passed) => println!("{passed} tests passed"),
        Err(why) => bail!("{why}"),
    }
    Ok(())
}

impl Contract {
    /// Builds the module and runs the tests with each version. Returns the number of tests, or why
    /// they cannot run.
    pub fn run(&self, only: Option<&str>) -> Result<Result<u64, String>> {
        let unpacked: Result<Vec<PathBuf>> =
            self.packages.iter().map(|package| self.modules(package)).collect();
        let unpacked = match unpacked {
            Ok(unpacked) => unpacked,
            Err(e) => {
                return Ok(Err(format!("the wheels of {} cannot be had: {e:#}", self.engine)));
            }
        };
        let python = venv::python(&venv::make(&self.needs)?);
        let module = wheel::stage("dev")?;
        let mut passed = 0;
        for modules in unpacked {
            let cmd = wheel::discover(&text(&python), self.tests);
            let cmd = only.into_iter().fold(cmd, |cmd, word| cmd.args(["-k", word]));
            let cmd = cmd.env("PYTHONPATH", text(&module)).env(self.modules, text(&modules));
            let tests: Tests = wheel::unittest(cmd.limit_s(TESTS_LIMIT_S))?.whole()?;
            passed += tests.passed;
        }
        Ok(Ok(passed))
    }

    /// The folder with the modules of a package; downloaded and unpacked if that was not done
    /// before.
    fn modules(&self, package: &str) -> Result<PathBuf> {
        let script = root().join(UNPACK);
        let list = root().join(self.tests).join("modules.txt");
        let contract = format!("{}-contract", self.engine);
        let home = workspace::target_dir().join(contract).join(package.replace("==", "-"));
        let (unpacked, done) = (home.join("modules"), home.join("unpacked"));
        // Another list of modules is another folder's content.
        let wanted = fs::read_to_string(&script)? + &fs::read_to_string(&list)?;
        if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
            return Ok(unpacked);
        }
        let python = venv::python(&venv::make(&self.needs)?);
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
            .arg(text(&list))
            .read()?;
        fs::remove_dir_all(&wheels)?;
        fs::write(done, wanted)?;
        Ok(unpacked)
    }
}

/// A path for a command line.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
