//! What a directory knows of itself: the order of use and the cap hold across restarts, deaths and neighbours.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{Digest, ErrorKind, Loaded, MissReason, Namespace, Observe, Saved, ShedReason, Tier};
use kvtier_file::{Durability, FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 100_000;
/// The payload padded to pages, and the footer.
const FILE: u64 = 25 * 4096 + 4096;

fn config(dir: &Path, chunks: u64) -> FileConfig {
    FileConfig::new(dir, chunks * FILE + FILE / 2).with_flush_every(Duration::from_millis(20))
}

fn open(dir: &Path, chunks: u64) -> Fixture {
    Fixture::new(FileTier::open(config(dir, chunks)).unwrap())
}

fn absent(f: &Fixture, n: u64) -> bool {
    match f.load(&f.key(n), LEN) {
        Loaded::Hit { .. } => false,
        Loaded::Miss(MissReason::Absent) => true,
        other => panic!("chunk {n}: {other:?}"),
    }
}

fn counter(tier: &FileTier, name: &str) -> u64 {
    tier.status().counters.iter().find(|(n, _)| *n == name).unwrap().1
}

/// The directory as a process that dies at this moment leaves it: everything but its locks.
fn as_left_by_the_dead(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("cp").arg("-a").arg(dir.join(".")).arg(copy.path()).status().unwrap();
    assert!(status.success());
    copy
}

/// The files in the shards, by inode: one that gets another name while we walk is counted once.
fn files(dir: &Path) -> BTreeMap<u64, u64> {
    let shards = fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
    let files = shards.flat_map(|shard| fs::read_dir(shard.path()).unwrap().flatten());
    files.filter_map(|file| file.metadata().ok()).map(|meta| (meta.ino(), meta.len())).collect()
}

fn files_bytes(dir: &Path) -> u64 {
    files(dir).values().sum()
}

/// What all processes together say they have written and are writing.
fn ledger(dir: &Path) -> u64 {
    loop {
        let bytes = fs::read(dir.join(".kvtier/ledger")).unwrap();
        if let Some(Ok(total)) = bytes.get(8..16).map(<[u8; 8]>::try_from) {
            return u64::from_le_bytes(total);
        }
    }
}

#[test]
fn the_order_of_use_survives_an_orderly_end() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 10);
    f.store(&f.keys(0..10), LEN);
    assert!(!absent(&f, 0) && !absent(&f, 3));
    drop(f);
    assert!(dir.path().join(".kvtier/snapshot").exists());
    let f = Fixture::new(FileTier::open(config(dir.path(), 4).with_shrink(true)).unwrap());
    let there: Vec<u64> = (0..10).filter(|n| !absent(&f, *n)).collect();
    assert_eq!(there, [0, 3, 8, 9], "the least recently used went first");
}

/// However busy its keeper is at that moment: with a flush every millisecond it is mostly in the middle of one.
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
    // The journal is written within its interval.
    std::thread::sleep(Duration::from_millis(200));
    let copy = as_left_by_the_dead(dir.path());
    let other = Fixture::new(FileTier::open(config(copy.path(), 3).with_shrink(true)).unwrap());
    let there: Vec<u64> = (0..6).filter(|n| !absent(&other, *n)).collect();
    assert_eq!(there, [0, 1, 5]);
}

#[test]
fn a_torn_snapshot_and_torn_journals_cost_order_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let f = open(dir.path(), 20);
        (0..6).chain([10 + round]).for_each(|n| assert_ne!(f.save(&f.key(n), LEN), Saved::Shed(ShedReason::Full)));
        drop(f);
        let own = dir.path().join(".kvtier");
        let snapshot = fs::read(own.join("snapshot")).unwrap();
        let torn = [&[][..], &snapshot[..snapshot.len() / 2], &snapshot[..snapshot.len() - 1], b"not a snapshot"];
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
    let mut f = Fixture::new(kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap());
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
fn a_damaged_victim_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 1);
    f.store(&f.keys([0]), LEN);
    let path = kvtier_disk::name::path(dir.path(), f.key(0).digest(), LEN as u64);
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(FILE + 4096).unwrap();
    f.store(&f.keys([1]), LEN);
    assert!(!absent(&f, 1));
}

#[test]
fn two_neighbours_hold_one_cap_and_serve_no_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let chunks = 20;
    let (a, b) = (open(dir.path(), chunks), open(dir.path(), chunks));
    let stop = AtomicBool::new(false);
    let work = |f: &Fixture, seed: u64| {
        let mut seed = kvtier_testkit::Seed::new(seed);
        let (mut hits, mut stored) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let key = f.key(seed.below(60));
            stored += u64::from(f.save(&key, LEN) == Saved::Stored);
            // Proves every byte of a hit; a miss must be an honest one, even while the neighbour writes over the file.
            hits += u64::from(matches!(f.load(&f.key(seed.below(60)), LEN), Loaded::Hit { .. }));
        }
        (hits, stored)
    };
    let long = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 120 } else { 4 };
    let end = Instant::now() + Duration::from_secs(long);
    std::thread::scope(|scope| {
        let workers: Vec<_> = [(&a, 1), (&a, 2), (&b, 3), (&b, 4)].map(|(f, n)| scope.spawn(move || work(f, n))).into();
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
    drop((a, b));
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()), "what both counted is what lies there");
    assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
    assert!(fs::read_dir(dir.path().join(".kvtier/quarantine")).unwrap().next().is_none(), "nothing was damaged");
}

#[test]
fn durable_saves_come_back_with_each_way_to_sync() {
    for durability in [Durability::None, Durability::Fdatasync, Durability::Syncfs] {
        let dir = tempfile::tempdir().unwrap();
        let f = Fixture::new(FileTier::open(config(dir.path(), 30).with_durability(durability)).unwrap());
        let ops = (0..16).map(|n| f.save_op(&f.key(n), LEN)).collect();
        for done in f.tier.save(&f.ctx(), ops).wait() {
            assert_eq!(done.result.unwrap(), Saved::Stored);
        }
        let copy = as_left_by_the_dead(dir.path());
        let other = open(copy.path(), 30);
        assert!((0..16).all(|n| !absent(&other, n)), "{durability:?}");
    }
}

/// A directory whose shards became read-only: saves are shed and not tried for ever, loads go on. Nobody is refused who is root, so a
/// directory in the place of the victim's file stands in for one that cannot be deleted.
#[test]
fn victims_that_cannot_be_deleted_shed_the_save() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 2);
    f.store(&f.keys(0..2), LEN);
    let path = |n| kvtier_disk::name::path(dir.path(), f.key(n).digest(), LEN as u64);
    for n in 0..2 {
        fs::remove_file(path(n)).unwrap();
        fs::create_dir_all(path(n).join("not empty")).unwrap();
    }
    let start = Instant::now();
    assert_eq!(f.save(&f.key(7), LEN / 2), Saved::Shed(ShedReason::Full));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn files_and_shards_that_others_delete_do_not_stop_saves() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 8);
    f.store(&f.keys(0..8), LEN);
    for shard in fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.file_name() != ".kvtier") {
        fs::remove_dir_all(shard.path()).unwrap();
    }
    assert!((0..8).all(|n| absent(&f, n)));
    // The ledger still counts what is gone, until it stands in the way.
    f.store(&f.keys(10..18), LEN);
    assert!((10..18).all(|n| !absent(&f, n)));
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
}

#[test]
fn a_damaged_file_goes_also_without_a_quarantine() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 4);
    f.store(&f.keys(0..4), LEN);
    fs::remove_dir(dir.path().join(".kvtier/quarantine")).unwrap();
    for n in 0..4 {
        let path = kvtier_disk::name::path(dir.path(), f.key(n).digest(), LEN as u64);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(FILE - 4096).unwrap();
        assert_eq!(f.load(&f.key(n), LEN), Loaded::Miss(MissReason::Corrupt));
    }
    assert!(files(dir.path()).is_empty());
    f.store(&f.keys(4..8), LEN);
}

/// Two processes save one key with different lengths; file names carry the length.
#[test]
fn of_two_lengths_of_one_key_the_newer_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path(), 8), open(dir.path(), 8));
    let twins = |f: &Fixture, len| f.store(&f.keys(0..2), len);
    twins(&a, LEN);
    twins(&b, LEN / 2);
    assert_eq!(files(dir.path()).len(), 4);
    // When the directory is full, whoever looks around finds them.
    b.store(&b.keys(10..20), LEN);
    let lies = |n, len: usize| kvtier_disk::name::path(dir.path(), a.key(n).digest(), len as u64).exists();
    assert!((0..2).all(|n| !lies(n, LEN)), "the older of two lengths");
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    drop((a, b));

    // And whoever opens it does.
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path(), 8), open(dir.path(), 8));
    twins(&b, LEN / 2);
    std::thread::sleep(Duration::from_millis(20));
    twins(&a, LEN);
    assert_eq!(files(dir.path()).len(), 4);
    let c = open(dir.path(), 8);
    assert_eq!(files(dir.path()).values().copied().collect::<Vec<_>>(), [FILE, FILE]);
    assert_eq!(ledger(dir.path()), 2 * FILE, "beside others");
    assert!((0..2).all(|n| !absent(&c, n)));
    drop((a, b, c));
    let c = open(dir.path(), 8);
    assert_eq!(ledger(dir.path()), 2 * FILE, "alone");
    assert!((0..2).all(|n| !absent(&c, n)));
}

/// Flips a byte of chunks and loads them.
fn damage(f: &Fixture, dir: &Path, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        let path = kvtier_disk::name::path(dir, f.key(n).digest(), LEN as u64);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
}

fn quarantine(dir: &Path) -> Vec<u64> {
    fs::read_dir(dir.join(".kvtier/quarantine")).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).collect()
}

#[test]
fn the_quarantine_is_bounded_and_counted_and_the_first_to_go() {
    let dir = tempfile::tempdir().unwrap();
    let tier = Arc::new(FileTier::open(config(dir.path(), 200)).unwrap());
    let mut f = Fixture::new(kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap());
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    f.store(&f.keys(0..6), LEN);
    damage(&f, dir.path(), 0..6);
    assert!((0..6).all(|n| f.load(&f.key(n), LEN) == Loaded::Miss(MissReason::Corrupt)));
    assert_eq!(quarantine(dir.path()), [FILE, FILE], "a hundredth of the cap");
    f.store(&f.keys([50]), LEN);
    assert_eq!((ledger(dir.path()), tier.usage().used_bytes), (3 * FILE, Some(3 * FILE)));
    // A restart counts it too.
    let other = FileTier::open(config(dir.path(), 200)).unwrap();
    assert_eq!((ledger(dir.path()), other.usage().used_bytes), (3 * FILE, Some(3 * FILE)));
    drop(other);
    f.store(&f.keys(100..299), LEN);
    assert_eq!(counter(&tier, "evicted"), 0, "the cap has room for 200");
    assert!(quarantine(dir.path()).is_empty());
    assert_eq!((ledger(dir.path()), tier.usage().used_bytes), (200 * FILE, Some(200 * FILE)));
}

#[test]
fn set_aside_from_outside_the_quarantine_is_bounded_too() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 200);
    f.store(&f.keys(0..6), LEN);
    damage(&f, dir.path(), 0..5);
    drop(f);
    let outside = kvtier_file::inspect::Directory::open(dir.path()).unwrap();
    let set_aside = outside.chunks().unwrap().iter().filter(|chunk| outside.set_aside(chunk).unwrap()).count();
    assert_eq!((set_aside, quarantine(dir.path())), (5, vec![FILE, FILE]));
    assert_eq!((files_bytes(dir.path()), ledger(dir.path())), (FILE, 3 * FILE));
    assert_eq!(outside.summary().unwrap().quarantine_bytes, 2 * FILE);
    assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
}

/// A look from outside while victims are written over: what is taken away while it is read is gone, not damaged.
#[test]
fn a_file_being_recycled_is_not_taken_for_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 4);
    f.store(&f.keys(0..4), LEN);
    let outside = kvtier_file::inspect::Directory::open(dir.path()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = kvtier_testkit::Seed::new(1);
            while !stop.load(Ordering::Relaxed) {
                assert_ne!(f.save(&f.key(seed.below(6)), LEN), Saved::Shed(ShedReason::Full));
            }
        });
        let end = Instant::now() + Duration::from_secs(3);
        let (mut fine, mut gone, mut damaged) = (0, 0, 0);
        while Instant::now() < end {
            for chunk in outside.chunks().unwrap() {
                match outside.verify(&chunk) {
                    Ok(Ok(())) => fine += 1,
                    Ok(Err(_)) => damaged += 1,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => gone += 1,
                    Err(_) => damaged += 1,
                }
                damaged += u32::from(!matches!(outside.set_aside(&chunk), Ok(false)));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(fine > 100 && gone > 10 && damaged == 0, "{fine} fine, {gone} gone, {damaged} damaged");
    });
    assert!(quarantine(dir.path()).is_empty());
}

#[test]
fn a_smaller_cap_deletes_nothing_unless_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 10);
    f.store(&f.keys(0..6), LEN);
    assert!(!absent(&f, 5));
    drop(f);
    let e = FileTier::open(config(dir.path(), 4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let caps = [10, 4].map(|chunks: u64| (chunks * FILE + FILE / 2).to_string());
    assert!(caps.iter().all(|cap| e.to_string().contains(cap)) && e.to_string().contains("shrink"), "{e}");
    assert_eq!(files(dir.path()).len(), 6);
    // A smaller cap that all fits under is a cap like any other, and is noted.
    drop(open(dir.path(), 7));
    assert!(
        FileTier::open(config(dir.path(), 5)).unwrap_err().to_string().contains(&(7 * FILE + FILE / 2).to_string())
    );
    drop(open(dir.path(), 20));
    let f = Fixture::new(FileTier::open(config(dir.path(), 4).with_shrink(true)).unwrap());
    assert_eq!(files(dir.path()).len(), 4);
    assert!(!absent(&f, 5));
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
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().filter(scratch).map(|e| e.path()).collect();
    assert_eq!(left, [living.path()]);
}

/// Saves chunk `n` of a namespace; the text of the error if it is `Invalid`.
fn save_in(f: &Fixture, ns: &Namespace, n: u64, len: usize) -> Option<String> {
    let done = f.save_with(f.save_op(&Fixture::key_in(ns.clone(), n), len));
    match done.result {
        Ok(saved) => (saved != Saved::Stored).then(|| panic!("{saved:?}")),
        Err(e) if e.kind() == ErrorKind::Invalid => Some(e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn who_has_another_geometry_is_refused_and_told_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path(), 50), open(dir.path(), 50));
    let ns = Namespace::new("a tenant", Digest([7; 32]));
    // What the first save of whole chunks teaches holds for all who share the directory, now and after a restart.
    let whole = ns.clone().with_partial(false);
    assert_eq!(save_in(&a, &whole, 0, LEN), None);
    let c = open(dir.path(), 50);
    for f in [&a, &b, &c] {
        let e = save_in(f, &whole, 1, LEN / 2).unwrap();
        assert!(e.contains(&format!("{LEN} whole")) && e.contains(&format!("{} whole", LEN / 2)), "{e}");
        let e = save_in(f, &ns, 1, LEN).unwrap();
        assert!(e.contains(&format!("{LEN} whole")) && e.contains("partial") && e.contains("%20tenant"), "{e}");
    }
    let op = c.load_op(&Fixture::key_in(ns.clone(), 0), LEN);
    assert_eq!(c.load_with(op).result.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(save_in(&b, &whole, 2, LEN), None);
    // Another tenant, and another layout, are another's affair; a declared size is taken over where none was known.
    let other = Namespace::new("other", Digest([7; 32]));
    assert_eq!(save_in(&b, &other, 0, 5000), None);
    assert_eq!(save_in(&a, &other.clone().with_chunk_bytes(0, 8192), 1, 4096), None);
    assert!(save_in(&a, &other, 2, 8193).unwrap().contains("8192 partial"));
    assert!(save_in(&c, &other.with_chunk_bytes(0, 4096), 3, 4096).unwrap().contains("8192 partial"));
    assert_eq!(save_in(&a, &Namespace::new("a tenant", Digest([8; 32])), 1, 17), None);
}

#[test]
fn a_tier_that_says_its_namespace_opens_no_directory_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let ns = |layout, bytes| Arc::new(Namespace::new("t", Digest([layout; 32])).with_chunk_bytes(0, bytes));
    let open = |ns| FileTier::open(config(dir.path(), 10).with_namespace(ns));
    drop(open(ns(1, 4096)).unwrap());
    drop(open(ns(1, 4096)).unwrap());
    for other in [ns(1, 8192), Arc::new(Namespace::new("t", Digest([1; 32])))] {
        let e = open(other).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains(&format!("{}: 0=4096 partial", Digest([1; 32]).to_hex())), "{e}");
    }
    drop(open(Arc::new(Namespace::new("u", Digest([2; 32])))).unwrap());
    // Another model of the tenant is another's affair, and holds its own.
    drop(open(ns(2, 8192)).unwrap());
    assert_eq!(open(ns(2, 4096)).unwrap_err().kind(), ErrorKind::Invalid);
    // But where files do not say of which model they are, there is one.
    let dir = tempfile::tempdir().unwrap();
    let open =
        |ns| FileTier::open(config(dir.path(), 10).with_layout(kvtier_file::Layout::LmcacheMp).with_namespace(ns));
    drop(open(ns(1, 4096)).unwrap());
    assert_eq!(open(ns(2, 4096)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn neighbours_have_one_cap_unless_told_to_shrink() {
    for layout in [kvtier_file::Layout::Kvtier, kvtier_file::Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let open = |chunks, shrink| {
            let it = FileTier::open(config(dir.path(), chunks).with_layout(layout).with_shrink(shrink));
            it.map_err(|e| (e.kind(), e.to_string()))
        };
        let cap = |chunks: u64| (chunks * FILE + FILE / 2).to_string();
        let refused = |chunks, theirs| {
            let (kind, what) = open(chunks, false).unwrap_err();
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(what.contains(&cap(chunks)) && what.contains(&cap(theirs)) && what.contains("shrink"), "{what}");
        };
        drop(open(30, false).unwrap());
        // The first after a restart decides, also where another was noted.
        let first = open(10, false).unwrap();
        let second = open(10, false).unwrap();
        refused(4, 10);
        refused(20, 10);
        drop(open(4, true).unwrap());
        drop(first);
        refused(20, 10);
        drop(second);
        drop(open(20, false).unwrap());
    }
    // Shares that come to one number are one cap.
    let dir = tempfile::tempdir().unwrap();
    let share = |share| FileTier::open(config(dir.path(), 1).with_capacity_share(share));
    let _first = share(0.5).unwrap();
    drop(share(0.5).unwrap());
    assert_eq!(share(0.25).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_reserve_as_large_as_the_file_system_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), 4));
    let e = FileTier::open(config(dir.path(), 4).with_free_min(1 << 62)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains(&(1_u64 << 62).to_string()) && e.to_string().contains("free_min"), "{e}");
}

#[test]
fn kinds_of_chunks_beyond_the_most_are_saved_and_not_noted() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join(".kvtier/manifest");
    let tier = Arc::new(FileTier::open(config(dir.path(), 50)).unwrap());
    let mut f = Fixture::new(kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap());
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    // Of chunks of any length there is nothing to note.
    assert_eq!(save_in(&f, &Namespace::new("any", Digest([7; 32])), 0, LEN), None);
    let head = fs::read_to_string(&manifest).unwrap();
    assert!(!head.contains("chunk "), "{head}");
    let many: String = (0..4096).map(|n| format!("chunk t 0 m {n} 0: 4096 whole\n")).collect();
    fs::write(&manifest, head + &many).unwrap();
    let full = || tier.status().reasons.iter().any(|reason| reason.contains("4096 kinds"));
    assert!(!full());
    let whole = Namespace::new("one more", Digest([7; 32])).with_partial(false);
    assert_eq!(save_in(&f, &whole, 0, LEN), None);
    assert_eq!(save_in(&f, &whole, 1, LEN), None);
    assert!(full() && !fs::read_to_string(&manifest).unwrap().contains("more"));
    // Nor does it keep a tier out.
    drop(FileTier::open(config(dir.path(), 50).with_namespace(Arc::new(whole))).unwrap());
}

#[test]
fn what_a_dead_neighbour_had_counted_is_counted_no_more_while_others_live() {
    let dir = tempfile::tempdir().unwrap();
    let (f, other) = (open(dir.path(), 20), open(dir.path(), 20));
    f.store(&f.keys(0..4), LEN);
    // A process that was killed after it counted room for five chunks, and wrote one of them half.
    let tmp = dir.path().join(".kvtier/tmp");
    let living = fs::read_dir(&tmp).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let dead = tmp.join(format!("{}.4000000.1.0", living.split('.').next().unwrap()));
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("alive"), "").unwrap();
    fs::write(dead.join("0"), vec![0; FILE as usize]).unwrap();
    let path = dir.path().join(".kvtier/ledger");
    let total = [&b"KVTLEDG1"[..], &(9 * FILE).to_le_bytes()].concat();
    fs::write(&path, total).unwrap();
    f.eventually("the ledger is right again", || ledger(dir.path()) == 4 * FILE);
    assert!(!dead.exists());
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

#[test]
fn when_its_own_directory_is_deleted_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join(".kvtier");
    let tier = Arc::new(FileTier::open(config(dir.path(), 8)).unwrap());
    let mut f = Fixture::new(kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap());
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    let other = open(dir.path(), 8);
    f.store(&f.keys(0..4), LEN);
    for round in 0..3 {
        delete(&own);
        assert!((0..4).all(|n| !absent(&f, n)), "loads go on");
        // A save at once, or after the keeper saw it.
        if round == 1 {
            f.eventually("the keeper makes it again", || own.join("evictor").exists());
        }
        assert_eq!(f.save(&f.key(100), LEN), Saved::Stored, "round {round}");
        assert_eq!(other.save(&other.key(200), LEN), Saved::Stored, "round {round}");
        f.eventually("the ledger is right again", || ledger(dir.path()) == files_bytes(dir.path()));
        let told = || tier.status().reasons.iter().any(|reason| reason.contains("deleted; made it again"));
        f.eventually("the status says so", told);
        drop(f.tier.remove(&f.ctx(), f.keys([100, 200])).wait());
        drop(other.tier.remove(&f.ctx(), f.keys([100, 200])).wait());
    }
    drop((tier, f, other));
    let f = open(dir.path(), 8);
    assert!((0..4).all(|n| !absent(&f, n)));
    // Where it cannot be made again the error says so, and it comes back when it can.
    while fs::write(&own, "in the way").is_err() {
        delete(&own);
    }
    let failed = f.save_with(f.save_op(&f.key(7), LEN)).result.unwrap_err();
    assert!(failed.to_string().contains("`.kvtier` was deleted and cannot be made again"), "{failed}");
    fs::remove_file(&own).unwrap();
    assert_eq!(f.save(&f.key(7), LEN), Saved::Stored);
}
