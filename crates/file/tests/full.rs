//! A medium that is full before the cap: chunks go, the save is tried once more, and only then
//! shed. Needs a file system of its own, and so the right to mount one; where that is refused the
//! test says so and does nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use kvtier_core::{Digest, Loaded, Namespace, Observe, Saved, ShedReason, Tier};
use kvtier_file::{FileConfig, FileTier, Layout};
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 200_000;
const SIZE: usize = 4 << 20;

/// A file system in memory of 4 MiB.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "tmpfs"])
            .arg(dir.path())
            .output();
        match mount {
            Ok(out) if out.status.success() => Some(Mount(dir)),
            refused => {
                eprintln!("not tried, cannot mount a file system here: {refused:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let out = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(
            std::thread::panicking() || out.is_ok_and(|status| status.success()),
            "cannot unmount"
        );
    }
}

fn open(path: &Path) -> (Arc<FileTier>, Fixture) {
    let tier = Arc::new(
        FileTier::open(
            FileConfig::new(path, 1 << 30)
                .with_policy(kvtier_disk::PolicyKind::Lru)
                .with_free_min(0),
        )
        .unwrap(),
    );
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    (tier, f)
}

#[test]
fn a_share_of_the_file_system_is_a_cap() {
    let Some(mount) = Mount::new() else { return };
    let open = |share| FileTier::open(FileConfig::new(mount.path(), 0).with_capacity_share(share));
    assert_eq!(open(0.5).unwrap().usage().capacity_bytes, Some(SIZE as u64 / 2));
    for wrong in [0.0, 1.1, f64::NAN] {
        assert!(
            open(wrong).unwrap_err().to_string().contains("share above 0 and at most 1"),
            "{wrong}"
        );
    }
}

#[test]
fn chunks_go_before_the_medium_is_full() {
    let Some(mount) = Mount::new() else { return };
    let config = FileConfig::new(mount.path(), 1 << 30)
        .with_policy(kvtier_disk::PolicyKind::Lru)
        .with_free_min(1 << 20);
    let tier = Arc::new(FileTier::open(config).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    f.store(&f.keys(0..10), LEN);
    let free = || {
        let out =
            Command::new("stat").args(["-f", "-c", "%a %S"]).arg(mount.path()).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product::<u64>()
    };
    assert!(free() > 3 << 19);
    // Another program fills the file system.
    std::fs::write(mount.path().join("lost+found"), vec![1; 5 << 18]).unwrap();
    f.eventually("some chunks go", || free() >= 1 << 20);
    assert!(matches!(f.load(&f.key(0), LEN), Loaded::Miss(_)));
    assert!(matches!(f.load(&f.key(9), LEN), Loaded::Hit { .. }));
    assert!((1..6).contains(&counter(&tier, "evicted")), "{}", counter(&tier, "evicted"));
}

fn counter(tier: &FileTier, name: &str) -> u64 {
    tier.status().counters.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn a_full_medium_costs_the_oldest_chunks_and_not_the_save() {
    let Some(mount) = Mount::new() else { return };
    let (tier, f) = open(mount.path());
    for n in 0..60 {
        assert_eq!(f.save(&f.key(n), LEN), Saved::Stored, "chunk {n}");
        assert_eq!(f.load(&f.key(n), LEN), Loaded::Hit { len: LEN as u64 });
    }
    assert!(counter(&tier, "device_full") > 10);
    assert!(matches!(f.load(&f.key(0), LEN), Loaded::Miss(_)));
}

/// On such a device no tier runs yet that could evict.
#[test]
fn a_start_on_a_completely_full_device_costs_a_few_chunks_and_succeeds() {
    let Some(mount) = Mount::new() else { return };
    let (tier, f) = open(mount.path());
    f.store(&f.keys(0..10), LEN);
    drop((tier, f));
    // Another program takes all that is left.
    let filler = vec![1; SIZE];
    assert!(std::fs::write(mount.path().join("lost+found"), filler).is_err());
    assert!(std::fs::write(mount.path().join("lost+found.1"), "more").is_err());
    std::fs::remove_file(mount.path().join("lost+found.1")).unwrap();
    let (tier, f) = open(mount.path());
    let reasons = tier.status().reasons;
    assert!(reasons.iter().any(|said| said.contains("was full when it was opened")), "{reasons:?}");
    let hits = (0..10).filter(|n| matches!(f.load(&f.key(*n), LEN), Loaded::Hit { .. })).count();
    assert_eq!(hits, 9);
    assert_eq!(f.save(&f.key(20), LEN), Saved::Stored);
}

fn open_as(path: &Path, layout: Layout) -> (Arc<FileTier>, Fixture) {
    let ns = Arc::new(Namespace::new("t", Digest::default()));
    let config =
        FileConfig::new(path, 1 << 30).with_layout(layout).with_namespace(ns).with_free_min(0);
    // A thread that has taken the last victims may stand still before it deletes them.
    let config = config.with_space_wait(std::time::Duration::from_secs(300));
    let tier = Arc::new(FileTier::open(config.with_policy(kvtier_disk::PolicyKind::Lru)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    (tier, f)
}

/// Batches of most of what the medium holds, each of other lengths than the one before, so that
/// nothing can be written over.
#[test]
fn a_full_medium_keeps_whole_batches_as_a_full_tier_does() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let Some(mount) = Mount::new() else { return };
        let (tier, f) = open_as(mount.path(), layout);
        f.eventually("swept", || tier.usage().used_bytes.is_some());
        let key = |n| Fixture::key_in(Namespace::new("t", Digest::default()), n);
        for batch in 0..20 {
            let len = LEN - 10_000 * (batch as usize % 7);
            let ops = (0..16).map(|n| f.save_op(&key(100 * batch + n), len)).collect();
            let answers: Vec<Saved> = f
                .tier
                .save(&f.ctx(), ops)
                .wait()
                .into_iter()
                .map(|done| done.result.unwrap())
                .collect();
            assert_eq!(answers, [Saved::Stored; 16], "{layout}, batch {batch}");
        }
        let status = tier.status();
        assert!(
            status.healthy && status.reasons.iter().any(|reason| reason.starts_with("degraded")),
            "{status:?}"
        );
        let there =
            (0..16).filter(|n| matches!(f.load(&key(1900 + n), LEN), Loaded::Hit { .. })).count();
        assert_eq!(there, 16, "{layout}");
    }
}

#[test]
fn where_all_that_could_go_is_held_a_full_medium_is_the_reason() {
    let Some(mount) = Mount::new() else { return };
    let (tier, f) = open(mount.path());
    let mut n = 0;
    while counter(&tier, "device_full") == 0 {
        assert_eq!(f.save(&f.key(n), LEN), Saved::Stored);
        n += 1;
    }
    let held = f.hold(&f.keys(0..n), std::time::Duration::from_secs(3600)).hold.unwrap();
    assert_eq!(f.save(&f.key(1000), LEN), Saved::Shed(ShedReason::DeviceFull));
    assert!(!tier.status().healthy, "saves are shed");
    f.tier.release(held);
    assert_eq!(f.save(&f.key(1000), LEN), Saved::Stored);
}

#[test]
fn a_medium_that_others_fill_sheds_saves_serves_loads_and_comes_back() {
    let Some(mount) = Mount::new() else { return };
    let (_tier, f) = open(mount.path());
    let hog = mount.path().join(".kvtier/hog");
    std::fs::write(&hog, vec![1; 3 << 20]).unwrap();
    assert_eq!(f.save(&f.key(0), LEN), Saved::Stored);
    // A chunk larger than the free space, even with every chunk of ours evicted.
    assert_eq!(f.save(&f.key(1), SIZE / 2), Saved::Shed(ShedReason::DeviceFull));
    let held = f.hold(&f.keys([0]), std::time::Duration::from_secs(60));
    assert!(held.hold.is_none() || f.load(&f.key(0), LEN) == Loaded::Hit { len: LEN as u64 });
    std::fs::remove_file(hog).unwrap();
    assert_eq!(f.save(&f.key(1), SIZE / 2), Saved::Stored);
    assert_eq!(f.load(&f.key(1), SIZE / 2), Loaded::Hit { len: SIZE as u64 / 2 });
}

#[test]
fn what_failed_a_check_goes_before_chunks_do() {
    let Some(mount) = Mount::new() else { return };
    let (tier, f) = open(mount.path());
    for n in 0..10 {
        assert_eq!(f.save(&f.key(n), LEN), Saved::Stored);
        let path = kvtier_disk::chunk_file_name::path(mount.path(), f.key(n).digest(), LEN as u64);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[7] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(f.load(&f.key(n), LEN), Loaded::Miss(_)));
    }
    let quarantined =
        || std::fs::read_dir(mount.path().join(".kvtier/quarantine")).unwrap().count();
    assert_eq!(quarantined(), 10);
    let mut n = 100;
    while quarantined() > 0 {
        assert_eq!(
            (f.save(&f.key(n), LEN), counter(&tier, "evicted")),
            (Saved::Stored, 0),
            "chunk {n}"
        );
        n += 1;
    }
    assert!(counter(&tier, "device_full") > 5);
}

#[test]
fn evictions_for_free_space_are_limited_per_second() {
    let Some(mount) = Mount::new() else { return };
    let time = kvtier_core::ManualClock::new();
    let config = FileConfig::new(mount.path(), 1 << 30)
        .with_policy(kvtier_disk::PolicyKind::Lru)
        .with_free_min(1 << 20)
        .with_deletes_per_second_max(2)
        .with_clock(time.clock());
    let tier = Arc::new(FileTier::open(config).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    f.store(&f.keys(0..10), LEN);
    let began = time.now();
    let second = std::time::Duration::from_secs(1);
    std::fs::write(mount.path().join("lost+found"), vec![1; 15 << 17]).unwrap();
    f.eventually("five chunks go", || {
        time.advance(second / 10);
        let evicted = counter(&tier, "evicted");
        assert!(
            evicted <= 2 * (time.now() - began).as_secs(),
            "{evicted} after {:?}",
            time.now() - began
        );
        evicted >= 5
    });
    assert!(time.now() - began >= 3 * second, "two each second");
    let ledger = std::fs::read(mount.path().join(".kvtier/ledger")).unwrap();
    assert_eq!(ledger[8..16], tier.usage().used_bytes.unwrap().to_le_bytes());
}
