//! How long a directory of many chunks takes to open, beside a bare listing of its names, and what
//! an entry costs in memory.
//!
//! `cargo bench -p kvtier-file --bench start`; cold rows only where the caches of the kernel may be
//! dropped (root).
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use kvtier_core::{Digest, Observe};
use kvtier_disk::chunk_file_name;
use kvtier_file::{FileConfig, FileTier};

const LEN: u64 = 1 << 20;
const TURNS: usize = 5;

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--test");
    let sizes: &[u64] = if smoke { &[2_000] } else { &[100_000, 1_000_000] };
    println!("| files | caches | bare listing s | opening s | ratio | bytes of memory an entry |");
    println!("|---|---|---|---|---|---|");
    for files in sizes {
        measure(*files);
    }
}

/// In the build's own folder: on the disk that is measured, where `/tmp` may be memory.
fn measure(files: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    drop(open(dir.path()));
    fill(dir.path(), files);
    let rss = rss_bytes();
    let tier = open(dir.path());
    assert_eq!(tier.usage().chunks, files);
    let entry = rss_bytes().saturating_sub(rss) / files;
    drop(tier);
    for (caches, drop_them) in [("warm", false), ("cold", true)] {
        if drop_them && !drop_caches() {
            println!("| {files} | cold | not measured: only root may drop the caches | | | |");
            continue;
        }
        let (listing, opening): (Vec<_>, Vec<_>) = (0..TURNS)
            .map(|_| (timed(drop_them, || list(dir.path())), timed(drop_them, || open(dir.path()))))
            .unzip();
        let listing = median(listing);
        let opening = median(opening);
        let ratio = opening / listing;
        println!("| {files} | {caches} | {listing:.3} | {opening:.3} | {ratio:.2} | {entry} |");
    }
}

fn open(dir: &Path) -> FileTier {
    FileTier::open(FileConfig::new(dir, 1 << 50)).unwrap()
}

/// Files without blocks: nothing looks at more than their names until they are loaded.
fn fill(dir: &Path, files: u64) {
    (0..=255).for_each(|shard| fs::create_dir_all(chunk_file_name::shard(dir, shard)).unwrap());
    for n in 0..files {
        let digest = Digest::derive("bench start", &n.to_le_bytes());
        fs::File::create(chunk_file_name::path(dir, &digest, LEN)).unwrap();
    }
}

/// The names alone, as `ls -U` reads them.
fn list(dir: &Path) -> usize {
    (0..=255).map(|shard| fs::read_dir(chunk_file_name::shard(dir, shard)).unwrap().count()).sum()
}

/// Seconds that `run` takes; what it gives is dropped after the clock has stopped.
fn timed<T>(drop_them: bool, run: impl FnOnce() -> T) -> f64 {
    if drop_them {
        drop_caches();
    }
    let began = Instant::now();
    let ran = run();
    let took = began.elapsed();
    drop(ran);
    took.max(Duration::from_micros(1)).as_secs_f64()
}

/// What is dirty is written first: it could not be dropped.
fn drop_caches() -> bool {
    let synced = std::process::Command::new("sync").status().is_ok_and(|status| status.success());
    synced && fs::write("/proc/sys/vm/drop_caches", "3\n").is_ok()
}

fn rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
