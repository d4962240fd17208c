//! `kvtier sim` and `kvtier gen-trace` as a user runs them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn kvtier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(args).output().unwrap()
}

fn generated(dir: &std::path::Path, kind: &str, seed: &str) -> String {
    generate(dir, kind, seed, "1500")
}

fn generate(dir: &std::path::Path, kind: &str, seed: &str, requests: &str) -> String {
    let path = dir.join(format!("{kind}.{seed}.jsonl")).to_str().unwrap().to_owned();
    let made = kvtier(&["gen-trace", kind, "--requests", requests, "--seed", seed, "--out", &path]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

fn sim(args: &[&str]) -> Value {
    let Output { status, stdout, stderr } = kvtier(&[&["sim", "--json"], args].concat());
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn prefix(whole: &Value, policy: &str, size: &str) -> f64 {
    let cells = whole["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["policy"] == policy && cell["size"] == size);
    cell.unwrap_or_else(|| panic!("no cell of {policy} at {size}"))["prefix_hit_ratio"]
        .as_f64()
        .unwrap()
}

#[test]
fn every_policy_and_the_optimum_have_a_cell_for_each_size() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "chat", "1");
    let plot = dir.path().join("plot.svg");
    let whole =
        sim(&[&trace, "--policy", "all", "--sizes", "1%,10%", "--plot", plot.to_str().unwrap()]);
    let names = [
        "default",
        "default-unchained",
        "lru",
        "mru",
        "fifo",
        "lfu",
        "arc",
        "s3-fifo",
        "sieve",
        "w-tinylfu",
    ];
    for name in names.into_iter().chain(["isolated-lru", "noop", "optimum"]) {
        for size in ["1%", "10%"] {
            let best = prefix(&whole, "optimum", size);
            assert!(prefix(&whole, name, size) <= best, "{name} at {size} beats the optimum");
        }
    }
    assert_eq!(whole["cells"].as_array().unwrap().len(), 13 * 2);
    let svg = fs::read_to_string(plot).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 13);
    assert!(
        svg.contains(">default ")
            && svg.contains(">optimum ")
            && svg.trim_end().ends_with("</svg>")
    );
}

#[test]
fn the_table_is_printed_though_the_picture_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "chat", "1");
    let nowhere = dir.path().join("none/plot.svg");
    let out = kvtier(&[
        "sim",
        &trace,
        "--policy",
        "lru,default",
        "--sizes",
        "5%",
        "--plot",
        nowhere.to_str().unwrap(),
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stderr).unwrap().contains(nowhere.to_str().unwrap()));
    let table = String::from_utf8(out.stdout).unwrap();
    assert!(table.contains("\nlru ") && table.contains("\ndefault "), "{table}");
}

#[test]
fn no_two_policies_are_drawn_in_one_color_and_one_size_is_drawn_too() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "chat", "1");
    let plot = dir.path().join("plot.svg");
    sim(&[&trace, "--policy", "all", "--sizes", "5%", "--plot", plot.to_str().unwrap()]);
    let svg = fs::read_to_string(plot).unwrap();
    let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
    let colors: Vec<&str> = lines
        .map(|line| line.split(" stroke=\"").nth(1).unwrap().split('"').next().unwrap())
        .collect();
    let mut distinct = colors.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((colors.len(), distinct.len()), (13, 13), "{colors:?}");
    assert_eq!(svg.matches("<circle").count(), 13);
}

/// Numbers that change only when a policy, the optimum or the generator changes.
#[test]
fn the_numbers_are_what_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = Vec::new();
    for kind in ["chat", "agents", "rag"] {
        let trace = generated(dir.path(), kind, "7");
        let whole =
            sim(&[&trace, "--policy", "lru,fifo,arc,sieve,default,optimum", "--sizes", "2%,20%"]);
        for cell in whole["cells"].as_array().unwrap() {
            let policy = cell["policy"].as_str().unwrap();
            let size = cell["size"].as_str().unwrap();
            let of = |name: &str| 100.0 * cell[name].as_f64().unwrap();
            lines.push(format!(
                "{kind} {policy} {size} {:.3} {:.3}",
                of("prefix_hit_ratio"),
                of("block_hit_ratio")
            ));
        }
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sim.txt");
    let text = lines.join("\n") + "\n";
    if std::env::var_os("KVTIER_BLESS").is_some() {
        fs::write(golden, &text).unwrap();
    }
    assert_eq!(
        text,
        fs::read_to_string(golden).unwrap(),
        "set KVTIER_BLESS=1 to accept the change"
    );
}

#[test]
fn the_default_policy_is_no_worse_than_lru_on_every_generated_workload() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["chat", "agents", "rag"] {
        let trace = generated(dir.path(), kind, "3");
        let whole = sim(&[&trace, "--policy", "lru,default"]);
        for size in ["1%", "5%", "10%", "20%", "50%"] {
            let lru = prefix(&whole, "lru", size);
            let ours = prefix(&whole, "default", size);
            assert!(ours >= lru - 0.003, "{kind} at {size}: {ours} against {lru}");
        }
    }
}

/// Conversations that say nothing of their future: recency is all there is to learn, and what is
/// learnt beside it is chance.
#[test]
fn where_only_recency_predicts_use_the_default_policy_loses_little_to_lru() {
    let dir = tempfile::tempdir().unwrap();
    for seed in ["1", "2", "3", "4", "6", "7", "9"] {
        let trace = generate(dir.path(), "chat", seed, "6000");
        let whole = sim(&[&trace, "--policy", "lru,default", "--sizes", "5%,10%,20%"]);
        for size in ["5%", "10%", "20%"] {
            let lru = prefix(&whole, "lru", size);
            let ours = prefix(&whole, "default", size);
            assert!(ours >= lru - 0.003, "seed {seed} at {size}: {ours} against {lru}");
        }
    }
}

/// The same of longer traces.
#[test]
fn on_long_generated_traces_the_default_policy_stays_within_0_3_points_of_lru() {
    struct Run {
        kind: &'static str,
        seed: &'static str,
        requests: &'static str,
    }
    let dir = tempfile::tempdir().unwrap();
    let mut runs = vec![
        Run { kind: "chat", seed: "1", requests: "30000" },
        Run { kind: "chat", seed: "2", requests: "30000" },
        Run { kind: "agents", seed: "1", requests: "3000" },
        Run { kind: "agents", seed: "1", requests: "12000" },
    ];
    if std::env::var_os("KVTIER_NIGHTLY").is_some() {
        runs.extend(["1", "2"].map(|seed| Run { kind: "agents", seed, requests: "30000" }));
    }
    for Run { kind, seed, requests } in runs {
        let trace = generate(dir.path(), kind, seed, requests);
        let whole = sim(&[&trace, "--policy", "lru,default", "--sizes", "1%,2%,5%,10%"]);
        for size in ["1%", "2%", "5%", "10%"] {
            let lru = prefix(&whole, "lru", size);
            let ours = prefix(&whole, "default", size);
            assert!(
                ours >= lru - 0.003,
                "{requests} of {kind}, seed {seed}, at {size}: {ours} against {lru}"
            );
        }
        std::fs::remove_file(trace).unwrap();
    }
}

#[test]
fn hints_help_and_wrong_ones_do_little_harm() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "chat", "3");
    let at = |hints: &str| {
        prefix(
            &sim(&[&trace, "--policy", "default", "--sizes", "5%", "--hints", hints]),
            "default",
            "5%",
        )
    };
    let lru = prefix(&sim(&[&trace, "--policy", "lru", "--sizes", "5%"]), "lru", "5%");
    assert!(at("all") > at("none") + 0.01);
    assert!(at("half") > at("none"));
    assert!(at("wrong") >= lru - 0.01);
}

#[test]
fn equal_seeds_make_equal_traces_and_bad_arguments_say_so() {
    let lines =
        |seed: &str| kvtier(&["gen-trace", "rag", "--requests", "50", "--seed", seed]).stdout;
    assert_eq!(lines("5"), lines("5"));
    assert_ne!(lines("5"), lines("6"));
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "rag", "1");
    for (args, says) in [
        (vec!["sim", &trace, "--policy", "lur"], "lur"),
        (vec!["sim", &trace, "--sizes", "0%"], "--sizes"),
        (vec!["sim", &trace, "--mark", "2"], "--mark"),
        (vec!["sim", "nowhere.jsonl"], "nowhere.jsonl"),
        (vec!["gen-trace", "chat", "--turns", "0"], "--turns"),
        (vec!["gen-trace", "chat", "--prompts", "0"], "--prompts"),
        (vec!["sim", &trace, "--requests", "0"], "--requests 0"),
    ] {
        let Output { status, stderr, .. } = kvtier(&args);
        assert_eq!(status.code(), Some(2), "{args:?}");
        assert!(
            String::from_utf8_lossy(&stderr).contains(says),
            "{args:?}: {}",
            String::from_utf8_lossy(&stderr)
        );
    }
    let full = kvtier(&["gen-trace", "chat", "--requests", "5", "--out", "/dev/full"]);
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(full.status.code() == Some(1) && said.contains("/dev/full: No space"), "{said}");
}
