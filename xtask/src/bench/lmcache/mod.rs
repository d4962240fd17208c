//! `cargo xtask bench lmcache`: our adapters beside LMCache's own, inside LMCache, in turns on the
//! same directory; with `--s3`, at the S3 server in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::adapter_plan::{AdapterPlan, Defaults, median, samples_of};
use super::file::{MEASURE, RIVALS};
use crate::args::Args;
use crate::sh::Cmd;
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

const DEFAULTS: Defaults =
    Defaults { name: "lmcache", sizes: "4MiB,10MiB,32MiB", turns: 5, gb: "1" };

/// Measures and prints; with `--json FILE` every sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let mut plan = AdapterPlan::new(args, &DEFAULTS)?;
    let home = venv::make(&venv::LMCACHE)?;
    let module = wheel::stage("release")?;
    for (name, text) in [("measure.py", MEASURE), ("rivals.py", RIVALS), ("batches.py", BATCHES)] {
        fs::write(home.join(name), text)?;
    }
    if plan.is_s3 {
        plan.start_server()?;
    }
    plan.make_dir()?;
    let samples = measure(&plan, &Python { home: &home, module: &module });
    let _ = fs::remove_dir_all(&plan.path);
    print(&plan, &samples?)
}

fn kinds(plan: &AdapterPlan) -> &'static [&'static str] {
    if plan.is_s3 { KINDS_S3 } else { KINDS }
}

fn measure(plan: &AdapterPlan, python: &Python) -> Result<Samples> {
    let mut samples = Samples::new();
    for size in &plan.sizes {
        for turn in 0..plan.turns {
            for place in 0..kinds(plan).len() {
                let kind = kinds(plan)[(turn as usize + place) % kinds(plan).len()];
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

fn one(plan: &AdapterPlan, python: &Python, cell: Cell, dir: &Path) -> Result<Vec<Value>> {
    let Python { home, module } = *python;
    let Cell { size, kind } = cell;
    let chunks = ((plan.gb * 1e9 / size as f64).ceil() as u64).next_multiple_of(BATCH);
    let cmd = Cmd::new(plan.pinned());
    let cmd = cmd
        .arg(venv::python(home).to_string_lossy())
        .arg(home.join("batches.py").to_string_lossy());
    let cmd = cmd.arg(plan.place(dir)).args([size, BATCH, chunks].map(|n| n.to_string())).arg(kind);
    let cmd = venv::quiet(cmd).env("PYTHONPATH", module.to_string_lossy());
    let text = cmd.limit_s(TURN_LIMIT_S).read()?;
    samples_of(&text)
}

fn print(plan: &AdapterPlan, samples: &Samples) -> Result<()> {
    plan.print_head();
    println!(
        "\n| chunks | | adapter | MB/s | CPU s/GB | µs a chunk in Python: CPU | clock | p50 ms a batch |\n|{}",
        "---|".repeat(8)
    );
    for size in &plan.sizes {
        for op in ["store", "load"] {
            for kind in kinds(plan) {
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
    let rows = samples.iter().map(
        |((size, op, kind), turns)| json!({ "size": size, "op": op, "kind": kind, "turns": turns }),
    );
    plan.save(rows.collect())
}
