//! `kvtier replay|ls|stat|verify|rm` on a bucket, against a server in memory that checks
//! signatures.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use kvtier::key::{Digest, Namespace};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::{Value, json};
use support::kvtier_on;

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn ok(out: Output) -> String {
    assert!(out.status.success(), "{}{}", said(&out), String::from_utf8_lossy(&out.stderr));
    said(&out)
}

/// A bucket with what a replay leaves in it, under the prefix `kv`.
fn filled() -> Server {
    let server = Server::start(Setup::default()).unwrap();
    fill(&server, "64KiB");
    server.put_object("kv/readme.txt", b"not ours".to_vec());
    server.put_object("other/x", b"not under the prefix".to_vec());
    server
}

fn fill(server: &Server, chunk_bytes: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.json");
    let tier = json!({"type": "s3", "s3_endpoint": "s3://bucket", "s3_region": "us-east-1", "prefix": "kv", "s3_num_io_threads": 8});
    std::fs::write(&path, json!({"tiers": [{"type": "host", "bytes": "1MiB"}, tier]}).to_string())
        .unwrap();
    let config = path.display().to_string();
    let words =
        ["replay", "--config", &config, "--requests", "20", "--chunk-bytes", chunk_bytes, "--json"];
    let report: Value = serde_json::from_str(&ok(kvtier_on(server, &words))).unwrap();
    assert_eq!(report["wrong_bytes"], 0, "{report}");
}

fn chunks(server: &Server) -> Vec<String> {
    ok(kvtier_on(server, &["ls", "s3://bucket/kv"]))
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_bucket_is_listed_verified_and_emptied_of_chunks_only() {
    let server = filled();
    let before = chunks(&server);
    assert!(before.len() > 20, "{}", before.len());
    let sum: Value =
        serde_json::from_str(&ok(kvtier_on(&server, &["stat", "s3://bucket/kv/", "--json"])))
            .unwrap();
    assert_eq!(
        (sum["chunks"].as_u64(), sum["strangers"].as_u64()),
        (Some(before.len() as u64), Some(1))
    );
    assert!(ok(kvtier_on(&server, &["verify", "s3://bucket/kv"])).contains(" 0 damaged"));

    let first = &before[0];
    let would = ok(kvtier_on(&server, &["rm", "s3://bucket/kv", "--key", first]));
    assert!(would.contains("would remove 1 chunks") && chunks(&server) == before, "{would}");
    ok(kvtier_on(&server, &["rm", "s3://bucket/kv", "--key", first, "--yes"]));
    assert_eq!(chunks(&server), before[1..]);
    let absent = kvtier_on(&server, &["rm", "s3://bucket/kv", "--key", first, "--yes"]);
    assert_eq!(absent.status.code(), Some(2));

    ok(kvtier_on(&server, &["rm", "s3://bucket/kv", "--all", "--yes"]));
    assert!(chunks(&server).is_empty());
    assert!(server.object("kv/readme.txt").is_some() && server.object("other/x").is_some());
}

#[test]
fn chunks_of_one_namespace_are_removed_and_others_stay() {
    let server = filled();
    // The same chunks of another length are another namespace's.
    let first = chunks(&server);
    fill(&server, "32KiB");
    let all = chunks(&server);
    assert!(all.len() > first.len());
    let layout = Digest::derive("kvtier replay layout", &65_536u64.to_le_bytes());
    let ours =
        Namespace::new("replay", layout).with_chunk_bytes(0, 65_536).with_partial(false).digest();
    let words = ["rm", "s3://bucket/kv", "--all", "--namespace", &ours.to_hex(), "--yes"];
    let would = ok(kvtier_on(&server, &words[..5]));
    assert!(would.contains(&format!("would remove {} chunks", first.len())), "{would}");
    ok(kvtier_on(&server, &words));
    let left = chunks(&server);
    assert!(
        left.len() == all.len() - first.len() && left.iter().all(|label| !first.contains(label))
    );
    assert_eq!(
        kvtier_on(&server, &["rm", "s3://bucket/kv", "--all", "--namespace", "ab"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_prefix_may_have_an_at_sign() {
    let server = filled();
    for name in server.keys("kv/") {
        let bytes = server.object(&name).unwrap().to_vec();
        server.put_object(&name.replacen("kv/", "pre@fix/", 1), bytes);
    }
    let listed = ok(kvtier_on(&server, &["ls", "s3://bucket/pre@fix"]));
    assert_eq!(listed, ok(kvtier_on(&server, &["ls", "s3://bucket/kv"])));
    let credentials = kvtier_on(&server, &["ls", "s3://me:TOPSECRET@bucket/pre@fix"]);
    let said = String::from_utf8_lossy(&credentials.stderr).into_owned();
    assert!(said.contains("has credentials in it") && !said.contains("TOPSECRET"), "{said}");
}

#[test]
fn verify_finds_what_was_damaged() {
    let server = filled();
    let digest = chunks(&server).remove(0);
    let name = format!("kv/{}/{digest}", &digest[..2]);
    // After a save by another program the object has no facts.
    server.put_object(&name, vec![0; 64 << 10]);
    let out = kvtier_on(&server, &["verify", "s3://bucket/kv", "--json"]);
    let all: Value = serde_json::from_str(&said(&out)).unwrap();
    assert_eq!((out.status.code(), &all["damaged"][0]["key"]), (Some(1), &digest.as_str().into()));
    assert_eq!(all["damaged"][0]["damage"], "unverified");
}

#[test]
fn what_is_only_for_directories_says_so() {
    let server = Server::start(Setup::default()).unwrap();
    let out = kvtier_on(&server, &["verify", "s3://bucket/kv", "--set-aside"]);
    assert_eq!(out.status.code(), Some(2));
    let out = kvtier_on(&server, &["ls", "s3://bucket", "--bucket", "other"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("two buckets"));
}

#[cfg(feature = "aws-config")]
#[test]
fn a_configurations_bucket_is_signed_by_whatever_the_aws_sdks_find() {
    let server = Server::start(Setup::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let keys =
        json!({"Version": 1, "AccessKeyId": "AKIDTEST", "SecretAccessKey": "secret/test+key"});
    std::fs::write(path("keys.json"), keys.to_string()).unwrap();
    // A program that prints them: only the SDKs' own chain runs it.
    let profile =
        format!("[profile cluster]\ncredential_process = /bin/cat {}\n", path("keys.json"));
    std::fs::write(path("config"), profile).unwrap();
    let tier = json!({"type": "s3", "s3_endpoint": server.url(), "bucket": "bucket", "s3_region": "us-east-1", "prefix": "kv"});
    std::fs::write(
        path("kv.json"),
        json!({"tiers": [{"type": "host", "bytes": "1MiB"}, tier]}).to_string(),
    )
    .unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args([
        "replay",
        "--config",
        &path("kv.json"),
        "--requests",
        "5",
        "--chunk-bytes",
        "64KiB",
        "--json",
    ]);
    command
        .env_clear()
        .env("AWS_PROFILE", "cluster")
        .env("AWS_CONFIG_FILE", path("config"))
        .env("HOME", path(""));
    let out = command.env("PATH", "/usr/bin:/bin").output().unwrap();
    let report: Value = serde_json::from_str(&ok(out)).unwrap();
    assert_eq!(report["wrong_bytes"], 0, "{report}");
    assert!(!server.keys("kv/").is_empty());
}
