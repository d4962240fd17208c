//! What a machine with a GPU can do: one program without arguments or network, for `cargo xtask
//! gpu-check`.
//!
//! It reports the environment, runs the conformance suite on GPU memory, through pinned memory and
//! by cuFile, and measures. On a machine without a GPU it says so and ends well. `gpu_check
//! [DIRECTORY [MIB [TURNS]]]`: where to put files (the current directory), how many MiB (2048), and
//! how often to measure each way (1; the medians are printed).
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use kvtier_gds::{GdsConfig, GdsTier, Mode, RatesConfig, examine, rates};
use kvtier_mem::cuda::Gpu;
use kvtier_mem::{Arena, Lease};
use kvtier_testkit::conformance::{Fixture, PROMISES, Reach};

const MIB: usize = 1 << 20;
const CAPACITY: u64 = 16 << 20;
/// Prints the rows of Python's libraries, as far as they are installed.
const RIVALS: &str = include_str!("gpu_check.py");

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| ".".into()));
    let mib: usize = args.next().map_or(Ok(2048), |mib| mib.parse())?;
    let turns: usize = args.next().map_or(Ok(1), |turns| turns.parse())?;
    for found in examine(&GdsConfig::new(&dir, 1 << 30), 0) {
        println!("{:<12} {} {}", found.what, if found.good { "+" } else { "-" }, found.found);
    }
    if let Err(e) = Gpu::open(0) {
        println!("nothing more to see without a GPU: {e}");
        return Ok(());
    }
    let pinned = Way { name: "through pinned memory", mode: Mode::Off, compat: false };
    let mut failed = suite(pinned, &dir)
        + suite(Way { name: "as cuFile allows", mode: Mode::Auto, ..pinned }, &dir);
    let cufile =
        Way { name: "by cuFile, also in compatibility mode", mode: Mode::Require, compat: true };
    match fixture(&dir, cufile) {
        Ok(_) => failed += suite(cufile, &dir),
        Err(e) => println!("conformance  - {}: not here: {e}", cufile.name),
    }
    table(&dir, mib, turns)?;
    if failed > 0 { Err(format!("{failed} promises are broken").into()) } else { Ok(()) }
}

/// Which way chunks go to and from the GPU.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    mode: Mode,
    compat: bool,
}

/// Copies for the suite, which looks at memory that the CPU does not reach.
struct Copies(Gpu);

impl Reach for Copies {
    fn write(&self, into: &mut Lease, bytes: &[u8]) {
        let copied = self.0.stream().and_then(|stream| stream.upload(bytes, into, 0, || ()));
        copied.expect("a copy of the suite's own");
    }

    fn read(&self, from: &Lease) -> Vec<u8> {
        let mut bytes = vec![0; from.init_len()];
        let copied = self.0.stream().and_then(|stream| stream.download_lease(from, 0, &mut bytes));
        copied.expect("a copy of the suite's own");
        bytes
    }
}

/// Runs every promise; answers how many are broken.
fn suite(way: Way, dir: &Path) -> usize {
    let broken = |(name, promise): &&(&str, fn(&dyn Fn() -> Fixture))| {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            promise(&|| fixture(dir, way).expect("a tier on the GPU"))
        }));
        if ran.is_err() {
            println!("broken: {name}");
        }
        ran.is_err()
    };
    let count = PROMISES.iter().filter(broken).count();
    println!(
        "conformance  {} {}: {} of {} promises hold",
        if count == 0 { "+" } else { "-" },
        way.name,
        PROMISES.len() - count,
        PROMISES.len()
    );
    count
}

fn fixture(dir: &Path, way: Way) -> Result<Fixture, Box<dyn Error>> {
    let own = tempfile::tempdir_in(dir)?;
    let mut config = GdsConfig::new(own.path(), CAPACITY);
    (config.piece_bytes, config.buffer_bytes, config.staging_bytes) = (64 << 10, MIB, 4 * MIB);
    (config.mode, config.compat) = (way.mode, way.compat);
    let gpu = Gpu::open(0)?;
    let arena = Arena::device(&gpu, 64 * MIB)?;
    let fixture = Fixture::new(GdsTier::open(config)?).with_capacity(CAPACITY).with_keep(own);
    Ok(fixture.with_far_arena(arena, Copies(gpu)))
}

/// Measures every way, with chunks of 32 MiB or fewer, smaller ones.
fn table(dir: &Path, mib: usize, turns: usize) -> Result<(), Box<dyn Error>> {
    let mut config = RatesConfig::new(dir);
    config.chunk_bytes = (mib * MIB / 64).clamp(MIB, 32 * MIB);
    config.chunks = (mib * MIB / config.chunk_bytes).max(8);
    config.turns = turns;
    println!(
        "\n| way | GPU to file, MB/s | file to GPU, MB/s | CPU, s/GB | note |\n|---|---|---|---|---|"
    );
    for rate in rates(&config)? {
        let mb = |per_s: f64| if per_s > 0.0 { format!("{:.0}", per_s / 1e6) } else { "-".into() };
        let (out, into) = (mb(rate.out_per_s), mb(rate.in_per_s));
        println!("| {} | {out} | {into} | {:.3} | {} |", rate.way, rate.cpu_s_per_gb, rate.note);
    }
    rivals(dir, &config);
    Ok(())
}

/// The rows of what Python programs get, where there is a Python.
fn rivals(dir: &Path, config: &RatesConfig) {
    let mut python = Command::new("python3");
    python
        .args(["-c", RIVALS])
        .arg(dir)
        .args([config.chunks, config.chunk_bytes, config.turns].map(|number| number.to_string()));
    match python.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("| kvikio, torch | - | - | - | not measured: python3 ended with {status} |")
        }
        Err(e) => println!("| kvikio, torch | - | - | - | not measured: no python3: {e} |"),
    }
}
