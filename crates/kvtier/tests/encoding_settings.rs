//! The settings `encode`, `decode_keys` and `encode_bytes`: what they accept, what their errors say,
//! and how keys are read.
#![cfg(all(feature = "config", feature = "file", feature = "s3"))]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvtier::codec::ElementType;
use kvtier::config::{
    CacheGenSpec, Config, ConfigReader, EncodingSpec, EncodingStage, EncryptionKey, KeySource,
    TierSpec,
};
use kvtier::key::{BlockSums, DType, Facts};
use kvtier::{Key, Namespace};

/// Digits of a key, which no message may show.
const KEY: &str = "5ec7e7005ec7e7005ec7e7005ec7e7005ec7e7005ec7e7005ec7e7005ec7e700";

/// A file tier with these settings.
fn file(settings: &str) -> String {
    format!(r#"{{"type":"file","path":"/kv","bytes":"1MiB",{settings}}}"#)
}

/// A bucket with these settings.
fn bucket(settings: &str) -> String {
    format!(r#"{{"type":"s3","s3_endpoint":"s3://b","s3_region":"r",{settings}}}"#)
}

/// A GPU tier with these settings.
#[cfg(feature = "gds")]
fn gpu(settings: &str) -> String {
    format!(r#"{{"type":"gds","path":"/kv","bytes":"1MiB",{settings}}}"#)
}

/// A tier of each type that encodes, with these settings.
fn all(settings: &str) -> Vec<String> {
    vec![
        file(settings),
        #[cfg(feature = "gds")]
        gpu(settings),
        bucket(settings),
    ]
}

/// The encoding of a configuration of one tier.
fn read(tier: &str) -> Result<EncodingSpec, String> {
    let text = format!(r#"{{"tiers":[{tier}]}}"#);
    let read = ConfigReader::new().text(&text, "kv.json").map_err(|e| e.to_string())?;
    Ok(match &read.config.tiers[0] {
        TierSpec::File(spec) => spec.encoding.clone(),
        #[cfg(feature = "gds")]
        TierSpec::Gds(spec) => spec.file.encoding.clone(),
        TierSpec::S3(spec) => spec.encoding.clone(),
        other => panic!("{other:?}"),
    })
}

/// A key file of this text and mode in a directory.
fn key_file(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

#[test]
fn encodings_are_names_or_objects_in_every_tier_that_has_them() {
    let settings = r#""encode":["bf16-split",{"name":"zstd:3"},{"name":"aes-256-gcm","key_command":["vault","x"],"key_id":2,
        "old_keys":[{"key_file":"/k/1","key_id":1}]}],"encode_bytes":"64MiB""#;
    let key = EncryptionKey::new(2, KeySource::Command(vec!["vault".into(), "x".into()]));
    let old = EncryptionKey::new(1, KeySource::File("/k/1".into()));
    for tier in all(settings) {
        let spec = read(&tier).unwrap();
        let expected = [
            EncodingStage::Bf16Split { element_type: None },
            EncodingStage::Named("zstd:3".into()),
            EncodingStage::Aes256Gcm { key: key.clone(), old_keys: vec![old.clone()] },
        ];
        assert_eq!((spec.stages.as_slice(), spec.bytes), (expected.as_slice(), Some(64 << 20)));
    }
    let spec = read(&file(r#""encode":[{"name":"bf16-split","dtype":"float16"},"lz4"]"#)).unwrap();
    let element_type = Some(ElementType::Fp16);
    assert_eq!(spec.stages[0], EncodingStage::Bf16Split { element_type });
    assert!(spec.open().unwrap().is_on());
    let spec = read(&bucket(r#""decode_keys":[{"key_file":"/k/1","key_id":1}]"#)).unwrap();
    assert_eq!((spec.stages.len(), spec.decode_keys), (0, vec![old]));
    for none in [r#""encode":[]"#, r#""encode":null,"decode_keys":null,"encode_bytes":null"#] {
        assert!(all(none).iter().all(|tier| read(tier).unwrap().is_empty()));
    }
}

#[test]
fn wrong_encodings_say_what_and_where_and_show_no_key() {
    let aes = |fields: &str| format!(r#""encode":[{{"name":"aes-256-gcm",{fields}}}]"#);
    let cachegen = |fields: &str| format!(r#""encode":[{{"name":"cachegen",{fields}}}]"#);
    let cases = [
        (r#""encode":"zstd""#.to_owned(), "list"),
        (r#""encode":["zsdt"]"#.to_owned(), r#"did you mean "zstd"?"#),
        (r#""encode":["zstd:99"]"#.to_owned(), "99"),
        (r#""encode":["fp8"]"#.to_owned(), "it has lz4, zstd"),
        (r#""encode":["cachegen"]"#.to_owned(), "kv_width"),
        (r#""encode":[{"name":"cachegen","layers":32}]"#.to_owned(), "kv_width"),
        (cachegen(r#""layers":0,"kv_width":8"#), "layers takes"),
        (cachegen(r#""layers":2,"kv_width":"8""#), "kv_width takes"),
        (cachegen(r#""layers":2,"kv_width":8,"chunk_tokens":99999"#), "32768 tokens"),
        (cachegen(r#""layers":2,"kv_width":8,"kv_heads":8"#), "kv_heads"),
        (
            r#""encode":["bf16-split",{"name":"cachegen","layers":2,"kv_width":8}]"#.to_owned(),
            "after",
        ),
        (r#""encode":[7]"#.to_owned(), "name"),
        (r#""encode":["aes-256-gcm"]"#.to_owned(), "key_file"),
        (r#""encode":["zstd","bf16-split"]"#.to_owned(), "bf16-split"),
        (r#""encode":["zstd","zstd:5"]"#.to_owned(), "zstd"),
        (r#""encode":[{"name":"zstd","level":3}]"#.to_owned(), "level"),
        (r#""encode":[{"name":"bf16-split","dtype":"int8"}]"#.to_owned(), "bfloat16"),
        (aes(r#""key_file":"/k""#), "key_id takes"),
        (aes(r#""key_file":"/k","key_id":0"#), "from 1"),
        (aes(r#""key_file":"/k","key_id":4294967296"#), "from 1"),
        (aes(r#""key_id":1"#), "key_file and key_command are missing"),
        (aes(r#""key_id":1,"key_file":"/k","key_command":["p"]"#), "keep one"),
        (aes(r#""key_id":1,"key_command":"p a""#), "list"),
        (aes(r#""key_id":1,"key_command":[]"#), "list"),
        (aes(&format!(r#""key_id":1,"key":"{KEY}""#)), "key: no setting"),
        (aes(&format!(r#""key_id":1,"key_flie":"{KEY}""#)), r#"did you mean "key_file"?"#),
        (aes(r#""key_id":1,"key_file":"/k","old_keys":[{"key_id":1,"key_file":"/j"}]"#), "twice"),
        (
            aes(r#""key_id":1,"key_file":"/k"}],"decode_keys":[{"key_id":2,"key_file":"/j""#),
            "old_keys",
        ),
        (r#""decode_keys":{"key_id":1}"#.to_owned(), "list"),
        (format!(r#""decode_keys":["{KEY}"]"#), "key_file"),
        (r#""encode":["zstd"],"encode_bytes":0"#.to_owned(), "encode_bytes"),
    ];
    for (settings, says) in cases {
        for tier in all(&settings) {
            let e = read(&tier).unwrap_err();
            assert!(e.contains(says) && e.contains("kv.json: tiers[0]"), "{settings}: {e}");
            assert!(!e.contains(&KEY[..8]), "{e}");
        }
    }
}

#[test]
fn a_lossy_encoding_is_named_in_descriptions_and_warnings() {
    let settings = r#""encode":[{"name":"cachegen","layers":32,"kv_width":1024},"zstd"]"#;
    for tier in all(settings) {
        let spec = read(&tier).unwrap();
        assert_eq!(spec.stages[0], EncodingStage::CacheGen(CacheGenSpec::new(32, 1024)));
        assert!(spec.is_lossy() && spec.open().unwrap().is_lossy());
        let text = format!(r#"{{"tiers":[{{"type":"host","bytes":1}},{tier}]}}"#);
        let parsed = ConfigReader::new().text(&text, "kv.json").unwrap();
        assert!(parsed.notes[0].starts_with("tier "), "{:?}", parsed.notes);
        assert!(parsed.notes[0].contains("lossy") && parsed.notes.len() == 1, "{:?}", parsed.notes);
        let facts = parsed.config.facts(1);
        let expected = "cachegen of 32 layers x 1024 x 256 tokens (lossy), zstd";
        assert!(facts.contains(&("encode", expected.to_owned())), "{facts:?}");
    }
    let text = format!(r#"{{"tiers":[{}]}}"#, file(r#""encode":["bf16-split"]"#));
    let parsed = ConfigReader::new().text(&text, "kv.json").unwrap();
    assert!(parsed.notes.is_empty(), "{:?}", parsed.notes);
}

#[test]
fn only_layout_kvtier_encodes() {
    for settings in [r#""encode":["zstd"]"#, r#""decode_keys":[{"key_id":1,"key_file":"/k"}]"#] {
        let foreign = format!(r#"{settings},"layout":"lmcache-mp""#);
        for tier in all(&foreign) {
            let e = read(&tier).unwrap_err();
            assert!(e.contains("lmcache-mp") && e.contains("tiers[0]"), "{e}");
            let text = format!(r#"{{"tiers":[{tier}]}}"#);
            let opened = Config::from_json(&text, "kv.json").unwrap().open();
            assert!(opened.unwrap_err().to_string().contains("lmcache-mp"));
        }
        let host = format!(r#"{{"type":"host","bytes":1,{settings}}}"#);
        assert!(read(&host).unwrap_err().contains("`file`, `gds` and `s3`"));
    }
    // Without `layout` an object of LMCache's has LMCache's own.
    let adapter = bucket(r#""encode":["zstd"]"#);
    let e = ConfigReader::new().adapters(&[adapter]).unwrap_err().to_string();
    assert!(e.contains("lmcache-mp") && e.contains("encode"), "{e}");
}

#[test]
fn a_key_file_is_read_where_only_its_owner_or_group_can() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: PathBuf| {
        EncryptionKey::new(1, KeySource::File(path)).load().map_err(|e| e.to_string())
    };
    for mode in [0o400, 0o600, 0o640, 0o440, 0o700] {
        load(key_file(dir.path(), "good", &format!("  {KEY}\n"), mode)).unwrap();
        std::fs::remove_file(dir.path().join("good")).unwrap();
    }
    // Mounted secrets are links.
    let target = key_file(dir.path(), "target", &KEY.to_uppercase(), 0o600);
    std::os::unix::fs::symlink(target, dir.path().join("link")).unwrap();
    load(dir.path().join("link")).unwrap();

    let bad = |text: &str, mode| load(key_file(dir.path(), "bad", text, mode)).unwrap_err();
    for (e, says) in [
        (bad(KEY, 0o644), "mode 644"),
        (bad(KEY, 0o660), "mode 660"),
        (bad(KEY, 0o601), "mode 601"),
        (bad("", 0o600), "0 hexadecimal digits"),
        (bad(&KEY[..62], 0o600), "62 hexadecimal digits"),
        (bad(&KEY[..63], 0o600), "63 characters"),
        (bad(&format!("{KEY}xx"), 0o600), "66 characters"),
        (bad(&KEY.repeat(65), 0o600), "longer than 4096"),
        (load(dir.path().join("none")).unwrap_err(), "gen-key"),
        (load(dir.path().to_owned()).unwrap_err(), "no file"),
    ] {
        assert!(e.contains(says) && e.contains("1: key_file "), "{says}: {e}");
        assert!(!e.contains(&KEY[..8]), "{e}");
    }
}

#[test]
fn a_key_command_is_bounded_in_time_and_output() {
    let run = |script: &str| {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        EncryptionKey::new(3, KeySource::Command(words)).load().map_err(|e| e.to_string())
    };
    assert_eq!(run(&format!("echo {KEY}; echo chatter >&2")).unwrap().id(), 3);
    // More than a pipe holds.
    run(&format!("head -c 200000 /dev/zero >&2; echo {KEY}")).unwrap();
    for (script, says) in [
        (format!("echo {KEY}; echo 'no token' >&2; exit 7"), "no token"),
        ("true".to_owned(), "0 hexadecimal digits"),
        (format!("yes {KEY} | head -n 4000"), "longer than 4096"),
        ("exit 7".to_owned(), "7"),
    ] {
        let e = run(&script).unwrap_err();
        assert!(e.contains(says) && e.contains("3: key_command sh"), "{script}: {e}");
        assert!(!e.contains(&KEY[..8]) && !e.contains("-c"), "{e}");
    }
    let absent = KeySource::Command(vec!["/nonexistent/vault".into()]);
    let e = EncryptionKey::new(3, absent).load().unwrap_err().to_string();
    assert!(e.contains("cannot be run"), "{e}");
}

#[test]
fn an_opened_encoding_encrypts_with_the_new_key_and_decrypts_with_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = |id: u32| dir.path().join(id.to_string());
    for id in [1, 2] {
        key_file(dir.path(), &id.to_string(), &format!("{id:064x}"), 0o600);
    }
    let aes = |id: u32, old: &str| {
        let file = path(id);
        read(&file_of(&format!(
            r#"{{"name":"aes-256-gcm","key_file":{file:?},"key_id":{id},"old_keys":[{old}]}}"#
        )))
    };
    let first = aes(1, "").unwrap().open().unwrap();
    let second = aes(2, &format!(r#"{{"key_file":{:?},"key_id":1}}"#, path(1))).unwrap();
    let second = second.open().unwrap();
    let reader = format!(r#""decode_keys":[{{"key_file":{:?},"key_id":2}}]"#, path(2));
    let reader = read(&file(&reader)).unwrap().open().unwrap();
    assert!(!reader.is_on());

    let namespace = Namespace::new("t", Default::default()).with_dtype(DType::BFloat16);
    let key = Key::from_name(&namespace.into(), "a");
    let raw = vec![7; 10_000];
    let saved = |by: &kvtier::codec::TierEncoding| {
        let mut out = vec![0; by.bound(raw.len()).unwrap()];
        let (payload, len) = by.encode(&key, &[&raw], &mut out).unwrap().unwrap();
        out.truncate(len);
        let sums = BlockSums::from_bytes(&out);
        (Facts::encoded(*key.digest(), key.namespace().digest(), payload, sums), out)
    };
    let is_loaded = |by: &kvtier::codec::TierEncoding, (facts, stored): &(Facts, Vec<u8>)| {
        let mut out = vec![0; raw.len()];
        by.decode(facts, stored, &mut [&mut out]).is_ok() && out == raw
    };
    let (one, two) = (saved(&first), saved(&second));
    assert_eq!((one.0.key_id, two.0.key_id), (1, 2));
    assert!(is_loaded(&first, &one) && is_loaded(&second, &one) && is_loaded(&second, &two));
    assert!(is_loaded(&reader, &two) && !is_loaded(&reader, &one) && !is_loaded(&first, &two));
}

fn file_of(stage: &str) -> String {
    file(&format!(r#""encode":["zstd",{stage}]"#))
}

#[test]
fn messages_and_descriptions_show_neither_keys_nor_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), "key", KEY, 0o644);
    let stage = format!(
        r#"{{"name":"aes-256-gcm","key_command":["vault","-token=HIDDEN"],"key_id":2,"old_keys":[{{"key_file":{path:?},"key_id":1}}]}}"#
    );
    let text = format!(r#"{{"tiers":[{}]}}"#, file_of(&stage));
    let read = ConfigReader::new().text(&text, "kv.json").unwrap();
    let facts = read.config.facts(0);
    let shown = format!("{facts:?} {:?} {:?}", read.settings, read.config.tiers);
    assert!(!shown.contains("HIDDEN") && !shown.contains(&KEY[..8]), "{shown}");
    let fact = |name| facts.iter().filter(move |fact| fact.0 == name).map(|fact| fact.1.as_str());
    assert_eq!(fact("encode").collect::<Vec<_>>(), ["zstd, aes-256-gcm with key 2"]);
    let keys: Vec<_> = fact("key").collect();
    assert!(keys[0].contains("key_command vault") && keys[1].contains("mode 644"), "{keys:?}");
}
