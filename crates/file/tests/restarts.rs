//! The state that a directory keeps: the order of use and the cap hold across restarts, crashes and
//! peers.
#![allow(clippy::unwrap_used)]

mod common;

use kvtier_core::{Loaded, Observe, Saved, ShedReason, Tier};
use kvtier_disk::{PolicyKind, Quotas};
use kvtier_file::{Durability, FileTier};
use kvtier_testkit::conformance::Fixture;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;

#[test]
fn the_order_of_use_survives_an_orderly_end() {
    for policy in [PolicyKind::Lru, PolicyKind::Default] {
        let dir = tempfile::tempdir().unwrap();
        let f = Fixture::new(FileTier::open(config(dir.path(), 10).with_policy(policy)).unwrap());
        f.keys(0..10).iter().for_each(|key| assert_eq!(f.save(key, LEN), Saved::Stored));
        assert!(!absent(&f, 0) && !absent(&f, 3));
        drop(f);
        assert!(dir.path().join(".kvtier/snapshot").exists());
        let smaller = config(dir.path(), 4).with_shrink(true).with_policy(policy);
        let f = Fixture::new(FileTier::open(smaller).unwrap());
        let there: Vec<u64> = (0..10).filter(|n| !absent(&f, *n)).collect();
        assert_eq!(there, [0, 3, 8, 9], "{policy}: the least recently used went first");
    }
}

#[test]
fn whose_chunks_are_whose_survives_an_orderly_end_and_a_death() {
    let dir = tempfile::tempdir().unwrap();
    let tenants = |f: &Fixture| {
        let mut all: Vec<(String, u64)> =
            f.tier.usage().tenants.into_iter().map(|t| (t.tenant, t.chunks)).collect();
        all.sort();
        all
    };
    let f = Fixture::new(FileTier::open(config(dir.path(), 10)).unwrap());
    for (tenant, n) in [("a", 1), ("a", 2), ("b", 3)] {
        assert_eq!(f.save(&f.key_of(tenant, n), LEN), Saved::Stored);
    }
    let expected = [("a".to_owned(), 2), ("b".to_owned(), 1)];
    assert_eq!(tenants(&f), expected);
    // Within its interval the journal is written.
    // A process that never opened a tenant has no name for it, but counts it separately.
    let with_a = |dir: &std::path::Path, policy| {
        let quotas = Quotas::new().with("a", 2 * FILE);
        Fixture::new(
            FileTier::open(config(dir, 10).with_policy(policy).with_quotas(quotas)).unwrap(),
        )
    };
    let is_right =
        |f: &Fixture| matches!(&tenants(f)[..], [(a, 2), (b, 1)] if a == "a" && b.starts_with('~'));
    let copy =
        as_left_by_the_dead_at_last(dir.path(), |copy| is_right(&with_a(copy, PolicyKind::Lru)));
    drop(f);
    for (left, policy) in
        [(dir.path(), PolicyKind::IsolatedLru), (copy.path(), PolicyKind::Default)]
    {
        let f = with_a(left, policy);
        assert!(is_right(&f), "{:?}", tenants(&f));
        assert!(matches!(f.load(&f.key_of("b", 3), LEN), Loaded::Hit { .. }));
        assert_eq!(tenants(&f), expected);
        // So its quota holds at once.
        assert_eq!(f.save(&f.key_of("a", 4), LEN), Saved::Stored);
        assert_eq!(tenants(&f), expected);
    }
}

#[test]
fn a_quota_set_at_run_time_holds_from_the_next_save_on() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 40);
    let there = |tenant: &str| {
        (0..8).filter(|n| matches!(f.load(&f.key_of(tenant, *n), LEN), Loaded::Hit { .. })).count()
    };
    for (tenant, n) in (0..6).flat_map(|n| [("a", n), ("b", n)]) {
        assert_eq!(f.save(&f.key_of(tenant, n), LEN), Saved::Stored);
    }
    assert!(f.tier.set_quota("a", Some(3 * FILE)));
    assert_eq!(f.save(&f.key_of("a", 6), LEN), Saved::Stored);
    assert_eq!((there("a"), there("b")), (3, 6));
    assert!(f.tier.set_quota("*", Some(2 * FILE)) && f.tier.set_quota("a", None));
    assert_eq!(f.save(&f.key_of("b", 6), LEN), Saved::Stored);
    assert_eq!((there("a"), there("b")), (3, 2));
    assert!(f.tier.set_quota("*", None));
    assert_eq!(f.save(&f.key_of("b", 7), LEN), Saved::Stored);
    assert_eq!((there("a"), there("b")), (3, 3));
}

#[test]
fn many_writers_of_one_tenant_keep_to_its_quota_while_chunks_go() {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture::new(
        FileTier::open(config(dir.path(), 100).with_quotas(Quotas::new().with("a", 6 * FILE)))
            .unwrap(),
    );
    let used = || {
        f.tier.usage().tenants.iter().find(|one| one.tenant == "a").map_or(0, |one| one.used_bytes)
    };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let f = &f;
            let used = &used;
            scope.spawn(move || {
                for n in 0..50 {
                    let saved = f.save(&f.key_of("a", 1000 * writer + n), LEN);
                    assert!(
                        matches!(saved, Saved::Stored | Saved::Shed(ShedReason::Full)),
                        "{saved:?}"
                    );
                    assert!(used() <= 6 * FILE, "what goes counts until it is gone");
                }
            });
        }
    });
    assert_eq!(f.save(&f.key_of("a", 1), LEN), Saved::Stored);
}

/// However busy its keeper is at that moment: with a flush every millisecond it is mostly in the
/// middle of one.
#[test]
fn an_orderly_end_always_writes_the_order_of_use_down() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..60 {
        let config = config(dir.path(), 100).with_flush_every(Duration::from_millis(1));
        let f = Fixture::new(FileTier::open(config).unwrap());
        assert_eq!(f.save(&f.key(round), LEN), Saved::Stored);
        std::thread::sleep(Duration::from_micros(round * 97 % 3000));
        let _ = fs::remove_file(dir.path().join(".kvtier/snapshot"));
        drop(f);
        assert!(dir.path().join(".kvtier/snapshot").exists(), "round {round}");
    }
}

#[test]
fn the_order_of_use_survives_a_death_but_for_the_last_moments() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 10);
    f.store(&f.keys(0..6), LEN);
    assert!(!absent(&f, 0) && !absent(&f, 1));
    // Within its interval the journal is written.
    as_left_by_the_dead_at_last(dir.path(), |copy| {
        let other = Fixture::new(FileTier::open(config(copy, 3).with_shrink(true)).unwrap());
        let there: Vec<u64> = (0..6).filter(|n| !absent(&other, *n)).collect();
        there == [0, 1, 5]
    });
}

#[test]
fn the_order_of_use_survives_a_snapshot_whose_clock_was_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let ahead = kvtier_core::ManualClock::new();
    ahead.jump(Duration::from_secs(24 * 3600));
    let f = Fixture::new(FileTier::open(config(dir.path(), 10).with_clock(ahead.clock())).unwrap());
    f.store(&f.keys(0..6), LEN);
    drop(f);
    let f = open(dir.path(), 10);
    assert!(!absent(&f, 0) && !absent(&f, 1));
    as_left_by_the_dead_at_last(dir.path(), |copy| {
        let other = Fixture::new(FileTier::open(config(copy, 3).with_shrink(true)).unwrap());
        let there: Vec<u64> = (0..6).filter(|n| !absent(&other, *n)).collect();
        there == [0, 1, 5]
    });
}

#[test]
fn a_torn_snapshot_and_torn_journals_cost_order_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let f = open(dir.path(), 20);
        (0..6)
            .chain([10 + round])
            .for_each(|n| assert_ne!(f.save(&f.key(n), LEN), Saved::Shed(ShedReason::Full)));
        drop(f);
        let own = dir.path().join(".kvtier");
        let snapshot = fs::read(own.join("snapshot")).unwrap();
        let torn = [
            &[][..],
            &snapshot[..snapshot.len() / 2],
            &snapshot[..snapshot.len() - 1],
            b"not a snapshot",
        ];
        fs::write(own.join("snapshot"), torn[round as usize]).unwrap();
        fs::write(own.join("journal/gone.1.0.1"), [&snapshot[..], b"torn"].concat()).unwrap();
        fs::write(own.join("ledger"), "torn").unwrap();
        fs::write(own.join("tenants"), "%\n").unwrap();
        let f = open(dir.path(), 20);
        assert!((0..6).chain(10..=10 + round).all(|n| !absent(&f, n)), "round {round}");
    }
}

#[test]
fn at_the_cap_victims_are_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let tier = Arc::new(FileTier::open(config(dir.path(), 4)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    f.store(&f.keys(0..4), LEN);
    let before = files(dir.path());
    f.store(&f.keys(4..20), LEN);
    assert_eq!(files(dir.path()), before, "the same four files");
    assert_eq!((counter(&tier, "evicted"), counter(&tier, "recycled")), (16, 16));
    assert!((0..16).all(|n| absent(&f, n)) && (16..20).all(|n| !absent(&f, n)));
    // Another length cannot use them.
    assert_eq!(f.save(&f.key(99), LEN / 2), Saved::Stored);
    assert_eq!((counter(&tier, "evicted"), counter(&tier, "recycled")), (17, 16));
    assert!(files_bytes(dir.path()) <= 4 * FILE + FILE / 2);
}

#[test]
fn two_peers_hold_one_cap_and_serve_no_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let chunks = 20;
    let a = open(dir.path(), chunks);
    let b = open(dir.path(), chunks);
    let stop = AtomicBool::new(false);
    let long = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 120 } else { 4 };
    let end = Instant::now() + Duration::from_secs(long);
    let late = end + Duration::from_secs(120);
    let work = |f: &Fixture, seed: u64| {
        let mut seed = kvtier_testkit::Seed::new(seed);
        let mut hits = 0;
        let mut stored = 0;
        // A busy machine needs longer for as much.
        while !stop.load(Ordering::Relaxed)
            || (Instant::now() < late && (hits <= 10 || stored <= 10))
        {
            let key = f.key(seed.below(60));
            stored += u64::from(f.save(&key, LEN) == Saved::Stored);
            // Proves every byte of a hit; a miss must be an honest one, even while the peer
            // writes over the file.
            hits += u64::from(matches!(f.load(&f.key(seed.below(60)), LEN), Loaded::Hit { .. }));
        }
        (hits, stored)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = [(&a, 1), (&a, 2), (&b, 3), (&b, 4)]
            .map(|(f, n)| scope.spawn(move || work(f, n)))
            .into();
        let mut most = 0;
        while Instant::now() < end {
            most = most.max(ledger(dir.path()));
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let (hits, stored) = worker.join().unwrap();
            assert!(hits > 10 && stored > 10, "{hits} hits, {stored} stored");
        }
        assert!(most <= chunks * FILE + FILE / 2, "{most} bytes over a cap of {chunks} chunks");
    });
    assert!(
        ledger(dir.path()) >= files_bytes(dir.path()),
        "it may count too much for a moment, and never too little"
    );
    a.eventually("what both counted equals the bytes on disk", || {
        ledger(dir.path()) == files_bytes(dir.path())
    });
    drop((a, b));
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
    assert!(
        fs::read_dir(dir.path().join(".kvtier/quarantine")).unwrap().next().is_none(),
        "nothing was damaged"
    );
}

#[test]
fn durable_saves_come_back_with_each_way_to_sync() {
    for durability in [Durability::None, Durability::Fdatasync, Durability::Syncfs] {
        let dir = tempfile::tempdir().unwrap();
        let f = Fixture::new(
            FileTier::open(config(dir.path(), 30).with_durability(durability)).unwrap(),
        );
        let ops = (0..16).map(|n| f.save_op(&f.key(n), LEN)).collect();
        for done in f.tier.save(&f.ctx(), ops).wait() {
            assert_eq!(done.result.unwrap(), Saved::Stored);
        }
        let copy = as_left_by_the_dead(dir.path());
        let other = open(copy.path(), 30);
        assert!((0..16).all(|n| !absent(&other, n)), "{durability:?}");
    }
}

#[test]
fn what_a_killed_probe_left_is_swept_and_a_living_ones_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let living = kvtier_file::inspect::Scratch::new(dir.path(), "doctor").unwrap();
    for name in [".kvtier-doctor.1", ".kvtier-probe.77", ".kvtier-bench.5.0"] {
        fs::create_dir_all(dir.path().join(name).join("something")).unwrap();
    }
    let _f = open(dir.path(), 4);
    let scratch = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(".kvtier-");
    let left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().flatten().filter(scratch).map(|e| e.path()).collect();
    assert_eq!(left, [living.path()]);
}

#[test]
fn what_a_dead_peer_had_reserved_is_released_while_others_live() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 20);
    let other = open(dir.path(), 20);
    f.store(&f.keys(0..4), LEN);
    // A process that was killed after it reserved space for five chunks and wrote half of one.
    let tmp = dir.path().join(".kvtier/tmp");
    let living =
        fs::read_dir(&tmp).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let dead = tmp.join(format!("{}.4000000.1.0", living.split('.').next().unwrap()));
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("alive"), "").unwrap();
    fs::write(dead.join("0"), vec![0; FILE as usize]).unwrap();
    set_ledger(dir.path(), 9 * FILE);
    f.eventually("the ledger is right again", || ledger(dir.path()) == 4 * FILE);
    assert!(!dead.exists());
    drop(other);
}

/// As the machine's crash leaves it: the staging directory of a process that started before the
/// machine did.
#[test]
fn what_a_crash_tore_is_counted_apart_from_damage() {
    let dir = tempfile::tempdir().unwrap();
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let booted: u64 =
        stat.lines().find_map(|line| line.strip_prefix("btime ")).unwrap().trim().parse().unwrap();
    let mut f = open(dir.path(), 20);
    for crashed in [false, true] {
        let keys = f.keys(0..2);
        f.store(&keys, LEN);
        drop(f);
        for n in 0..2 {
            let path = kvtier_disk::chunk_file_name::path(
                dir.path(),
                keys[n as usize].digest(),
                LEN as u64,
            );
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&[1; 100], 5000).unwrap();
            // The second is written after the crash.
            let written = Duration::from_secs(if n == 0 { booted - 60 } else { booted + 1 });
            file.set_modified(std::time::UNIX_EPOCH + written).unwrap();
        }
        if crashed {
            let staging =
                dir.path().join(format!(".kvtier/tmp/host.7.{}.0", 1000 * (booted - 600)));
            fs::create_dir(&staging).unwrap();
            fs::write(staging.join("alive"), "").unwrap();
        }
        let tier = Arc::new(FileTier::open(config(dir.path(), 20)).unwrap());
        f = Fixture::new(
            kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
        );
        f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
        for n in 0..2 {
            assert_eq!(f.load(&f.key(n), LEN), Loaded::Miss(kvtier_core::MissReason::Corrupt));
        }
        let counted = (counter(&tier, "quarantined"), counter(&tier, "torn_by_crash"));
        assert_eq!(counted, if crashed { (1, 1) } else { (2, 0) });
    }
}

/// A process that is alone releases the bytes of a missing file at once: no other counts them.
#[test]
fn a_file_that_is_found_deleted_is_counted_no_more_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 20);
    f.store(&f.keys(0..6), LEN);
    let delete = |n| {
        fs::remove_file(kvtier_disk::chunk_file_name::path(
            dir.path(),
            f.key(n).digest(),
            LEN as u64,
        ))
        .unwrap()
    };
    // Found by a load, by a save of the same chunk, and by one that removes it.
    (0..3).for_each(delete);
    assert!(absent(&f, 0));
    assert_eq!(ledger(dir.path()), 5 * FILE);
    assert_eq!(f.save(&f.key(1), LEN), Saved::Stored);
    assert_eq!(ledger(dir.path()), 5 * FILE);
    drop(f.tier.remove(&f.ctx(), f.keys([2])).wait());
    assert_eq!(ledger(dir.path()), 4 * FILE);
    // Among several, one may have been faster with it: it is counted anew a moment later.
    let other = open(dir.path(), 20);
    delete(3);
    assert!(absent(&f, 3));
    f.eventually("the ledger is right", || ledger(dir.path()) == 3 * FILE);
    drop(other);
}

/// Deletes a directory that a tier may make again while we are at it.
fn delete(own: &Path) {
    let away = own.with_file_name("lost+found");
    fs::rename(own, &away).unwrap();
    while away.exists() {
        let _ = fs::remove_dir_all(&away);
    }
}

/// How often the tier reports that it created `.kvtier` again.
fn created_again(tier: &FileTier) -> u64 {
    let times = |reason: &String| {
        reason.split_once("deleted and created again, ")?.1.split_once(' ')?.0.parse().ok()
    };
    tier.status().reasons.iter().find_map(times).unwrap_or(0)
}

#[test]
fn when_its_own_directory_is_deleted_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join(".kvtier");
    let tier = Arc::new(FileTier::open(config(dir.path(), 8)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    let other = open(dir.path(), 8);
    f.store(&f.keys(0..4), LEN);
    for round in 0..3 {
        delete(&own);
        assert!((0..4).all(|n| !absent(&f, n)), "loads go on");
        // A save at once, or after maintenance restored it.
        if round == 1 {
            f.eventually("maintenance creates it again", || own.join("evictor").exists());
        }
        assert_eq!(f.save(&f.key(100), LEN), Saved::Stored, "round {round}");
        assert_eq!(other.save(&other.key(200), LEN), Saved::Stored, "round {round}");
        f.eventually("the ledger is right again", || ledger(dir.path()) == files_bytes(dir.path()));
        // Not as its last fault, of which there may be another meanwhile.
        f.eventually("the status reports it", || created_again(&tier) > round);
        drop(f.tier.remove(&f.ctx(), f.keys([100, 200])).wait());
        drop(other.tier.remove(&f.ctx(), f.keys([100, 200])).wait());
    }
    drop((tier, f, other));
    let f = open(dir.path(), 8);
    assert!((0..4).all(|n| !absent(&f, n)));
    // Where it cannot be created again the error names the cause; it returns when it can.
    while fs::write(&own, "in the way").is_err() {
        delete(&own);
    }
    let failed = f.save_with(f.save_op(&f.key(7), LEN)).result.unwrap_err();
    assert!(
        failed.to_string().contains("`.kvtier` was deleted and cannot be created again"),
        "{failed}"
    );
    fs::remove_file(&own).unwrap();
    assert_eq!(f.save(&f.key(7), LEN), Saved::Stored);
}
