//! Damage of each kind to what a directory keeps below `.kvtier`: it costs what was kept there, is
//! reported, and keeps no directory shut.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kvtier_core::{ErrorKind, Observe, Saved, Tier};
use kvtier_file::inspect::Directory;
use kvtier_file::{FileConfig, FileTier, Layout};
use kvtier_testkit::conformance::Fixture;

use common::*;

/// What happens to a file.
type Damage = (&'static str, fn(&Path));

/// To the bytes of a file.
const TO_BYTES: [Damage; 6] = [
    ("a flipped bit", |path| edit(path, |bytes| *bytes.last_mut().unwrap() ^= 4)),
    ("empty", |path| edit(path, Vec::clear)),
    // Not in half: between two records of one length nothing would be torn.
    ("cut", |path| edit(path, |bytes| bytes.truncate(bytes.len() / 2 + 1))),
    ("zeros", |path| edit(path, |bytes| bytes.fill(0))),
    ("no text", |path| edit(path, |bytes| bytes.fill(0xff))),
    ("the bytes of another file", |path| fs::write(path, "years of work\n").unwrap()),
];

/// Something else in the place of a file.
const IN_ITS_PLACE: [Damage; 5] = [
    ("a pipe", |path| pipe(path)),
    ("a directory", |path| fs::create_dir(path).unwrap()),
    ("a directory that is not empty", |path| fs::create_dir_all(path.join("something")).unwrap()),
    ("a link to itself", |path| symlink(path, path).unwrap()),
    ("a link to a file", |path| symlink("/etc/hostname", path).unwrap()),
];

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn replace(path: &Path, make: fn(&Path)) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.unwrap();
    make(path);
}

/// A directory with six chunks, which a tier used, and left in order.
fn used() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 20);
    f.store(&f.keys(0..6), LEN);
    drop(f);
    dir
}

/// The same as a process leaves it that is killed: with a snapshot of the one before it, and its
/// own journal.
fn left_by_the_dead() -> tempfile::TempDir {
    let dir = used();
    let f = open(dir.path(), 20);
    assert!((0..6).all(|n| !absent(&f, n)));
    f.eventually("the journal is written", || journal(dir.path()).is_some());
    as_left_by_the_dead(dir.path())
}

/// One after another of the same.
fn copies() -> impl Fn() -> tempfile::TempDir {
    let dir = left_by_the_dead();
    move || as_left_by_the_dead(dir.path())
}

/// The first journal that is there.
fn journal(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir.join(".kvtier/journal")).ok()?.flatten().map(|entry| entry.path()).next()
}

/// The change log's only segment.
fn changes(dir: &Path) -> PathBuf {
    let mut entries = fs::read_dir(dir.join(".kvtier")).unwrap().flatten();
    entries
        .find(|entry| entry.file_name().to_string_lossy().starts_with("changes."))
        .unwrap()
        .path()
}

/// Opens the directory, finds all six chunks, saves one more, and removes it.
fn opens(dir: &Path, what: &str) -> Arc<FileTier> {
    let tier = FileTier::open(config(dir, 20));
    let tier = Arc::new(tier.unwrap_or_else(|e| panic!("{what}: {e}")));
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    assert!((0..6).all(|n| !absent(&f, n)), "{what}");
    assert_eq!(f.save(&f.key(7), LEN), Saved::Stored, "{what}");
    assert!(!absent(&f, 7), "{what}");
    assert_eq!(f.remove(&f.keys([7])).removed, 1, "{what}");
    tier
}

fn says(tier: &FileTier, what: &str) -> bool {
    tier.status().reasons.iter().any(|reason| reason.contains(what))
}

fn manifest(dir: &Path) -> PathBuf {
    dir.join(".kvtier/manifest")
}

#[test]
fn a_manifest_damaged_in_any_way_is_rebuilt() {
    let pieces = TO_BYTES.iter().chain(&IN_ITS_PLACE);
    for (what, damage) in pieces {
        let dir = used();
        let whole = fs::read(manifest(dir.path())).unwrap();
        if IN_ITS_PLACE.iter().any(|(name, _)| name == what) {
            replace(&manifest(dir.path()), *damage);
        } else {
            damage(&manifest(dir.path()));
        }
        // Looked at from outside first, without writing.
        let outside = Directory::open(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(
            (outside.layout(), outside.chunks().unwrap().len()),
            (Layout::Kvtier, 6),
            "{what}"
        );
        let tier = opens(dir.path(), what);
        assert!(says(&tier, "manifest.damaged"), "{what}: {:?}", tier.status().reasons);
        drop(tier);
        assert_eq!(fs::read(manifest(dir.path())).unwrap(), whole, "{what}");
        assert!(!says(&opens(dir.path(), what), "damaged"), "{what}: reported once");
    }
}

#[test]
fn a_manifest_that_is_gone_is_rebuilt_from_the_chunks_and_not_without_any() {
    let dir = used();
    fs::remove_file(manifest(dir.path())).unwrap();
    drop(opens(dir.path(), "without a manifest"));
    fs::remove_dir_all(dir.path().join(".kvtier")).unwrap();
    assert_eq!(Directory::open(dir.path()).unwrap().chunks().unwrap().len(), 6);
    drop(opens(dir.path(), "without `.kvtier`"));
    // With other files in it, it still belongs to another program, and so do directories that only
    // look like shards.
    fs::remove_dir_all(dir.path().join(".kvtier")).unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    assert_eq!(FileTier::open(config(dir.path(), 20)).unwrap_err().kind(), ErrorKind::Invalid);
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ab")).unwrap();
    assert_eq!(FileTier::open(config(dir.path(), 20)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_damaged_manifest_makes_no_directory_one_of_another_layout() {
    let dir = used();
    fs::write(manifest(dir.path()), "").unwrap();
    let lmcache = |dir: &Path| FileConfig::new(dir, 1 << 30).with_layout(Layout::LmcacheMp);
    let e = FileTier::open(lmcache(dir.path())).unwrap_err();
    assert!(e.to_string().contains("say layout: kvtier"), "{e}");
    let dir = tempfile::tempdir().unwrap();
    drop(FileTier::open(lmcache(dir.path())).unwrap());
    fs::write(dir.path().join("org-SEP-m@0x02010201@0@00010203.data"), "a chunk").unwrap();
    fs::write(manifest(dir.path()), "").unwrap();
    assert_eq!(Directory::open(dir.path()).unwrap().layout(), Layout::LmcacheMp);
    let e = FileTier::open(config(dir.path(), 20)).unwrap_err();
    assert!(e.to_string().contains("say layout: lmcache-mp"), "{e}");
    drop(FileTier::open(lmcache(dir.path())).unwrap());
}

#[test]
fn a_manifest_of_a_newer_build_is_refused_and_kept() {
    let dir = used();
    let newer = "kvtier directory\nformat: 3\nwhatever: it says\n";
    let crc = kvtier_core::key::BlockSums::from_bytes(newer.as_bytes()).whole();
    let newer = format!("{newer}crc: {crc:08x}\n");
    fs::write(manifest(dir.path()), &newer).unwrap();
    let e = FileTier::open(config(dir.path(), 20)).unwrap_err();
    assert!(e.to_string().contains("a newer build"), "{e}");
    assert_eq!(fs::read_to_string(manifest(dir.path())).unwrap(), newer);
}

#[test]
fn a_manifest_that_did_not_change_is_not_written_again() {
    use std::os::unix::fs::MetadataExt;
    let dir = used();
    let inode = || fs::metadata(manifest(dir.path())).unwrap().ino();
    let before = inode();
    drop((open(dir.path(), 20), open(dir.path(), 20)));
    assert_eq!(inode(), before);
    drop(open(dir.path(), 30));
    assert_ne!(inode(), before, "another cap");
}

#[test]
fn a_manifest_that_is_damaged_under_an_open_tier_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let tier = Arc::new(FileTier::open(config(dir.path(), 20)).unwrap());
    let whole = fs::read(manifest(dir.path())).unwrap();
    fs::write(manifest(dir.path()), "").unwrap();
    drop(open(dir.path(), 20));
    assert_eq!(fs::read(manifest(dir.path())).unwrap(), whole);
    drop(tier);
}

/// A frame's version is the number behind its magic; a byte behind that is not text.
fn another_version(path: &Path) {
    edit(path, |bytes| bytes[4] = 77);
}

/// Damages a file in each way.
fn each_damage(file: &str, path_in: fn(&Path) -> PathBuf, copy: &dyn Fn() -> tempfile::TempDir) {
    let version: Damage = ("another version", another_version);
    let to_bytes = TO_BYTES.iter().chain(std::iter::once(&version)).map(|damage| (damage, false));
    for ((how, damage), is_replaced) in
        to_bytes.chain(IN_ITS_PLACE.iter().map(|damage| (damage, true)))
    {
        let dir = copy();
        let what = format!("{file}: {how}");
        let path = path_in(dir.path());
        if is_replaced {
            replace(&path, *damage)
        } else {
            damage(&path)
        }
        Directory::open(dir.path()).unwrap().summary().unwrap_or_else(|e| panic!("{what}: {e}"));
        drop(
            Directory::open(dir.path())
                .unwrap()
                .last_uses()
                .unwrap_or_else(|e| panic!("{what}: {e}")),
        );
        let tier = opens(dir.path(), &what);
        let reasons = tier.status().reasons;
        // What is empty or has lost nothing but names shows no damage.
        let is_reported = is_replaced
            || matches!(file, "snapshot" | "tenant-key")
            || (matches!(file, "journal" | "ledger") && *how != "empty");
        assert!(
            !is_reported || says(&tier, if is_replaced { ".damaged" } else { file }),
            "{what}: {reasons:?}"
        );
        drop(tier);
        assert_eq!(ledger(dir.path()), files_bytes(dir.path()), "{what}");
        let again = FileTier::open(config(dir.path(), 20)).unwrap();
        assert!(
            !says(&again, "damaged"),
            "{what}: not reported once: {:?}",
            again.status().reasons
        );
    }
}

#[test]
fn no_damage_to_a_file_of_the_bookkeeping_keeps_a_directory_shut() {
    let own: fn(&Path, &str) -> PathBuf = |dir, name| dir.join(".kvtier").join(name);
    let copy = copies();
    let files: [(&str, fn(&Path) -> PathBuf); 5] = [
        ("tenant-key", |dir| dir.join(".kvtier/tenant-key")),
        ("snapshot", |dir| dir.join(".kvtier/snapshot")),
        ("journal", |dir| journal(dir).unwrap()),
        ("ledger", |dir| dir.join(".kvtier/ledger")),
        ("change log", changes),
    ];
    // At once: each waits for the medium most of the time.
    std::thread::scope(|scope| {
        let copy = &copy;
        let each =
            files.map(|(file, path_in)| scope.spawn(move || each_damage(file, path_in, copy)));
        each.into_iter().for_each(|one| one.join().unwrap());
    });
    for (file, (how, damage)) in ["lock", "evictor", "manifest.new", "snapshot.new"]
        .into_iter()
        .flat_map(|f| IN_ITS_PLACE.map(|d| (f, d)))
    {
        let dir = copy();
        let what = format!("{file}: {how}");
        let path = own(dir.path(), file);
        let _ = fs::remove_file(&path);
        damage(&path);
        let tier = opens(dir.path(), &what);
        assert!(says(&tier, ".damaged"), "{what}: {:?}", tier.status().reasons);
    }
}

#[test]
fn something_else_in_the_place_of_a_directory_is_renamed_away() {
    let in_its_place: [Damage; 4] = [
        ("a file", |path| fs::write(path, "years of work").unwrap()),
        ("a pipe", |path| pipe(path)),
        ("a link to itself", |path| symlink(path, path).unwrap()),
        ("a link to a directory", |path| symlink("/etc", path).unwrap()),
    ];
    let copy = copies();
    for (name, (how, damage)) in
        ["tmp", "quarantine", "journal"].into_iter().flat_map(|d| in_its_place.map(|how| (d, how)))
    {
        let dir = copy();
        let what = format!("{name}: {how}");
        let path = dir.path().join(".kvtier").join(name);
        replace(&path, damage);
        let tier = opens(dir.path(), &what);
        assert!(says(&tier, &format!("{name}.damaged")), "{what}: {:?}", tier.status().reasons);
        assert!(path.is_dir() && !path.is_symlink(), "{what}");
    }
    // A shard.
    for (how, damage) in in_its_place {
        let dir = copy();
        let f = open(dir.path(), 20);
        let shards: Vec<_> = (0..6).map(|n| f.key(n).digest().to_hex()[..2].to_owned()).collect();
        drop(f);
        let shard =
            (0..=255).map(|n| format!("{n:02x}")).find(|shard| !shards.contains(shard)).unwrap();
        replace(&dir.path().join(&shard), damage);
        let tier = opens(dir.path(), how);
        assert!(says(&tier, &format!("{shard}.damaged")), "{how}: {:?}", tier.status().reasons);
        assert!(dir.path().join(&shard).is_dir(), "{how}");
        assert!(!dir.path().join(&shard).is_symlink(), "{how}");
    }
}

/// The shard of a chunk, moved elsewhere.
fn moved_shard(f: &Fixture, dir: &Path, n: u64, to: &Path) -> PathBuf {
    let shard = dir.join(&f.key(n).digest().to_hex()[..2]);
    fs::rename(&shard, to).unwrap();
    shard
}

#[test]
fn a_link_in_the_place_of_a_shard_is_not_followed_and_what_it_leads_to_is_left_alone() {
    let dir = used();
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("moved");
    let f = open(dir.path(), 20);
    let shard = moved_shard(&f, dir.path(), 0, &moved);
    drop(f);
    symlink(&moved, &shard).unwrap();
    let there = fs::read_dir(&moved).unwrap().count();
    let f = open(dir.path(), 20);
    let name = shard.file_name().unwrap().to_str().unwrap();
    let link = dir.path().join(format!(".kvtier/{name}.damaged"));
    assert_eq!(fs::read_link(link).unwrap(), moved);
    assert!(f.tier.status().reasons.iter().any(|said| said.contains(".damaged")) && absent(&f, 0));
    assert_eq!(f.save(&f.key(0), LEN), Saved::Stored);
    assert!(!absent(&f, 0) && shard.is_dir() && !shard.is_symlink());
    assert_eq!(fs::read_dir(&moved).unwrap().count(), there);
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
}

#[test]
fn what_takes_the_place_of_a_shard_while_a_tier_runs_keeps_no_save_from_it() {
    for (how, damage) in IN_ITS_PLACE {
        let dir = used();
        let elsewhere = tempfile::tempdir().unwrap();
        let f = open(dir.path(), 20);
        let shard = moved_shard(&f, dir.path(), 0, &elsewhere.path().join("moved"));
        damage(&shard);
        f.remove(&f.keys([0]));
        assert_eq!(f.save(&f.key(0), LEN), Saved::Stored, "{how}");
        assert!(!absent(&f, 0) && shard.is_dir() && !shard.is_symlink(), "{how}");
    }
}

#[test]
fn unknown_files_among_journals_and_processes_stop_no_process() {
    let dir = left_by_the_dead();
    let own = dir.path().join(".kvtier");
    for (n, (_, damage)) in IN_ITS_PLACE.iter().enumerate() {
        damage(&own.join(format!("journal/other.1.0.0.{n}")));
        damage(&own.join(format!("tmp/other.{n}.0.0")));
        fs::create_dir(own.join(format!("tmp/dead.{n}.0.0"))).unwrap();
        damage(&own.join(format!("tmp/dead.{n}.0.0/alive")));
    }
    drop(opens(dir.path(), "anything"));
}
