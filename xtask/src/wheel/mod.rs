//! The Python module: built and tested, quickly as it stands (`ci`), or as the wheel that users
//! install (`cargo xtask wheel`).

mod build;
mod glibc;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use build::{run, wheels};

use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};
use crate::workspace;

/// What the module's tests want besides the module.
const TESTS: Venv = Venv { name: "python", packages: &[NUMPY], alone: true };
/// Any that CPython 3.10 and later can have.
const NUMPY: &str = "numpy>=2.2,<3";
/// The S3 server that the module's tests talk to, and the variable that names it to them.
const SERVER: (&str, &str) = ("kvtier-s3-server", "KVTIER_S3_SERVER");
/// The command, which the wheel brings.
const COMMAND: &str = "kvtier";
/// Why tests of real GPUs are skipped on a machine without one, as `crates/py/tests/test_gpu.py`
/// says it.
const NO_GPU: &str = "skipped 'torch finds no GPU here'";
/// How the reason begins why tests over a device that hangs are skipped, as `crates/py/tests/hang.py`
/// says it: they need root, and a kernel that can hold transfers back.
const NO_HANG: &str = "a device that hangs";
/// The longest that the module's tests may take.
const TESTS_LIMIT_S: u64 = 30 * 60;
/// With the lengths of a night.
const LONG_TESTS_LIMIT_S: u64 = 2 * 60 * 60;

/// Builds the module as the workspace stands, and runs its examples and its tests. Where NumPy
/// cannot be had, its test is skipped, which the count shows.
pub fn test() -> Result<Tests> {
    let module = stage("dev")?;
    let python = python()?;
    for example in fs::read_dir(root().join("examples/python"))? {
        Cmd::new("")
            .arg(text(&python))
            .arg(text(&example?.path()))
            .env("PYTHONPATH", text(&module))
            .limit_s(TESTS_LIMIT_S)
            .run()?;
    }
    run_tests(&python, Some(&module), &[])
}

/// All tests over the module as the workspace stands, with switches for them.
pub fn test_with(env: &[(&str, &str)]) -> Result<Tests> {
    run_tests(&python()?, Some(&stage("dev")?), env)
}

/// An interpreter with NumPy, or the machine's own.
pub fn python() -> Result<PathBuf> {
    Ok(match venv::make(&TESTS) {
        Ok(home) => venv::python(&home),
        Err(e) => {
            println!("no environment with {NUMPY}: {e:#}");
            "python3".into()
        }
    })
}

/// Builds the module as the workspace stands, with a profile of cargo's, and puts it beside its
/// Python files. Gives back the folder to import from.
pub fn stage(profile: &str) -> Result<PathBuf> {
    // For tests all libraries with the features that `cargo test` gives them, which takes naming
    // the examples too: little is left to build.
    let tests = format!(
        "--workspace --features kvtier-key/serde,kvtier-s3/tls-direct,kvtier/metrics,kvtier-cli/aws-config --examples --bin {COMMAND} --bin {}",
        SERVER.0
    );
    // What is staged for release is measured.
    let what =
        if profile == "dev" { &tests } else { "-p kvtier-py --features kvtier-py/lock-clock" };
    Cmd::new(&format!("cargo build --locked --lib --profile {profile} {what}")).run()?;
    let built = workspace::target_dir().join(if profile == "dev" { "debug" } else { profile });
    put_module(&built, &workspace::target_dir().join("py"))?;
    if profile == "dev" {
        // Where `python -m kvtier` finds the command of packages that `pip install --target` put
        // into a folder.
        let bin = workspace::target_dir().join("py/bin");
        fs::create_dir_all(&bin)?;
        fs::copy(workspace::target_dir().join("debug").join(COMMAND), bin.join(COMMAND))
            .context("the built command")?;
    }
    Ok(workspace::target_dir().join("py"))
}

/// The module of [`stage`] for release, but with no checksum computed or compared: it exists to
/// measure what they cost. Gives back the folder to import from.
pub fn stage_unchecked() -> Result<PathBuf> {
    let target = workspace::target_dir().join("unchecked");
    Cmd::new("cargo build --locked --lib --profile release -p kvtier-py")
        .rustflags("--cfg kvtier_unchecked")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run()?;
    let folder = target.join("py");
    put_module(&target.join("release"), &folder)?;
    Ok(folder)
}

/// Puts the library that was built in `built` beside its Python files, into `folder`.
fn put_module(built: &Path, folder: &Path) -> Result<()> {
    let package = folder.join("kvtier");
    let _ = fs::remove_dir_all(&package);
    copy_sources(&root().join("crates/py/python/kvtier"), &package)?;
    let library = built.join("libkvtier_py.so");
    fs::copy(library, package.join("_native.abi3.so")).context("the built module")?;
    Ok(())
}

fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let path = entry.path();
        if path.is_dir() {
            copy_sources(&path, &to.join(name))?;
        } else {
            fs::copy(path, to.join(name))?;
        }
    }
    Ok(())
}

/// The command line that runs all tests below a folder. It names each test, since the reason of a
/// skipped one is in its line.
pub fn discover(python: &str, folder: &str) -> Cmd {
    Cmd::new("").arg(python).args(["-m", "unittest", "discover", "-v", "-s", folder])
}

fn run_tests(python: &Path, path: Option<&Path>, env: &[(&str, &str)]) -> Result<Tests> {
    let cmd = discover(&text(python), "crates/py/tests");
    let cmd = path.iter().fold(cmd, |cmd, path| cmd.env("PYTHONPATH", text(path)));
    let cmd = with_stand_in(cmd);
    let cmd = env.iter().fold(cmd, |cmd, (name, value)| cmd.env(name, *value));
    unittest(cmd.limit_s(if env.is_empty() { TESTS_LIMIT_S } else { LONG_TESTS_LIMIT_S }))
}

/// The variable that holds the path of the stand-in for the driver's library, if it was built.
pub fn with_stand_in(cmd: Cmd) -> Cmd {
    let stand_in = workspace::target_dir().join("debug/libkvtier_fakegpu.so");
    if stand_in.exists() { cmd.env("KVTIER_FAKEGPU", text(&stand_in)) } else { cmd }
}

/// What came of a run of unittest that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tests {
    pub passed: u64,
    pub skipped: u64,
    /// Of those, the ones that need a GPU.
    need_gpu: u64,
    /// And those that need a device that can be made to hang.
    need_hang: u64,
}

impl Tests {
    /// An error where any was skipped, but for those that need a GPU or a device that hangs where
    /// there is none.
    pub fn whole(self) -> Result<Self> {
        match self.skipped.saturating_sub(self.need_gpu + self.need_hang) {
            0 => Ok(self),
            skipped => bail!("{skipped} tests were skipped; what they say is above"),
        }
    }

    /// Reads unittest's closing lines: `Ran 20 tests in 1.0s`, and `OK (skipped=1)`.
    fn read(said: &str) -> Option<Self> {
        let line = |begin: &str| said.lines().rev().find_map(|line| line.strip_prefix(begin));
        let ran: u64 = line("Ran ")?.split(' ').next()?.parse().ok()?;
        let skipped =
            line("OK (skipped=").and_then(|rest| rest.strip_suffix(')')?.parse().ok()).unwrap_or(0);
        let need_gpu = said.lines().filter(|line| line.ends_with(NO_GPU)).count() as u64;
        // Python quotes a reason that has an apostrophe with the other quotation mark.
        let is_hang = |line: &&str| {
            ["skipped '", "skipped \""]
                .iter()
                .any(|skipped| line.contains(&format!("{skipped}{NO_HANG}")))
        };
        let need_hang = said.lines().filter(is_hang).count() as u64;
        Some(Tests { passed: ran.checked_sub(skipped)?, skipped, need_gpu, need_hang })
    }
}

impl fmt::Display for Tests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tests", self.passed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        let needs = [(self.need_gpu, "a GPU"), (self.need_hang, NO_HANG)];
        let needs: Vec<String> = needs
            .iter()
            .filter(|(tests, _)| *tests > 0)
            .map(|(tests, what)| format!("{tests} need {what}"))
            .collect();
        if needs.is_empty() { Ok(()) } else { write!(f, " ({})", needs.join(", ")) }
    }
}

/// Runs a command line of unittest, with the S3 server that the workspace has built, and shows what
/// it says.
pub fn unittest(cmd: Cmd) -> Result<Tests> {
    let server = workspace::target_dir().join("debug").join(SERVER.0);
    let (ok, said) = cmd.env(SERVER.1, text(&server)).try_read()?;
    println!("{said}");
    match (ok, Tests::read(&said)) {
        (true, Some(tests)) if tests.passed > 0 => Ok(tests),
        (true, _) => bail!("no test ran"),
        (false, _) => bail!("the Python module's tests failed"),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_read() {
        let read =
            |end: &str| Tests::read(&format!("...\n-----\nRan 20 tests in 24.7s\n\n{end}\n"));
        let of = |passed, skipped| Some(Tests { passed, skipped, need_gpu: 0, need_hang: 0 });
        assert_eq!((read("OK"), read("OK (skipped=3)")), (of(20, 0), of(17, 3)));
        assert!(read("OK (skipped=3)").unwrap().whole().is_err());
        let gpu = |skipped: u64| {
            let said = format!(
                "test_a ... {NO_GPU}\ntest_b ... {NO_GPU}\nRan 20 tests in 1s\n\nOK (skipped={skipped})\n"
            );
            Tests::read(&said).unwrap()
        };
        assert_eq!(gpu(2).whole().unwrap().to_string(), "18 tests, 2 skipped (2 need a GPU)");
        assert!(gpu(3).whole().is_err(), "one for another reason");
        let hang = format!(
            "test_a ... skipped '{NO_HANG} needs root'\nRan 2 tests in 1s\n\nOK (skipped=1)\n"
        );
        let hang = Tests::read(&hang).unwrap().whole().unwrap();
        assert_eq!(hang.to_string(), "1 tests, 1 skipped (1 need a device that hangs)");
        let tests = fs::read_to_string(root().join("crates/py/tests/hang.py")).unwrap();
        assert_eq!(
            tests.matches("SkipTest(").count(),
            tests.matches(&format!("\"{NO_HANG}")).count()
        );
        // The module's tests give that reason.
        let tests = fs::read_to_string(root().join("crates/py/tests/test_gpu.py")).unwrap();
        assert!(tests.contains(NO_GPU.trim_start_matches("skipped '").trim_end_matches('\'')));
        assert_eq!(Tests::read("Traceback"), None);
    }

    #[test]
    fn a_run_says_why_a_test_was_skipped() {
        let dir = std::env::temp_dir().join(format!("kvtier-xtask-skips-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let reason = NO_GPU.trim_start_matches("skipped ");
        let tests = format!(
            "import unittest\nclass Tests(unittest.TestCase):\n    def test_a(self): pass\n    \
             @unittest.skip({reason})\n    def test_b(self): pass\n"
        );
        fs::write(dir.join("test_some.py"), tests).unwrap();
        let (ok, said) = discover("python3", &text(&dir)).try_read().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let tests = Tests::read(&said).filter(|_| ok).unwrap();
        assert_eq!(tests, Tests { passed: 1, skipped: 1, need_gpu: 1, need_hang: 0 }, "{said}");
    }
}
