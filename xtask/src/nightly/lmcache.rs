//! The incumbent itself, installed, reads what we write and we read what it wrote.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::venv;
use crate::workspace::Package;

const SCRIPT: &str = include_str!("lmcache_files.py");
const LIMIT_S: u64 = 5 * 60;
/// What the script fills, and its layout.
const DIRECTORIES: [(&str, &str); 4] =
    [("fs", "lmcache-mp"), ("fs_native", "lmcache-mp"), ("connector", "lmcache"), ("connector-meta", "lmcache")];

/// LMCache's file adapters write; `kvtier migrate` takes each directory into our layout and out again; LMCache reads that, and every file is
/// what it was, byte for byte.
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
    let tests = crate::lmcache::test(None)?;
    Ok(Outcome::Noted(format!("{tests} under {}", venv::LMCACHE.packages[0])))
}

fn round_trip(home: &Path, base: &Path) -> Result<usize> {
    let script = home.join("lmcache_files.py");
    fs::write(&script, SCRIPT)?;
    let (theirs, kept, ours) = (base.join("theirs"), base.join("kvtier"), base.join("ours"));
    let python = |mode: &str, dir: &Path| {
        let cmd = Cmd::new("").arg(venv::python(home).to_string_lossy()).arg(script.to_string_lossy());
        venv::quiet(cmd.arg(mode).arg(dir.to_string_lossy())).limit_s(LIMIT_S).run()
    };
    python("write", &theirs)?;
    let mut compared = 0;
    for (dir, layout) in DIRECTORIES {
        let path = |base: &Path| base.join(dir).to_string_lossy().into_owned();
        kvtier(&["migrate", &path(&theirs), &path(&kept), "--from-layout", layout, "--unverified"])?;
        kvtier(&["verify", &path(&kept)])?;
        kvtier(&["migrate", &path(&kept), &path(&ours), "--to-layout", layout])?;
        compared += same_files(&theirs.join(dir), &ours.join(dir))?;
    }
    python("read", &ours)?;
    Ok(compared)
}

fn kvtier(words: &[&str]) -> Result<()> {
    let program = root().join("target/debug/kvtier");
    Cmd::new("").arg(program.to_string_lossy()).args(words.iter().copied()).run()
}

/// Every file of `theirs` lies in `ours` with the same bytes, and no other does but our own corner.
fn same_files(theirs: &Path, ours: &Path) -> Result<usize> {
    let names = |dir: &Path| -> Result<Vec<_>> {
        let mut names = fs::read_dir(dir)?.map(|e| Ok(e?.file_name())).collect::<Result<Vec<_>>>()?;
        names.retain(|name| name != ".kvtier");
        names.sort();
        Ok(names)
    };
    let (expected, found) = (names(theirs)?, names(ours)?);
    ensure!(expected == found && !expected.is_empty(), "{expected:?} became {found:?}");
    for name in &expected {
        let read = |dir: &Path| fs::read(dir.join(name)).with_context(|| format!("cannot read {name:?}"));
        ensure!(read(theirs)? == read(ours)?, "{name:?} has other bytes");
    }
    Ok(expected.len())
}
