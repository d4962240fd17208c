//! How a replay ends, and what it leaves behind.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn kvtier(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn json(args: &[&str]) -> Value {
    let out = kvtier(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn without_a_directory_nothing_stays_behind() {
    let tmp = tempfile::tempdir().unwrap();
    let out = kvtier(&["replay", "--requests", "40", "--chunk-bytes", "4096"])
        .env("TMPDIR", tmp.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains("a block is 4 KiB here; its 256 tokens are 32 MiB in llama-3.1-8b"),
        "{text}"
    );
    assert!(is_empty(tmp.path()));
}

#[test]
fn a_signal_ends_it_in_order() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let tmp = tempfile::tempdir().unwrap();
        // More than can be done while we wait.
        let child =
            kvtier(&["replay", "--requests", "2000"]).env("TMPDIR", tmp.path()).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(600);
        let working = || {
            fs::read_dir(tmp.path()).unwrap().flatten().any(|dir| dir.path().join("ff").exists())
        };
        while !working() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(is_empty(tmp.path()), "{signal} left files behind");
    }
}

#[test]
fn what_a_killed_replay_leaves_the_next_removes() {
    let tmp = tempfile::tempdir().unwrap();
    let mut child =
        kvtier(&["replay", "--requests", "2000"]).env("TMPDIR", tmp.path()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    while is_empty(tmp.path()) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_empty(tmp.path()), "it was killed before it began");
    let next = kvtier(&["replay", "--requests", "10", "--chunk-bytes", "4096"])
        .env("TMPDIR", tmp.path())
        .output()
        .unwrap();
    assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
    assert!(is_empty(tmp.path()));
}

#[test]
fn a_second_run_over_a_kept_directory_verifies_what_the_first_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let args = [
        "replay",
        "--path",
        path.to_str().unwrap(),
        "--requests",
        "60",
        "--chunk-bytes",
        "5000",
        "--json",
    ];
    let first = json(&args);
    let saved = first["tiers"][1]["bytes_saved"].as_u64().unwrap();
    let second = json(&[&args[..], &["--verify-only", "--host-bytes", "64KiB"]].concat());
    assert_eq!(
        (second["wrong_bytes"].as_u64(), second["prefix_hit_ratio"].as_f64()),
        (Some(0), Some(1.0))
    );
    assert_eq!(second["loads"], second["blocks"]);
    assert_eq!(second["tiers"][1]["bytes_saved"], 0);
    assert!(saved > 0 && second["tiers"][1]["bytes_loaded"].as_u64().unwrap() >= saved);
}

#[test]
fn every_other_block_is_verified_by_the_second_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let args = [
        "replay",
        "--path",
        path.to_str().unwrap(),
        "--requests",
        "200",
        "--chunk-bytes",
        "4096",
        "--peers",
        "1",
    ];
    let out = json(&[&args[..], &["--json"]].concat());
    let all = out["loads"].as_f64().unwrap();
    let peer = out["peer_loads"].as_f64().unwrap();
    assert!(all > 100.0 && (peer / all - 0.5).abs() < 0.1, "{peer} of {all}");
    // What the peer does not find yet is loaded here, so that some blocks are verified twice, and
    // none not at all.
    assert!(all >= out["prefix_hits"].as_f64().unwrap());
    assert_eq!(out["wrong_bytes"], 0);
}

#[test]
fn killed_at_any_moment_nothing_it_saved_is_wrong_and_nothing_unfinished_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let args = [
        "replay",
        "--path",
        path.to_str().unwrap(),
        "--host-bytes",
        "1MiB",
        "--file-bytes",
        "24MiB",
    ];
    let args = [&args[..], &["--chunk-bytes", "50000", "--json"]].concat();
    let mut found = 0;
    for n in 0..50u64 {
        let seed = n.to_string();
        let mut child = kvtier(&[&args[..], &["--seed", &seed]].concat()).spawn().unwrap();
        // Longer where the machine is so slow that none of them came to anything.
        let slower = if found == 0 { 1 + n / 5 } else { 1 };
        std::thread::sleep(Duration::from_millis((5 + n * 37 % 260) * slower));
        child.kill().unwrap();
        child.wait().unwrap();
        let check =
            json(&[&args[..], &["--seed", &seed, "--requests", "60", "--verify-only"]].concat());
        assert_eq!(
            (check["wrong_bytes"].as_u64(), check["failures"].as_u64()),
            (Some(0), Some(0)),
            "kill {n}"
        );
        assert_eq!(
            check["tiers"][1]["corrupt"], 0,
            "kill {n} left half a chunk under a chunk's name"
        );
        assert!(is_empty(&path.join(".kvtier/tmp")), "kill {n} left an unfinished file");
        found += check["loads"].as_u64().unwrap();
    }
    assert!(found > 0, "no kill came late enough to find anything");
    let whole = json(&[&args[..], &["--seed", "49", "--requests", "300"]].concat());
    assert_eq!((&whole["wrong_bytes"], &whole["failures"]), (&Value::from(0), &Value::from(0)));
}

#[test]
fn models_and_sizes_that_cannot_be_are_bad_input() {
    for (args, says) in [
        (&["--model", "lama-3.1-8b"][..], "llama-3.1-8b"),
        (&["--model", "gpt-oss-20b", "--chunk-bytes", "3GiB"], "out of range"),
        (&["--concurrency", "0"], "--concurrency"),
        (&["--path", "/proc/kvtier"], "/proc/kvtier"),
    ] {
        let out = kvtier(&[&["replay"], args].concat()).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn a_reader_who_had_enough_ends_nothing_with_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let path = path.to_str().unwrap();
    let replay = ["replay", "--path", path, "--requests", "20", "--chunk-bytes", "5000"];
    json(&[&replay[..], &["--json"]].concat());
    let bench = ["bench", "file", "--path", path, "--gb", "0.001", "--size", "64KiB"];
    for args in [&replay[..], &bench, &["ls", path], &["stat", path]] {
        for more in [&[][..], &["--json"]] {
            let mut child = kvtier(&[args, more].concat()).spawn().unwrap();
            drop(child.stdout.take());
            let out = child.wait_with_output().unwrap();
            assert_eq!(
                (out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()),
                (Some(0), ""),
                "{args:?}"
            );
        }
    }
}

/// The chunks of a directory by name.
fn listing(path: &str) -> String {
    String::from_utf8(kvtier(&["ls", path]).output().unwrap().stdout).unwrap()
}

#[test]
fn bench_and_a_verifying_replay_evict_nothing_of_an_existing_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let path = path.to_str().unwrap();
    let replay = ["replay", "--path", path, "--requests", "60", "--chunk-bytes", "5000", "--json"];
    json(&replay);
    let before = listing(path);
    assert!(before.lines().count() > 50);
    // Caps far below the stored bytes.
    let bench = ["bench", "file", "--path", path, "--gb", "0.001", "--size", "64KiB", "--json"];
    for case in ["fresh", "churning", "recycled"] {
        json(&[&bench[..], &["--case", case]].concat());
        assert_eq!(listing(path), before, "{case}");
    }
    assert!(
        fs::read_dir(path)
            .unwrap()
            .flatten()
            .all(|e| !e.file_name().to_string_lossy().contains("bench"))
    );
    let check = json(&[&replay[..], &["--verify-only", "--file-bytes", "64KiB"]].concat());
    assert_eq!(
        (&check["wrong_bytes"], &check["tiers"][1]["evictions"]),
        (&Value::from(0), &Value::from(0))
    );
    assert_eq!(listing(path), before);
}

#[test]
fn a_smaller_cap_is_refused_until_shrink_allows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let path = path.to_str().unwrap();
    let replay = ["replay", "--path", path, "--requests", "60", "--chunk-bytes", "5000", "--json"];
    json(&replay);
    let before = listing(path);
    let small = [&replay[..], &["--file-bytes", "256KiB"]].concat();
    let out = kvtier(&small).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(["1073741824", "262144", "--shrink"].iter().all(|says| text.contains(says)), "{text}");
    assert_eq!(listing(path), before);
    json(&[&small[..], &["--shrink"]].concat());
    assert!(listing(path).lines().count() * 12_288 <= 256 << 10);
}
