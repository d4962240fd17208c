//! A tier over a directory in a foreign layout, and looks into the directory.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{
    Ctx, Digest, Hold, Key, Load, Loaded, Mode, Namespace, Observe, Presence, Save, Saved, Tier,
};
use kvtier_file::{FileConfig, FileTier, Layout};
use kvtier_mem::{Arena, ArenaConfig};

pub const XATTR: &str = "user.kvtier";

pub fn ns() -> Arc<Namespace> {
    Arc::new(Namespace::new("shared", Digest::default()))
}

pub fn key(layout: Layout, name: &str) -> Key {
    Key::new(ns(), layout.key_of(name).unwrap())
}

/// Name number `n` of an MP chunk.
pub fn name(n: u64) -> String {
    format!("org-SEP-m@0x02010201@0@{n:016x}.data")
}

pub fn bytes(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + n * 7 + 1) as u8).collect()
}

pub struct Use {
    pub tier: FileTier,
    pub arena: Arena,
}

impl Use {
    pub fn open(config: FileConfig) -> Self {
        Use {
            tier: FileTier::open(config).unwrap(),
            arena: Arena::new(ArenaConfig::heap(16 << 20)).unwrap(),
        }
    }

    pub fn ctx(&self) -> Ctx {
        Ctx::within(Duration::from_secs(600))
    }

    pub fn load(&self, key: &Key, len: usize) -> (Loaded, Vec<u8>) {
        let into = vec![self.arena.lease(len).unwrap()];
        let done =
            self.tier.load(&self.ctx(), vec![Load { key: key.clone(), into }]).wait().remove(0);
        (done.result.unwrap(), done.op.into[0].as_host().unwrap().to_vec())
    }

    pub fn save(&self, key: &Key, bytes: &[u8]) -> Saved {
        let mut lease = self.arena.lease(bytes.len()).unwrap();
        lease.write_at(0, bytes).unwrap();
        let op = Save { key: key.clone(), from: vec![lease.freeze()] };
        self.tier.save(&self.ctx(), vec![op]).wait().remove(0).result.unwrap()
    }

    pub fn find(&self, key: &Key) -> Presence {
        let looked =
            self.tier.lookup(&self.ctx(), [key.clone()].into(), Mode::Each, Hold::None).wait();
        looked.unwrap().found[0]
    }

    pub fn hits(&self, key: &Key, expected: &[u8]) {
        let len = expected.len() as u64;
        assert_eq!(self.find(key), Presence::Hit { len });
        let (loaded, got) = self.load(key, expected.len());
        assert_eq!(loaded, Loaded::Hit { len });
        assert!(got == expected, "a wrong byte");
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.tier.status().counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    pub fn eventually(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(600);
        while !done() {
            assert!(
                Instant::now() < end,
                "{what}: not within ten minutes; {:?}",
                self.tier.usage()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn config(dir: &Path, layout: Layout) -> FileConfig {
    let fast = Duration::from_millis(20);
    FileConfig::new(dir, 1 << 30).with_layout(layout).with_flush_every(fast).with_sweep_every(fast)
}

/// All files besides our own affairs.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier");
    // One that goes while we look is gone.
    all.filter_map(|file| {
        Some((file.file_name().into_string().unwrap(), fs::read(file.path()).ok()?))
    })
    .collect()
}

pub fn facts(path: &Path) -> Option<Vec<u8>> {
    let mut record = [0; 2048];
    let len = rustix::fs::lgetxattr(path, XATTR, &mut record[..]).ok()?;
    Some(record[..len].to_vec())
}
