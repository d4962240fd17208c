//! `cargo xtask bench vllm`: our tier beside vLLM's own secondary tiers, each through its real
//! class in a process of its own, in turns on the same directory; with `--s3`, at the S3 server of
//! the tests.

mod table;

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::adapter_plan::{AdapterPlan, Defaults, samples_of};
use super::adapter_samples::Samples;
use super::file::MEASURE;
use super::test_s3_server::ObjectStore;
use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::{venv, versions, vllm_venv, wheel};

const DRIVER: &str = include_str!("tiers.py");
/// Ours without checksums: what remains is the cost of moving alone.
const UNCHECKED: &str = "kvtier-unchecked";
/// Ours and vLLM's.
const KINDS: &[&str] = &["kvtier", UNCHECKED, "fs", "kvcr"];
/// The same over a bucket.
const KINDS_S3: &[&str] = &["kvtier", "obj"];
/// Memory of the rows: what is in flight at once.
const REGION_BYTES: u64 = 512 << 20;
const TURN_LIMIT_S: u64 = 10 * 60;

const DEFAULTS: Defaults = Defaults { name: "vllm", sizes: "256KiB,2MiB,32MiB", turns: 7, gb: "2" };

/// Measures and prints; with `--json FILE` every sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let plan = AdapterPlan::new(args, &DEFAULTS)?;
    let home = vllm_venv::make()?;
    add_rivals(&home);
    let module = wheel::stage("release")?;
    let unchecked = if plan.is_s3 { module.clone() } else { wheel::stage_unchecked()? };
    fs::write(home.join("measure.py"), MEASURE)?;
    fs::write(home.join("tiers.py"), DRIVER)?;
    if plan.is_s3 {
        ObjectStore::build()?;
    }
    plan.make_dir()?;
    let samples = measure(&plan, &Python { home: &home, module: &module, unchecked: &unchecked });
    let _ = fs::remove_dir_all(&plan.path);
    let samples = samples?;
    plan.print_head();
    table::print(&samples);
    plan.save(samples.json())
}

/// Installs what vLLM's own tiers `obj` and `kvcr` import and load. One that does not install is left
/// out of the tables, with the reason.
fn add_rivals(home: &Path) {
    let source = root().join("xtask/src/bench/vllm/cuobjclient.c");
    let library = home.join("lib/libcuobjclient.so.1");
    let cc = Cmd::new("cc -shared -fPIC -Wl,-soname,libcuobjclient.so.1 -o");
    let cc = cc.arg(library.to_string_lossy()).arg(source.to_string_lossy());
    let made = fs::create_dir_all(home.join("lib")).map_err(Into::into);
    if let Err(e) = made.and_then(|()| cc.read()) {
        println!("without libcuobjclient: {e:#}");
    }
    let pip = Cmd::new("").arg(venv::python(home).to_string_lossy());
    let pip = pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
    if let Err(e) = pip.args(versions::VLLM_TIERS.iter().copied()).read() {
        println!("without {}: {e:#}", versions::VLLM_TIERS.join(" and "));
    }
}

/// The folder of the virtual environment, and those of our module, with and without checksums.
struct Python<'a> {
    home: &'a Path,
    module: &'a Path,
    unchecked: &'a Path,
}

struct Cell<'a> {
    size: u64,
    kind: &'a str,
}

fn measure(plan: &AdapterPlan, python: &Python) -> Result<Samples> {
    let kinds = if plan.is_s3 { KINDS_S3 } else { KINDS };
    let mut kinds = kinds.to_vec();
    let mut samples = Samples::default();
    for size in &plan.sizes {
        for turn in 0..plan.turns as usize {
            // Another tier begins in each turn.
            for place in 0..kinds.len() {
                let kind = kinds[(turn + place) % kinds.len()];
                let dir = plan.path.join(format!("{size}-{turn}-{place}"));
                fs::create_dir(&dir)?;
                let found = one(plan, python, Cell { size: *size, kind }, &dir);
                plan.clean(&dir)?;
                match found {
                    Ok(found) => samples.add(*size, kind, found),
                    // Our own failure ends the benchmark; a rival may not run on this machine.
                    Err(e) if kind.starts_with("kvtier") => return Err(e.context(kind)),
                    Err(e) => samples.absent(kind, &e),
                }
            }
            kinds.retain(|kind| !samples.is_absent(kind));
        }
        println!("{} KiB: done", size >> 10);
    }
    Ok(samples)
}

fn one(plan: &AdapterPlan, python: &Python, cell: Cell, dir: &Path) -> Result<Vec<Value>> {
    let chunks = (plan.gb * 1e9 / cell.size as f64).ceil() as u64;
    let rows = (REGION_BYTES / cell.size).min(64);
    let cmd = Cmd::new(plan.pinned());
    let program = python.home.join("tiers.py");
    let cmd = cmd.arg(venv::python(python.home).to_string_lossy()).arg(program.to_string_lossy());
    let numbers = [cell.size, rows, chunks].map(|n| n.to_string());
    // A server of its own: what an earlier turn stored would not be stored again.
    let store = if plan.is_s3 { Some(ObjectStore::start()?) } else { None };
    let place = store.as_ref().map_or_else(|| plan.place(dir), |store| store.address().to_owned());
    let cmd = venv::quiet(cmd.arg(place).args(numbers).arg(cell.kind));
    let module = if cell.kind == UNCHECKED { python.unchecked } else { python.module };
    let cmd = cmd.env("PYTHONPATH", module.to_string_lossy());
    let cmd = cmd.env("LD_LIBRARY_PATH", python.home.join("lib").to_string_lossy());
    let text = cmd.limit_s(TURN_LIMIT_S).read()?;
    samples_of(&text)
}
