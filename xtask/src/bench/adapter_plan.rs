//! What the benchmarks of adapters inside an engine share: which sizes, how often, where.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::file::bytes;
use super::s3::BenchServer;
use crate::args::Args;
use crate::machine;
use crate::sh::{Cmd, root};

/// How long the disk rests between two turns.
const SETTLE: Duration = Duration::from_secs(2);

/// What a benchmark does without options.
pub struct Defaults {
    pub name: &'static str,
    pub sizes: &'static str,
    pub turns: u64,
    pub gb: &'static str,
}

/// What is measured.
pub struct AdapterPlan {
    /// The directory, below which each turn has one of its own.
    pub path: PathBuf,
    pub is_s3: bool,
    /// The S3 server, in place of a directory. `None` where each turn starts one of its own.
    pub server: Option<BenchServer>,
    pub sizes: Vec<u64>,
    pub turns: u64,
    /// Gigabytes of each turn.
    pub gb: f64,
    json: Option<String>,
}

impl AdapterPlan {
    /// Reads the options.
    pub fn new(args: &mut Args, defaults: &Defaults) -> Result<Self> {
        let sizes = args.value("--sizes")?.unwrap_or_else(|| defaults.sizes.into());
        let base = args.value("--path")?.map_or_else(|| root().join("target"), PathBuf::from);
        let gb = args.value("--gb")?.unwrap_or_else(|| defaults.gb.into());
        let plan = AdapterPlan {
            path: base.join(format!("kvtier-bench-{}.{}", defaults.name, std::process::id())),
            is_s3: args.flag("--s3"),
            server: None,
            sizes: sizes.split(',').map(bytes).collect::<Result<_>>()?,
            turns: args.number("--turns")?.unwrap_or(defaults.turns).max(1),
            gb: gb.parse().with_context(|| format!("--gb wants a number, not '{gb}'"))?,
            json: args.value("--json")?,
        };
        args.end()?;
        Ok(plan)
    }

    /// Starts the server that all turns share.
    pub fn start_server(&mut self) -> Result<()> {
        self.server = Some(BenchServer::alone()?);
        Ok(())
    }

    /// Makes the directory.
    pub fn make_dir(&self) -> Result<()> {
        fs::create_dir_all(&self.path)
            .with_context(|| format!("cannot make {}", self.path.display()))
    }

    /// Deletes what a turn wrote, and waits until the file system has done so: otherwise the disk
    /// still works for one tier while the next is measured.
    pub fn clean(&self, dir: &Path) -> Result<()> {
        fs::remove_dir_all(dir)?;
        Cmd::new("sync -f").arg(self.path.to_string_lossy()).read()?;
        thread::sleep(SETTLE);
        Ok(())
    }

    /// The words before a command: the server has the last core to itself.
    pub fn pinned(&self) -> &'static str {
        if self.is_s3 { "taskset -c 0" } else { "" }
    }

    /// Where a turn stores: its directory, or the address of the server.
    pub fn place(&self, dir: &Path) -> String {
        let address = |server: &BenchServer| format!("http://127.0.0.1:{}", server.port("http"));
        self.server.as_ref().map_or_else(|| dir.to_string_lossy().into_owned(), address)
    }

    /// Prints the machine and the amount.
    pub fn print_head(&self) {
        let about = format!("medians of {} turns of {} GB each", self.turns, self.gb);
        println!("\n{}; load {:.1}; {about}", machine::line(), machine::load());
    }

    /// Writes every sample to the file of `--json`.
    pub fn save(&self, samples: Value) -> Result<()> {
        let Some(file) = &self.json else { return Ok(()) };
        let all = json!({
            "machine": machine::line(), "turns": self.turns, "gb": self.gb, "samples": samples,
        });
        fs::write(file, format!("{all:#}\n")).with_context(|| format!("cannot write {file}"))
    }
}

/// The samples that a driver printed: the last line that is a list.
pub fn samples_of(text: &str) -> Result<Vec<Value>> {
    let line = text.lines().rev().find(|line| line.starts_with("[{"));
    Ok(serde_json::from_str(line.context("the driver printed no samples")?)?)
}

/// The median of a number over turns.
pub fn median(turns: &[Value], name: &str) -> f64 {
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
