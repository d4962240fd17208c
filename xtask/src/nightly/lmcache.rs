//! The incumbent itself, installed, reads what we write and we read what it wrote.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::ci::Outcome;
use crate::sh::Cmd;
use crate::venv;
use crate::workspace::{self, Package};

const SCRIPT: &str = include_str!("lmcache_files.py");
const LIMIT_S: u64 = 20 * 60;
/// What the script fills, and its layout.
const DIRECTORIES: [(&str, &str); 5] = [
    ("fs", "lmcache-mp"),
    ("fs_native", "lmcache-mp"),
    ("connector", "lmcache"),
    ("connector-meta", "lmcache"),
    ("gds", "lmcache-gds"),
];
/// What the script's chunks look like, for the layout whose files say it.
const SHAPE: [&str; 2] = ["--shape", "2x2x256x64"];

/// LMCache's file adapters write; `kvtier migrate` takes each directory into our layout and out
/// again; LMCache reads that, and every file is what it was, byte for byte.
pub fn files(_: &[Package]) -> Result<Outcome> {
    let home = venv::make(&venv::LMCACHE)?;
    Cmd::new("cargo build --locked -p kvtier-cli").run()?;
    let base = home.join(format!("files.{}", std::process::id()));
    fs::create_dir_all(&base)?;
    let compared = round_trip(&home, &base);
    fs::remove_dir_all(&base)?;
    Ok(Outcome::Noted(format!("{} files of {}", compared?, venv::LMCACHE.packages[0])))
}

/// LMCache's S3 adapter and our tier write to one bucket, and each reads what the other wrote.
pub fn bucket(_: &[Package]) -> Result<Outcome> {
    let home = venv::make(&venv::LMCACHE)?;
    Cmd::new("cargo test --locked -p kvtier-cli --test lmcache_bucket")
        .env("KVTIER_LMCACHE_PYTHON", venv::python(&home).to_string_lossy())
        .limit_s(LIMIT_S)
        .run()?;
    Ok(Outcome::Noted(format!("60 chunks each way with {}", venv::LMCACHE.packages[0])))
}

/// LMCache runs our module as its storage.
pub fn wheel(_: &[Package]) -> Result<Outcome> {
    let tests = crate::test_lmcache::test(None)?;
    Ok(Outcome::Noted(format!("{tests} under {}", venv::LMCACHE.packages[0])))
}

fn round_trip(home: &Path, base: &Path) -> Result<usize> {
    let script = home.join("lmcache_files.py");
    fs::write(&script, SCRIPT)?;
    let theirs = base.join("theirs");
    let kept = base.join("kvtier");
    let ours = base.join("ours");
    let python = |mode: &str, dir: &Path| {
        let cmd =
            Cmd::new("").arg(venv::python(home).to_string_lossy()).arg(script.to_string_lossy());
        venv::quiet(cmd.arg(mode).arg(dir.to_string_lossy())).limit_s(LIMIT_S).run()
    };
    python("write", &theirs)?;
    let mut compared = 0;
    for (dir, layout) in DIRECTORIES {
        let path = |base: &Path| base.join(dir).to_string_lossy().into_owned();
        kvtier(&[
            "migrate",
            &path(&theirs),
            &path(&kept),
            "--from-layout",
            layout,
            "--unverified",
        ])?;
        kvtier(&["verify", &path(&kept)])?;
        let shape = if layout == "lmcache-gds" { &SHAPE[..] } else { &[] };
        kvtier(&[&["migrate", &path(&kept), &path(&ours), "--to-layout", layout], shape].concat())?;
        compared += same_files(&theirs.join(dir), &ours.join(dir))?;
    }
    python("read", &ours)?;
    Ok(compared)
}

fn kvtier(words: &[&str]) -> Result<()> {
    let program = workspace::target_dir().join("debug/kvtier");
    Cmd::new("").arg(program.to_string_lossy()).args(words.iter().copied()).run()
}

/// Every file of `theirs` is in `ours` with the same bytes; other files of `ours` are all in `.kvtier`.
fn same_files(theirs: &Path, ours: &Path) -> Result<usize> {
    let expected = names(theirs)?;
    let found = names(ours)?;
    ensure!(expected == found && !expected.is_empty(), "{expected:?} became {found:?}");
    for name in &expected {
        let read = |dir: &Path| {
            fs::read(dir.join(name)).with_context(|| format!("cannot read {}", name.display()))
        };
        ensure!(read(theirs)? == read(ours)?, "{} has other bytes", name.display());
    }
    Ok(expected.len())
}

/// The paths of all files below a directory, from there on, in order.
fn names(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let (entry, name) = entry.map(|entry| (entry.path(), PathBuf::from(entry.file_name())))?;
        match entry.is_dir() {
            true if name == Path::new(".kvtier") => {}
            true => all.extend(names(&entry)?.into_iter().map(|below| name.join(below))),
            false => all.push(name),
        }
    }
    all.sort();
    Ok(all)
}
