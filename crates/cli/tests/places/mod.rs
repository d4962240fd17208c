//! A directory and a bucket with chunks of two models.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvtier::core::{Ctx, Digest, Key, Namespace, Save, Saved, Tier};
use kvtier::file::{FileConfig, FileTier, Layout};
use kvtier::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;

use crate::support::kvtier_on;

pub const LEN: u64 = 4096;
pub const DAY: Duration = Duration::from_secs(86_400);

/// A chunk of a test: its model, cache salt and number.
pub struct Chunk {
    pub model: &'static str,
    pub salt: &'static str,
    pub number: u8,
}

/// Three chunks of org/a, one of them with a salt, and two of org/b.
pub const CHUNKS: [Chunk; 5] = [
    Chunk { model: "org/a", salt: "", number: 1 },
    Chunk { model: "org/a", salt: "pepper", number: 2 },
    Chunk { model: "org/a", salt: "", number: 3 },
    Chunk { model: "org/b", salt: "", number: 4 },
    Chunk { model: "org/b", salt: "", number: 5 },
];

impl Chunk {
    pub fn key(&self) -> Key {
        let ns = Arc::new(Namespace::new("acme", Digest::derive("layout", b"tests")));
        let id =
            ObjectKey::new(self.model, KvRank(0), 0, ChunkHash::new(&[self.number; 32]), self.salt)
                .unwrap();
        Key::new(ns, KeyId::Object(id))
    }
}

pub fn save(path: &Path, layout: Layout) {
    let config = FileConfig::new(path, 64 << 20).with_layout(layout);
    let tier = FileTier::open(config).unwrap();
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
    for chunk in &CHUNKS {
        let mut lease = arena.lease(LEN as usize).unwrap();
        lease.write_at(0, &[chunk.number; LEN as usize]).unwrap();
        let op = Save { key: chunk.key(), from: vec![lease.freeze()] };
        let done = tier.save(&Ctx::within(Duration::from_secs(600)), vec![op]).wait();
        assert!(matches!(done[0].result, Ok(Saved::Stored)), "{:?}", done[0].result);
    }
    tier.close().wait().unwrap();
}

pub fn kvtier(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words).stdin(Stdio::null()).output().unwrap()
}

pub fn ok(out: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

pub fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A place of chunks: how the command names it, and how the chunks of org/a are made ten days old.
pub trait Place {
    fn name(&self) -> String;
    fn run(&self, words: &[&str]) -> Output;
    fn age_model_a(&self);
}

pub struct Dir(pub tempfile::TempDir);

impl Dir {
    pub fn filled(layout: Layout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        save(&dir.path().join("kv"), layout);
        Dir(dir)
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("kv")
    }

    pub fn file(&self, chunk: &Chunk) -> PathBuf {
        let digest = chunk.key().digest().to_hex();
        self.path().join(&digest[..2]).join(format!("{digest}-{LEN:x}"))
    }
}

impl Place for Dir {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        kvtier(words)
    }

    fn age_model_a(&self) {
        for chunk in &CHUNKS[..3] {
            let file = fs::File::options().write(true).open(self.file(chunk)).unwrap();
            file.set_modified(SystemTime::now() - 10 * DAY).unwrap();
        }
    }
}

pub struct Bucket(pub Server);

impl Bucket {
    pub fn filled() -> Self {
        let server = Server::start(Setup::default()).unwrap();
        let dir = Dir::filled(Layout::Kvtier);
        ok(kvtier_on(&server, &["migrate", &dir.name(), "s3://bucket/kv"]));
        Bucket(server)
    }
}

impl Place for Bucket {
    fn name(&self) -> String {
        "s3://bucket/kv".into()
    }

    fn run(&self, words: &[&str]) -> Output {
        kvtier_on(&self.0, words)
    }

    fn age_model_a(&self) {
        for chunk in &CHUNKS[..3] {
            let digest = chunk.key().digest().to_hex();
            assert!(
                self.0
                    .backdate(&format!("kv/{}/{digest}", &digest[..2]), 10 * DAY.as_secs() as i64)
            );
        }
    }
}

/// Both kinds of places.
pub fn places() -> [Box<dyn Place>; 2] {
    [Box::new(Dir::filled(Layout::Kvtier)), Box::new(Bucket::filled())]
}

pub fn count(place: &dyn Place) -> usize {
    ok(place.run(&["ls", &place.name()])).lines().count()
}
