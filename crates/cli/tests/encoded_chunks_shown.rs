//! `stat`, `ls` and `verify` over a directory and a bucket with encoded chunks.
#![allow(clippy::unwrap_used)]

#[path = "support/encoded.rs"]
mod encoded;
mod support;

use std::path::PathBuf;
use std::process::Output;

use encoded::{CHUNKS, aes, bucket, bytes, files, key, save};
use kvtier::config::write_new_key_file;
use kvtier::{Blocking, Key, Namespace};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::{Value, json};
use support::kvtier_on;

const CODEC: &str = "zstd+aes-256-gcm";
/// The chunk that is stored as it is.
const PLAIN_BYTES: u64 = 5000;

fn plain_key() -> Key {
    Key::from_name(&Namespace::from_name("model"), "plain")
}

/// A directory and a bucket with one chunk that is stored as it is, and some that are encrypted.
struct Places {
    server: Server,
    dir: tempfile::TempDir,
}

impl Places {
    fn filled() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for id in [1, 2] {
            write_new_key_file(&dir.path().join(id.to_string())).unwrap();
        }
        let server = Server::start(Setup::default()).unwrap();
        let kv = dir.path().join("kv");
        for encoding in ["", &aes(dir.path(), 1)] {
            // Nodes of a bucket with a cap write journals.
            let capped = format!(r#", "max_capacity_gb": 1{encoding}"#);
            let tiers = [files(&kv, encoding), bucket(&server, "kv", &capped)];
            for tiers in tiers {
                match encoding {
                    "" => tiers.top.save_bytes(&plain_key(), vec![7; 5000]).map(drop).unwrap(),
                    _ => save(&*tiers.top),
                }
                tiers.top.close().wait().unwrap();
            }
        }
        Places { server, dir }
    }

    fn names(&self) -> [String; 2] {
        [self.path().display().to_string(), "s3://bucket/kv".to_owned()]
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("kv")
    }

    /// The option that has the key with this id, from the file of this or another key.
    fn key_file(&self, id: u32, file: u32) -> String {
        format!("--key-file={id}={}", self.dir.path().join(file.to_string()).display())
    }

    fn run(&self, words: &[&str]) -> Output {
        kvtier_on(&self.server, words)
    }

    fn ok(&self, words: &[&str]) -> String {
        let out = self.run(words);
        assert!(out.status.success(), "{words:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--json"]].concat())).unwrap()
    }
}

fn said(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn raw_bytes() -> u64 {
    (0..CHUNKS).map(|n| bytes(n).len() as u64).sum()
}

#[test]
fn stat_sums_up_codecs_and_keys() {
    let places = Places::filled();
    for (name, options) in places.names().iter().zip([&[][..], &["--encodings"]]) {
        let words = [&["stat", name.as_str()], options].concat();
        let sum = places.json(&words);
        let encoded = &sum["codecs"][1];
        let stored = encoded["stored_bytes"].as_u64().unwrap();
        assert!(stored < raw_bytes(), "{sum}");
        let row = json!({"chunks": CHUNKS, "raw_bytes": raw_bytes(), "stored_bytes": stored});
        let with = |name: &str, value: Value| {
            let mut row = row.clone();
            row[name] = value;
            row
        };
        let plain = json!({
            "codec": "plain", "chunks": 1, "raw_bytes": PLAIN_BYTES, "stored_bytes": PLAIN_BYTES,
        });
        assert_eq!(sum["codecs"], json!([plain, with("codec", CODEC.into())]), "{name}");
        assert_eq!(sum["key_ids"], json!([with("key_id", 1.into())]), "{name}");
        assert_eq!(sum["raw_bytes"], raw_bytes() + PLAIN_BYTES);
        assert_eq!(sum["stored_bytes"], stored + PLAIN_BYTES);
        let text = places.ok(&words);
        let line = format!("codec        {CODEC}: {CHUNKS} chunks, ");
        assert!(text.contains(&line) && text.contains("key          1: "), "{text}");
    }
}

#[test]
fn stat_of_a_bucket_does_not_guess() {
    let places = Places::filled();
    let heads = || places.server.seen().iter().filter(|seen| seen.method == "HEAD").count();
    let before = heads();
    let sum = places.json(&["stat", "s3://bucket/kv"]);
    assert_eq!(heads(), before, "only --encodings asks for each object");
    assert_eq!((&sum["codecs"], &sum["key_ids"]), (&Value::Null, &Value::Null));
    assert_eq!(sum["stored_bytes"], sum["bytes"]);
    // The journals of its nodes have the raw lengths.
    assert_eq!(sum["raw_bytes"], raw_bytes() + PLAIN_BYTES);
    let text = places.ok(&["stat", "s3://bucket/kv"]);
    assert!(text.contains("--encodings asks for codecs"), "{text}");
    for name in places.server.keys("kv/.kvtier/") {
        places.server.remove_object(&name);
    }
    let sum = places.json(&["stat", "s3://bucket/kv"]);
    assert_eq!((&sum["raw_bytes"], &sum["codecs"]), (&Value::Null, &Value::Null), "{sum}");
    let sum = places.json(&["stat", "s3://bucket/kv", "--encodings"]);
    assert_eq!(sum["raw_bytes"], raw_bytes() + PLAIN_BYTES);
    // An object whose facts are gone.
    let digest = key(0).digest().to_hex();
    places.server.put_object(&format!("kv/{}/{digest}", &digest[..2]), vec![1; 99]);
    let sum = places.json(&["stat", "s3://bucket/kv", "--encodings"]);
    let unknown = json!({"codec": null, "chunks": 1, "raw_bytes": null, "stored_bytes": 99});
    assert_eq!((&sum["codecs"][0], &sum["raw_bytes"]), (&unknown, &Value::Null));
}

#[test]
fn ls_shows_how_each_chunk_is_stored() {
    let places = Places::filled();
    for name in places.names() {
        let of = |text: &str, digest: &str| {
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.into_iter().find(|line| line["key"] == digest).unwrap()
        };
        let listed = places.ok(&["ls", &name, "--long", "--json"]);
        let encoded = of(&listed, &key(0).digest().to_hex());
        let raw = bytes(0).len() as u64;
        assert_eq!((&encoded["codec"], &encoded["key_id"]), (&CODEC.into(), &1.into()));
        assert_eq!(encoded["raw_bytes"], raw);
        let stored = encoded["stored_bytes"].as_u64().unwrap();
        assert!(stored < raw);
        let plain = of(&listed, &plain_key().digest().to_hex());
        assert_eq!((&plain["codec"], &plain["key_id"]), (&"plain".into(), &0.into()));
        assert_eq!((&plain["raw_bytes"], &plain["stored_bytes"]), (&5000.into(), &5000.into()));
        let text = places.ok(&["ls", &name, "--long"]);
        let line = text.lines().find(|line| line.ends_with(&key(0).digest().to_hex())).unwrap();
        let columns: Vec<_> = line.split_whitespace().take(4).collect();
        assert_eq!(columns, [&raw.to_string(), &stored.to_string(), CODEC, "1"]);
        // Without a request for each chunk.
        let short = of(&places.ok(&["ls", &name, "--json"]), &key(0).digest().to_hex());
        let is_bucket = name.starts_with("s3:");
        let codec = if is_bucket { Value::Null } else { CODEC.into() };
        assert_eq!((&short["codec"], &short["stored_bytes"]), (&codec, &stored.into()));
    }
}

#[test]
fn verify_decodes_with_the_key_and_says_what_it_could_not_check() {
    let places = Places::filled();
    let [right, wrong] = [1, 2].map(|file| places.key_file(1, file));
    let before = places.server.keys("kv/");
    for name in places.names() {
        let verify = |options: &[&str]| {
            let out = places.run(&[&["verify", &name, "--json"], options].concat());
            let found: Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(found["damaged"], json!([]), "{found}");
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            (out.status.code(), found["not_checked"].clone(), said)
        };
        let (code, not_checked, said) = verify(&[&right]);
        assert_eq!((code, not_checked, said.as_str()), (Some(0), json!([]), ""), "{name}");
        let missing = json!([{"reason": "key missing", "key_id": 1, "chunks": CHUNKS}]);
        let (code, not_checked, said) = verify(&[]);
        assert_eq!((code, not_checked), (Some(0), missing), "{name}");
        assert!(said.contains("add --key-file 1=PATH"), "{said}");
        let other = json!([{"reason": "wrong key", "key_id": 1, "chunks": CHUNKS}]);
        let mut options = vec![wrong.as_str()];
        options.extend((!name.starts_with("s3:")).then_some("--set-aside"));
        let (code, not_checked, said) = verify(&options);
        assert_eq!((code, not_checked), (Some(1), other), "{name}");
        assert!(said.contains("name the right file"), "{said}");
        let text = places.ok(&["verify", &name]);
        let expected = format!("4 chunks, 0 damaged, {CHUNKS} not checked: key missing");
        assert!(text.contains(&expected), "{text}");
    }
    // Nothing was deleted.
    assert_eq!(places.server.keys("kv/"), before);
    assert_eq!(places.json(&["stat", &places.names()[0]])["chunks"], CHUNKS + 1);
}

/// Stored bytes that match their checksums and decode to other bytes than were saved.
#[test]
fn verify_finds_what_only_decoding_shows() {
    use kvtier::codec::TierEncoding;
    use kvtier::file::inspect::{Directory, NewChunk};
    use kvtier::key::{BlockSums, Facts};
    let dir = tempfile::tempdir().unwrap();
    let tiers = files(dir.path(), r#", "encode": ["zstd"]"#);
    save(&*tiers.top);
    tiers.top.close().wait().unwrap();
    let kv = Directory::open(dir.path()).unwrap();
    let chunk = kv.chunks().unwrap().remove(0);
    let stored = kv.read_stored(&chunk).unwrap().unwrap();
    let raw = kv.read_by(&chunk, &TierEncoding::default()).unwrap().unwrap().0;
    let facts = stored.facts.unwrap();
    let payload = kvtier::key::EncodedPayload {
        codec: facts.codec,
        key_id: 0,
        raw_len: facts.raw_len,
        raw_crc: facts.raw_crc.map(|crc| crc ^ 1),
    };
    let sums = BlockSums::from_bytes(&stored.bytes);
    let wrong = Facts::encoded(facts.key, facts.namespace, payload, sums);
    assert!(kv.remove(&chunk).unwrap());
    let writer = kv.writer().unwrap();
    let new = NewChunk { facts: &wrong, canonical: b"", payload: &stored.bytes };
    assert!(writer.write(&new).unwrap() && raw.len() as u64 == chunk.len);
    writer.finish().unwrap();
    drop(writer);
    let server = Server::start(Setup::default()).unwrap();
    let name = dir.path().display().to_string();
    let verify = || kvtier_on(&server, &["verify", &name, "--set-aside", "--json"]);
    let found: Value = serde_json::from_slice(&verify().stdout).unwrap();
    assert_eq!(found["damaged"][0]["key"], chunk.label(), "{found}");
    let again = verify();
    assert!(again.status.success(), "{}", said(&again));
    assert_eq!(kv.chunks().unwrap().len(), usize::from(CHUNKS) - 1);
}
