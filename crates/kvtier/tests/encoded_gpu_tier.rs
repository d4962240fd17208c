//! GPU tiers that encode, from their configuration on: what they accept and refuse, and that chunks
//! return to GPU and host memory as they were, over the stand-ins for the GPU's libraries.
#![cfg(all(feature = "config", feature = "gds"))]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{LEN, ctx, hit, key};
use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{Config, ConfigReader, OpenTiers, ParsedConfig, TierSpec};
use kvtier::mem::cuda::{Gpu, GpuStream};
use kvtier::prelude::*;
use kvtier_fakegpu::{Fakes, Report};

const MIB: usize = 1 << 20;

/// The settings of the encoding in every form below.
const STAGES: &str =
    r#"["bf16-split", {"name": "aes-256-gcm", "key_file": "/nonexistent", "key_id": 7}]"#;

fn read(text: &str, name: &str) -> Result<ParsedConfig, String> {
    ConfigReader::new().text(text, name).map_err(|e| e.to_string())
}

/// A GPU tier with these settings, as JSON.
fn gpu(settings: &str) -> String {
    format!(r#"{{"tiers": [{{"type": "gds", "path": "/kv", "bytes": "1MiB", {settings}}}]}}"#)
}

fn assert_encodes(config: &Config, form: &str) {
    let Some(TierSpec::Gds(spec)) = config.tiers.last() else { panic!("{form}: {config:?}") };
    assert_eq!((spec.file.encoding.stages.len(), spec.file.encoding.bytes), (2, Some(64 << 20)));
    assert!(spec.file.encoding.encrypts(), "{form}");
    let facts = config.facts(config.tiers.len() - 1);
    let stages = "bf16-split, aes-256-gcm with key 7";
    assert!(facts.contains(&("encode", stages.to_owned())), "{form}: {facts:?}");
    // The key is read when the tier opens, and its absence is an error then.
    let opened = config.open().unwrap_err().to_string();
    assert!(opened.contains("/nonexistent"), "{form}: {opened}");
}

#[test]
fn a_gpu_tier_encodes_in_every_form_of_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let tier = format!(
        r#"{{"type": "gds", "path": "{path}", "bytes": "1MiB", "encode": {STAGES}, "encode_bytes": "64MiB"}}"#
    );
    let json = format!(r#"{{"tiers": [{tier}]}}"#);
    let yaml = format!(
        "tiers:\n- type: gds\n  path: {path}\n  bytes: 1MiB\n  encode_bytes: 64MiB\n  encode:\n  - bf16-split\n  \
         - {{name: aes-256-gcm, key_file: /nonexistent, key_id: 7}}\n"
    );
    let toml = format!(
        "[[tiers]]\ntype = \"gds\"\npath = \"{path}\"\nbytes = \"1MiB\"\nencode_bytes = \"64MiB\"\n\
         encode = [\"bf16-split\", {{name = \"aes-256-gcm\", key_file = \"/nonexistent\", key_id = 7}}]\n"
    );
    for (name, text) in [("kv.json", &json), ("kv.yaml", &yaml), ("kv.toml", &toml)] {
        assert_encodes(&read(text, name).unwrap().config, name);
    }
    // In LMCache's file, and in its environment.
    let extra = format!(
        r#"{{"storage_plugin.kv.module_path": "kvtier.lmcache", "storage_plugin.kv.class_name": "KvtierGdsBackend", "storage_plugin.kv.tiers": [{tier}]}}"#
    );
    let plugins = "local_cpu: false\nstorage_plugins: [kv]\n";
    let file = Inputs::new().with_file("l.yaml", format!("{plugins}extra_config: {extra}\n"));
    let environment = Inputs::new()
        .with_file("l.yaml", plugins)
        .with_variable("LMCACHE_EXTRA_CONFIG", extra.as_str());
    for (form, inputs) in [("LMCache's file", file), ("LMCache's environment", environment)] {
        let config = LmcacheConfig::read(&inputs.with_lenient(true)).unwrap();
        assert_encodes(&config.stack(0).unwrap().config, form);
    }
    // An object of `--l2-adapter`.
    let adapter = format!(
        r#"{{"type": "plugin", "module_path": "kvtier.lmcache.native", "class_name": "C", "adapter_params": {{"tiers": [{tier}]}}}}"#
    );
    let parsed = ConfigReader::new().adapters(&[adapter]);
    assert_encodes(&parsed.unwrap().config, "an adapter");
}

#[test]
fn decode_keys_and_lossy_stages_are_those_of_every_tier() {
    let keys = r#""decode_keys": [{"key_file": "/k", "key_id": 3}]"#;
    let parsed = read(&gpu(keys), "kv.json").unwrap();
    let Some(TierSpec::Gds(spec)) = parsed.config.tiers.first() else { panic!("{parsed:?}") };
    assert_eq!(spec.file.encoding.decode_keys[0].id, 3);
    assert!(!spec.file.encoding.encrypts());
    let lossy = r#""encode": [{"name": "cachegen", "layers": 32, "kv_width": 1024}]"#;
    let parsed = read(&gpu(lossy), "kv.json").unwrap();
    assert!(parsed.lossy[0].contains("tier gds") && parsed.lossy[0].contains("lossy"));
}

#[test]
fn what_contradicts_an_encoding_is_refused_with_its_remedy() {
    let aes = format!(r#""encode": {STAGES}"#);
    let zstd = r#""encode": ["zstd"]"#;
    let keys = r#""decode_keys": [{"key_file": "/k", "key_id": 3}]"#;
    for layout in ["lmcache-gds", "lmcache-gds-weka", "lmcache-mp", "lmcache", "vllm-fs"] {
        for encoding in [&aes, zstd, keys] {
            let text = gpu(&format!(r#"{encoding}, "layout": "{layout}""#));
            let e = read(&text, "kv.json").unwrap_err();
            let names = ["kv.json: tiers[0] (gds)", layout, "set `layout` to kvtier"];
            assert!(names.iter().all(|name| e.contains(name)), "{e}");
            let opened = Config::from_json(&text, "kv.json").unwrap().open();
            assert!(opened.unwrap_err().to_string().contains(layout));
        }
    }
    // Encrypted chunks never go past host memory.
    let required = |encoding: &str| gpu(&format!(r#"{encoding}, "cufile": "require""#));
    let e = read(&required(&aes), "kv.json").unwrap_err();
    assert!(e.contains("cufile") && e.contains("aes-256-gcm") && e.contains("tiers[0]"), "{e}");
    // Plain chunks of these do, and so do those that zstd leaves as they are.
    for fine in [zstd, keys] {
        read(&required(fine), "kv.json").unwrap();
    }
    // Loads of encoded chunks are verified in any case.
    for fine in ["always", "sample", "off"] {
        read(&gpu(&format!(r#"{aes}, "proof": "{fine}""#)), "kv.json").unwrap();
    }
    let e = read(&gpu(r#""encode": ["zsdt"]"#), "kv.json").unwrap_err();
    assert!(e.contains("tiers[0] ('gds')") && e.contains(r#"did you mean "zstd"?"#), "{e}");
}

/// A GPU of the stand-ins, and tiers over one directory.
struct Bench {
    dir: tempfile::TempDir,
    stream: GpuStream,
    arena: Arena,
}

impl Bench {
    fn new() -> Self {
        let gpu = Gpu::open(0).unwrap();
        let (stream, arena) = (gpu.stream().unwrap(), Arena::device(&gpu, 16 * MIB).unwrap());
        Bench { dir: tempfile::tempdir().unwrap(), stream, arena }
    }

    /// Opens a GPU tier with these settings.
    fn open(&self, settings: &str) -> OpenTiers {
        let text = format!(
            r#"{{"tiers": [{{"type": "gds", "path": {:?}, "bytes": "64MiB", "free_min": 0, "piece": "64KiB", "buffers": "1MiB",
                "staging": "4MiB", {settings}}}]}}"#,
            self.dir.path().join("kv")
        );
        Config::from_json(&text, "kv.json").unwrap().open().unwrap()
    }

    /// A stage that encrypts with a key of the directory.
    fn aes_stage(&self) -> String {
        let path = self.dir.path().join("key");
        if !path.exists() {
            kvtier::config::write_new_key_file(&path).unwrap();
        }
        format!(r#"{{"name": "aes-256-gcm", "key_file": {path:?}, "key_id": 7}}"#)
    }

    /// The settings of a tier that compresses and encrypts.
    fn aes(&self) -> String {
        format!(r#""encode": ["zstd", {}]"#, self.aes_stage())
    }

    /// Saves chunk `n` from the GPU.
    fn save(&self, tier: &dyn Tier, n: u64, len: usize) -> Result<Saved, kvtier::core::Error> {
        let mut lease = self.arena.lease(len).unwrap();
        self.stream.upload(&common::bytes(n, len), &mut lease, 0, || ()).unwrap();
        lease.assume_filled(len);
        let op = Save { key: key(n), from: vec![lease.freeze()] };
        tier.save(&ctx(), vec![op]).wait().remove(0).result
    }

    /// Loads chunk `n` to the GPU, and proves every byte of a hit.
    fn load(&self, tier: &dyn Tier, n: u64, len: usize) -> Loaded {
        let op = Load { key: key(n), into: vec![self.arena.lease(len).unwrap()] };
        let done = tier.load(&ctx(), vec![op]).wait().remove(0);
        let loaded = done.result.unwrap();
        let mut bytes = vec![0; done.op.into[0].init_len()];
        if matches!(loaded, Loaded::Hit { .. }) {
            self.stream.download_lease(&done.op.into[0], 0, &mut bytes).unwrap();
            assert!(bytes == common::bytes(n, len), "a wrong byte in chunk {n}");
        } else {
            assert!(bytes.is_empty(), "a miss with bytes");
        }
        loaded
    }
}

/// The number of files in a directory whose content has `bytes`.
fn files_with(dir: &Path, bytes: &[u8]) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let count = |path: std::path::PathBuf| match path.is_dir() {
        true => files_with(&path, bytes),
        false => {
            let content = std::fs::read(&path).unwrap();
            usize::from(content.windows(bytes.len()).any(|window| window == bytes))
        }
    };
    entries.map(count).sum()
}

#[test]
fn chunks_of_a_gpu_are_stored_encoded_and_load_as_they_were() {
    let body = || {
        let bench = Bench::new();
        let first = bench.open(&bench.aes());
        for (n, len) in (1..).zip([1, 4096, LEN, MIB + 777]) {
            assert_eq!(bench.save(&*first.top, n, len).unwrap(), Saved::Stored);
            assert_eq!(bench.load(&*first.top, n, len), hit(len));
            // The same in host memory, for a caller without a GPU.
            assert_eq!(common::load(&*first.top, &common::arena(), n, len), hit(len));
        }
        let status = first.tiers[0].status();
        assert_eq!((status.counter("encoded_chunks"), status.counter("decoded_chunks")), (4, 8));
        assert_eq!(status.counter("uploaded_bytes") as usize, 1 + 4096 + LEN + MIB + 777);
        first.top.close().wait().unwrap();
        drop(first);
        let clear = &common::bytes(4, MIB)[..64];
        assert_eq!(files_with(&bench.dir.path().join("kv"), clear), 0, "stored in clear");

        // A tier without the key misses, keeps the file, and replaces it with the next save.
        let without = bench.open(r#""encode": ["zstd"]"#);
        assert_eq!(bench.load(&*without.top, 3, LEN), Loaded::Miss(MissReason::KeyMissing));
        assert_eq!(bench.save(&*without.top, 3, LEN).unwrap(), Saved::Stored);
        assert_eq!(bench.load(&*without.top, 3, LEN), hit(LEN));
        without.top.close().wait().unwrap();
        drop(without);
        // A tier that has the key for loads alone.
        let keys = format!(
            r#""decode_keys": [{{"key_file": {:?}, "key_id": 7}}]"#,
            bench.dir.path().join("key")
        );
        let reader = bench.open(&keys);
        assert_eq!(bench.load(&*reader.top, 4, MIB + 777), hit(MIB + 777));
        assert_eq!(bench.load(&*reader.top, 3, LEN), hit(LEN));
        reader.top.close().wait().unwrap();
        drop(reader);
        let again = bench.open(&bench.aes());
        assert_eq!(bench.load(&*again.top, 3, LEN), Loaded::Miss(MissReason::Codec));
        assert_eq!(bench.load(&*again.top, 2, 4096), hit(4096));
        again.top.close().wait().unwrap();
        drop((again, bench));
    };
    let name = "chunks_of_a_gpu_are_stored_encoded_and_load_as_they_were";
    Fakes::new().run(name, body, Report::assert_clean);
}

#[test]
fn the_memory_for_encoding_is_what_encode_bytes_says() {
    let body = || {
        let bench = Bench::new();
        // What is stored is as long as the chunk.
        let aes = format!(r#""encode": [{}]"#, bench.aes_stage());
        let small = bench.open(&format!(r#"{aes}, "encode_bytes": "1MiB""#));
        // Half of it is for saves: a chunk that never fits is refused, and says what to raise.
        let e = bench.save(&*small.top, 1, MIB).unwrap_err().to_string();
        assert!(e.contains("raise encode_bytes"), "{e}");
        assert_eq!(bench.save(&*small.top, 2, LEN).unwrap(), Saved::Stored);
        assert_eq!(bench.load(&*small.top, 2, LEN), hit(LEN));
        // A load into GPU memory needs space for the raw bytes beside the file, one into host memory
        // for the file alone.
        let large = 512 * 1024 - 12 * 1024;
        assert_eq!(bench.save(&*small.top, 3, large).unwrap(), Saved::Stored);
        assert_eq!(bench.load(&*small.top, 3, large), Loaded::Miss(MissReason::TooLarge));
        assert_eq!(common::load(&*small.top, &common::arena(), 3, large), hit(large));
        let status = small.tiers[0].status();
        let reasons = status.reasons.join("\n");
        assert!(reasons.contains("raise encode_bytes"), "{reasons}");
        small.top.close().wait().unwrap();
        drop(small);
        // With the default it fits.
        let tiers = bench.open(&aes);
        assert_eq!(bench.load(&*tiers.top, 3, large), hit(large));
        assert_eq!(bench.save(&*tiers.top, 1, MIB).unwrap(), Saved::Stored);
        tiers.top.close().wait().unwrap();
        drop((tiers, bench));
    };
    let name = "the_memory_for_encoding_is_what_encode_bytes_says";
    Fakes::new().run(name, body, Report::assert_clean);
}
