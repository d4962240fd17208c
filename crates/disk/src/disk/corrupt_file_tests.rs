//! Files that failed a check and stay, since they cannot be moved into quarantine.

use std::fs;
use std::path::{Path, PathBuf};

use super::tests::{FOREIGN, LEN, foreign, key, open, write};
use crate::chunk_file_name;
use crate::ledger::Ledger;

const BYTES: u64 = 12_288;

fn path(dir: &Path, n: u8) -> PathBuf {
    chunk_file_name::path(dir, key(n).digest(), LEN as u64)
}

fn total(dir: &Path) -> u64 {
    Ledger::peek(&dir.join(".kvtier")).unwrap().unwrap()
}

/// Else it would take space that no eviction frees.
#[test]
fn a_corrupt_file_that_could_not_be_moved_is_moved_later() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    write(dir.path(), &key(2));
    shared.follow_changes();
    assert_eq!(total(dir.path()), 2 * BYTES);
    shared.data_dir.set_read_only(true);
    for n in [1, 2] {
        let seen = shared.data_dir.find(key(n).digest(), LEN as u64).unwrap().unwrap();
        assert!(shared.quarantine_corrupt(key(n).digest(), LEN as u64, seen));
    }
    shared.move_unmoved();
    assert!(path(dir.path(), 1).exists() && path(dir.path(), 2).exists());
    // One is saved again meanwhile, by a peer.
    let again = dir.path().join("again");
    fs::copy(path(dir.path(), 2), &again).unwrap();
    fs::rename(&again, path(dir.path(), 2)).unwrap();
    shared.data_dir.set_read_only(false);
    shared.move_unmoved();
    assert!(!path(dir.path(), 1).exists() && path(dir.path(), 2).exists());
    let quarantined: u64 = crate::data_dir::quarantine::list(&shared.data_dir.own())
        .unwrap()
        .iter()
        .map(|kept| kept.bytes)
        .sum();
    shared.space.ledger.fold().unwrap();
    assert_eq!(total(dir.path()), BYTES + quarantined);
    assert!(shared.chunks.unmoved_files().is_empty());
}

#[test]
fn one_whose_move_failed_waits_for_the_next_round() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    // A directory in the place of a file cannot be unlinked, by root neither.
    let path = path(dir.path(), 1);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::remove_dir(dir.path().join(".kvtier/quarantine")).unwrap();
    let seen = shared.data_dir.find(key(1).digest(), LEN as u64).unwrap().unwrap();
    assert!(shared.quarantine_corrupt(key(1).digest(), LEN as u64, seen));
    for _ in 0..3 {
        shared.move_unmoved();
        assert_eq!(shared.chunks.unmoved_files().len(), 1);
    }
    fs::remove_dir(&path).unwrap();
    shared.move_unmoved();
    assert!(shared.chunks.unmoved_files().is_empty(), "it is gone");
}

/// A scan may have counted another length meanwhile.
#[test]
fn a_late_move_releases_nothing_in_layouts_of_others() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(layout, name, dir.path());
        let shared = &disk.shared;
        shared.scan_foreign(shared.data_dir.foreign().unwrap()).unwrap();
        let counted = total(dir.path());
        assert!(counted >= LEN as u64, "{layout}");
        shared.data_dir.set_read_only(true);
        let seen = shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
        assert!(shared.quarantine_corrupt(key.digest(), LEN as u64, seen));
        shared.data_dir.set_read_only(false);
        shared.move_unmoved();
        shared.space.ledger.fold().unwrap();
        assert!(!path.exists() && total(dir.path()) >= counted, "{layout}");
        assert!(shared.is_ledger_suspect(), "{layout}: the next scan corrects it");
    }
}
