//! Chunks that a tier encoded, copied by `kvtier migrate|export|import`: decoded with their keys,
//! and encrypted with a new one.
#![allow(clippy::unwrap_used)]

#[path = "support/encoded.rs"]
mod encoded;
mod support;

use std::fs::File;
use std::process::Output;

use encoded::{CHUNKS, aes, bucket, bytes, count, files, key, save};
use kvtier::Blocking;
use kvtier::config::write_new_key_file;
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;
use support::kvtier_on;

/// What a copy says of the copied and of those that it leaves behind.
fn tally(out: &Output) -> (Option<i32>, u64, String) {
    let json: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code(), json["copied"].as_u64().unwrap(), json.to_string())
}

#[test]
fn a_key_is_rotated_by_a_copy() {
    let keys = tempfile::tempdir().unwrap();
    for id in [1, 2] {
        write_new_key_file(&keys.path().join(id.to_string())).unwrap();
    }
    let key_file =
        |id: u32| format!("--key-file={id}={}", keys.path().join(id.to_string()).display());
    let (old, new) = (key_file(1), key_file(2));
    let server = Server::start(Setup::default()).unwrap();
    let tiers = bucket(&server, "a", &aes(keys.path(), 1));
    save(&*tiers.top);
    drop(tiers);
    let run = |words: &[&str]| tally(&kvtier_on(&server, &[words, &["--json"]].concat()));

    // Without its key a chunk stays behind, and nothing is written for it.
    let (code, copied, said) = run(&["migrate", "s3://bucket/a", "s3://bucket/b"]);
    assert_eq!((code, copied), (Some(1), 0), "{said}");
    assert!(said.contains("--key-file 1=PATH"), "{said}");
    assert!(server.keys("b/").is_empty());

    let encode = "--encode=zstd,aes-256-gcm";
    let rotate = ["migrate", "s3://bucket/a", "s3://bucket/b", encode, &new, &old];
    assert_eq!(run(&rotate).1, u64::from(CHUNKS));
    // What is there is seen by its raw length.
    assert_eq!(run(&rotate).1, 0);
    let of_b = bucket(&server, "b", &aes(keys.path(), 2));
    assert_eq!(count(&*of_b.top), usize::from(CHUNKS));
    drop(of_b);
    let of_old_key = bucket(&server, "b", &aes(keys.path(), 1));
    assert_eq!(count(&*of_old_key.top), 0);
    drop(of_old_key);

    // Copies have raw bytes where nothing else is asked for.
    let dir = tempfile::tempdir().unwrap();
    let (to, file) = (dir.path().join("kv"), dir.path().join("archive"));
    let [to, file] = [to.to_str().unwrap(), file.to_str().unwrap()];
    assert_eq!(
        run(&["migrate", "s3://bucket/b", to, "--bytes", "1GiB", &new]).1,
        u64::from(CHUNKS)
    );
    let plain = files(to.as_ref(), "");
    assert_eq!(count(&*plain.top), usize::from(CHUNKS));
    assert_eq!(run(&["export", "s3://bucket/b", file, &new]).1, u64::from(CHUNKS));
    assert!(File::open(file).is_ok());
    assert_eq!(run(&["import", file, "s3://bucket/c", "--encode", "zstd"]).1, u64::from(CHUNKS));
    // A directory that encrypts, from there into one with the other key, and back in the clear.
    let [secret, other] = ["secret", "other"].map(|name| dir.path().join(name));
    let [secret, other] = [secret.to_str().unwrap(), other.to_str().unwrap()];
    let encrypted = |path: &str, id: u32| files(path.as_ref(), &aes(keys.path(), id));
    let tiers = encrypted(secret, 1);
    save(&*tiers.top);
    tiers.top.close().wait().unwrap();
    drop(tiers);
    let (code, copied, said) = run(&["migrate", secret, "s3://bucket/d"]);
    assert_eq!((code, copied), (Some(1), 0), "{said}");
    let rotate = ["migrate", secret, other, "--bytes", "1GiB", encode, &new, &old];
    assert_eq!(run(&rotate).1, u64::from(CHUNKS));
    assert_eq!(count(&*encrypted(other, 2).top), usize::from(CHUNKS));
    assert_eq!(count(&*encrypted(other, 1).top), 0);
    assert_eq!(run(&["migrate", other, "s3://bucket/d", &new]).1, u64::from(CHUNKS));
    assert_eq!(count(&*bucket(&server, "d", "").top), usize::from(CHUNKS));

    let of_c = bucket(&server, "c", "");
    assert_eq!(count(&*of_c.top), usize::from(CHUNKS));
    assert_eq!(of_c.top.status().counter("decoded_chunks"), u64::from(CHUNKS));
}

#[test]
fn options_that_make_no_encoding_say_so() {
    let server = Server::start(Setup::default()).unwrap();
    for (words, says) in [
        (&["--encode", "aes-256-gcm"][..], "--key-file"),
        (&["--encode", "zsdt"], "zsdt"),
        (&["--key-file", "key"], "ID=PATH"),
        (&["--key-file", "0=/k"], "ID=PATH"),
        (&["--key-file", "1=/nonexistent"], "1: key_file /nonexistent"),
        (&["--encode", "bf16-split", "--dtype", "int8"], "bfloat16"),
        (&["--encode", "zstd", "--to-layout", "lmcache-mp"], "lmcache-mp"),
    ] {
        let out =
            kvtier_on(&server, &[&["migrate", "s3://bucket/a", "s3://bucket/b"], words].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && said.contains(says), "{words:?}: {said}");
    }
}

/// How many objects were written into the bucket.
fn puts(server: &Server) -> usize {
    server.seen().iter().filter(|request| request.method == "PUT").count()
}

#[test]
fn encoded_chunks_are_written_once() {
    let dir = tempfile::tempdir().unwrap();
    for id in [1, 2] {
        write_new_key_file(&dir.path().join(id.to_string())).unwrap();
    }
    let key_file =
        |id: u32| format!("--key-file={id}={}", dir.path().join(id.to_string()).display());
    let (old, new) = (key_file(1), key_file(2));
    let [kv, file] = ["kv", "archive"].map(|name| dir.path().join(name));
    let tiers = files(&kv, &aes(dir.path(), 1));
    save(&*tiers.top);
    tiers.top.close().wait().unwrap();
    let [kv, file] = [kv.to_str().unwrap(), file.to_str().unwrap()];
    let server = Server::start(Setup::default()).unwrap();
    let run = |words: &[&str]| tally(&kvtier_on(&server, &[words, &["--json"]].concat()));
    let chunks = u64::from(CHUNKS);
    assert_eq!(run(&["export", kv, file, &old]).1, chunks);
    // In clear, then through other stages: what is there stays, however it is stored.
    let ways = [&["--encode=zstd"][..], &["--encode=lz4"], &[]];
    for (source, prefix) in
        [([&["import", file][..], &[]], "i"), ([&["migrate", kv], &[&old]], "m")]
    {
        let [begin, keys] = source;
        let to = format!("s3://bucket/{prefix}");
        for (nth, way) in ways.iter().enumerate() {
            let before = puts(&server);
            let copied = run(&[begin, &[&to], keys, *way].concat()).1;
            let expected = if nth == 0 { CHUNKS } else { 0 };
            assert_eq!((copied, puts(&server) - before), (expected.into(), expected.into()));
        }
        // Encrypted copies replace what is there in clear, once.
        let way = [begin, &[&to, "--encode=zstd,aes-256-gcm", &new], keys].concat();
        for expected in [CHUNKS, 0] {
            let before = puts(&server);
            let copied = run(&way).1;
            assert_eq!((copied, puts(&server) - before), (expected.into(), expected.into()));
        }
    }
}

#[test]
fn encrypted_copies_replace_files_in_clear() {
    let dir = tempfile::tempdir().unwrap();
    write_new_key_file(&dir.path().join("1")).unwrap();
    let key_file = format!("--key-file=1={}", dir.path().join("1").display());
    let server = Server::start(Setup::default()).unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    for path in [&from, &to] {
        let tiers = files(path, "");
        save(&*tiers.top);
        tiers.top.close().wait().unwrap();
    }
    let [from, to] = [from.to_str().unwrap(), to.to_str().unwrap()];
    let words = ["migrate", from, to, "--encode=aes-256-gcm", &key_file, "--json"];
    for expected in [CHUNKS, 0] {
        assert_eq!(tally(&kvtier_on(&server, &words)).1, u64::from(expected));
    }
    let stat = kvtier_on(&server, &["stat", to, "--json"]);
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["key_ids"][0]["chunks"], CHUNKS, "{stat}");
    assert_eq!(stat["chunks"], CHUNKS);
}

/// What is replaced leaves: a directory needs no space for all chunks twice.
#[test]
fn encrypted_copies_need_space_for_what_they_add_and_for_those_under_way() {
    const MANY: u64 = 24;
    /// What a chunk in clear takes, and the most that the encrypted one is counted as.
    const BYTES: u64 = 36_864;
    const COUNTED: u64 = 30_001 + 8191;
    let dir = tempfile::tempdir().unwrap();
    write_new_key_file(&dir.path().join("1")).unwrap();
    let key_file = format!("--key-file=1={}", dir.path().join("1").display());
    let server = Server::start(Setup::default()).unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    for path in [&from, &to] {
        let tiers = files(path, "");
        (0..MANY as u8).for_each(|n| assert!(tiers.top.save_bytes(&key(n), bytes(n)).is_ok()));
        tiers.top.close().wait().unwrap();
    }
    let [from, to] = [from.to_str().unwrap(), to.to_str().unwrap()];
    // Eight at a time need both files.
    let enough = MANY * COUNTED + 8 * BYTES;
    assert!(enough < MANY * (BYTES + COUNTED), "not less than all twice");
    let run = |cap: u64| {
        let cap = cap.to_string();
        let encode = "--encode=aes-256-gcm";
        kvtier_on(&server, &["migrate", from, to, encode, &key_file, "--bytes", &cap, "--json"])
    };
    let refused = run(enough - 1);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("do not fit"), "{said}");
    assert_eq!(count(&*files(to.as_ref(), "").top), usize::from(CHUNKS));
    assert_eq!(tally(&run(enough)).1, MANY);
    let stat = kvtier_on(&server, &["stat", to, "--json"]);
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!((&stat["key_ids"][0]["chunks"], &stat["chunks"]), (&MANY.into(), &MANY.into()));
}
