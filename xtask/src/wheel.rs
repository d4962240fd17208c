//! The Python module: built and tested, quickly as it stands (`ci`), or as the wheel that users install (`cargo xtask wheel`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};
use crate::workspace;

/// What builds a wheel and checks its types.
const BUILDER: Venv = Venv { name: "wheel", packages: &["maturin==1.9.6", "mypy==1.18.2"], alone: false };
/// The interpreter whose stable ABI has no buffer protocol yet.
const OLD: &str = "python3.10";
/// The longest that building a wheel may take.
const BUILD_LIMIT_S: u64 = 30 * 60;
/// The longest that the module's tests may take.
const TESTS_LIMIT_S: u64 = 300;

/// `cargo xtask wheel`: builds the wheel for CPython 3.11 and later, and where there is a CPython 3.10 one for it too, installs each into an
/// environment of its own and tests it there; checks the types.
pub fn run(args: &mut Args) -> Result<()> {
    args.end()?;
    let home = venv::make(&BUILDER)?;
    let tool = |name: &str| Cmd::new("").arg(text(&home.join("venv/bin").join(name)));
    let types = ["--config-file", "crates/py/pyproject.toml", "crates/py/python", "examples/python"];
    tool("mypy").args(types).run()?;
    let mut lines = vec![one(&tool("maturin"), &home.join("venv/bin/python3"), "wheels", &[])?];
    if Cmd::new(OLD).arg("--version").works() {
        let venv = home.join("venv310");
        Cmd::new(OLD).args(["-m", "venv"]).arg(text(&venv)).read()?;
        lines.push(one(&tool("maturin"), &venv.join("bin/python3"), "wheels310", &["--no-default-features"])?);
    } else {
        lines.push(format!("no wheel for CPython 3.10: there is no {OLD}"));
    }
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Builds a wheel for an interpreter, installs it there and runs the tests.
fn one(maturin: &Cmd, python: &Path, out: &str, features: &[&str]) -> Result<String> {
    let out = root().join("target").join(out);
    let _ = fs::remove_dir_all(&out);
    let build = maturin.clone().args(["build", "--release", "--locked", "-m", "crates/py/Cargo.toml", "--out"]);
    let build = build.arg(text(&out)).arg("--interpreter").arg(text(python)).args(features.iter().copied());
    build.limit_s(BUILD_LIMIT_S).run()?;
    let wheel = only_file(&out)?;
    let bytes = fs::metadata(&wheel)?.len();
    let pip =
        Cmd::new("").arg(text(python)).args(["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]);
    pip.arg(text(&wheel)).run()?;
    let count = tests(python, None)?;
    Ok(format!("{} ({:.1} MB): {count} tests passed", wheel.display(), bytes as f64 / 1e6))
}

/// Builds the module as the workspace stands, and runs its examples and its tests. Gives back how many tests passed.
pub fn test() -> Result<u64> {
    let module = stage("dev")?;
    for example in fs::read_dir(root().join("examples/python"))? {
        Cmd::new("python3")
            .arg(text(&example?.path()))
            .env("PYTHONPATH", text(&module))
            .limit_s(TESTS_LIMIT_S)
            .run()?;
    }
    tests(Path::new("python3"), Some(&module))
}

/// Builds the module as the workspace stands, with a profile of cargo's, and puts it beside its Python files. Gives back the folder to import
/// from.
pub fn stage(profile: &str) -> Result<PathBuf> {
    // For tests all libraries with the features that `cargo test` gives them, which takes naming the examples too: little is left to build.
    let what = if profile == "dev" {
        "--workspace --features kvtier-s3/tls-direct,kvtier/metrics --examples"
    } else {
        "-p kvtier-py"
    };
    Cmd::new(&format!("cargo build --locked --lib --profile {profile} {what}")).run()?;
    let package = root().join("target/py/kvtier");
    let _ = fs::remove_dir_all(&package);
    copy_sources(&root().join("crates/py/python/kvtier"), &package)?;
    fs::copy(
        workspace::target_dir().join(if profile == "dev" { "debug" } else { profile }).join("libkvtier_py.so"),
        package.join("_native.abi3.so"),
    )
    .context("the built module")?;
    Ok(root().join("target/py"))
}

fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if path.is_dir() {
            copy_sources(&path, &to.join(name))?;
        } else {
            fs::copy(path, to.join(name))?;
        }
    }
    Ok(())
}

fn tests(python: &Path, path: Option<&Path>) -> Result<u64> {
    let cmd = Cmd::new("").arg(text(python)).args(["-m", "unittest", "discover", "-s", "crates/py/tests"]);
    let stand_in = workspace::target_dir().join("debug/libkvtier_fakegpu.so");
    let cmd = if stand_in.exists() { cmd.env("KVTIER_FAKEGPU", text(&stand_in)) } else { cmd };
    unittest(path.iter().fold(cmd, |cmd, path| cmd.env("PYTHONPATH", text(path))).limit_s(TESTS_LIMIT_S))
}

/// Runs a command line of unittest and shows what it says. Gives back how many tests passed.
pub fn unittest(cmd: Cmd) -> Result<u64> {
    let (ok, said) = cmd.try_read()?;
    println!("{said}");
    match (ok, count(&said)) {
        (true, Some(count)) if count > 0 => Ok(count),
        (true, _) => bail!("no test ran"),
        (false, _) => bail!("the Python module's tests failed"),
    }
}

/// Reads unittest's closing line: `Ran 20 tests in 1.0s`.
fn count(said: &str) -> Option<u64> {
    let line = said.lines().rev().find_map(|line| line.strip_prefix("Ran "))?;
    line.split(' ').next()?.parse().ok()
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(dir)?;
    let file = files.next().context("maturin left no wheel")??;
    Ok(file.path())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests_of_it {
    use super::*;

    #[test]
    fn the_closing_line_is_read() {
        assert_eq!(count("...\n-----\nRan 20 tests in 24.7s\n\nOK\n"), Some(20));
        assert_eq!(count("Traceback"), None);
    }
}
