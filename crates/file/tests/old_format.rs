//! Directories of format 2, whose registration lock has another name.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{GOLDEN_CHUNKS, golden_key, golden_of_format_2};
use kvtier_core::{ErrorKind, Loaded, Saved};
use kvtier_disk::inspect::{Directory, Upgrade};
use kvtier_disk::{Layout, PolicyKind};
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

/// The length of each chunk.
const LEN: usize = 100;
/// The chunks of a golden directory.
const CHUNKS: u64 = GOLDEN_CHUNKS;
/// The lock of earlier builds, below the directory.
const EARLIER_LOCK: &str = ".kvtier/door";
/// The bytes that a chunk takes in layout `kvtier`.
const FILE: u64 = 8192;

fn config(dir: &Path, layout: Layout) -> FileConfig {
    FileConfig::new(dir, if layout.is_foreign() { 1 << 20 } else { CHUNKS * FILE })
        .with_layout(layout)
        .with_policy(PolicyKind::Lru)
        .with_free_min(0)
        .with_flush_every(Duration::from_millis(20))
}

fn is_hit(f: &Fixture, n: u64) -> bool {
    matches!(f.load(&golden_key(n), LEN), Loaded::Hit { .. })
}

/// All files below a directory, with their bytes.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(tree(&entry.path())),
            false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    files
}

/// Gives a directory of this build an earlier format, as far as its names go.
fn make_older(dir: &Path) {
    let own = dir.join(".kvtier");
    fs::rename(own.join("lock"), dir.join(EARLIER_LOCK)).unwrap();
    let text = fs::read_to_string(own.join("manifest")).unwrap();
    let body = text[..text.rfind("crc: ").unwrap()].replace("format: 3", "format: 2");
    let crc = kvtier_core::key::BlockSums::from_bytes(body.as_bytes()).whole();
    fs::write(own.join("manifest"), format!("{body}crc: {crc:08x}\n")).unwrap();
}

/// A directory of format 2 or 1: refused without a change, read by tools, and upgraded.
fn upgrade(dir: &Path, layout: Layout, format: u32) {
    let before = tree(dir);
    let e = FileTier::open(config(dir, layout)).unwrap_err();
    let text = e.to_string();
    assert!(
        e.kind() == ErrorKind::Invalid
            && text
                .contains(&format!("has format {format}, which an earlier build of kvtier made"))
            && text.contains(&format!("run `kvtier migrate {}`", dir.display())),
        "{text}"
    );
    let inspected = Directory::open(dir).unwrap();
    let chunks = inspected.chunks().unwrap();
    assert_eq!(chunks.len() as u64, CHUNKS);
    assert!(chunks.iter().all(|chunk| inspected.verify(chunk).unwrap() == Ok(())));
    let e = inspected.remove(&chunks[0]).unwrap_err();
    assert!(e.to_string().contains("kvtier migrate"), "{e}");
    assert_eq!(tree(dir), before, "nothing was changed");
    let done = Upgrade::run(dir).unwrap();
    assert_eq!((done.layout, done.from, done.to), (layout, format, 3));
}

#[test]
fn a_golden_directory_of_format_2_is_refused_and_upgraded_with_all_its_chunks() {
    for (layout, format) in [(Layout::Kvtier, 2), (Layout::Kvtier, 1), (Layout::LmcacheMp, 2)] {
        let dir = golden_of_format_2(layout.name());
        if format == 1 {
            let manifest = dir.path().join(".kvtier/manifest");
            let text = fs::read_to_string(&manifest).unwrap();
            let body = text[..text.rfind("crc: ").unwrap()].replace("format: 2", "format: 1");
            fs::write(manifest, body).unwrap();
        }
        upgrade(dir.path(), layout, format);
        let f = Fixture::new(FileTier::open(config(dir.path(), layout)).unwrap());
        if layout == Layout::Kvtier {
            // The tenants' digests, before a key of theirs was used.
            let tenants = f.tier.usage().tenants;
            let counts: Vec<u64> = tenants.iter().map(|tenant| tenant.chunks).collect();
            assert!(counts == [2, 4] || counts == [4, 2], "{tenants:?}");
            // The directory is full. The first two chunks were used last.
            assert_eq!(f.save(&golden_key(10), LEN), Saved::Stored);
            assert_eq!(f.save(&golden_key(11), LEN), Saved::Stored);
            let hits: Vec<u64> = (0..CHUNKS).filter(|n| is_hit(&f, *n)).collect();
            assert_eq!(hits, [0, 1, 4, 5], "the least recently used two were evicted");
        } else {
            assert!((0..CHUNKS).all(|n| is_hit(&f, n)));
        }
        assert!(!dir.path().join(EARLIER_LOCK).exists());
    }
}

#[test]
fn a_directory_of_each_foreign_layout_is_upgraded_in_place() {
    for layout in Layout::ALL.into_iter().filter(|layout| layout.is_foreign()) {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let config = config(dir.path(), layout);
            let shape = "1x1x100x1".parse().unwrap();
            let config = if layout.has_headers() { config.with_chunk_shape(shape) } else { config };
            let f = Fixture::new(FileTier::open(config).unwrap());
            match layout {
                Layout::LmcacheMp => f,
                Layout::VllmFs => f.with_vllm_keys(),
                _ => f.with_engine_keys(),
            }
        };
        let f = open();
        (0..CHUNKS).for_each(|n| assert_eq!(f.save(&f.key(n), LEN), Saved::Stored));
        drop(f);
        make_older(dir.path());
        upgrade(dir.path(), layout, 2);
        let f = open();
        (0..CHUNKS).for_each(|n| {
            assert!(matches!(f.load(&f.key(n), LEN), Loaded::Hit { .. }), "{layout} {n}");
        });
    }
}

/// A process of an earlier build that is refused has created its lock by then.
#[test]
fn a_damaged_manifest_beside_the_lock_of_a_refused_earlier_build_stops_no_process() {
    let dir = golden_of_format_2("kvtier");
    Upgrade::run(dir.path()).unwrap();
    let own = dir.path().join(".kvtier");
    let earlier_lock = dir.path().join(EARLIER_LOCK);
    let damage = || {
        fs::write(own.join("manifest"), "torn").unwrap();
        fs::write(&earlier_lock, "").unwrap();
    };
    let open = || FileTier::open(config(dir.path(), Layout::Kvtier));
    let first = Fixture::new(open().unwrap());
    let second = Fixture::new({
        damage();
        open().unwrap()
    });
    assert!((0..CHUNKS).all(|n| is_hit(&first, n) && is_hit(&second, n)));
    // Running tiers repair it too, also where no other process opens the directory.
    damage();
    let deadline = std::time::Instant::now() + Duration::from_secs(600);
    let is_whole = || Upgrade::plan(dir.path()).is_ok();
    while (!is_whole() || earlier_lock.exists()) && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_whole() && !earlier_lock.exists());
    let statuses = [first.tier.status(), second.tier.status()];
    let said = |reason: &String| reason.contains("manifest.damaged");
    assert!(statuses.iter().any(|status| status.reasons.iter().any(said)), "{statuses:?}");
}

/// What a killed process leaves has the names that FORMAT.md lists. With `KVTIER_WRITE_GOLDEN=DIR`
/// this writes golden directories into DIR: six chunks, of which the first two are used last. The
/// last build of format 2 wrote those in `golden/` in this way; host and boot id were replaced.
#[test]
fn what_a_killed_process_leaves_has_the_names_of_the_format() {
    let scratch = tempfile::tempdir().unwrap();
    let to = std::env::var_os("KVTIER_WRITE_GOLDEN").unwrap_or_else(|| scratch.path().into());
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let f = Fixture::new(FileTier::open(config(dir.path(), layout)).unwrap());
        (0..CHUNKS).for_each(|n| assert_eq!(f.save(&golden_key(n), LEN), Saved::Stored));
        std::thread::sleep(Duration::from_millis(300));
        (0..2).for_each(|n| assert!(matches!(f.load(&golden_key(n), LEN), Loaded::Hit { .. })));
        std::thread::sleep(Duration::from_millis(300));
        let copy = PathBuf::from(&to).join(layout.name());
        let status = std::process::Command::new("cp").arg("-a").arg(dir.path()).arg(&copy).status();
        assert!(status.unwrap().success());
        for file in fs::read_dir(&copy).unwrap().flatten().map(|entry| entry.path()) {
            let mut facts = [0; 1024];
            if let Ok(len) = rustix::fs::lgetxattr(&file, "user.kvtier", &mut facts[..]) {
                let hex: String = facts[..len].iter().map(|b| format!("{b:02x}")).collect();
                fs::write(format!("{}.facts", file.display()), hex).unwrap();
            }
        }
        let mut names: Vec<String> = fs::read_dir(copy.join(".kvtier"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| name.split('.').next().unwrap().to_owned())
            .collect();
        names.sort();
        let mut listed = [
            "changes",
            "evictor",
            "journal",
            "ledger",
            "lock",
            "manifest",
            "quarantine",
            "tenant-key",
            "tmp",
        ]
        .map(str::to_owned)
        .to_vec();
        listed.retain(|name| layout == Layout::Kvtier || name != "changes");
        assert_eq!(names, listed);
    }
}
