//! `cargo xtask wheel`: the wheel that users install, with the command in it, for the glibc of
//! manylinux_2_28.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::glibc::{self, ALLOWED};
use super::{COMMAND, NUMPY, SERVER, run_tests, text};
use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::venv::{self, Venv};
use crate::{versions, workspace};

/// What builds a wheel and checks its types.
const BUILDER: Venv = Venv { name: "wheel", packages: versions::WHEEL_BUILDER, alone: false };
/// The interpreter whose stable ABI has no buffer protocol yet.
const OLD: &str = "python3.10";
/// The folder from which maturin takes programs, as `crates/py/pyproject.toml` says.
const SCRIPTS: &str = "crates/py/kvtier.data/scripts";
/// The longest that building a wheel may take.
const LIMIT_S: u64 = 30 * 60;

/// The tools that build, and whether what they built is tested.
struct Builder {
    bin: PathBuf,
    home: PathBuf,
    is_tested: bool,
}

/// One of the wheels: its interpreter, its folder below the target directory, and cargo's options.
struct Flavour<'a> {
    python: PathBuf,
    folder: &'a str,
    options: &'a [&'a str],
}

/// `cargo xtask wheel`: says what it built, where, and how many tests passed.
pub fn run(args: &mut Args) -> Result<()> {
    let is_tested = !args.flag("--no-test");
    args.end()?;
    wheels(is_tested)?.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Builds the wheel for CPython 3.11 and later, and where there is a CPython 3.10 one for it too;
/// checks that module and command run on the glibc of its name. Where it is to be tested, installs
/// each into an environment of its own, tests it there, and checks the types. One line a wheel.
pub fn wheels(is_tested: bool) -> Result<Vec<String>> {
    let home = venv::make(&BUILDER)?;
    let builder = Builder { bin: home.join("venv/bin"), home, is_tested };
    if is_tested {
        let types =
            ["--config-file", "crates/py/pyproject.toml", "crates/py/python", "examples/python"];
        builder.tool("mypy").args(types).run()?;
    }
    builder.command()?;
    let new = Flavour { python: builder.bin.join("python3"), folder: "wheels", options: &[] };
    let mut lines = vec![builder.wheel(&new)?];
    if Cmd::new(OLD).arg("--version").works() {
        let old = Flavour {
            python: OLD.into(),
            folder: "wheels310",
            options: &["--no-default-features"],
        };
        lines.push(builder.wheel(&old)?);
    } else {
        lines.push(format!("no wheel for CPython 3.10: there is no {OLD}"));
    }
    Ok(lines)
}

impl Builder {
    fn tool(&self, name: &str) -> Cmd {
        // Zig is a module of the builder's interpreter, which its tools look for on the path.
        let path = format!("{}:{}", text(&self.bin), std::env::var("PATH").unwrap_or_default());
        Cmd::new("").arg(text(&self.bin.join(name))).env("PATH", path)
    }

    /// Builds the command, as it is released, where maturin looks for programs that a wheel brings.
    fn command(&self) -> Result<()> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let build = self.tool("cargo-zigbuild").args([
            "rustc",
            "--release",
            "--locked",
            "-p",
            "kvtier-cli",
        ]);
        let build = build.args(["--bin", COMMAND, "--features", "aws-config", "--target"]);
        build
            .arg(format!("{triple}.{ALLOWED}"))
            .args(["--", "-C", "strip=symbols"])
            .limit_s(LIMIT_S)
            .run()?;
        let scripts = root().join(SCRIPTS);
        fs::create_dir_all(&scripts)?;
        let built = workspace::target_dir().join(triple).join("release").join(COMMAND);
        fs::copy(&built, scripts.join(COMMAND))
            .with_context(|| format!("copying {}", built.display()))?;
        Ok(())
    }

    /// Builds a wheel for an interpreter. If it is to be tested, installs it into a fresh
    /// environment and runs the tests there.
    fn wheel(&self, flavour: &Flavour<'_>) -> Result<String> {
        let out = workspace::target_dir().join(flavour.folder);
        let _ = fs::remove_dir_all(&out);
        let build = self.tool("maturin").args([
            "build",
            "--release",
            "--locked",
            "-m",
            "crates/py/Cargo.toml",
            "--zig",
        ]);
        let build = build
            .arg("--compatibility")
            .arg(format!("manylinux_{}_{}", ALLOWED.major, ALLOWED.minor));
        let build =
            build.arg("--out").arg(text(&out)).arg("--interpreter").arg(text(&flavour.python));
        let build = build.args(["--features", "aws-config"]).args(flavour.options.iter().copied());
        build.args(["--", "-C"]).arg(format!("link-arg={}", unwinder()?)).limit_s(LIMIT_S).run()?;
        let wheel = only_file(&out)?;
        let bytes = fs::metadata(&wheel)?.len();
        check_programs(&wheel, &self.home.join("unpacked"))?;
        let line = format!("{} ({:.1} MB)", wheel.display(), bytes as f64 / 1e6);
        if !self.is_tested {
            return Ok(line);
        }
        let venv = self.home.join(format!("venv-{}", flavour.folder));
        Cmd::new("")
            .arg(text(&flavour.python))
            .args(["-m", "venv", "--clear"])
            .arg(text(&venv))
            .read()?;
        let bin = venv.join("bin");
        let python = Cmd::new("").arg(text(&bin.join("python3")));
        python.clone().args(["-m", "pip", "install", "--quiet", NUMPY]).arg(text(&wheel)).run()?;
        Cmd::new("").arg(text(&bin.join(COMMAND))).arg("--version").run()?;
        python.args(["-m", "kvtier", "--version"]).run()?;
        // What the tests talk to: the S3 server, and among the libraries the stand-in for libcuda.
        Cmd::new("cargo build --locked --workspace --features kvtier-key/serde,kvtier-s3/tls-direct,kvtier/metrics,kvtier-cli/aws-config --examples --lib --bin")
            .arg(SERVER.0)
            .run()?;
        let tests = run_tests(&bin.join("python3"), None, &[])?.whole()?;
        Ok(format!("{line}: {tests}"))
    }
}

/// The C compiler's shared unwinder. Zig would put LLVM's into the module, and threads that CPython
/// ends by `pthread_exit` crash where two unwinders meet.
fn unwinder() -> Result<String> {
    let path = Cmd::new("cc -print-file-name=libgcc_s.so.1").read()?;
    let path = path.trim();
    if !Path::new(path).is_absolute() {
        bail!("the C compiler has no libgcc_s.so.1: install libgcc-s1");
    }
    Ok(path.to_owned())
}

/// Unpacks a wheel. Errors where one of its programs or libraries needs a newer glibc than its name
/// says, and where it lacks module or command.
fn check_programs(wheel: &Path, unpacked: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(unpacked);
    Cmd::new("python3 -m zipfile -e").arg(text(wheel)).arg(text(unpacked)).read()?;
    let mut programs = Vec::new();
    for path in files(unpacked)? {
        let file = fs::read(&path)?;
        if glibc::is_elf(&file) {
            let needs = glibc::newest(&file)
                .with_context(|| format!("{} names no version of glibc", path.display()))?;
            if needs > ALLOWED {
                bail!(
                    "{} needs glibc {needs}: more than {ALLOWED}, as the wheel's name says",
                    path.display()
                );
            }
            println!("{} needs glibc {needs}", path.display());
            programs.push(path);
        }
    }
    let has = |name: &str| {
        programs.iter().any(|path| path.file_name().is_some_and(|found| *found == *name))
    };
    if programs.len() != 2 || !has(COMMAND) {
        bail!("the wheel has not just the module and the command: {programs:?}");
    }
    fs::remove_dir_all(unpacked)?;
    Ok(())
}

/// All files below a folder.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { all.extend(files(&path)?) } else { all.push(path) }
    }
    Ok(all)
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(dir)?;
    let file = files.next().context("maturin left no wheel")??;
    Ok(file.path())
}
