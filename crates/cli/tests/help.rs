//! What an operator meets first: help, completions, manual pages, logging, tables, and traces from
//! standard input.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::process::{Command, Output, Stdio};

use kvtier_testkit::s3::{Server, Setup};

fn kvtier(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(out: Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn the_flags_of_buckets_stand_together_and_examples_end_the_help() {
    for words in [&["ls", "--help"][..], &["migrate", "--help"], &["doctor", "s3", "--help"]] {
        let help = text(kvtier(words));
        let (_, s3) = help.split_once("S3 options:").unwrap_or_else(|| panic!("{help}"));
        for flag in [
            "--endpoint",
            "--bucket",
            "--region",
            "--style",
            "--provider",
            "--ca-bundle",
            "--checksum",
            "--instance-metadata",
            "--http2",
        ] {
            let stands = s3.lines().any(|line| line.split_whitespace().next() == Some(flag));
            assert!(stands, "{flag} is not below the heading: {help}");
        }
        assert_eq!(help.matches("S3 options:").count(), 1, "{help}");
        assert!(help.contains("Examples:\n  kvtier "), "{help}");
        for own in ["--json", "--dry-run", "--size"] {
            assert!(
                !s3.split("Logging:").next().unwrap().contains(&format!("      {own}")),
                "{own} is no flag of buckets: {help}"
            );
        }
    }
}

#[test]
fn every_shell_has_completions_and_every_command_a_manual_page() {
    for (shell, says) in
        [("bash", "_kvtier()"), ("zsh", "#compdef kvtier"), ("fish", "complete -c kvtier")]
    {
        let script = text(kvtier(&["completions", shell]));
        assert!(script.contains(says) && script.contains("gen-trace"), "{shell}");
    }
    assert!(text(kvtier(&["man"])).contains(".TH kvtier 1"));
    let dir = tempfile::tempdir().unwrap();
    text(kvtier(&["man", "--dir", dir.path().to_str().unwrap()]));
    for page in ["kvtier.1", "kvtier-replay.1", "kvtier-doctor-s3.1"] {
        let page = std::fs::read_to_string(dir.path().join(page))
            .unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(page.contains("Examples:"));
    }
    let out = kvtier(&["man", "--dir", "/nonexistent"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("/nonexistent"));
}

#[test]
fn requests_are_logged_at_debug_and_secrets_never() {
    let server = Server::start(Setup::default()).unwrap();
    let logged = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        command.args(flags).args(["ls", "s3://bucket/kv"]).env_clear();
        command
            .env("AWS_ACCESS_KEY_ID", "AKIDTEST")
            .env("AWS_SECRET_ACCESS_KEY", "secret/test+key");
        let out = command
            .env("AWS_ENDPOINT_URL", server.url())
            .env("AWS_REGION", "us-east-1")
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        assert!(
            out.stdout.is_empty(),
            "an empty bucket: nothing on standard output, whatever is logged"
        );
        String::from_utf8(out.stderr).unwrap()
    };
    for quiet in [&[][..], &["-v"], &["--log-level", "info"], &["--log-level", "off"]] {
        assert!(!logged(quiet).contains("DEBUG"), "{quiet:?}");
    }
    for loud in [&["-vv"][..], &["-vvv"], &["--log-level", "debug"], &["--log-level", "trace"]] {
        let log = logged(loud);
        let line = log
            .lines()
            .find(|line| line.contains("request"))
            .unwrap_or_else(|| panic!("{loud:?}: {log}"));
        assert!(
            line.contains("DEBUG") && line.contains("GET") && line.contains("status=200"),
            "{line}"
        );
        assert!(!log.contains("secret/test+key") && !log.contains("Signature="), "{log}");
    }
    let out = kvtier(&["ls", "/tmp", "--log-level", "loud"]);
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn the_log_of_requests_holds_no_cache_salt() {
    let server = Server::start(Setup::default()).unwrap();
    let name = |n: u8| format!("kv/m@00000000@0@{}@pepper", format!("{n:02x}").repeat(32));
    (0..20).for_each(|n| server.put_object(&name(n), vec![n; 4096]));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args([
        "migrate",
        "s3://bucket/kv",
        to.to_str().unwrap(),
        "--from-layout",
        "lmcache-mp",
        "--unverified",
        "-vvv",
    ]);
    command
        .env_clear()
        .env("AWS_ACCESS_KEY_ID", "AKIDTEST")
        .env("AWS_SECRET_ACCESS_KEY", "secret/test+key");
    let out = command
        .env("AWS_ENDPOINT_URL", server.url())
        .env("AWS_REGION", "us-east-1")
        .output()
        .unwrap();
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{log}");
    let masked = name(7).replace("pepper", "***");
    assert!(log.lines().any(|line| line.contains("GET") && line.contains(&masked)), "{log}");
    assert!(log.contains("prefix") && !log.contains("pepper"), "{log}");
}

#[test]
fn a_trace_may_come_by_standard_input_in_any_form() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["t.jsonl", "t.bin", "t.bin.zst"] {
        let path = dir.path().join(name);
        // In the binary form this number begins the file: with the byte of a brace.
        text(kvtier(&["gen-trace", "rag", "--requests", "123", "--out", path.to_str().unwrap()]));
        let piped = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
            text(command.args(words).stdin(File::open(&path).unwrap()).output().unwrap())
        };
        let sim = ["sim", "-", "--policy", "lru", "--json"];
        assert_eq!(
            piped(&sim),
            text(kvtier(&["sim", path.to_str().unwrap(), "--policy", "lru", "--json"])),
            "{name}"
        );
        let report: serde_json::Value =
            serde_json::from_str(&piped(&["replay", "-", "--chunk-bytes", "512", "--json"]))
                .unwrap();
        assert_eq!(
            (report["requests"].as_u64(), report["wrong_bytes"].as_u64()),
            (Some(123), Some(0)),
            "{name}"
        );
    }
    let out = kvtier(&["sim", "-"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("standard input: holds no request"));
}

#[test]
fn reports_fit_eighty_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    text(kvtier(&["replay", "--requests", "5", "--chunk-bytes", "4096", "--path", &path("kv")]));
    let here = dir.path().to_str().unwrap();
    let doctor = text(kvtier(&["doctor", "file", here]));
    // The settings are one line, to be copied.
    fits(
        &doctor
            .lines()
            .filter(|line| !line.starts_with("settings "))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    fits(&text(kvtier(&["doctor", "gds", here])));
    fits(&text(kvtier(&[
        "plan",
        "--model",
        "llama-3.1-8b",
        "--host",
        "4GiB",
        "--pinned",
        "64GiB",
        "--shm",
        "64MiB",
    ])));
    fits(&text(kvtier(&["export", &path("kv"), &path("kv.archive")])));
    fits(&text(kvtier(&["verify", &path("kv")])));
    let name = kvtier(&["key", "no-name"]);
    assert_eq!(name.status.code(), Some(1));
    fits(&String::from_utf8(name.stdout).unwrap());
}

#[test]
fn tables_fit_eighty_columns() {
    let replay = text(kvtier(&["replay", "--requests", "60", "--chunk-bytes", "64KiB"]));
    assert!(
        replay.contains("CPU s/GB") && replay.contains("\nhost ") && replay.contains("\nfile "),
        "{replay}"
    );
    fits(&replay);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.jsonl");
    text(kvtier(&["gen-trace", "chat", "--requests", "300", "--out", trace.to_str().unwrap()]));
    let sim = text(kvtier(&["sim", trace.to_str().unwrap()]));
    assert!(sim.contains("default-unchained") && sim.contains("block hits %"), "{sim}");
    fits(&sim);
    let many = [
        "sim",
        trace.to_str().unwrap(),
        "--policy",
        "lru",
        "--sizes",
        "1%,2%,3%,4%,5%,6%,7%,8%,9%,10%,11%,12%",
    ];
    fits(&text(kvtier(&many)));
}
