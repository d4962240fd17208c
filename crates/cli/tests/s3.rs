//! `kvtier bench s3` against a server in memory that checks signatures.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;

fn kvtier(server: &Server, secret: &str, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(words.split(' ')).args(["--endpoint", &server.url(), "--bucket", "bucket", "--json"]);
    command.env_clear().env("AWS_ACCESS_KEY_ID", "AKIDTEST").env("AWS_SECRET_ACCESS_KEY", secret);
    command.output().unwrap()
}

const SECRET: &str = "secret/test+key";

fn json(out: &Output) -> Value {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// How many requests of a method the server saw, and that none of them failed.
fn seen(server: &Server, method: &str) -> usize {
    let seen = server.seen();
    assert!(seen.iter().all(|request| request.status < 300));
    seen.iter().filter(|request| request.method == method).count()
}

#[test]
fn bench_prints_the_cells_that_were_asked_for_and_cleans_up() {
    let server = Server::start(Setup::default()).unwrap();
    let words = "bench s3 --style path --op put,get,head --size 64KiB,1MiB --concurrency 1,4 --gb 0.01";
    let out = json(&kvtier(&server, SECRET, words));
    let cells = out["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    for cell in cells {
        for field in ["size", "concurrency", "mb_per_s", "p50_ms", "p99_ms", "rss_mib", "ops_per_s", "cpu_us_per_op"] {
            assert!(cell[field].is_number(), "{field}: {cell}");
        }
        assert_eq!(cell["cpu_s_per_gb"].is_number(), cell["op"] != "head", "heads move no bytes");
    }
    let requests = 2 * (153 + 10);
    for method in ["PUT", "GET", "HEAD"] {
        assert_eq!(seen(&server, method), requests, "{method}");
    }
    for target in server.seen().into_iter().filter(|seen| seen.method == "PUT").map(|seen| seen.target) {
        assert!(server.object(target.trim_start_matches("/bucket/")).is_none(), "{target} was left behind");
    }
}

#[test]
fn a_first_get_finds_what_was_written_unmeasured() {
    let server = Server::start(Setup::default()).unwrap();
    let out = json(&kvtier(&server, SECRET, "bench s3 --op get --size 1MiB --gb 0.003"));
    assert_eq!(out["cells"].as_array().unwrap().len(), 1);
    assert_eq!((seen(&server, "PUT"), seen(&server, "GET")), (3, 3));
}

#[test]
fn bad_arguments_and_refusals_end_with_code_2_and_no_secret() {
    let server = Server::start(Setup::default()).unwrap();
    for (secret, words, says) in [
        (SECRET, "bench s3 --op post", "choose put, get, head"),
        (SECRET, "bench s3 --style sideways", "choose path or virtual"),
        (SECRET, "bench s3 --gb 0", "more than 0"),
        (SECRET, "bench s3 --ca-bundle /nonexistent", "--ca-bundle"),
        ("wrong-secret", "bench s3 --size 64KiB --gb 0.001", "SignatureDoesNotMatch"),
        ("", "bench s3", "AWS_SECRET_ACCESS_KEY"),
    ] {
        let out = kvtier(&server, secret, words);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words}: {text}");
        assert!(text.contains(says) && !text.contains("wrong-secret") && !text.contains(SECRET), "{words}: {text}");
    }
}
