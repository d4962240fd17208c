//! The file tier over real files, with both engines: what comes back is what went in, and damaged
//! files are misses.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::mem::{Arena, ArenaConfig};
use kvtier_core::{
    Ctx, Digest, Hold, Key, Load, Loaded, MissReason, Mode, Namespace, Observe, Save, Saved, Tier,
};
use kvtier_file::{EngineKind, FileConfig, FileTier, Layout};
use kvtier_testkit::conformance::Fixture;

const ENGINES: [EngineKind; 2] = [EngineKind::Auto, EngineKind::Threads];

fn key(n: u32) -> Key {
    let ns = Arc::new(Namespace::new("test", Digest::derive("test", b"layout")));
    let hash = ChunkHash::new(&n.to_be_bytes());
    Key::new(
        ns,
        KeyId::Object(ObjectKey {
            model: "m".into(),
            rank: KvRank(0),
            group: 0,
            hash,
            salt: "".into(),
        }),
    )
}

fn content(n: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(n.wrapping_mul(97)) >> 13) as u8)
        .collect()
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(600))
}

fn open(dir: &Path, engine: EngineKind) -> FileTier {
    FileTier::open(FileConfig::new(dir, 1 << 30).with_engine(engine)).unwrap()
}

fn save(tier: &FileTier, arena: &Arena, n: u32, len: usize) -> Saved {
    let mut lease = arena.lease(len).unwrap();
    lease.write_at(0, &content(n, len)).unwrap();
    let done = tier.save(&ctx(), vec![Save { key: key(n), from: vec![lease.freeze()] }]).wait();
    *done[0].result.as_ref().unwrap()
}

fn load(tier: &FileTier, arena: &Arena, n: u32, len: usize) -> (Loaded, Vec<u8>) {
    let op = Load { key: key(n), into: vec![arena.lease(len).unwrap()] };
    let mut done = tier.load(&ctx(), vec![op]).wait();
    let done = done.pop().unwrap();
    (done.result.unwrap(), done.op.into[0].as_host().unwrap().to_vec())
}

fn file_of(dir: &Path, n: u32, len: usize) -> PathBuf {
    kvtier_disk::chunk_file_name::path(dir, key(n).digest(), len as u64)
}

#[test]
fn every_length_comes_back_with_both_engines_and_from_a_new_process_state() {
    let lens = [1, 4095, 4096, 4097, 65_536, 300_001, 1 << 20, (9 << 20) + 17];
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let arena = Arena::new(ArenaConfig::heap(64 << 20)).unwrap();
        let tier = open(dir.path(), engine);
        tier.register(&arena).unwrap();
        for (n, len) in (0u32..).zip(lens) {
            assert_eq!(save(&tier, &arena, n, len), Saved::Stored);
            assert_eq!(save(&tier, &arena, n, len), Saved::Present);
        }
        let again = open(dir.path(), engine);
        for tier in [&tier, &again] {
            for (n, len) in (0u32..).zip(lens) {
                let (loaded, bytes) = load(tier, &arena, n, len + 5000);
                assert_eq!(loaded, Loaded::Hit { len: len as u64 });
                assert!(bytes == content(n, len), "{len} bytes");
                assert_eq!(load(tier, &arena, n, len - 1).0, Loaded::Miss(MissReason::Length));
            }
        }
        drop((tier, again));
        assert_eq!(arena.stats().free, arena.stats().capacity);
    }
}

#[test]
fn unaligned_and_split_memory_is_bounced_and_right() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::new(ArenaConfig::heap(16 << 20)).unwrap();
    let tier = open(dir.path(), EngineKind::Auto);
    let bytes = content(7, 100_000);
    let mut lease = arena.lease(100_003).unwrap();
    lease.write_at(0, &[0, 0, 0]).unwrap();
    lease.write_at(3, &bytes).unwrap();
    let view = lease.freeze();
    let from = vec![view.slice(3..50_000), view.slice(50_000..100_003)];
    let done = tier.save(&ctx(), vec![Save { key: key(7), from }]).wait();
    assert_eq!(*done[0].result.as_ref().unwrap(), Saved::Stored);
    let (head, tail) = arena.lease(100_000).unwrap().split_at(33_333);
    let done = tier.load(&ctx(), vec![Load { key: key(7), into: vec![head, tail] }]).wait();
    assert_eq!(*done[0].result.as_ref().unwrap(), Loaded::Hit { len: 100_000 });
    let got: Vec<u8> = done[0].op.into.iter().flat_map(|l| l.as_host().unwrap().to_vec()).collect();
    assert!(got == bytes);
    assert!(tier.status().counter("copied_bounce_bytes") > 0);
}

/// Damages one byte of every class of bytes a file has, and the file as a whole: each time a miss,
/// counted, and the file quarantined.
#[test]
fn damage_of_any_kind_is_a_miss_and_the_file_is_quarantined() {
    type Damage = Box<dyn Fn(&Path, &Path)>;
    let len = 300_001usize;
    let size = len.next_multiple_of(4096) as u64 + 4096;
    let flip = |at: u64| -> Damage {
        Box::new(move |path, _| {
            let mut bytes = fs::read(path).unwrap();
            bytes[at as usize] ^= 0x10;
            fs::write(path, bytes).unwrap();
        })
    };
    let resize = |to: u64| -> Damage {
        Box::new(move |path, _| {
            fs::File::options().write(true).open(path).unwrap().set_len(to).unwrap()
        })
    };
    let zero = |from: u64, to: u64| -> Damage {
        Box::new(move |path, _| {
            let mut bytes = fs::read(path).unwrap();
            bytes[from as usize..to as usize].fill(0);
            fs::write(path, bytes).unwrap();
        })
    };
    let footer = size - 4096;
    let mut damages: Vec<Damage> =
        vec![Box::new(|path, other| assert!(fs::copy(other, path).unwrap() > 0))];
    // payload: first, middle, last whole page; tail; padding; footer: magic, length, facts, sums,
    // key, zeros.
    for at in [
        0,
        150_000,
        290_000,
        len as u64 - 1,
        len as u64,
        footer - 1,
        footer,
        footer + 8,
        footer + 20,
        footer + 150,
        footer + 200,
        size - 1,
    ] {
        damages.push(flip(at));
    }
    for to in [0, 1, 4096, size - 1, size - 4096, size + 1, size + 4096, 2 * size] {
        damages.push(resize(to));
    }
    for (from, to) in
        [(0, 4096), (0, size), (footer, size), (footer + 12, footer + 400), (65_536, 131_072)]
    {
        damages.push(zero(from, to));
    }
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let arena = Arena::new(ArenaConfig::heap(16 << 20)).unwrap();
        let tier = open(dir.path(), engine);
        save(&tier, &arena, 1000, len);
        for (i, damage) in damages.iter().enumerate() {
            let n = i as u32;
            assert_eq!(save(&tier, &arena, n, len), Saved::Stored);
            let path = file_of(dir.path(), n, len);
            damage(&path, &file_of(dir.path(), 1000, len));
            let (loaded, bytes) = load(&tier, &arena, n, len);
            assert_eq!(loaded, Loaded::Miss(MissReason::Corrupt), "damage {i}");
            assert!(bytes.is_empty());
            assert_eq!(
                save(&tier, &arena, n, len),
                Saved::Stored,
                "a suspect key is written again"
            );
            assert_eq!(load(&tier, &arena, n, len).1, content(n, len));
        }
        assert_eq!(tier.status().counter("misses_corrupt"), damages.len() as u64);
        tier.close().wait().unwrap();
        drop(tier);
        let quarantined = fs::read_dir(dir.path().join(".kvtier/quarantine")).unwrap().count();
        assert_eq!(quarantined, damages.len(), "every damaged file is quarantined");
    }
}

#[test]
fn the_cap_holds_and_the_oldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::new(ArenaConfig::heap(16 << 20)).unwrap();
    let tier = FileTier::open(
        FileConfig::new(dir.path(), 10 * 69_632).with_policy(kvtier_disk::PolicyKind::Lru),
    )
    .unwrap();
    for n in 0..50 {
        assert_eq!(save(&tier, &arena, n, 65_536), Saved::Stored);
        assert!(tier.usage().used_bytes.unwrap() <= 10 * 69_632);
    }
    let keys: Arc<[Key]> = (0..50).map(key).collect();
    let found = tier.lookup(&ctx(), keys, Mode::Each, Hold::None).wait().unwrap().found;
    assert!(found[..40].iter().all(|p| !p.is_hit()) && found[42..].iter().all(|p| p.is_hit()));
}

#[test]
fn a_file_of_another_process_is_found_and_a_deleted_one_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::new(ArenaConfig::heap(16 << 20)).unwrap();
    let ours = open(dir.path(), EngineKind::Auto);
    let theirs = open(dir.path(), EngineKind::Auto);
    save(&theirs, &arena, 1, 65_536);
    assert_eq!(load(&ours, &arena, 1, 65_536).1, content(1, 65_536));
    save(&theirs, &arena, 2, 65_536);
    let keys: Arc<[Key]> = [key(2)].into();
    assert!(ours.lookup(&ctx(), keys, Mode::Each, Hold::None).wait().unwrap().found[0].is_hit());
    fs::remove_file(file_of(dir.path(), 2, 65_536)).unwrap();
    assert_eq!(load(&ours, &arena, 2, 65_536).0, Loaded::Miss(MissReason::Absent));
    assert_eq!(ours.usage().chunks, 1);
}

#[test]
fn a_foreign_directory_is_refused_and_nothing_in_it_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    let e = FileTier::open(FileConfig::new(dir.path(), 1 << 30)).unwrap_err();
    assert!(
        e.to_string().contains("not a kvtier directory") && e.to_string().contains("thesis.tex"),
        "{e}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn no_byte_is_copied_but_those_of_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
    let tier = open(dir.path(), EngineKind::Auto);
    let counters = || {
        ["copied_tail_bytes", "copied_bounce_bytes", "summed_save_bytes"]
            .map(|name| tier.status().counter(name))
    };
    let len = 300_001;
    let whole = 299_008;
    save(&tier, &arena, 1, len);
    assert_eq!(
        counters(),
        [len as u64 - whole, 0, len as u64],
        "the last partial page, and one pass for the sums"
    );
    load(&tier, &arena, 1, len);
    assert_eq!(counters(), [2 * (len as u64 - whole), 0, len as u64]);
    save(&tier, &arena, 2, 1 << 20);
    load(&tier, &arena, 2, 1 << 20);
    assert_eq!(counters()[..2], [2 * (len as u64 - whole), 0], "whole pages are not copied");

    // The same view again: its sums are known.
    let mut lease = arena.lease(8192).unwrap();
    lease.write_at(0, &content(3, 8192)).unwrap();
    let view = lease.freeze();
    let before = counters()[2];
    for n in [3, 4] {
        let done = tier.save(&ctx(), vec![Save { key: key(n), from: vec![view.clone()] }]).wait();
        assert_eq!(*done[0].result.as_ref().unwrap(), Saved::Stored);
    }
    assert_eq!(counters()[2], before + 8192);
}

/// Also those of no bytes, wherever they are: direct or through bounce memory.
#[test]
fn leases_come_back_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture::new(FileTier::open(FileConfig::new(dir.path(), 1 << 26)).unwrap());
    let len = 3 * 4096 + 1000;
    assert_eq!(f.save(&f.key(1), len), Saved::Stored);
    for lens in [
        &[0, 8192, 0, 0, 4096, 4096, 0][..],
        &[0, 0, 16_384],
        &[16_384, 0, 4096],
        &[0, 5000, 0, 9000],
        &[0, 100, 0],
    ] {
        let into: Vec<_> = lens.iter().map(|len| f.arena.lease(*len).unwrap()).collect();
        let places = |into: &[kvtier_core::Lease]| {
            into.iter().map(|l| (l.addr(), l.len())).collect::<Vec<_>>()
        };
        let before = places(&into);
        let done = f.load_with(Load { key: f.key(1), into });
        let fits = lens.iter().sum::<usize>() >= len;
        assert_eq!(matches!(done.result.unwrap(), Loaded::Hit { .. }), fits, "{lens:?}");
        assert_eq!(places(&done.op.into), before, "{lens:?}");
        let bytes: Vec<u8> =
            done.op.into.iter().flat_map(|lease| lease.as_host().unwrap().to_vec()).collect();
        assert!(
            !fits || kvtier_testkit::Content::of(&f.key(1)).check(0, &bytes[..len]) == Ok(()),
            "{lens:?}"
        );
    }
}

/// However it is asked for: answered in the call, or on a thread of the tier's.
#[test]
fn a_lookup_whose_answer_is_dropped_holds_nothing() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let config = FileConfig::new(dir.path(), 1 << 26).with_layout(layout);
        let f = Fixture::new(FileTier::open(config).unwrap()).with_one_namespace();
        assert_eq!(f.save(&f.key(1), 5000), Saved::Stored);
        let hold = Hold::For(Duration::from_secs(3600));
        let lookup = |n| f.tier.lookup(&f.ctx(), [f.key(n), f.key(1)].into(), Mode::Each, hold);
        (0..100).for_each(|n| drop(lookup(n)));
        let kept = lookup(0).wait().unwrap().hold.unwrap();
        f.tier.release(kept);
        let removed = || f.tier.remove(&f.ctx(), [f.key(1)].into()).wait().unwrap();
        // Those that another thread answers may come a moment later.
        f.eventually("nothing holds it", || removed().held == 0);
        assert_eq!(removed().absent, 1, "{layout}");
    }
}
