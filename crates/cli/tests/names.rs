//! Directories whose names are not UTF-8.
#![allow(clippy::unwrap_used)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvtier(words: &[&str], path: &Path, more: &[&str]) -> Output {
    let words = words.iter().map(OsString::from).chain([path.as_os_str().to_owned()]);
    Command::new(env!("CARGO_BIN_EXE_kvtier"))
        .args(words)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn odd(dir: &Path) -> PathBuf {
    let path = dir.join(OsStr::from_bytes(b"kv-\xff\xfe"));
    std::fs::create_dir(&path).unwrap();
    path
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

#[test]
fn a_replay_keeps_its_files_under_the_very_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = odd(dir.path());
    let out = kvtier(
        &["replay", "--requests", "5", "--chunk-bytes", "5000", "--json", "--path"],
        &path,
        &[],
    );
    assert!(out.status.success(), "{}", said(&out));
    assert!(path.join(".kvtier/manifest").exists());
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [path.file_name().unwrap()]);
    for command in ["ls", "stat", "verify", "rm"] {
        let more: &[&str] = if command == "rm" { &["--all", "--yes"] } else { &["--json"] };
        let out = kvtier(&[command], &path, more);
        assert!(out.status.success(), "{command}: {}", said(&out));
    }
}

#[test]
fn a_peer_of_a_replay_finds_the_directory_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = odd(dir.path());
    let more = ["--peers", "1", "--json"];
    let out =
        kvtier(&["replay", "--requests", "30", "--chunk-bytes", "5000", "--path"], &path, &more);
    assert!(out.status.success(), "{}", said(&out));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report["peer_loads"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn the_doctor_says_that_no_configuration_can_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = odd(dir.path());
    let out = kvtier(&["doctor", "file"], &path, &["--json"]);
    assert!(out.status.success(), "{}", said(&out));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(found["path"].as_str().unwrap().contains('\u{fffd}'), "{found}");
    let advice: Vec<&str> =
        found["findings"].as_array().unwrap().iter().filter_map(|f| f["advice"].as_str()).collect();
    assert!(advice.iter().any(|advice| advice.contains("rename")), "{found}");
    let out = kvtier(&["doctor", "gds"], &path, &["--json"]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(found["findings"].is_array(), "{}", said(&out));
}
