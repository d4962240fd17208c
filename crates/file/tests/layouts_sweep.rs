//! Files that other programs write into a directory of a foreign layout, and delete: sweeps count
//! them, a deleted file is released once, and the cap holds.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use kvtier_core::{Cursor, Loaded, MissReason, Observe, Presence, Saved, ShedReason, Tier};
use kvtier_file::{FileConfig, Layout};

mod common_layouts;

use common_layouts::*;

#[test]
fn what_others_write_and_delete_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(ns()));
    let key = |n| key(Layout::LmcacheMp, &name(n));
    (0..4).for_each(|n| assert_eq!(it.save(&key(n), &bytes(n, 6000)), Saved::Stored));
    // Found by lookup and by load before any sweep, and counted by it.
    (4..8).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 7000)).unwrap());
    (4..8).for_each(|n| it.hits(&key(n), &bytes(n, 7000)));
    it.eventually("counted", || {
        it.tier.usage().used_bytes == Some(4 * 13_000) && it.tier.usage().chunks == 8
    });
    // Gone before a sweep can know: a miss.
    (0..2).for_each(|n| fs::remove_file(dir.path().join(name(n))).unwrap());
    (0..2).for_each(|n| assert_eq!(it.load(&key(n), 6000).0, Loaded::Miss(MissReason::Absent)));
    assert_eq!(it.find(&key(0)), Presence::Miss);
    // Gone and never asked for again: the sweep forgets it.
    fs::remove_file(dir.path().join(name(4))).unwrap();
    it.eventually("forgotten", || it.tier.usage().used_bytes == Some(2 * 6000 + 3 * 7000));
    // Written anew by another program, with another length.
    fs::write(dir.path().join("new"), bytes(9, 100)).unwrap();
    fs::rename(dir.path().join("new"), dir.path().join(name(2))).unwrap();
    assert_eq!(it.load(&key(2), 100), (Loaded::Hit { len: 100 }, bytes(9, 100)));
    it.hits(&key(2), &bytes(9, 100));
    let page = it.tier.keys(Cursor::default(), 100);
    let mut lens: Vec<u64> = page.keys.iter().map(|info| info.len).collect();
    lens.sort_unstable();
    assert_eq!(lens, [100, 6000, 7000, 7000, 7000]);
}

#[test]
fn usage_and_cap_return_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let key = |n| key(Layout::LmcacheMp, &name(n));
    let it = Use::open(config(dir.path(), Layout::LmcacheMp));
    (0..10).for_each(|n| assert_eq!(it.save(&key(n), &bytes(n, 50_000)), Saved::Stored));
    it.hits(&key(0), &bytes(0, 50_000));
    drop(it);
    let config = |chunks: u64| {
        let mut config = FileConfig::new(dir.path(), chunks * 50_000)
            .with_policy(kvtier_disk::PolicyKind::Lru)
            .with_layout(Layout::LmcacheMp);
        config = config
            .with_flush_every(Duration::from_millis(20))
            .with_sweep_every(Duration::from_millis(20));
        config.with_namespace(ns())
    };
    let it = Use::open(config(20));
    assert_eq!(it.tier.usage().chunks, 10, "names are listed at once");
    it.eventually("swept", || it.tier.usage().used_bytes == Some(500_000));
    drop(it);
    // Another program writes meanwhile; a smaller cap is brought about after the sweep, in the
    // order of use.
    (10..12).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap());
    let it = Use::open(config(5));
    it.eventually("swept", || it.tier.usage().used_bytes == Some(600_000));
    assert_eq!(
        it.save(&key(20), &bytes(20, 50_000)),
        Saved::Shed(ShedReason::Full),
        "nothing is evicted by default"
    );
    assert_eq!(files(dir.path()).len(), 12);
    assert!(
        it.tier.status().reasons.iter().any(|reason| reason.contains("shrink")),
        "{:?}",
        it.tier.status()
    );
    drop(it);
    let it = Use::open(config(5).with_shrink(true));
    it.eventually("under the cap", || {
        it.tier.usage().used_bytes.is_some_and(|used| used <= 250_000)
    });
    assert_eq!(files(dir.path()).len(), 5);
    assert!(dir.path().join(name(0)).exists(), "the most recently used stays");
    for n in 20..40 {
        assert_eq!(it.save(&key(n), &bytes(n, 50_000)), Saved::Stored);
        assert!(files(dir.path()).len() <= 5);
    }
    it.hits(&key(39), &bytes(39, 50_000));
    assert_eq!(it.counter("recycled"), 0, "others may be reading what is evicted");
    assert_eq!(it.save(&key(50), &bytes(50, 250_001)), Saved::Shed(ShedReason::TooLarge));
    // What another program adds is brought under the cap too.
    (40..45).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap());
    it.eventually("under the cap again", || files(dir.path()).len() <= 5);
}

/// Changes a byte of the manifest that is not in its text.
fn damage_manifest(dir: &Path) {
    let path = dir.join(".kvtier/manifest");
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Whether a sweep found more than the cap, and none noted.
fn is_refused(it: &Use) -> bool {
    it.tier.status().reasons.iter().any(|reason| reason.contains("notes no cap"))
}

#[test]
fn files_of_others_that_never_had_a_cap_stay_when_the_manifest_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let write = |n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap();
    (0..9).for_each(write);
    let config = || {
        FileConfig::new(dir.path(), 5 * 50_000)
            .with_layout(Layout::LmcacheMp)
            .with_sweep_every(Duration::from_millis(20))
            .with_namespace(ns())
    };
    let it = Use::open(config());
    it.eventually("refused", || is_refused(&it));
    damage_manifest(dir.path());
    it.eventually("renamed", || dir.path().join(".kvtier/manifest.damaged").exists());
    // Two sweeps later.
    for n in 9..11 {
        write(n);
        it.eventually("counted", || it.tier.usage().used_bytes == Some((n + 1) * 50_000));
    }
    drop(it);
    // Less than twice the cap.
    (0..2).for_each(|n| fs::remove_file(dir.path().join(name(n))).unwrap());
    let it = Use::open(config());
    it.eventually("refused again", || is_refused(&it));
    it.eventually("swept", || it.tier.usage().used_bytes == Some(9 * 50_000));
    assert_eq!(
        it.save(&key(Layout::LmcacheMp, &name(20)), &bytes(20, 50_000)),
        Saved::Shed(ShedReason::Full)
    );
    assert_eq!(files(dir.path()).len(), 9);
}

#[test]
fn a_cap_that_damage_lost_is_held_again_up_to_twice_of_it() {
    for (n_files, left) in [(9, 5), (11, 11)] {
        let dir = tempfile::tempdir().unwrap();
        let config = |chunks: u64| {
            FileConfig::new(dir.path(), chunks * 50_000)
                .with_layout(Layout::LmcacheMp)
                .with_sweep_every(Duration::from_millis(20))
                .with_namespace(ns())
        };
        let noted = || fs::read_to_string(dir.path().join(".kvtier/manifest")).unwrap();
        let it = Use::open(config(5));
        it.eventually("noted", || noted().contains("\ncapacity: 250000\n"));
        drop(it);
        // As if a crash had brought them back.
        (0..n_files).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap());
        damage_manifest(dir.path());
        let it = Use::open(config(5));
        it.eventually("held or refused", || {
            is_refused(&it) == (left > 5) && it.tier.usage().used_bytes == Some(left * 50_000)
        });
        assert_eq!(files(dir.path()).len() as u64, left);
    }
}

/// On this thread and those it starts, files of others are closed as they are to any user but root.
fn as_unprivileged(dir: &Path) {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(dir, Some(65534), None).unwrap();
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_counted_and_stops_neither_sweep_nor_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let work = || {
        let put = |n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap();
        (0..3).for_each(put);
        fs::set_permissions(
            dir.path().join(name(1)),
            std::os::unix::fs::PermissionsExt::from_mode(0o0),
        )
        .unwrap();
        as_unprivileged(dir.path());
        let mut config = FileConfig::new(dir.path(), 5 * 50_000)
            .with_policy(kvtier_disk::PolicyKind::Lru)
            .with_layout(Layout::LmcacheMp)
            .with_namespace(ns());
        config = config.with_sweep_every(Duration::from_millis(20));
        let it = Use::open(config);
        it.eventually("all are counted", || it.tier.usage().used_bytes == Some(150_000));
        assert_eq!(it.counter("io_errors"), 1);
        let said = |reason: &String| reason.contains(&name(1));
        assert!(it.tier.status().reasons.iter().any(said), "{:?}", it.tier.status());
        (3..9).for_each(put);
        it.eventually("under the cap", || files_there(dir.path()) <= 5);
        assert_ne!(it.find(&key(Layout::LmcacheMp, &name(1))), Presence::Hit { len: 50_000 });
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

fn files_there(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier").count()
}

#[test]
fn what_another_program_wrote_since_a_sweep_is_not_released_when_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        FileConfig::new(dir.path(), 1 << 20).with_layout(Layout::LmcacheMp).with_namespace(ns());
    let it = Use::open(config.with_sweep_every(Duration::from_secs(3600)));
    let counted = || {
        let ledger = fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        u64::from_le_bytes(ledger[8..16].try_into().unwrap())
    };
    let ours = key(Layout::LmcacheMp, &name(1));
    let theirs = key(Layout::LmcacheMp, &name(2));
    let late = Instant::now() + Duration::from_secs(600);
    while it.tier.usage().used_bytes.is_none() {
        assert!(Instant::now() < late);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(it.save(&ours, &bytes(1, 8192)), Saved::Stored);
    fs::write(dir.path().join(name(2)), bytes(2, 7000)).unwrap();
    it.hits(&theirs, &bytes(2, 7000));
    let before = counted();
    for (key, less) in [(theirs, 0), (ours, 8192)] {
        assert_eq!(it.tier.remove(&it.ctx(), [key].into()).wait().unwrap().removed, 1);
        assert_eq!(counted(), before - less);
    }
}

#[test]
fn a_sweep_counts_unfinished_files_of_peers() {
    let dir = tempfile::tempdir().unwrap();
    drop(Use::open(config(dir.path(), Layout::LmcacheMp)));
    // A living peer in the middle of a save.
    let staging = dir.path().join(".kvtier/tmp/elsewhere.1.1.0");
    fs::create_dir(&staging).unwrap();
    let alive = fs::File::create(staging.join("alive")).unwrap();
    alive.lock().unwrap();
    fs::write(staging.join("0"), [0; 7000]).unwrap();
    fs::write(dir.path().join(name(1)), bytes(1, 5000)).unwrap();
    let ledger = || {
        let bytes = fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        bytes.get(8..16).map_or(0, |total| u64::from_le_bytes(total.try_into().unwrap()))
    };
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(ns()));
    it.eventually("both are counted", || ledger() == 12_000);
    fs::remove_file(staging.join("0")).unwrap();
    it.eventually("what was given up is not", || ledger() == 5000);
}

#[test]
fn two_tiers_and_another_program_share_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Use::open(
            FileConfig::new(dir.path(), 20 * 50_000)
                .with_policy(kvtier_disk::PolicyKind::Lru)
                .with_layout(Layout::LmcacheMp),
        )
    };
    let a = open();
    let b = open();
    let key = |n| key(Layout::LmcacheMp, &name(n));
    let end = Instant::now() + Duration::from_secs(3);
    let late = Instant::now() + Duration::from_secs(120);
    let work = |it: &Use, mut seed: u64| {
        let mut hits = 0;
        // A busy machine needs longer for as much.
        while Instant::now() < end || (Instant::now() < late && hits <= 10) {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let n = (seed >> 33) % 60;
            let m = (seed >> 40) % 60;
            let saved = it.save(&key(n), &bytes(n, 50_000));
            assert!(matches!(saved, Saved::Stored | Saved::Present | Saved::Shed(_)), "{saved:?}");
            let (loaded, got) = it.load(&key(m), 50_000);
            match loaded {
                Loaded::Hit { .. } => assert!(got == bytes(m, 50_000), "a wrong byte"),
                other => assert_eq!(other, Loaded::Miss(MissReason::Absent)),
            }
            hits += u64::from(matches!(loaded, Loaded::Hit { .. }));
        }
        assert!(hits > 10, "{hits} hits");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&a, 1));
        scope.spawn(|| work(&b, 2));
        scope.spawn(|| {
            for n in (0..60).cycle() {
                let draft = dir.path().join("draft.tmp");
                fs::write(&draft, bytes(n, 50_000)).unwrap();
                fs::rename(&draft, dir.path().join(name(n))).unwrap();
                let _ = fs::remove_file(dir.path().join(name((n + 7) % 60)));
                std::thread::sleep(Duration::from_millis(3));
                if Instant::now() > end {
                    break;
                }
            }
        });
    });
}
