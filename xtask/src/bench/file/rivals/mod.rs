//! Rivals in Python, each run by its own driver in an environment of its own below `target/rivals`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Contender;
use super::plan::{Cell, Plan};
use super::sample::Sample;
use crate::sh::Cmd;
use crate::venv::{self, Venv};
use crate::versions;

/// What measures all of them.
pub const MEASURE: &str = include_str!("measure.py");
/// The longest that one turn of a rival may take.
const TURN_LIMIT_S: u64 = 10 * 60;

/// A rival's packages, its driver, and the kinds of it that are measured.
struct Rival {
    name: &'static str,
    venv: Venv,
    driver: &'static str,
    kinds: &'static [&'static str],
}

/// Drives LMCache's own adapters.
pub const LMCACHE_DRIVER: &str = include_str!("lmcache_l2.py");

const LMCACHE: Rival = Rival {
    name: "LMCache",
    venv: venv::LMCACHE,
    driver: LMCACHE_DRIVER,
    kinds: &["fs", "fs_native", "raw_block"],
};

const NIXL: Rival = Rival {
    name: "NIXL",
    venv: Venv { name: "nixl", packages: versions::NIXL, alone: true },
    driver: include_str!("nixl_posix.py"),
    kinds: &["uring", "aio"],
};

/// Rivals that could be had, and why others could not.
pub fn contenders(plan: &Plan) -> (Vec<Contender>, Vec<String>) {
    let mut found = Vec::new();
    let mut absent = Vec::new();
    for (wanted, rival, flag) in
        [(plan.with_lmcache, LMCACHE, "--with-lmcache"), (plan.with_nixl, NIXL, "--with-nixl")]
    {
        if !wanted {
            absent.push(format!("{} (ask for it with {flag})", rival.name));
            continue;
        }
        match install(&rival) {
            Err(e) => absent.push(format!("{} (it does not install: {e:#})", rival.name)),
            Ok(home) => {
                for kind in rival.kinds {
                    match works(&home, kind) {
                        Ok(()) => found.push(contender(&rival, &home, kind)),
                        Err(e) => {
                            absent.push(format!("{} {kind} (it does not run: {e:#})", rival.name))
                        }
                    }
                }
            }
        }
    }
    (found, absent)
}

/// The environment with the rival's packages and drivers, made if it is not there.
fn install(rival: &Rival) -> Result<PathBuf> {
    let home = venv::make(&rival.venv)?;
    fs::write(home.join("measure.py"), MEASURE)?;
    fs::write(home.join("driver.py"), rival.driver)?;
    Ok(home)
}

/// One small turn, so that what does not run here is said before anything is measured.
fn works(home: &Path, kind: &str) -> Result<()> {
    let dir = tempfile_in(home)?;
    let cell = Cell { size: 1 << 20, inflight: 2, chunks: 4 };
    let tried = turn(home, kind, &cell, &dir);
    fs::remove_dir_all(&dir)?;
    tried.map(drop)
}

fn tempfile_in(home: &Path) -> Result<PathBuf> {
    let dir = home.join(format!("try.{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn contender(rival: &Rival, home: &Path, kind: &'static str) -> Contender {
    let home = home.to_owned();
    let name = format!("{} {kind}", rival.name);
    Contender { name, run: Box::new(move |cell, dir| turn(&home, kind, cell, dir)) }
}

fn turn(home: &Path, kind: &str, cell: &Cell, dir: &Path) -> Result<Vec<Sample>> {
    let cmd = Cmd::new("")
        .arg(venv::python(home).to_string_lossy())
        .arg(home.join("driver.py").to_string_lossy());
    let cmd = cmd
        .arg(dir.to_string_lossy())
        .args([cell.size, cell.inflight, cell.chunks].map(|n| n.to_string()));
    // They talk a lot; what went wrong is still said.
    let cmd = cmd
        .arg(kind)
        .env("PYTHONWARNINGS", "ignore")
        .env("LMCACHE_LOG_LEVEL", "ERROR")
        .env("NIXL_LOG_LEVEL", "ERROR");
    let text = cmd.limit_s(TURN_LIMIT_S).read()?;
    // Libraries print what they like before; the samples come last.
    let last = text
        .lines()
        .rev()
        .find(|line| line.starts_with('['))
        .context("the driver printed no samples")?;
    let samples: Value = serde_json::from_str(last)?;
    samples.as_array().context("the driver printed no list")?.iter().map(sample).collect()
}

fn sample(found: &Value) -> Result<Sample> {
    let number =
        |name: &str| found[name].as_f64().with_context(|| format!("the driver printed no {name}"));
    Ok(Sample {
        op: found["op"].as_str().unwrap_or_default().into(),
        how: found["how"].as_str().unwrap_or_default().into(),
        mb_per_s: number("mb_per_s")?,
        cpu_s_per_gb: number("cpu_s_per_gb")?,
        p50_ms: number("p50_ms").ok(),
        p99_ms: number("p99_ms").ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_prints_is_read() {
        let found = serde_json::json!({"op": "get", "how": "fs", "mb_per_s": 2.0, "cpu_s_per_gb": 0.5, "p50_ms": null});
        let sample = sample(&found).unwrap();
        assert_eq!((sample.op.as_str(), sample.mb_per_s, sample.p50_ms), ("get", 2.0, None));
        assert!(super::sample(&serde_json::json!({"op": "get"})).is_err());
    }
}
