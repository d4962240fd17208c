//! Real request traces through a bucket, every loaded byte verified. They are not part of this
//! repository: `KVTIER_TRACES` names the folder. Against the S3 Express emulator, a server in
//! memory, and where `S3_ENDPOINT` names one (see `crates/s3/tests/real.rs`) a real server.
#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::Command;

use kvtier_testkit::s3::{Server, Setup};
use serde_json::{Value, json};

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// How many requests of each trace are replayed.
fn requests() -> &'static str {
    if var("KVTIER_NIGHTLY").is_some() { "2000" } else { "100" }
}

fn traces() -> Vec<PathBuf> {
    let Some(folder) = var("KVTIER_TRACES") else {
        eprintln!("skipped: KVTIER_TRACES names no folder with traces");
        return Vec::new();
    };
    let all = ["conv_a.jsonl", "convA.bin.zst", "ccA.bin.zst"]
        .map(|name| PathBuf::from(&folder).join(name));
    let there: Vec<_> = all.into_iter().filter(|path| path.exists()).collect();
    assert!(!there.is_empty(), "{folder} has no trace");
    there
}

/// Replays over a host tier that is too small and a bucket that is smaller than what is saved.
fn replay(tier: &Value, key: &str, secret: &str) {
    for trace in traces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv.json");
        std::fs::write(
            &path,
            json!({"tiers": [{"type": "host", "bytes": "4MiB"}, tier]}).to_string(),
        )
        .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        command.arg("replay").arg(&trace).arg("--config").arg(&path);
        command.args(["--requests", requests(), "--chunk-bytes", "64KiB", "--json"]);
        command.env_clear().env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", secret);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{}: {said}", trace.display());
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["wrong_bytes"], 0, "{report}");
        eprintln!("{}: {report}", trace.display());
    }
}

fn tier(endpoint: &str, bucket: &str, more: Value) -> Value {
    let mut tier = json!({
        "type": "s3", "s3_endpoint": endpoint, "bucket": bucket, "s3_region": "us-east-1", "prefix": "kv", "max_capacity_gb": 0.05,
        "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.98, "eviction_ratio": 0.2},
    });
    tier.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tier
}

#[test]
fn real_traces_on_the_express_emulator() {
    let mut setup = Setup::default();
    setup.bucket = "kv--use1-az4--x-s3".into();
    let server = Server::start(setup).unwrap();
    let tier = tier(&server.url(), "kv--use1-az4--x-s3", json!({"s3_enable_s3express": true}));
    replay(&tier, "AKIDTEST", "secret/test+key");
}

#[test]
fn real_traces_on_a_server_in_memory() {
    let server = Server::start(Setup::default()).unwrap();
    replay(&tier(&server.url(), "bucket", json!({})), "AKIDTEST", "secret/test+key");
}

#[test]
fn real_traces_on_a_real_server() {
    let (Some(endpoint), Some(bucket)) = (var("S3_ENDPOINT"), var("S3_BUCKET")) else {
        eprintln!("skipped: S3_ENDPOINT and S3_BUCKET name no bucket");
        return;
    };
    let profile = var("S3_PROVIDER").unwrap_or_else(|| "other".into());
    // Where nodes cannot elect an evictor, the configuration names one.
    let more = json!({"profile": profile, "evictor": "single"});
    let keys = (var("AWS_ACCESS_KEY_ID").unwrap(), var("AWS_SECRET_ACCESS_KEY").unwrap());
    replay(&tier(&endpoint, &bucket, more), &keys.0, &keys.1);
}
