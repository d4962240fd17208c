//! `kvtier replay --config` over configurations of LMCache's in-process mode, as its pages print
//! them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use kvtier::file::Layout;
use kvtier::key::names::{NameForm, Parsed};
use kvtier::key::{DType, KeyId};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;

const BUCKET: &str = r#"chunk_size: 256
local_cpu: False
save_unfull_chunk: False
remote_url: "s3://your-bucket-name"
remote_serde: "naive"
blocking_timeout_secs: 100
extra_config:
  s3_region: "us-east-1"
  s3_max_io_concurrency: 64
  s3_max_inflight_reqs: 64
"#;

const GDS: &str = r#"# 256 Tokens per KV Chunk
chunk_size: 256
# Disable local CPU
local_cpu: false
# Path to file system, local, remote or GDS-enabled mount
gds_path: "/mnt/gds/cache"
# CuFile Buffer Size in MiB
cufile_buffer_size: 8192
"#;

fn replay(config: &Path, endpoint: Option<&str>, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    let words = ["replay", "--requests", "20", "--chunk-bytes", "64KiB", "--json", "--config"];
    command.args(words).arg(config).args(more).env_clear();
    command.env("AWS_ACCESS_KEY_ID", "AKIDTEST").env("AWS_SECRET_ACCESS_KEY", "secret/test+key");
    endpoint.iter().for_each(|url| _ = command.env("AWS_ENDPOINT_URL", url));
    command.output().unwrap()
}

fn report(out: &Output) -> Value {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Every block of the trace was loaded and verified.
fn loads_everything(report: &Value) {
    assert_eq!(
        (report["wrong_bytes"].as_u64(), report["failures"].as_u64()),
        (Some(0), Some(0)),
        "{report}"
    );
    assert!(report["blocks"].as_u64().unwrap() > 20, "{report}");
    assert_eq!(report["loads"], report["blocks"], "{report}");
}

#[test]
fn the_page_on_s3_is_replayed_under_lmcaches_names() {
    let mut setup = Setup::default();
    setup.bucket = "your-bucket-name".into();
    let server = Server::start(setup).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lmcache.yaml");
    std::fs::write(&config, BUCKET).unwrap();
    let first = report(&replay(&config, Some(&server.url()), &[]));
    assert_eq!(
        (first["wrong_bytes"].as_u64(), first["failures"].as_u64()),
        (Some(0), Some(0)),
        "{first}"
    );
    loads_everything(&report(&replay(&config, Some(&server.url()), &["--verify-only"])));

    let names: Vec<String> =
        server.keys("").into_iter().filter(|name| !name.starts_with(".kvtier/")).collect();
    assert!(names.len() > 20, "{}", names.len());
    for name in names {
        let Ok(Parsed::Lossless(KeyId::Engine(key))) = NameForm::Text.parse(&name) else {
            panic!("{name}")
        };
        assert_eq!((&*key.model, key.world_size, key.dtype), ("replay", 1, DType::UInt8), "{name}");
    }
}

#[test]
fn the_page_on_gds_is_replayed_without_a_gpu_into_lmcaches_files() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lmcache.yaml");
    let cache = dir.path().join("cache");
    std::fs::write(&config, GDS.replace("/mnt/gds/cache", &cache.display().to_string())).unwrap();
    let first = report(&replay(&config, None, &[]));
    assert_eq!(
        (first["wrong_bytes"].as_u64(), first["failures"].as_u64()),
        (Some(0), Some(0)),
        "{first}"
    );
    loads_everything(&report(&replay(&config, None, &["--verify-only"])));

    let inspected = kvtier::file::inspect::Directory::open(&cache).unwrap();
    assert_eq!(inspected.layout(), Layout::LmcacheGds);
}

#[test]
fn layouts_of_both_modes_in_one_configuration_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kv.json");
    let tier = |layout| serde_json::json!({"type": "file", "path": dir.path().join(layout), "bytes": "1GiB", "layout": layout});
    std::fs::write(
        &config,
        serde_json::json!({"tiers": [tier("lmcache"), tier("lmcache-mp")]}).to_string(),
    )
    .unwrap();
    let out = replay(&config, None, &[]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(2) && said.contains("tiers[0]") && said.contains("multi-process"),
        "{said}"
    );
}
