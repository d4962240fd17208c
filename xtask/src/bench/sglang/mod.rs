//! `cargo xtask bench sglang`: our storage backend beside SGLang's own, each through its real class
//! in a process of its own, in turns on the same directory.

mod table;

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::adapter_plan::{AdapterPlan, Defaults, samples_of};
use super::adapter_samples::Samples;
use super::file::MEASURE;
use crate::args::Args;
use crate::sh::Cmd;
use crate::{sglang_venv, venv, versions, wheel};

const DRIVER: &str = include_str!("backends.py");
/// Ours and SGLang's.
const KINDS: &[&str] = &["kvtier", "file", "nixl", "mooncake"];
/// Pages that SGLang moves with one call, and the most memory for them.
const BATCH_MAX: u64 = 128;
const BATCH_BYTES: u64 = 512 << 20;
const TURN_LIMIT_S: u64 = 10 * 60;

/// Pages of 64 tokens of a small model, of a large one with latents, and of one of 8B parameters.
const DEFAULTS: Defaults =
    Defaults { name: "sglang", sizes: "768KiB,4392KiB,8MiB", turns: 7, gb: "2" };

/// Measures and prints; with `--json FILE` every sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let plan = AdapterPlan::new(args, &DEFAULTS)?;
    if plan.is_s3 {
        bail!("the backends are measured on a directory: leave --s3 out");
    }
    let home = sglang_venv::make()?;
    add_rivals(&home);
    let module = wheel::stage("release")?;
    fs::write(home.join("measure.py"), MEASURE)?;
    fs::write(home.join("backends.py"), DRIVER)?;
    plan.make_dir()?;
    let samples = measure(&plan, &home, &module);
    let _ = fs::remove_dir_all(&plan.path);
    let samples = samples?;
    plan.print_head();
    table::print(&samples);
    plan.save(samples.json())
}

/// Installs what SGLang's own backends `nixl` and `mooncake` import. One that does not install is
/// left out of the tables, with the reason.
fn add_rivals(home: &Path) {
    for packages in [versions::SGLANG_NIXL, versions::SGLANG_MOONCAKE] {
        let pip = Cmd::new("").arg(venv::python(home).to_string_lossy());
        let pip = pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
        if let Err(e) = pip.args(packages.iter().copied()).read() {
            println!("without {}: {e:#}", packages.join(" and "));
        }
    }
}

fn measure(plan: &AdapterPlan, home: &Path, module: &Path) -> Result<Samples> {
    let mut kinds = KINDS.to_vec();
    let mut samples = Samples::default();
    for size in &plan.sizes {
        for turn in 0..plan.turns as usize {
            // Another backend begins in each turn.
            for place in 0..kinds.len() {
                let kind = kinds[(turn + place) % kinds.len()];
                let dir = plan.path.join(format!("{size}-{turn}-{place}"));
                fs::create_dir(&dir)?;
                let found = Turn { plan, home, module, size: *size, kind }.run(&dir);
                plan.clean(&dir)?;
                match found {
                    Ok(found) => samples.add(*size, kind, found),
                    // Our own failure ends the benchmark; a rival may not run on this machine.
                    Err(e) if kind == "kvtier" => return Err(e.context(kind)),
                    Err(e) => samples.absent(kind, &e),
                }
            }
            kinds.retain(|kind| !samples.is_absent(kind));
        }
        println!("{} KiB: done", size >> 10);
    }
    Ok(samples)
}

/// One backend with pages of one size, once.
struct Turn<'a> {
    plan: &'a AdapterPlan,
    home: &'a Path,
    module: &'a Path,
    size: u64,
    kind: &'a str,
}

impl Turn<'_> {
    fn run(&self, dir: &Path) -> Result<Vec<Value>> {
        let pages = (self.plan.gb * 1e9 / self.size as f64).ceil() as u64;
        let batch = (BATCH_BYTES / self.size).clamp(1, BATCH_MAX);
        let program = self.home.join("backends.py");
        let cmd = Cmd::new("").arg(venv::python(self.home).to_string_lossy());
        let cmd = cmd.args(["-W", "ignore"]).arg(program.to_string_lossy());
        let numbers = [self.size, batch, pages].map(|n| n.to_string());
        let cmd = venv::quiet(cmd.arg(dir.to_string_lossy()).args(numbers).arg(self.kind));
        let cmd = cmd.env("PYTHONPATH", self.module.to_string_lossy());
        let cmd = cmd.env("PATH", sglang_venv::search_path(self.home));
        samples_of(&cmd.limit_s(TURN_LIMIT_S).read()?)
    }
}
