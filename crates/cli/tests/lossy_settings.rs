//! Settings and chunks whose loads differ from what the model computed, in `doctor`, `config check`
//! and `plan`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use kvtier::Tier;
use kvtier::core::Digest;
use kvtier::file::inspect::{Directory, NewChunk};
use kvtier::file::{FileConfig, FileTier};
use kvtier::key::{BlockSums, CodecId, EncodedPayload, Facts};
use serde_json::Value;

const FP8: &str = r#"[{"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "C",
    "adapter_params": {"type": "fs", "base_path": "/kv"}, "serde": {"type": "fp8"}}]"#;

const CACHEGEN: &str = "remote_serde: cachegen\nremote_storage_plugins: [kv]\nextra_config:\n  \
    remote_storage_plugin.kv.module_path: kvtier.lmcache\n  \
    remote_storage_plugin.kv.class_name: KvtierRemoteConnector\n  \
    remote_storage_plugin.kv.url: fs://h:0/kv\n";

const EXACT: &str =
    r#"{"tiers": [{"type": "file", "path": "/kv", "bytes": "1GiB", "encode": ["zstd"]}]}"#;

/// Runs the command; `lmcache` is the file that LMCache reads, if there is one.
fn run(words: &[&str], lmcache: Option<&Path>) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(words).arg("--json").env_remove("LMCACHE_CONFIG_FILE");
    command.envs(lmcache.map(|path| ("LMCACHE_CONFIG_FILE", path)));
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The finding of this name, if there is one.
fn finding<'a>(found: &'a Value, what: &str) -> Option<&'a Value> {
    found["findings"].as_array().unwrap().iter().find(|one| one["what"] == what)
}

/// Writes a chunk of zstd and one of CacheGen into a directory.
fn fill(path: &Path) {
    let tier = FileTier::open(FileConfig::new(path, 64 << 20)).unwrap();
    tier.close().wait().unwrap();
    let writer = Directory::open(path).unwrap().writer().unwrap();
    for (n, codec) in [(1, 2), (2, 5)] {
        let stored = [n; 100];
        let payload =
            EncodedPayload { codec: CodecId(codec), key_id: 0, raw_len: 9000, raw_crc: Some(7) };
        let sums = BlockSums::from_bytes(&stored);
        let facts = Facts::encoded(Digest([n; 32]), Digest::default(), payload, sums);
        let chunk = NewChunk { facts: &facts, canonical: b"", payload: &stored };
        assert!(writer.write(&chunk).unwrap());
    }
    writer.finish().unwrap();
}

#[test]
fn lossy_settings_and_chunks_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let kv = dir.path().join("kv");
    fill(&kv);
    let kv = kv.to_str().unwrap();
    let (fp8, cachegen) = (write("a.json", FP8), write("b.yaml", CACHEGEN));
    let exact = write("c.json", EXACT);
    let check = |path: &str| run(&["config", "check", path], None)["lossy"].clone();
    assert!(check(&fp8)[0].as_str().unwrap().contains("fp8 is lossy"));
    assert!(check(&cachegen)[0].as_str().unwrap().contains("remote_serde: lossy"));
    assert_eq!(check(&exact), Value::Array(Vec::new()));

    let found = run(&["doctor", "file", kv, "--config", &fp8], None);
    let setting = finding(&found, "lossy settings").unwrap();
    assert!(setting["found"].as_str().unwrap().contains("fp8 is lossy"), "{found}");
    assert!(setting["advice"].is_string());
    assert_eq!(finding(&found, "lossy chunks").unwrap()["found"], "1 of 2", "{found}");
    let found = run(&["doctor", "gds", kv, "--config", &fp8], None);
    let lossy = finding(&found, "lossy chunks").unwrap();
    assert_eq!((&lossy["found"], &lossy["good"]), (&"1 of 2".into(), &false.into()), "{found}");
    // LMCache's own file needs no option; one that is named is read instead.
    let found = run(&["doctor", "file", kv], Some(cachegen.as_ref()));
    let setting = finding(&found, "lossy settings").unwrap();
    assert!(setting["found"].as_str().unwrap().contains("remote_serde"), "{found}");
    let found = run(&["doctor", "file", kv, "--config", &exact], Some(cachegen.as_ref()));
    assert!(finding(&found, "lossy settings").unwrap()["advice"].is_null());
}

#[test]
fn a_plan_says_which_encodings_are_lossy() {
    let plan = run(&["plan", "--encode", "lz4", "--link", "1GB/s"], None);
    assert_eq!(plan["encodings"][0]["lossy"], false, "{plan}");
}
