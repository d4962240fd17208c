//! What an operator of encodings runs: `kvtier gen-key`, `kvtier plan --encode`.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

fn kvtier(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words).output().unwrap()
}

fn text(out: &Output) -> String {
    String::from_utf8([out.stdout.as_slice(), &out.stderr].concat()).unwrap()
}

#[test]
fn a_key_is_made_once_and_is_what_the_configuration_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let at = path.to_str().unwrap();
    let made = kvtier(&["gen-key", at]);
    let key = std::fs::read_to_string(&path).unwrap();
    assert_eq!(made.status.code(), Some(0));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!((key.len(), key.trim().bytes().all(|c| c.is_ascii_hexdigit())), (65, true));
    assert!(!text(&made).contains(key.trim()), "the key is not printed");

    let again = kvtier(&["gen-key", at]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), key, "it is not overwritten");
    assert_eq!(kvtier(&["gen-key", "/nonexistent/key"]).status.code(), Some(2));

    // What it prints goes into a configuration as it is.
    let line = text(&made).lines().nth(1).unwrap().to_owned();
    let config = dir.path().join("kv.json");
    let tier = format!(r#"{{"tiers":[{{"type":"file","path":"/kv","bytes":"1MiB",{line}}}]}}"#);
    std::fs::write(&config, tier).unwrap();
    let check = text(&kvtier(&["config", "check", config.to_str().unwrap()]));
    assert!(check.contains("aes-256-gcm with key 1") && check.contains("readable"), "{check}");
}

#[test]
fn a_plan_compares_encodings_on_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let sample = dir.path().join("chunks");
    std::fs::create_dir(&sample).unwrap();
    std::fs::create_dir(sample.join(".kvtier")).unwrap();
    // Half of the bytes are one value: zstd gains much.
    let mut random = 1_u64;
    let bytes: Vec<u8> = (0..1 << 18)
        .map(|n| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if n % 2 == 0 { 0x3f } else { random as u8 }
        })
        .collect();
    std::fs::write(sample.join("one"), &bytes).unwrap();
    std::fs::write(sample.join(".kvtier/other"), vec![0; 1 << 20]).unwrap();
    let plan = |words: &[&str]| {
        let sample = sample.to_str().unwrap();
        kvtier(&[&["plan", "--sample", sample, "--json", "--encode"], words].concat())
    };
    let out = plan(&["zstd:1", "--link", "1Mbit/s"]);
    let all: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out)));
    let row = &all["encodings"][0];
    let number = |name: &str| row[name].as_f64().unwrap();
    assert_eq!((&all["sample_files"], &all["sample_bytes"]), (&1.into(), &(1 << 18).into()));
    assert!((0.4..0.75).contains(&number("ratio")), "{row}");
    // On a slow link loads are faster by the ratio.
    let by_ratio = number("batch_bytes_per_s") * number("ratio") / 125_000.0;
    assert!((by_ratio - 1.0).abs() < 1e-9 && number("alone_bytes_per_s") > 125_000.0, "{row}");
    assert_eq!((&all["recommended"], out.status.code()), (&"zstd:1".into(), Some(0)));
    assert_eq!(all["link_bytes_per_s"], 125_000.0);
    assert_eq!(number("alone_s3_bytes_per_s"), number("alone_bytes_per_s"));
    let out = plan(&["bf16-split,bf16-split+zstd:1", "--link", "1Mbit/s", "--ratio", "0.5"]);
    let split: Value = serde_json::from_slice(&out.stdout).unwrap();
    // Decoded while it arrives, but not where a second stage needs all of it.
    assert_eq!(split["encodings"][0]["alone_s3_bytes_per_s"], 250_000.0, "{split}");
    let both = &split["encodings"][1];
    assert_eq!(both["alone_s3_bytes_per_s"], both["alone_bytes_per_s"], "{split}");
    let threads = all["threads"].as_f64().unwrap();
    let by_threads = threads * number("decode_bytes_per_s") / number("pays_below_bytes_per_s");
    assert!((by_threads - 1.0).abs() < 1e-9, "{all}");

    let out = kvtier(&["plan", "--encode", "bf16-split", "--link", "1TB/s", "--ratio", "0.7"]);
    let said = text(&out);
    assert!(
        said.contains("0.700") && said.contains("made-up") && said.contains("none: "),
        "{said}"
    );
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");

    for (words, says) in [
        (&["zstd:1"][..], "--link"),
        (&["zsdt", "--link", "1GB/s"], "zsdt"),
        (&["aes-256-gcm+zstd", "--link", "1GB/s"], "aes-256-gcm+zstd"),
        (&["zstd", "--link", "fast"], "10Gbit/s"),
        (&["zstd", "--link", "1GB/s", "--ratio", "1.5"], "--ratio"),
        (&["zstd", "--link", "1GB/s", "--sample", "/nonexistent"], "--sample"),
    ] {
        let out = plan(words);
        assert_eq!(out.status.code(), Some(2), "{words:?}");
        assert!(text(&out).contains(says), "{words:?}: {}", text(&out));
    }
}
