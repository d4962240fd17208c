//! Encryption in a directory: an encrypting tier and a plain one take turns on the same disk.

use std::path::{Path, PathBuf};

use kvtier::config::{Config, OpenTiers};

use super::chunks::{Chunks, ctx};
use super::turns::{Speed, median, run};

const LEN: usize = 4 << 20;

struct Plan {
    chunks: u64,
    turns: usize,
}

/// The turns of one tier.
#[derive(Default)]
struct Samples {
    saves: Vec<Speed>,
    loads: Vec<Speed>,
}

pub fn measure(is_smoke: bool) {
    let plan = match is_smoke {
        true => Plan { chunks: 4, turns: 1 },
        false => Plan { chunks: 128, turns: 9 },
    };
    let base = std::env::var_os("KVTIER_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = tempfile::tempdir_in(base).unwrap();
    let aes = format!(r#", "encode": [{}]"#, super::new_aes_stage(dir.path()));
    println!("Chunks of 4 MiB in a directory, plain and with aes-256-gcm:\n");
    println!(
        "| at once | | plain MB/s | encrypted MB/s | ratio | plain CPU s/GB | encrypted CPU s/GB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for inflight in [1, 8] {
        let chunks = Chunks::new(LEN, inflight);
        let mut samples = [Samples::default(), Samples::default()];
        // The first turn is the warm-up. Who begins changes.
        for turn in 0..=plan.turns {
            for place in [turn % 2, 1 - turn % 2] {
                let own = dir.path().join(format!("{inflight}-{turn}-{place}"));
                let settings = if place == 0 { "" } else { &aes };
                let [save, load] = play(&own, settings, &chunks, plan.chunks, inflight);
                if turn > 0 {
                    samples[place].saves.push(save);
                    samples[place].loads.push(load);
                }
            }
        }
        let [plain, encrypted] = samples;
        row(inflight, "save", median(&plain.saves), median(&encrypted.saves));
        row(inflight, "load", median(&plain.loads), median(&encrypted.loads));
    }
}

/// Saves and loads all chunks in a new directory, and removes it.
fn play(dir: &Path, settings: &str, chunks: &Chunks, count: u64, inflight: usize) -> [Speed; 2] {
    let tiers = open(dir, settings);
    let tier = &*tiers.top;
    chunks.register(&tiers);
    // Threads, rings and working memory exist before the clock starts.
    run(inflight as u64, inflight, LEN, |n| chunks.save(tier, count + n));
    run(inflight as u64, inflight, LEN, |n| chunks.load(tier, count + n));
    let save = run(count, inflight, LEN, |n| chunks.save(tier, n));
    let load = run(count, inflight, LEN, |n| chunks.load(tier, n));
    let all = (0..count + inflight as u64).map(|n| chunks.key(n)).collect();
    tier.remove(&ctx(), all).wait().unwrap();
    tier.close().wait().unwrap();
    drop(tiers);
    std::fs::remove_dir_all(dir).unwrap();
    [save, load]
}

fn open(dir: &Path, settings: &str) -> OpenTiers {
    let text =
        format!(r#"{{"tiers": [{{"type": "file", "path": {dir:?}, "bytes": "4GiB"{settings}}}]}}"#);
    Config::from_json(&text, "bench.json").unwrap().open().unwrap()
}

fn row(inflight: usize, op: &str, plain: Speed, encrypted: Speed) {
    println!(
        "| {inflight} | {op} | {:.0} | {:.0} | {:.2} | {:.3} | {:.3} |",
        plain.mb_per_s,
        encrypted.mb_per_s,
        encrypted.mb_per_s / plain.mb_per_s,
        plain.cpu_s_per_gb,
        encrypted.cpu_s_per_gb
    );
}
