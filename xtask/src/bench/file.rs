//! `cargo xtask bench file`: the file tier beside fio, in turns, so that both meet the same minutes of a noisy machine.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::args::Args;
use crate::sh::{Cmd, root};

const MIB: u64 = 1 << 20;
const LIMIT_S: u64 = 600;
const OPS: [&str; 2] = ["put", "get"];

/// What is compared: chunks of a size, so many at once, in a directory.
struct Case {
    dir: PathBuf,
    size: u64,
    at_once: u64,
    chunks: u64,
}

/// One run of one side.
#[derive(Clone, Copy)]
struct Sample {
    mb_per_s: f64,
    cpu_s_per_gb: f64,
}

/// Takes `--path DIR`, `--sizes 4,32` (MiB), `--at-once 1,8`, `--pairs N`, `--mib N` (a run's bytes), `--json FILE`.
pub fn run(args: &mut Args) -> Result<()> {
    let dir = args.value("--path")?.map_or_else(|| root().join("target/bench-file"), PathBuf::from);
    let sizes = numbers(args, "--sizes", "1,4,10,32")?;
    let depths = numbers(args, "--at-once", "1,8")?;
    let pairs = args.number("--pairs")?.unwrap_or(9);
    let mib = args.number("--mib")?.unwrap_or(1024);
    let json_to = args.value("--json")?;
    args.end()?;
    if !Cmd::new("fio --version").works() {
        bail!("fio is missing (Debian package fio)");
    }
    Cmd::new("cargo build --locked --release -p kvtier-cli").limit_s(LIMIT_S).run()?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut cells = Vec::new();
    println!(
        "{:<4} {:>7} {:>7} {:>10} {:>10} {:>7} {:>12} {:>12}",
        "op", "MiB", "at once", "MB/s", "fio MB/s", "ratio", "CPU s/GB", "fio CPU s/GB"
    );
    for size in &sizes {
        for at_once in &depths {
            let chunks = (mib / size).max(*at_once).max(4);
            let case = Case { dir: dir.clone(), size: size * MIB, at_once: *at_once, chunks };
            cells.extend(compare(&case, pairs)?);
        }
    }
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    let all = json!({ "cells": cells, "pairs": pairs });
    json_to.map_or(Ok(()), |file| fs::write(&file, all.to_string()).with_context(|| format!("cannot write {file}")))
}

fn numbers(args: &mut Args, name: &str, default: &str) -> Result<Vec<u64>> {
    let text = args.value(name)?.unwrap_or_else(|| default.to_owned());
    let parse = |word: &str| word.parse().with_context(|| format!("{name} {text}: not a list of numbers"));
    text.split(',').map(parse).collect()
}

/// Both sides in turns; the cells of put and get.
fn compare(case: &Case, pairs: u64) -> Result<Vec<Value>> {
    let variants = case.fio_variants();
    let mut fio: Vec<[Vec<Sample>; 2]> = variants.iter().map(|_| Default::default()).collect();
    let mut ours: [Vec<Sample>; 2] = Default::default();
    for _ in 0..pairs {
        for (variant, samples) in variants.iter().zip(&mut fio) {
            samples.iter_mut().zip(case.fio(*variant)?).for_each(|(all, sample)| all.push(sample));
        }
        ours.iter_mut().zip(case.ours()?).for_each(|(all, sample)| all.push(sample));
    }
    let cell = |n: usize| {
        let speed = |samples: &[Sample]| median(samples.iter().map(|s| s.mb_per_s));
        // fio's best: whichever of its settings is faster here.
        let best = fio.iter().map(|samples| &samples[n]).max_by(|a, b| speed(a).total_cmp(&speed(b)));
        let best = best.map(Vec::as_slice).unwrap_or_default();
        let cpu = |samples: &[Sample]| median(samples.iter().map(|s| s.cpu_s_per_gb));
        let (a, b) = (speed(&ours[n]), speed(best));
        println!(
            "{:<4} {:>7} {:>7} {a:>10.0} {b:>10.0} {:>7.2} {:>12.4} {:>12.4}",
            OPS[n],
            case.size / MIB,
            case.at_once,
            a / b,
            cpu(&ours[n]),
            cpu(best)
        );
        json!({
            "op": OPS[n], "size": case.size, "concurrency": case.at_once, "mb_per_s": a, "fio_mb_per_s": b, "ratio": a / b,
            "cpu_s_per_gb": cpu(&ours[n]), "fio_cpu_s_per_gb": cpu(best),
        })
    };
    Ok(vec![cell(0), cell(1)])
}

impl Case {
    /// Block size and depth: whole chunks up to 4 MiB, and pieces of 1 MiB, each as deep as the chunks in flight have pieces, up to 16
    /// and 32.
    fn fio_variants(&self) -> Vec<(u64, u64)> {
        let variant = |piece: u64, most: u64| {
            let block = self.size.min(piece);
            (block, (self.at_once * self.size.div_ceil(block)).min(most))
        };
        let mut all = vec![variant(4 * MIB, 16), variant(MIB, 32)];
        all.dedup();
        all
    }

    /// Writes new files, then reads them.
    fn fio(&self, (block, depth): (u64, u64)) -> Result<[Sample; 2]> {
        let dir = self.dir.join("fio");
        fs::create_dir_all(&dir)?;
        let write = self.fio_run("write", (block, depth))?;
        let read = self.fio_run("read", (block, depth))?;
        fs::remove_dir_all(&dir)?;
        Ok([write, read])
    }

    fn fio_run(&self, rw: &str, (block, depth): (u64, u64)) -> Result<Sample> {
        let bytes = self.size * self.chunks;
        let cmd = Cmd::new("fio --name=chunk --ioengine=io_uring --direct=1 --fixedbufs=1 --fallocate=native");
        let cmd = cmd.args([
            "--create_on_open=1",
            "--file_service_type=sequential",
            "--output-format=json",
            "--openfiles=16",
        ]);
        let cmd = cmd.args([format!("--directory={}", self.dir.join("fio").display()), format!("--rw={rw}")]);
        let cmd = cmd.args([format!("--bs={block}"), format!("--iodepth={depth}"), format!("--size={bytes}")]);
        let cmd = cmd.args([format!("--filesize={}", self.size), format!("--nrfiles={}", self.chunks)]);
        let text = cmd.limit_s(LIMIT_S).read()?;
        let report: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())?;
        let job = &report["jobs"][0];
        let number = |v: &Value| v.as_f64().context("fio's report has another form");
        let (speed, runtime_ms) = (number(&job[rw]["bw_bytes"])?, number(&job["job_runtime"])?);
        let cpu_s = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0 * runtime_ms / 1000.0;
        Ok(Sample { mb_per_s: speed / 1e6, cpu_s_per_gb: cpu_s / (bytes as f64 / 1e9) })
    }

    fn ours(&self) -> Result<[Sample; 2]> {
        let path = self.dir.join("kvtier");
        let gb = (self.size * self.chunks) as f64 / 1e9;
        let cmd = Cmd::new("target/release/kvtier bench file --op put,get --json --path").arg(path.to_string_lossy());
        let cmd = cmd.args(["--size", &self.size.to_string(), "--concurrency", &self.at_once.to_string()]);
        let report: Value = serde_json::from_str(&cmd.args(["--gb", &gb.to_string()]).limit_s(LIMIT_S).read()?)?;
        let sample = |n: usize| {
            let number = |name: &str| report["cells"][n][name].as_f64().context("kvtier bench has another form");
            anyhow::Ok(Sample { mb_per_s: number("mb_per_s")?, cpu_s_per_gb: number("cpu_s_per_gb")? })
        };
        Ok([sample(0)?, sample(1)?])
    }
}

/// The middle of the samples; of an even number the upper of the two.
fn median(samples: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = samples.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn fio_is_as_deep_as_the_chunks_in_flight() {
        let case = |size, at_once| Case { dir: PathBuf::new(), size: size * MIB, at_once, chunks: 1 }.fio_variants();
        assert_eq!(case(32, 8), [(4 * MIB, 16), (MIB, 32)]);
        assert_eq!(case(4, 1), [(4 * MIB, 1), (MIB, 4)]);
        assert_eq!(case(1, 8), [(MIB, 8)]);
    }
}
