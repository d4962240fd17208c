use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Contender;
use super::plan::Cell;
use super::sample::Sample;
use crate::sh::Cmd;

const MIB: u64 = 1 << 20;
/// What the file tier has at the kernel at once.
const INFLIGHT_BYTES: u64 = 64 * MIB;

/// fio with all that makes it fast: io_uring, direct, files laid out before the time runs,
/// registered files and buffers in huge pages.
pub fn contender() -> Result<Contender> {
    if !Cmd::new("fio --version").works() {
        bail!("fio is missing (Debian package fio)");
    }
    Ok(Contender { name: "fio".into(), run: Box::new(turn) })
}

/// The same with blocks as large as the file tier's and with smaller ones: the better of the two is
/// what the disk can do.
fn turn(cell: &Cell, dir: &Path) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for block in blocks(cell.size) {
        for (rw, op) in [("write", "put"), ("read", "get"), ("write", "put recycled")] {
            let text = job(cell, dir, rw, block).read()?;
            samples.push(sample(&text, rw, op, block)?);
        }
        std::fs::read_dir(dir)?.flatten().try_for_each(|file| std::fs::remove_file(file.path()))?;
    }
    Ok(samples)
}

/// Equal parts of a chunk: of at most 4 MiB, and of at most 1 MiB.
fn blocks(size: u64) -> Vec<u64> {
    let part = |most: u64| {
        (size.div_ceil(most)..)
            .map(|n| size.div_ceil(n))
            .find(|b| size.is_multiple_of(*b) && b.is_multiple_of(4096))
    };
    let mut blocks: Vec<u64> = [4 * MIB, MIB].into_iter().filter_map(part).collect();
    blocks.dedup();
    blocks
}

fn job(cell: &Cell, dir: &Path, rw: &str, block: u64) -> Cmd {
    let Cell { size, inflight, chunks } = cell;
    let depth = ((inflight * size).min(INFLIGHT_BYTES) / block).max(1);
    let cmd = Cmd::new(
        "fio --name=chunk --ioengine=io_uring --direct=1 --fixedbufs=1 --registerfiles=1 --fallocate=native",
    );
    let cmd = cmd.args(["--file_service_type=sequential", "--output-format=json"]);
    let cmd = cmd.arg(format!("--directory={}", dir.display())).arg(format!("--rw={rw}"));
    let cmd = cmd.args([
        format!("--nrfiles={chunks}"),
        format!("--filesize={size}"),
        format!("--size={}", chunks * size),
    ]);
    let cmd = cmd.args([format!("--bs={block}"), format!("--iodepth={depth}")]);
    // malloc asks for huge pages, as our arenas do.
    cmd.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
}

fn sample(text: &str, rw: &str, op: &str, block: u64) -> Result<Sample> {
    let out: Value = serde_json::from_str(text).context("fio printed no JSON")?;
    let job = &out["jobs"][0];
    let number = |v: &Value| v.as_f64().context("a number is missing in what fio printed");
    let gb = number(&job[rw]["io_bytes"])? / 1e9;
    let cpu_s = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0
        * number(&job["job_runtime"])?
        / 1e3;
    Ok(Sample {
        op: op.into(),
        how: format!("blocks of {} KiB", block >> 10),
        mb_per_s: number(&job[rw]["bw_bytes"])? / 1e6,
        cpu_s_per_gb: cpu_s / gb,
        p50_ms: None,
        p99_ms: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_divide_the_chunk() {
        assert_eq!(blocks(MIB), [MIB]);
        assert_eq!(blocks(4 * MIB), [4 * MIB, MIB]);
        assert_eq!(blocks(10 * MIB), [10 * MIB / 4, MIB]);
        assert_eq!(blocks(32 * MIB), [4 * MIB, MIB]);
        assert_eq!(blocks(3 * 4096), [3 * 4096]);
    }

    #[test]
    fn what_fio_prints_is_read() {
        let text = r#"{"jobs":[{"usr_cpu":1.0,"sys_cpu":9.0,"job_runtime":500,"read":{"io_bytes":2000000000,"bw_bytes":4000000000}}]}"#;
        let sample = sample(text, "read", "get", 4096).unwrap();
        assert_eq!((sample.mb_per_s, sample.cpu_s_per_gb), (4000.0, 0.025));
    }
}
