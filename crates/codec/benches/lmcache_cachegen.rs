//! CacheGen beside LMCache's own path for the CPU, which multiplies and counts with torch and codes with
//! numba: the same data on one core each, in turns, and the same container and values from both.
//!
//! `cargo xtask bench cachegen`. The variable `KVTIER_LMCACHE_PYTHON` names an interpreter that has
//! LMCache 0.5.6; without it nothing is measured. The times are CPU times: of this thread, and of all
//! threads of the other process.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use kvtier_codec::FloatType;
use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use nix::time::{ClockId, clock_gettime};

/// As in the script.
const SHAPE: KvShape = KvShape { layers: 32, heads: 2, head_size: 128 };
const TOKENS: usize = 256;
const MODEL: &str = "test_model";
const ROUNDS: usize = 9;

/// A directory of this process, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let path = std::env::temp_dir().join(format!("kvtier-cachegen-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process that runs LMCache.
struct Lmcache {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Lmcache {
    fn start(python: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/lmcache_cachegen.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("PYTHONWARNINGS", "ignore").env("LMCACHE_LOG_LEVEL", "ERROR");
        let mut process = command.spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Lmcache { process, orders, answers }
    }

    /// Does one thing with a file, or without one; the CPU seconds that it took.
    fn order(&mut self, what: &str, path: Option<&Path>) -> f64 {
        let path = path.map_or("-".into(), Path::to_string_lossy);
        writeln!(self.orders, "{what} {path}").unwrap();
        // Libraries write lines of their own.
        let answer = self.answers.find_map(|line| {
            line.unwrap().strip_prefix("answer ").map(|seconds| seconds.parse().unwrap())
        });
        answer.expect("the script answers; what went wrong is above")
    }
}

impl Drop for Lmcache {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// bfloat16 of a bell curve whose width differs by channel.
fn payload() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let widths: Vec<f32> =
        (0..SHAPE.heads * SHAPE.head_size).map(|_| 0.2 + 2.0 * random.f32()).collect();
    let values = widths.iter().cycle().take(2 * SHAPE.layers * TOKENS * widths.len());
    let values = values.map(|width| (0..8).map(|_| random.f32() - 0.5).sum::<f32>() * width);
    values.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn cpu_seconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
        std::time::Duration::from(now).as_secs_f64()
    };
    let began = now();
    work();
    now() - began
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Ours and LMCache's CPU seconds of each round.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Times {
    fn row(&mut self, way: &str, bytes: usize) {
        let [ours, theirs] = [&mut self.ours, &mut self.theirs]
            .map(|times| bytes as f64 / median(times) / 1048576.0);
        println!("| {way} | {ours:.0} MiB/s | {theirs:.1} MiB/s | {:.1} |", ours / theirs);
    }
}

fn main() {
    let is_smoke = std::env::args().any(|arg| arg == "--test");
    let python = std::env::var("KVTIER_LMCACHE_PYTHON").ok().filter(|python| !python.is_empty());
    let Some(python) = python else {
        println!("skipped: KVTIER_LMCACHE_PYTHON names no interpreter with LMCache");
        return;
    };
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    let raw = payload();
    fs::write(at("raw"), &raw).unwrap();
    let mut lmcache = Lmcache::start(&python);
    lmcache.order("raw", Some(&at("raw")));

    let bins = Bins::for_model(MODEL).unwrap();
    let codec = CacheGen::new(SHAPE, KvOrder::KeysThenValues, FloatType::Bf16, bins).unwrap();
    let codec = codec.with_device("cpu").unwrap();
    let mut stored = vec![0; codec.bound(raw.len()).unwrap()];
    let len = codec.encode(&raw, &mut stored).unwrap();
    let mut values = vec![0; raw.len()];
    codec.decode(&stored[..len], &mut values).unwrap();
    // These runs compile LMCache's functions too.
    lmcache.order("encode", Some(&at("theirs")));
    lmcache.order("decode", Some(&at("their_values")));
    let theirs = fs::read(at("theirs")).unwrap();
    assert!(fs::read(at("their_values")).unwrap() == values, "other values than LMCache's");
    let mut decoded = vec![0; raw.len()];
    codec.decode(&theirs, &mut decoded).unwrap();
    assert!(decoded == values, "LMCache's container has other values");

    let (mut encode, mut decode) = (Times::default(), Times::default());
    for round in 0..if is_smoke { 1 } else { ROUNDS } {
        for side in [round % 2, 1 - round % 2] {
            if side == 0 {
                let coded = cpu_seconds(|| _ = codec.encode(&raw, &mut stored).unwrap());
                encode.ours.push(coded);
                decode
                    .ours
                    .push(cpu_seconds(|| codec.decode(&stored[..len], &mut values).unwrap()));
            } else {
                encode.theirs.push(lmcache.order("encode", None));
                decode.theirs.push(lmcache.order("decode", None));
            }
        }
    }
    println!("| | kvtier | LMCache | times as fast |\n|---|---|---|---|");
    encode.row("encode", raw.len());
    decode.row("decode", raw.len());
    println!(
        "\n{} MiB of bf16: {} layers of {} channels, {TOKENS} tokens; stored / raw {:.3} by kvtier, {:.3} by LMCache",
        raw.len() >> 20,
        SHAPE.layers,
        SHAPE.heads * SHAPE.head_size,
        len as f64 / raw.len() as f64,
        theirs.len() as f64 / raw.len() as f64
    );
}
