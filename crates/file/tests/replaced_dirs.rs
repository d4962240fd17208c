//! Directories in the place of chunks, and another directory in the place of a tier's own.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtier_core::{Loaded, Observe, Saved, Tier};
use kvtier_file::FileTier;
use kvtier_testkit::conformance::Fixture;

use common::*;

fn tier_in(dir: &Path) -> (Arc<FileTier>, Fixture) {
    let tier = Arc::new(FileTier::open(config(dir, 8)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    (tier, f)
}

fn path(dir: &Path, f: &Fixture, n: u64) -> PathBuf {
    kvtier_disk::chunk_file_name::path(dir, f.key(n).digest(), LEN as u64)
}

#[test]
fn a_directory_under_a_chunks_name_gives_way_to_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, f) = tier_in(dir.path());
    fs::create_dir(path(dir.path(), &f, 1)).unwrap();
    fs::create_dir_all(path(dir.path(), &f, 2).join("years of work")).unwrap();
    for n in 1..3 {
        assert_eq!(f.save(&f.key(n), LEN), Saved::Stored, "{n}");
        assert!(matches!(f.load(&f.key(n), LEN), Loaded::Hit { .. }), "{n}");
    }
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    let kept =
        fs::read_dir(dir.path().join(".kvtier")).unwrap().flatten().map(|entry| entry.path());
    let kept: Vec<_> = kept.filter(|path| path.join("years of work").is_dir()).collect();
    assert_eq!(kept.len(), 1, "what has anything in it is kept");
    let name = kept[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert!(
        tier.status().reasons.iter().any(|reason| reason.contains(&name)),
        "{:?}",
        tier.status().reasons
    );
    assert_eq!(counter(&tier, "io_errors"), 0);
}

/// All of it stays together: chunks, what is unfinished, the ledger, the journals.
#[test]
fn where_the_directory_is_moved_away_the_tier_goes_on_in_the_one_that_takes_its_place() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("cache");
    let away = base.path().join("away");
    let (tier, f) = tier_in(&dir);
    f.store(&f.keys(0..4), LEN);
    fs::rename(&dir, &away).unwrap();
    fs::create_dir(&dir).unwrap();
    let before = files(&away);
    f.eventually("it goes on there", || {
        dir.join(".kvtier/ledger").exists() && (0..4).all(|n| absent(&f, n))
    });
    f.store(&f.keys(4..8), LEN);
    // What was under way when it went may be counted twice for a moment.
    f.eventually("all of it is counted", || ledger(&dir) == files_bytes(&dir));
    f.store(&f.keys(8..16), LEN);
    assert_eq!((files(&away), files(&dir).len()), (before, 8), "the cap is that of the new one");
    assert!((8..16).all(|n| !absent(&f, n)));
    assert_eq!(tier.usage().used_bytes, Some(files_bytes(&dir)));
    let other = open(&dir, 8);
    assert!((8..16).all(|n| !absent(&other, n)), "what comes after finds them");
    assert_eq!(f.save(&f.key(20), LEN), Saved::Stored);
    assert!(!absent(&other, 20), "and follows");
    drop(other);
    // Back again, with chunks of its own, and then without any.
    fs::rename(&dir, base.path().join("second")).unwrap();
    fs::rename(&away, &dir).unwrap();
    f.eventually("it finds those", || (0..4).all(|n| !absent(&f, n)));
    fs::rename(&dir, &away).unwrap();
    f.eventually("it makes it again", || {
        dir.join(".kvtier/ledger").exists() && (0..4).all(|n| absent(&f, n))
    });
    assert_eq!(f.save(&f.key(0), LEN), Saved::Stored);
    f.eventually("all of it is counted", || ledger(&dir) == files_bytes(&dir));
    drop((tier, f));
    let f = open(&away, 8);
    assert!((0..4).all(|n| !absent(&f, n)));
}

#[test]
fn another_programs_directory_in_its_place_is_not_touched() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("cache");
    let away = base.path().join("away");
    let (tier, f) = tier_in(&dir);
    f.store(&f.keys(0..4), LEN);
    fs::rename(&dir, &away).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis.tex"), "years of work").unwrap();
    f.eventually("it says so", || {
        tier.status().reasons.iter().any(|reason| reason.contains("not a kvtier directory"))
    });
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    assert!((0..4).all(|n| !absent(&f, n)), "what was open is served");
    fs::remove_dir_all(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    assert_eq!(f.save(&f.key(5), LEN), Saved::Stored);
    assert!((0..4).all(|n| !absent(&f, n)));
}
