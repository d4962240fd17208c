//! `cargo xtask bench lmcache`: our adapters beside LMCache's own, inside LMCache, in turns on the
//! same directory; with `--s3`, at the S3 server in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::file::{MEASURE, RIVALS, bytes};
use super::machine;
use super::s3::Served;
use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::{venv, wheel};

const BATCHES: &str = include_str!("batches.py");
/// Ours under LMCache's wrapper and as a plugin, and LMCache's own.
const KINDS: &[&str] = &["native_plugin", "plugin", "fs", "fs_native", "raw_block"];
/// The same over a bucket.
const KINDS_S3: &[&str] = &["native_plugin", "plugin", "s3"];
/// Chunks of a task.
const BATCH: u64 = 16;
const TURN_LIMIT_S: u64 = 10 * 60;

/// By size, operation and kind: what each turn gave.
type Samples = BTreeMap<(u64, String, &'static str), Vec<Value>>;

struct Plan {
    path: PathBuf,
    /// The S3 server, in place of a directory.
    server: Option<Served>,
    sizes: Vec<u64>,
    turns: u64,
    gb: f64,
    json: Option<String>,
}

/// Measures and prints; with `--json FILE` every sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let sizes = args.value("--sizes")?.unwrap_or_else(|| "4MiB,10MiB,32MiB".into());
    let base = args.value("--path")?.map_or_else(|| root().join("target"), PathBuf::from);
    let gb = args.value("--gb")?.unwrap_or_else(|| "1".into());
    let s3 = args.flag("--s3");
    let mut plan = Plan {
        server: None,
        path: base.join(format!("kvtier-bench-lmcache.{}", std::process::id())),
        sizes: sizes.split(',').map(bytes).collect::<Result<_>>()?,
        turns: args.number("--turns")?.unwrap_or(5).max(1),
        gb: gb.parse().with_context(|| format!("--gb wants a number, not '{gb}'"))?,
        json: args.value("--json")?,
    };
    args.end()?;
    let home = venv::make(&venv::LMCACHE)?;
    let module = wheel::stage("release")?;
    for (name, text) in [("measure.py", MEASURE), ("rivals.py", RIVALS), ("batches.py", BATCHES)] {
        fs::write(home.join(name), text)?;
    }
    if s3 {
        plan.server = Some(Served::alone()?);
    }
    fs::create_dir_all(&plan.path)
        .with_context(|| format!("cannot make {}", plan.path.display()))?;
    let samples = measure(&plan, &Python { home: &home, module: &module });
    let _ = fs::remove_dir_all(&plan.path);
    print(&plan, &samples?)
}

impl Plan {
    fn kinds(&self) -> &'static [&'static str] {
        if self.server.is_some() { KINDS_S3 } else { KINDS }
    }
}

fn measure(plan: &Plan, python: &Python) -> Result<Samples> {
    let mut samples = Samples::new();
    for size in &plan.sizes {
        for turn in 0..plan.turns {
            for place in 0..plan.kinds().len() {
                let kind = plan.kinds()[(turn as usize + place) % plan.kinds().len()];
                let dir = plan.path.join(format!("{size}-{turn}-{place}"));
                fs::create_dir(&dir)?;
                let found = one(plan, python, Cell { size: *size, kind }, &dir)
                    .with_context(|| format!("{kind}, {size} B"));
                fs::remove_dir_all(&dir)?;
                for sample in found? {
                    let op = sample["op"].as_str().unwrap_or_default().to_owned();
                    samples.entry((*size, op, kind)).or_default().push(sample);
                }
            }
        }
        println!("{} MiB: done", *size as f64 / 1048576.0);
    }
    Ok(samples)
}

/// The folder of the virtual environment, and that of our module.
struct Python<'a> {
    home: &'a Path,
    module: &'a Path,
}

struct Cell<'a> {
    size: u64,
    kind: &'a str,
}

fn one(plan: &Plan, python: &Python, cell: Cell, dir: &Path) -> Result<Vec<Value>> {
    let Python { home, module } = *python;
    let Cell { size, kind } = cell;
    let chunks = ((plan.gb * 1e9 / size as f64).ceil() as u64).next_multiple_of(BATCH);
    // The server has the last core to itself.
    let cmd = Cmd::new(if plan.server.is_some() { "taskset -c 0" } else { "" });
    let cmd = cmd
        .arg(venv::python(home).to_string_lossy())
        .arg(home.join("batches.py").to_string_lossy());
    let place =
        plan.server.as_ref().map(|server| format!("http://127.0.0.1:{}", server.port("http")));
    let place = place.unwrap_or_else(|| dir.to_string_lossy().into_owned());
    let cmd = cmd.arg(place).args([size, BATCH, chunks].map(|n| n.to_string())).arg(kind);
    let cmd = venv::quiet(cmd).env("PYTHONPATH", module.to_string_lossy());
    let text = cmd.limit_s(TURN_LIMIT_S).read()?;
    let last = text
        .lines()
        .rev()
        .find(|line| line.starts_with('['))
        .context("the driver printed no samples")?;
    Ok(serde_json::from_str(last)?)
}

fn print(plan: &Plan, samples: &Samples) -> Result<()> {
    println!(
        "\n{}; load {:.1}; medians of {} turns of {} GB each",
        machine::line(),
        machine::load(),
        plan.turns,
        plan.gb
    );
    println!(
        "\n| chunks | | adapter | MB/s | CPU s/GB | µs a chunk in Python: CPU | clock | p50 ms a batch |\n|{}",
        "---|".repeat(8)
    );
    for size in &plan.sizes {
        for op in ["store", "load"] {
            for kind in plan.kinds() {
                let turns =
                    samples.get(&(*size, op.to_owned(), *kind)).map_or(&[][..], Vec::as_slice);
                let median = |name: &str| median(turns, name);
                println!(
                    "| {} MiB | {op} | {kind} | {:.0} | {:.3} | {:.1} | {:.0} | {:.1} |",
                    *size as f64 / 1048576.0,
                    median("mb_per_s"),
                    median("cpu_s_per_gb"),
                    median("python_cpu_us_per_chunk"),
                    median("python_us_per_chunk"),
                    median("p50_ms"),
                );
            }
        }
    }
    if let Some(file) = &plan.json {
        let rows: Vec<Value> = samples
            .iter()
            .map(|((size, op, kind), turns)| json!({ "size": size, "op": op, "kind": kind, "turns": turns }))
            .collect();
        let all = json!({ "machine": machine::line(), "turns": plan.turns, "gb": plan.gb, "samples": rows });
        fs::write(file, format!("{all:#}\n")).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

fn median(turns: &[Value], name: &str) -> f64 {
    let mut values: Vec<f64> = turns.iter().filter_map(|turn| turn[name].as_f64()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_turns_that_have_the_number() {
        let turns = [json!({"x": 3.0}), json!({"x": 1.0}), json!({"y": 9.0}), json!({"x": 2.0})];
        assert_eq!(median(&turns, "x"), 2.0);
        assert!(median(&turns, "z").is_nan());
    }
}
