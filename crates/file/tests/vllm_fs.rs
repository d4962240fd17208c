//! Directories that vLLM's `fs` tier and kvtier share: what it wrote serves, what kvtier writes is
//! byte for byte what it would have written.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::counter;
use kvtier_core::key::{ChunkHash, Digest, KeyId, KvRank, Namespace, ObjectKey, VllmRunConfig};
use kvtier_core::{ErrorKind, Key, Loaded, MissReason, Observe, Saved, Tier};
use kvtier_disk::inspect::Directory;
use kvtier_file::{FileConfig, FileTier, Layout};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{Content, ModelConfig, ModelTier};
use serde_json::Value;

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

/// The length of each chunk.
const LEN: usize = 8192;

/// An engine of the vectors: its configuration, and its chunks' keys with their names.
struct Engine {
    config: Arc<VllmRunConfig>,
    chunks: Vec<(Key, String)>,
}

fn ns() -> Arc<Namespace> {
    Arc::new(Namespace::new("", Digest::derive("geometry", b"1")).with_partial(false))
}

fn engine(case: &Value) -> Engine {
    let config = VllmRunConfig::from_json(&case["in"]["run_config"].to_string()).unwrap();
    let rank = KvRank(case["out"]["rank"].as_i64().unwrap());
    let chunk = |name: &Value| {
        let hex = name["hash"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let hash: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let group = u32::try_from(name["group"].as_u64().unwrap()).unwrap();
        let id = ObjectKey::new(config.base(), rank, group, ChunkHash::new(&hash), "").unwrap();
        (Key::new(ns(), id.into()), name["name"].as_str().unwrap().to_owned())
    };
    let chunks = case["out"]["names"].as_array().unwrap().iter().map(chunk).collect();
    Engine { config: Arc::new(config), chunks }
}

fn engines() -> Vec<Engine> {
    load::cases("vllm_fs.json").iter().map(engine).collect()
}

fn bytes_of(key: &Key) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Content::of(key).write(0, &mut bytes);
    bytes
}

fn config(dir: &Path, engine: &Engine) -> FileConfig {
    config_of(dir, engine, 1 << 30)
}

fn config_of(dir: &Path, engine: &Engine, capacity_bytes: u64) -> FileConfig {
    let fast = Duration::from_millis(20);
    FileConfig::new(dir, capacity_bytes)
        .with_layout(Layout::VllmFs)
        .with_free_min(0)
        .with_namespace(ns())
        .with_vllm_run_config(Arc::clone(&engine.config))
        .with_flush_every(fast)
        .with_sweep_every(fast)
}

fn open(config: FileConfig) -> (Arc<FileTier>, Fixture) {
    let tier = Arc::new(FileTier::open(config).unwrap());
    let mut f = Fixture::new(ModelTier::open(ModelConfig::default()).unwrap());
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    (tier, f)
}

/// Writes the engine's files as vLLM does.
fn write_as_vllm(dir: &Path, engine: &Engine) {
    let files = engine.chunks.iter().map(|(key, name)| (name.clone(), bytes_of(key)));
    for (name, bytes) in files.chain([(engine.config.path(), engine.config.text().into())]) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// All files below a directory, without kvtier's own.
fn tree(root: &Path, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_name() != ".kvtier") {
        let path = entry.path();
        if path.is_dir() {
            files.extend(tree(root, &path));
        } else {
            files.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap());
        }
    }
    files
}

fn load(f: &Fixture, key: &Key) -> Loaded {
    f.load(key, LEN)
}

#[test]
fn what_vllm_wrote_serves_and_stays_as_it_is() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        write_as_vllm(dir.path(), &engine);
        // What a killed vLLM leaves, and a file of no program.
        let leftover = dir.path().join(format!("{}_77.tmp", engine.chunks[0].1));
        fs::write(&leftover, "half").unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let before = tree(dir.path(), dir.path());
        let (tier, f) = open(config(dir.path(), &engine));
        let used = (engine.chunks.len() * LEN) as u64;
        f.eventually("swept", || tier.usage().used_bytes == Some(used));
        for (key, _) in &engine.chunks {
            assert_eq!(load(&f, key), Loaded::Hit { len: LEN as u64 });
            assert_eq!(f.load(key, LEN / 2), Loaded::Miss(MissReason::Length));
            assert_eq!(f.save(key, LEN), Saved::Present);
        }
        assert_eq!(counter(&tier, "unverified"), 2 * engine.chunks.len() as u64);
        drop((tier, f));
        assert_eq!(tree(dir.path(), dir.path()), before);
        assert_eq!(Directory::detect_layout(dir.path()).unwrap(), Some(Layout::VllmFs));
        let listed = Directory::open(dir.path()).unwrap();
        assert_eq!(listed.chunks().unwrap().len(), engine.chunks.len());
        let mut unknown = listed.summary().unwrap().unknown;
        unknown.sort();
        let paths: Vec<PathBuf> = unknown.into_iter().map(|(path, _)| path).collect();
        let mut expected = [leftover, dir.path().join("notes.txt")];
        expected.sort();
        assert_eq!(paths, expected);
    }
}

#[test]
fn what_kvtier_writes_is_what_vllm_writes_and_is_verified() {
    for engine in engines() {
        let theirs = tempfile::tempdir().unwrap();
        write_as_vllm(theirs.path(), &engine);
        let expected = tree(theirs.path(), theirs.path());
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (tier, f) = open(config(dir.path(), &engine));
            for (key, _) in &engine.chunks {
                assert!(matches!(f.save(key, LEN), Saved::Stored | Saved::Present));
                assert_eq!(load(&f, key), Loaded::Hit { len: LEN as u64 });
            }
            assert_eq!(counter(&tier, "unverified"), 0);
            assert_eq!(tree(dir.path(), dir.path()), expected);
        }
        let listed = Directory::open(dir.path()).unwrap();
        let chunks = listed.chunks().unwrap();
        assert!(chunks.iter().all(|chunk| listed.verify(chunk).unwrap() == Ok(())));
        // One bit, in a file with facts: vLLM would load it.
        let (key, name) = &engine.chunks[0];
        let path = dir.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[LEN / 2] ^= 1;
        rewrite(&path, &bytes);
        let (_, f) = open(config(dir.path(), &engine));
        assert_eq!(load(&f, key), Loaded::Miss(MissReason::Corrupt));
        assert!(!path.exists(), "in quarantine");
        assert_eq!(f.save(key, LEN), Saved::Stored);
        assert_eq!(load(&f, key), Loaded::Hit { len: LEN as u64 });
    }
}

/// Writes into the file that is there, which keeps its attributes.
fn rewrite(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
}

#[test]
fn a_directory_and_keys_of_another_configuration_are_refused() {
    let engines = engines();
    let [one, two, ..] = &engines[..] else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(one.config.base())).unwrap();
    fs::write(dir.path().join(one.config.path()), two.config.text()).unwrap();
    let e = FileTier::open(config(dir.path(), one)).unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("config.json"), "{e}");
    assert!(!dir.path().join(".kvtier").exists(), "nothing was written");
    // Two configurations share a root, each under its own name.
    let (_, f) = open(config(dir.path(), two));
    let refused = |key: &Key| f.save_with(f.save_op(key, LEN)).result.unwrap_err();
    assert_eq!(f.save(&two.chunks[0].0, LEN), Saved::Stored);
    let e = refused(&one.chunks[0].0);
    assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("another one"), "{e}");
    let salted = ObjectKey::new(two.config.base(), KvRank(0), 0, ChunkHash::new(&[1; 32]), "salt");
    let others = [salted.unwrap().into(), KeyId::from_engine_text("m@1@0@5@half").unwrap()];
    for id in others {
        assert_eq!(refused(&Key::new(ns(), id)).kind(), ErrorKind::Unsupported);
    }
    drop(f);
    // The fields lack the layout of the bytes. An engine with the same fields and another layout is
    // refused; one with other fields has names of its own.
    let other = Arc::new(Namespace::new("", Digest::derive("geometry", b"2")).with_partial(false));
    let another_layout = |engine| config(dir.path(), engine).with_namespace(Arc::clone(&other));
    let e = FileTier::open(another_layout(two)).unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("another geometry"), "{e}");
    fs::remove_dir_all(dir.path().join(one.config.base())).unwrap();
    let (_, f) = open(another_layout(one));
    let key = Key::new(other, one.chunks[0].0.id().clone());
    assert_eq!(f.save(&key, LEN), Saved::Stored);
    assert_eq!(load(&f, &key), Loaded::Hit { len: LEN as u64 });
    drop(f);
    // Where the manifest was lost, the facts distinguish chunks of another namespace.
    fs::remove_dir_all(dir.path().join(".kvtier")).unwrap();
    let (_, f) = open(config(dir.path(), one));
    assert_eq!(load(&f, &one.chunks[0].0), Loaded::Miss(MissReason::Absent));
    assert!(dir.path().join(&one.chunks[0].1).exists());
}

#[test]
fn the_cap_counts_the_files_of_all_configurations_and_evicts_the_least_recently_used() {
    let engines = engines();
    let [one, two, ..] = &engines[..] else { return };
    let dir = tempfile::tempdir().unwrap();
    write_as_vllm(dir.path(), one);
    let n = one.chunks.len();
    let config = config_of(dir.path(), two, ((n + 2) * LEN) as u64);
    let (tier, f) = open(config.with_policy(kvtier_disk::PolicyKind::Lru));
    f.eventually("swept", || tier.usage().used_bytes == Some((n * LEN) as u64));
    for (key, _) in &two.chunks {
        assert_eq!(f.save(key, LEN), Saved::Stored);
        assert!(tier.usage().used_bytes.unwrap() <= ((n + 2) * LEN) as u64);
    }
    assert!(two.chunks.iter().all(|(key, _)| matches!(load(&f, key), Loaded::Hit { .. })));
    let left = one.chunks.iter().filter(|(_, name)| dir.path().join(name).exists()).count();
    assert_eq!(left, 2, "those of the other engine go first: this one never used them");
    assert!(dir.path().join(one.config.path()).exists());
}
