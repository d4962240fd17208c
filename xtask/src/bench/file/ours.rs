use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Contender;
use super::plan::Cell;
use super::sample::Sample;
use crate::sh::Cmd;

/// The name of our own samples.
pub const NAME: &str = "kvtier";

/// `kvtier bench file`, built for release.
pub fn contender() -> Result<Contender> {
    Cmd::new("cargo build --locked --release -p kvtier-cli").run()?;
    let target = Cmd::new("cargo metadata --locked --no-deps --format-version 1").read()?;
    let target: Value = serde_json::from_str(&target)?;
    let folder =
        target["target_directory"].as_str().context("cargo names no target directory")?.to_owned();
    let program = Path::new(&folder).join("release/kvtier");
    Ok(Contender { name: NAME.into(), run: Box::new(move |cell, dir| turn(&program, cell, dir)) })
}

/// Each case in a directory of its own, so that only those meant to find deleted files find any.
fn turn(program: &Path, cell: &Cell, dir: &Path) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let full = [("churning", "put"), ("recycled", "put")];
    let cases = [("fresh", "put,get,sum"), ("fresh", "put-summed")]
        .into_iter()
        .chain(full.into_iter().filter(|_| cell.inflight > 1));
    for (n, (case, ops)) in cases.enumerate() {
        let own = dir.join(n.to_string());
        let cmd = Cmd::new(&program.to_string_lossy())
            .args(["bench", "file", "--json", "--case", case, "--op", ops]);
        let cmd = cmd
            .arg("--path")
            .arg(own.to_string_lossy())
            .arg("--gb")
            .arg((cell.chunks as f64 * cell.size as f64 / 1e9).to_string());
        let cmd = cmd.args([
            "--size",
            &cell.size.to_string(),
            "--concurrency",
            &cell.inflight.to_string(),
        ]);
        let out: Value = serde_json::from_str(&cmd.read()?)
            .with_context(|| format!("`{cmd}` printed no JSON"))?;
        for found in out["cells"].as_array().into_iter().flatten() {
            samples.push(sample(found)?);
        }
    }
    Ok(samples)
}

fn sample(cell: &Value) -> Result<Sample> {
    let number =
        |name: &str| cell[name].as_f64().with_context(|| format!("kvtier printed no {name}"));
    let op = match (
        cell["op"].as_str().unwrap_or_default(),
        cell["case"].as_str().unwrap_or_default(),
    ) {
        ("put", "fresh") => "put".to_owned(),
        ("put", case) => format!("put {case}"),
        (op, _) => op.replace('-', " "),
    };
    Ok(Sample {
        op,
        how: cell["engine"].as_str().unwrap_or_default().into(),
        mb_per_s: number("mb_per_s")?,
        cpu_s_per_gb: number("cpu_s_per_gb")?,
        p50_ms: number("p50_ms").ok(),
        p99_ms: number("p99_ms").ok(),
    })
}
