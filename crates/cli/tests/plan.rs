//! `kvtier plan` and `kvtier doctor shm`.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::Value;

fn kvtier(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words.split(' ')).output().unwrap()
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn a_plan_says_whether_it_fits_and_what_does() {
    let words = "plan --model llama-3.1-8b --tp 1 --in-flight 64 --host 5GiB --pinned 16GiB --shm 64MiB --json";
    let out = kvtier(words);
    let all = json(&out);
    // 32 layers, 8 heads of 128, keys and values, 2 bytes.
    assert_eq!((&all["token_bytes"], &all["chunk_bytes"]), (&131_072.into(), &33_554_432.into()));
    assert_eq!(
        (out.status.code(), &all["fits"], &all["shm_in_flight_max"]),
        (Some(0), &true.into(), &2.into())
    );
    let most = all["in_flight_max"].as_u64().unwrap();
    let with = |n: u64| {
        kvtier(&words.replace("--in-flight 64", &format!("--in-flight {n}"))).status.code()
    };
    assert_eq!((with(most), with(most + 1)), (Some(0), Some(1)));
    let shape = kvtier(
        "plan --layers 32 --kv-heads 8 --head-dim 128 --dtype bfloat16 --pinned 16GiB --json",
    );
    assert_eq!(json(&shape)["chunk_bytes"], all["chunk_bytes"]);
    let text =
        kvtier("plan --model llama-3.1-8b --tp 8 --in-flight 320 --host 50GiB --pinned 100GiB");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("does not fit") && text.contains("max_local_cpu_size"), "{text}");
    assert_eq!(kvtier("plan --model lama").status.code(), Some(2));
}

#[test]
fn only_unused_segments_are_stale_and_are_removed_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let old = SystemTime::now() - Duration::from_secs(3600);
    let make = |name: &str, modified: SystemTime| {
        let file = File::create(dir.path().join(name)).unwrap();
        file.set_len(8192).unwrap();
        file.set_modified(modified).unwrap();
        file
    };
    let _used = make("my_shm_used", old);
    drop(make("my_shm_stale", old));
    drop(make("my_shm_young", SystemTime::now()));
    drop(make("lmcache_l1_pool_4294967290", old));
    drop(make(&format!("lmcache_l1_pool_{}", std::process::id()), old));
    drop(make("of_another", old));
    let words = format!("doctor shm --json --dir {}", dir.path().display());
    let found = json(&kvtier(&words));
    let segments = found["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 5, "{found}");
    let complete = !segments
        .iter()
        .any(|segment| segment["kept"].as_str().is_some_and(|why| why.contains("root")));
    let stale: Vec<_> = segments
        .iter()
        .filter(|segment| segment["stale"] == true)
        .map(|segment| segment["name"].as_str().unwrap())
        .collect();
    let expected: &[&str] =
        if complete { &["lmcache_l1_pool_4294967290", "my_shm_stale"] } else { &[] };
    assert_eq!(stale, expected);
    assert!(dir.path().join("my_shm_stale").exists(), "nothing goes without --yes");
    json(&kvtier(&format!("{words} --yes")));
    assert_eq!(dir.path().join("my_shm_stale").exists(), !complete);
    for kept in ["my_shm_used", "my_shm_young", "of_another"] {
        assert!(dir.path().join(kept).exists(), "{kept}");
    }
}
