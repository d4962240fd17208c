//! Checks a machine with a GPU, without network, for `cargo xtask gpu-check`.
//!
//! It reports the environment, runs the conformance suite on GPU memory (through pinned memory, by
//! cuFile, and with encrypted chunks) and measures throughput. Without a GPU it reports that and exits with success.
//!
//! Usage: `gpu_check [DIRECTORY [MIB [ROUNDS]]]`: the directory for files (the current one), the
//! amount of data (2048 MiB), and the number of measurements per data path (1; medians are printed).
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kvtier_disk::TierEncoding;
use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_gds::{BenchConfig, CufileMode, GdsConfig, GdsTier, diagnose, measure};
use kvtier_mem::cuda::Gpu;
use kvtier_mem::{Arena, Lease};
use kvtier_testkit::conformance::{Fixture, PROMISES, Reach};

const MIB: usize = 1 << 20;
const CAPACITY: u64 = 16 << 20;
/// Prints the rows of the Python libraries that are installed.
const RIVALS: &str = include_str!("gpu_check.py");

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| ".".into()));
    let mib: usize = args.next().map_or(Ok(2048), |mib| mib.parse())?;
    let rounds: usize = args.next().map_or(Ok(1), |rounds| rounds.parse())?;
    for step in diagnose(&GdsConfig::new(&dir, 1 << 30), 0) {
        println!("{:<12} {} {}", step.name, if step.passed { "+" } else { "-" }, step.detail);
    }
    if let Err(e) = Gpu::open(0) {
        println!("nothing more to see without a GPU: {e}");
        return Ok(());
    }
    let pinned = DataPath {
        name: "through pinned memory",
        mode: CufileMode::Off,
        compat: false,
        is_encrypted: false,
    };
    let mut failed = suite(pinned, &dir)
        + suite(DataPath { name: "as cuFile allows", mode: CufileMode::Auto, ..pinned }, &dir)
        + suite(DataPath { name: "encrypted", is_encrypted: true, ..pinned }, &dir);
    let cufile = DataPath {
        name: "by cuFile, also in compatibility mode",
        mode: CufileMode::Require,
        compat: true,
        is_encrypted: false,
    };
    match fixture(&dir, cufile) {
        Ok(_) => failed += suite(cufile, &dir),
        Err(e) => println!("conformance  - {}: not here: {e}", cufile.name),
    }
    table(&dir, mib, rounds)?;
    if failed > 0 { Err(format!("{failed} promises are broken").into()) } else { Ok(()) }
}

/// How chunks move to and from the GPU.
#[derive(Clone, Copy)]
struct DataPath {
    name: &'static str,
    mode: CufileMode,
    compat: bool,
    /// Chunks are compressed and encrypted, and decoded in host memory.
    is_encrypted: bool,
}

/// Copies GPU memory for the suite.
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

/// Runs every promise; returns the number of broken ones.
fn suite(path: DataPath, dir: &Path) -> usize {
    let broken = |(name, promise): &&(&str, fn(&dyn Fn() -> Fixture))| {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            promise(&|| fixture(dir, path).expect("a tier on the GPU"))
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
        path.name,
        PROMISES.len() - count,
        PROMISES.len()
    );
    count
}

fn fixture(dir: &Path, path: DataPath) -> Result<Fixture, Box<dyn Error>> {
    let own = tempfile::tempdir_in(dir)?;
    let mut config = GdsConfig::new(own.path(), CAPACITY);
    (config.piece_bytes, config.buffer_bytes, config.staging_bytes) = (64 << 10, MIB, 4 * MIB);
    (config.cufile, config.compat) = (path.mode, path.compat);
    if path.is_encrypted {
        config.disk.encoding = Arc::new(encryption()?);
    }
    let gpu = Gpu::open(0)?;
    let arena = Arena::device(&gpu, 64 * MIB)?;
    let fixture = Fixture::new(GdsTier::open(config)?).with_capacity(CAPACITY).with_keep(own);
    Ok(fixture.with_far_arena(arena, Copies(gpu)))
}

/// Encodes every chunk, whatever its bytes.
fn encryption() -> Result<TierEncoding, Box<dyn Error>> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[1; 32])?);
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let chain = Chain::new(vec![stage_by_name("zstd")?, Arc::clone(&aes)])?;
    Ok(TierEncoding::new(chain, Decoder::new().with_stage(aes)))
}

/// Measures every data path with chunks of up to 32 MiB.
fn table(dir: &Path, mib: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
    let mut config = BenchConfig::new(dir);
    config.chunk_bytes = (mib * MIB / 64).clamp(MIB, 32 * MIB);
    config.chunks = (mib * MIB / config.chunk_bytes).max(8);
    config.rounds = rounds;
    println!(
        "\n| way | GPU to file, MB/s | file to GPU, MB/s | CPU, s/GB | note |\n|---|---|---|---|---|"
    );
    for rate in measure(&config)? {
        let mb = |per_s: f64| if per_s > 0.0 { format!("{:.0}", per_s / 1e6) } else { "-".into() };
        let out = mb(rate.to_file_per_s);
        let into = mb(rate.to_gpu_per_s);
        println!(
            "| {} | {out} | {into} | {:.3} | {} |",
            rate.data_path, rate.cpu_s_per_gb, rate.note
        );
    }
    rivals(dir, &config);
    Ok(())
}

/// Prints the rows of the Python libraries, if `python3` is installed.
fn rivals(dir: &Path, config: &BenchConfig) {
    let mut python = Command::new("python3");
    python
        .args(["-c", RIVALS])
        .arg(dir)
        .args([config.chunks, config.chunk_bytes, config.rounds].map(|number| number.to_string()));
    match python.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("| kvikio, torch | - | - | - | not measured: python3 ended with {status} |")
        }
        Err(e) => println!("| kvikio, torch | - | - | - | not measured: no python3: {e} |"),
    }
}
