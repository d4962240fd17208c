//! `kvtier doctor gds` and `kvtier bench gds`, without a GPU and over the stand-ins.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use kvtier::{Blocking, Key, Namespace};
use kvtier_fakegpu::{Fakes, Report};

const KVTIER: &str = env!("CARGO_BIN_EXE_kvtier");

/// What the command says over these stand-ins; nothing may be left.
fn says(fakes: &Fakes, args: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = fakes.program(Path::new(KVTIER), dir.path()).args(args).output().unwrap();
    Report::read(dir.path()).assert_clean();
    (
        output.status.success(),
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    )
}

#[test]
fn without_a_gpu_the_doctor_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (fine, said) =
        says(&Fakes::new().without_cuda(), &["doctor", "gds", dir.path().to_str().unwrap()]);
    assert!(
        fine && said.contains("no NVIDIA driver here") && said.contains("host memory only"),
        "{said}"
    );
}

#[test]
fn with_a_gpu_the_doctor_names_what_decides() {
    let dir = tempfile::tempdir().unwrap();
    let (fine, said) =
        says(&Fakes::new().compat(), &["doctor", "gds", dir.path().to_str().unwrap(), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let found = said["findings"].as_array().unwrap();
    assert!(fine && found[0]["found"] == "0: fake GPU 0", "{said}");
    // Whatever it is here: a kernel without modules, no udev, or the stand-in's compatibility mode.
    let last = found.last().unwrap();
    assert_eq!((&last["what"], &last["good"]), (&"outcome".into(), &false.into()), "{said}");
    assert_eq!(found[found.len() - 2]["good"], false, "{said}");
}

#[test]
fn the_bench_measures_what_there_is_and_says_why_not_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let args = ["bench", "gds", "--path", path, "--size", "1MiB", "--gb", "0.01"];
    let (fine, said) = says(&Fakes::new().without_cufile(), &args);
    assert!(fine, "{said}");
    let line = |way: &str| {
        said.lines().find(|line| line.starts_with(way)).unwrap_or_else(|| panic!("{way}: {said}"))
    };
    for way in ["copies from", "file to pinned", "pinned memory", "checksums on", "plain read"] {
        assert!(line(way).contains("to GPU"), "{said}");
    }
    assert!(line("cuFile ").contains("not measured: cuFile is required"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
    let output = Command::new(KVTIER)
        .args(["bench", "gds", "--path", path, "--size", "0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
}

/// A GPU tier over a directory that encrypts, its key, and a file with its configuration.
fn encrypting_tier(dir: &Path, more: &str) -> String {
    let key = dir.join("key");
    if !key.exists() {
        kvtier::config::write_new_key_file(&key).unwrap();
    }
    format!(
        r#"{{"tiers": [{{"type": "gds", "path": {:?}, "bytes": "64MiB"{more},
            "encode": ["zstd", {{"name": "aes-256-gcm", "key_file": {key:?}, "key_id": 7}}]}}]}}"#,
        dir.join("kv")
    )
}

#[test]
fn encoded_chunks_of_a_gpu_tier_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (config, kv) = (dir.path().join("kv.json"), dir.path().join("kv"));
    std::fs::write(&config, encrypting_tier(dir.path(), "")).unwrap();
    let (config, kv) = (config.to_str().unwrap(), kv.to_str().unwrap());
    let fakes = Fakes::new().without_cuda();
    let json = |args: &[&str]| {
        let (fine, said) = says(&fakes, &[args, &["--json"]].concat());
        assert!(fine, "{said}");
        serde_json::from_str::<serde_json::Value>(&said).unwrap()
    };
    let checked = json(&["config", "check", config]);
    let tier = &checked["tiers"][0];
    assert_eq!(
        (&tier["type"], &tier["encode"]),
        (&"gds".into(), &"zstd, aes-256-gcm with key 7".into())
    );
    assert!(tier["key"].as_str().unwrap().contains("key_file"), "{checked}");

    let tiers = kvtier::config::ConfigReader::new().file(Path::new(config)).unwrap();
    let tiers = tiers.config.open().unwrap();
    let key = |n: u8| Key::from_name(&Namespace::from_name("model"), [n]);
    (0..3).for_each(|n| tiers.top.save_bytes(&key(n), vec![n; 9000]).map(drop).unwrap());
    tiers.top.close().wait().unwrap();
    drop(tiers);
    let held = json(&["stat", kv]);
    let codecs = &held["codecs"][0];
    assert_eq!(
        (&codecs["codec"], &codecs["chunks"]),
        (&"zstd+aes-256-gcm".into(), &3.into()),
        "{held}"
    );
    assert_eq!(held["key_ids"][0]["key_id"], 7, "{held}");
    let found = json(&["doctor", "gds", kv, "--config", config]);
    let found = found["findings"].as_array().unwrap();
    let encoded = found.iter().find(|one| one["what"] == "encoded chunks").unwrap();
    let text = encoded["found"].as_str().unwrap();
    assert!(text.starts_with("3 of 3: ") && text.contains("host memory"), "{text}");
    assert_eq!(encoded["good"], true);
    let none = tempfile::tempdir().unwrap();
    let found = json(&["doctor", "gds", none.path().to_str().unwrap()]);
    let found = found["findings"].as_array().unwrap();
    assert!(found.iter().all(|one| one["what"] != "encoded chunks"), "{found:?}");
}

#[test]
fn settings_that_contradict_an_encoding_are_refused_by_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kv.json");
    for (more, says_what) in [
        (r#", "layout": "lmcache-gds", "shape": "2x2x256x8""#, "lmcache-gds"),
        (r#", "cufile": "require""#, "cufile"),
    ] {
        std::fs::write(&config, encrypting_tier(dir.path(), more)).unwrap();
        let args = ["config", "check", config.to_str().unwrap()];
        let (fine, said) = says(&Fakes::new(), &args);
        assert!(!fine && said.contains(says_what) && said.contains("tiers[0] (gds)"), "{said}");
    }
}
