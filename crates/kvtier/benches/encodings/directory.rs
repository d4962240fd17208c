//! Encryption in a directory: an encrypting tier and a plain one take turns on the same disk.

use std::path::{Path, PathBuf};

use kvtier::Tier;
use kvtier::config::{Config, OpenTiers};

use super::chunks::Chunks;
use super::turns::{Speed, Turns, median, run, take_turns};

const LEN: usize = 4 << 20;

/// What is measured: turns of each tier for saves, and as many for loads.
struct Plan {
    turns: u64,
    chunks_per_turn: u64,
}

pub fn measure(is_smoke: bool) {
    let plan = match is_smoke {
        true => Plan { turns: 1, chunks_per_turn: 4 },
        false => Plan { turns: 101, chunks_per_turn: 8 },
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
        let own = |place: &str| dir.path().join(format!("{inflight}-{place}"));
        let tiers = [open(&own("plain"), ""), open(&own("encrypted"), &aes)];
        for Played { op, turns } in play(&tiers, &chunks, &plan, inflight) {
            let [plain, encrypted] = turns.map(|turns| median(&turns));
            row(inflight, op, plain, encrypted);
        }
        drop(tiers);
        for place in ["plain", "encrypted"] {
            std::fs::remove_dir_all(own(place)).unwrap();
        }
    }
}

/// Saves and loads chunks in both directories.
fn play(tiers: &[OpenTiers; 2], chunks: &Chunks, plan: &Plan, inflight: usize) -> [Played; 2] {
    let count = plan.chunks_per_turn;
    let turn = |turns: u64, work: &(dyn Fn(&dyn Tier, u64) + Sync)| {
        take_turns(turns, |place, turn| {
            run(count, inflight, LEN, |n| work(&*tiers[place].top, turn * count + n))
        })
    };
    // Threads, rings and working memory exist before the clock starts.
    tiers.iter().for_each(|tiers| chunks.register(tiers));
    for (place, tiers) in tiers.iter().enumerate() {
        let first = plan.turns * count + place as u64 * count;
        run(count, inflight, LEN, |n| chunks.save(&*tiers.top, first + n));
        run(count, inflight, LEN, |n| chunks.load(&*tiers.top, first + n));
    }
    let saves = turn(plan.turns, &|tier, n| chunks.save(tier, n));
    let loads = turn(plan.turns, &|tier, n| chunks.load(tier, n));
    tiers.iter().for_each(|tiers| tiers.top.close().wait().unwrap());
    [Played { op: "save", turns: saves }, Played { op: "load", turns: loads }]
}

/// The turns of an operation.
struct Played {
    op: &'static str,
    turns: Turns,
}

fn open(dir: &Path, settings: &str) -> OpenTiers {
    let text =
        format!(r#"{{"tiers": [{{"type": "file", "path": {dir:?}, "bytes": "8GiB"{settings}}}]}}"#);
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
