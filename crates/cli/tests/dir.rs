//! Looking at directories from outside.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kvtier::key::{Digest, Namespace};
use serde_json::Value;

fn kvtier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&kvtier(args).stdout).unwrap()
}

/// A directory with the chunks of a short replay.
fn filled(dir: &Path) -> String {
    let path = dir.join("kv").to_str().unwrap().to_owned();
    let out = kvtier(&[
        "replay",
        "--path",
        &path,
        "--chunk-bytes",
        "5000",
        "--requests",
        "20",
        "--peers",
        "0",
    ]);
    assert!(out.status.success(), "{}", text(&out));
    path
}

fn files(root: &str) -> Vec<PathBuf> {
    let shards = fs::read_dir(root).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
    shards
        .flat_map(|shard| fs::read_dir(shard.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect()
}

#[test]
fn stored_chunks_are_listed_counted_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let count = files(&path).len();
    assert!(count > 10);
    let listed = text(&kvtier(&["ls", &path]));
    assert_eq!(listed.lines().count(), count);
    let first = listed.split(' ').next().unwrap();
    assert!(listed.lines().all(|line| line.len() == 64 + " 5000".len()));
    let stat = json(&["stat", &path, "--json"]);
    assert_eq!(stat["chunks"], count);
    assert_eq!(stat["bytes"], stat["ledger_bytes"], "the ledger is right after an orderly end");
    assert_eq!(
        (&stat["unfinished"], stat["living"].as_array().unwrap().len()),
        (&Value::from(0), 0)
    );
    assert!(text(&kvtier(&["stat", &path])).contains("quarantine   0 files"));

    let which = kvtier(&["rm", &path, "--yes"]);
    let said = String::from_utf8(which.stderr).unwrap();
    assert!(
        which.status.code() == Some(2) && said.contains("--key") && said.contains("--all"),
        "{said}"
    );
    let dry = kvtier(&["rm", &path, "--key", first]);
    assert!(dry.status.success() && text(&dry).contains("would remove 1 chunks"), "{}", text(&dry));
    assert_eq!(files(&path).len(), count);
    assert!(kvtier(&["rm", &path, "--key", first, "--yes"]).status.success());
    assert_eq!(files(&path).len(), count - 1);
    assert!(kvtier(&["rm", &path, "--all", "--yes"]).status.success());
    let stat = json(&["stat", &path, "--json"]);
    assert_eq!((&stat["chunks"], &stat["ledger_bytes"]), (&Value::from(0), &Value::from(0)));
}

#[test]
fn chunks_of_one_namespace_are_removed_and_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let first = files(&path).len();
    // The same chunks of another length are another namespace's.
    let more =
        ["replay", "--path", &path, "--chunk-bytes", "6000", "--requests", "20", "--peers", "0"];
    assert!(kvtier(&more).status.success());
    let all = files(&path).len();
    assert!(all > first);
    let layout = Digest::derive("kvtier replay layout", &5000u64.to_le_bytes());
    let ours = Namespace::new("replay", layout)
        .with_chunk_bytes(0, 5000)
        .with_partial(false)
        .digest()
        .to_hex();
    let words = ["rm", &path, "--all", "--namespace", &ours, "--yes"];
    let would = kvtier(&words[..5]);
    assert!(text(&would).contains(&format!("would remove {first} chunks")), "{}", text(&would));
    assert!(kvtier(&words).status.success());
    let left = text(&kvtier(&["ls", &path]));
    assert!(
        left.lines().count() == all - first && left.lines().all(|line| line.ends_with(" 6000")),
        "{left}"
    );
    assert_eq!(kvtier(&["rm", &path, "--all", "--namespace", "ab"]).status.code(), Some(2));
}

#[test]
fn every_damage_is_found_and_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let fine = kvtier(&["verify", &path]);
    assert!(fine.status.success() && text(&fine).contains(" 0 damaged"), "{}", text(&fine));
    let all = files(&path);
    let flip = |file: &Path, at: usize| {
        let mut bytes = fs::read(file).unwrap();
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    flip(&all[0], 4999);
    flip(&all[1], 5001);
    flip(&all[2], 8192);
    fs::copy(&all[3], &all[4]).unwrap();
    fs::OpenOptions::new().write(true).open(&all[5]).unwrap().set_len(8192).unwrap();
    let out = kvtier(&["verify", &path, "--json"]);
    assert_eq!(out.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut kinds: Vec<_> = found["damaged"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["damage"].as_str().unwrap())
        .collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["bytes", "bytes", "footer", "length", "swapped"]);
    assert_eq!(kvtier(&["verify", &path, "--set-aside"]).status.code(), Some(1));
    assert!(kvtier(&["verify", &path]).status.success());
    assert_eq!(json(&["stat", &path, "--json"])["quarantine"].as_array().unwrap().len(), 5);
    let stat = json(&["stat", &path, "--json"]);
    let quarantined = stat["quarantine_bytes"].as_u64().unwrap();
    assert!(
        quarantined > 0
            && text(&kvtier(&["stat", &path]))
                .contains("quarantine   5 files that failed a check, ")
    );
    assert_eq!(
        stat["bytes"].as_u64().unwrap() + quarantined,
        stat["ledger_bytes"].as_u64().unwrap()
    );
}

#[test]
fn the_doctor_says_what_the_directory_can_do_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let found = json(&["doctor", "file", path, "--json"]);
    assert!(found["get_mb_per_s"].as_f64().unwrap() > 0.0);
    let list = found["findings"].as_array().unwrap();
    let whats: Vec<_> = list.iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    assert!(
        ["file system", "direct I/O", "rename swaps", "free space", "engine"]
            .iter()
            .all(|w| whats.contains(w)),
        "{whats:?}"
    );
    assert!(text(&kvtier(&["doctor", "file", path])).contains("settings"));
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    // The settings are a tier of a configuration.
    let config = dir.path().join("config.json");
    fs::write(&config, format!("{{\"tiers\":[{}]}}", found["settings"])).unwrap();
    let mut settings = found["settings"].clone();
    settings["path"] = dir.path().join("kv").to_str().unwrap().into();
    fs::write(&config, format!("{{\"tiers\":[{settings}]}}")).unwrap();
    let out = kvtier(&[
        "replay",
        "--config",
        config.to_str().unwrap(),
        "--requests",
        "5",
        "--chunk-bytes",
        "4096",
    ]);
    assert!(out.status.success(), "{}", text(&out));
}

#[test]
fn bad_questions_end_with_2_and_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let not_ours = dir.path().to_str().unwrap();
    let none = dir.path().join("none").to_str().unwrap().to_owned();
    let absent = "0".repeat(64);
    let cases: [(&[&str], &str); 7] = [
        (&["ls", not_ours], "is not a kvtier directory"),
        (&["stat", &none], "does not exist; check the path"),
        (&["verify", not_ours], "is not a kvtier directory"),
        (&["rm", &path, "--key", "abc", "--yes"], "64 hexadecimal digits"),
        (&["rm", &path, "--key", &absent, "--yes"], "nothing was removed"),
        (&["rm", &path], "--key"),
        (&["doctor", "file", &none], "check the path"),
    ];
    for (args, says) in cases {
        let out = kvtier(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out));
        assert!(text(&out).contains(says), "{args:?}: {}", text(&out));
    }
}

#[test]
fn a_killed_doctor_leaves_nothing_that_is_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    fs::create_dir(&path).unwrap();
    let left = || {
        fs::read_dir(&path)
            .unwrap()
            .flatten()
            .filter(|e| e.file_name() != ".kvtier")
            .collect::<Vec<_>>()
    };
    let text = path.to_str().unwrap();
    for _ in 0..50 {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        let mut doctor =
            doctor.args(["doctor", "file", text]).stdout(Stdio::null()).spawn().unwrap();
        while left().iter().all(|e| !e.path().join(".kvtier/manifest").exists()) {
            if doctor.try_wait().unwrap().is_some() {
                break;
            }
        }
        doctor.kill().unwrap();
        doctor.wait().unwrap();
        if !left().is_empty() {
            break;
        }
    }
    assert_eq!(left().len(), 1, "no kill came in time");
    let out = kvtier(&["replay", "--path", text, "--chunk-bytes", "5000", "--requests", "5"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(left().iter().all(|e| e.file_name().len() == 2), "only shards");
}

#[test]
fn what_is_no_regular_file_is_damaged_and_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let to = dir.path().join("to");
    let chunk = files(&path).remove(0);
    fs::remove_file(&chunk).unwrap();
    nix::unistd::mkfifo(&chunk, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let out = kvtier(&["verify", &path, "--json"]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (out.status.code(), &found["damaged"][0]["damage"]),
        (Some(1), &Value::from("kind"))
    );
    assert!(kvtier(&["ls", &path]).status.success() && kvtier(&["stat", &path]).status.success());
    let out = kvtier(&["migrate", &path, to.to_str().unwrap(), "--json"]);
    let tally: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (out.status.code(), &tally["damaged"]),
        (Some(1), &Value::from(1)),
        "{}",
        text(&out)
    );
    assert_eq!(kvtier(&["verify", &path, "--set-aside"]).status.code(), Some(1));
    assert!(!chunk.exists() && kvtier(&["verify", &path]).status.success());
}

#[test]
fn the_noted_cap_is_proposed_and_verifying_does_not_change_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let cap = || json(&["stat", &path, "--json"])["capacity_bytes"].clone();
    assert_eq!(cap(), 1 << 30);
    let found = json(&["doctor", "file", &path, "--json"]);
    assert!(found["settings"]["bytes"].as_u64().unwrap() <= 1 << 30, "{found}");
    let free = nix::sys::statvfs::statvfs(dir.path()).unwrap();
    if free.blocks_available() * free.fragment_size() > 4 << 30 {
        assert_eq!(found["settings"]["bytes"], 1 << 30);
        assert!(found["reasons"]["bytes"].as_str().unwrap().contains("the directory notes"));
    }
    let out = kvtier(&[
        "replay",
        "--path",
        &path,
        "--chunk-bytes",
        "5000",
        "--requests",
        "20",
        "--verify-only",
    ]);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(cap(), 1 << 30);
}

#[test]
fn a_bench_without_space_is_refused_and_one_with_many_in_flight_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv").to_str().unwrap().to_owned();
    let out = kvtier(&["bench", "file", "--path", &path, "--gb", "1000000"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(text(&out).contains(" fits") && !Path::new(&path).exists(), "{}", text(&out));
    let many =
        ["--size", "4KiB", "--concurrency", "300", "--gb", "0.005", "--op", "put,get", "--json"];
    let out = kvtier(&[&["bench", "file", "--path", &path], &many[..]].concat());
    assert!(out.status.success(), "{}", text(&out));
}
