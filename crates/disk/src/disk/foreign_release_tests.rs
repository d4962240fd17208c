//! What the ledger releases for files of foreign layouts that crashes of the machine and other programs
//! leave.

use std::fs;

use kvtier_index::Chunk;

use super::tests::{FOREIGN, Idle, LEN, foreign};
use super::*;
use crate::delete_victims::Deletion;
use crate::ledger::Ledger;
use crate::space::{ReserveOutcome, SpaceReservation};

/// A tier over one chunk of LMCache's GDS layout, and a second one whose file is empty and has its
/// second file still.
fn with_an_empty_file() -> (tempfile::TempDir, Disk<Idle>, Key, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let other = dir.path().join("18/85/m%401%400%401a2b000000000001%40half.kvcache.safetensors");
    fs::write(other, [7; LEN]).unwrap();
    fs::write(&path, "").unwrap();
    (dir, disk, key, path)
}

/// Of an empty file nothing is counted, also where its second file would be.
#[test]
fn an_empty_file_in_quarantine_releases_nothing() {
    let (dir, disk, key, path) = with_an_empty_file();
    let shared = &disk.shared;
    shared.recount(true).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap().unwrap();
    let before = total();
    assert_eq!(before, LEN as u64 + 2 * 4096, "its second file too");
    shared.data_dir.foreign().unwrap().learn(&key);
    assert_eq!(shared.data_dir.bytes_on_disk(key.digest(), 0).unwrap(), None);
    let listed = Chunk::new(*key.digest(), 0, 0);
    shared.quarantine(key.digest(), 0, Some(listed)).unwrap();
    shared.share_ledger().unwrap();
    assert!(!path.exists());
    assert_eq!(total(), before);
}

/// A crash of the machine may leave such a file. A listing enters it, and a load looks at it.
#[test]
fn an_empty_file_that_is_evicted_releases_nothing() {
    let (dir, disk, key, path) = with_an_empty_file();
    let shared = &disk.shared;
    let (layout, name) = FOREIGN[2];
    fs::remove_file(dir.path().join(layout.sidecar(name).unwrap())).unwrap();
    shared.recount(true).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    assert_eq!(total(), Some(LEN as u64 + 4096));
    shared.data_dir.foreign().unwrap().learn(&key);
    let _ = shared.index().insert(Chunk::new(*key.digest(), 0, 0));
    let ctx = Ctx::within(std::time::Duration::from_secs(600));
    let arena = kvtier_mem::Arena::new(kvtier_mem::ArenaConfig::heap(1 << 16)).unwrap();
    let into = [arena.lease(LEN).unwrap()].into();
    let loaded = disk.load(&ctx, vec![Load { key: key.clone(), into }]).wait().remove(0);
    assert!(matches!(loaded.result, Ok(Loaded::Miss(_))), "{:?}", loaded.result);
    let _ = shared.index().begin_evict(key.digest());
    let victim = shared.index().victim(key.digest()).unwrap();
    assert_eq!(victim.bytes, 0);
    assert_eq!(shared.delete_chunk(&victim).unwrap(), Deletion::Deleted);
    assert!(!path.exists());
    shared.share_ledger().unwrap();
    assert_eq!(total(), Some(LEN as u64 + 4096));
}

/// A peer has counted what another program left of a file. This process has not looked since.
#[test]
fn a_foreign_file_that_was_cut_is_released_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[0];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    let other = dir.path().join("org-SEP-m@0x02010201@0@00010204.data");
    fs::write(other, [7; LEN]).unwrap();
    shared.scan_foreign(shared.data_dir.foreign().unwrap()).unwrap();
    fs::write(&path, [7; 1000]).unwrap();
    shared.recount(true).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    assert_eq!(total(), Some(LEN as u64 + 1000));
    let _ = shared.index().begin_evict(key.digest());
    let victim = shared.index().victim(key.digest()).unwrap();
    assert_eq!(victim.bytes, LEN as u64);
    assert_eq!(shared.delete_chunk(&victim).unwrap(), Deletion::Deleted);
    shared.share_ledger().unwrap();
    assert_eq!(total(), Some(LEN as u64));
}

/// A tier over one chunk that is counted, and the file of another program that no scan has seen.
fn beside_uncounted() -> (tempfile::TempDir, Disk<Idle>, Key, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[0];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let other = dir.path().join("org-SEP-m@0x02010201@0@00010204.data");
    fs::rename(&path, other).unwrap();
    disk.shared.scan_foreign(disk.shared.data_dir.foreign().unwrap()).unwrap();
    fs::write(&path, [7; LEN]).unwrap();
    disk.shared.find_foreign(disk.shared.data_dir.foreign().unwrap(), &key);
    (dir, disk, key, path)
}

fn evict(disk: &Disk<Idle>, key: &Key) -> std::io::Result<Deletion> {
    let _ = disk.shared.index().begin_evict(key.digest());
    let victim = disk.shared.index().victim(key.digest()).unwrap();
    disk.shared.delete_chunk(&victim)
}

#[test]
fn a_foreign_file_that_no_scan_has_counted_is_not_released_at_the_second_try_either() {
    let (dir, disk, key, path) = beside_uncounted();
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    fs::create_dir(&path).unwrap();
    evict(&disk, &key).unwrap_err();
    fs::remove_dir(&path).unwrap();
    fs::rename(dir.path().join("elsewhere"), &path).unwrap();
    assert_eq!(evict(&disk, &key).unwrap(), Deletion::Deleted);
    disk.shared.share_ledger().unwrap();
    assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(LEN as u64));
}

/// The scan has seen the first part of it.
#[test]
fn a_foreign_file_that_grew_is_not_released_as_it_is() {
    let (dir, disk, key, path) = beside_uncounted();
    let foreign = disk.shared.data_dir.foreign().unwrap();
    fs::write(&path, [7; 1000]).unwrap();
    disk.shared.scan_foreign(foreign).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    assert_eq!(total(), Some(LEN as u64 + 1000));
    fs::write(&path, [7; LEN]).unwrap();
    disk.shared.find_foreign(foreign, &key);
    assert_eq!(evict(&disk, &key).unwrap(), Deletion::Deleted);
    disk.shared.share_ledger().unwrap();
    assert_eq!(total(), Some(LEN as u64 + 1000), "the scan finds the rest");
    disk.shared.scan_foreign(foreign).unwrap();
    assert_eq!(total(), Some(LEN as u64));
}

/// A peer evicts the chunk before its second file has a name, and releases both.
#[test]
fn a_second_file_that_gets_its_name_after_its_chunk_was_evicted_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    let beside = dir.path().join(layout.sidecar(name).unwrap());
    fs::remove_file(&path).unwrap();
    fs::remove_file(&beside).unwrap();
    shared.recount(true).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    let size = crate::save::size_of(&shared.data_dir, LEN as u64);
    let deadline = shared.clock.now() + std::time::Duration::from_secs(300);
    let request = kvtier_index::ReserveRequest::new(size.claimed);
    let mut save = SpaceReservation::new(shared, request, size, deadline);
    assert_eq!(save.reserve().unwrap(), ReserveOutcome::Reserved);
    save.create_sidecar(&[7; 4096], false).unwrap();
    let since = shared.space.ledger.generation();
    fs::write(save.draft().unwrap().path(), [7; 4096 + LEN]).unwrap();
    shared.data_dir.publish(save.draft().unwrap(), key.digest(), LEN as u64).unwrap();
    let released = shared.data_dir.delete(key.digest(), LEN as u64).unwrap().unwrap();
    assert_eq!((released, path.exists()), (size.published, false));
    shared.uncount(released, since);
    fs::rename(save.sidecar().unwrap().path(), &beside).unwrap();
    assert!(total() >= Some(4096), "{:?}", total());
    // The save finds that its chunk is gone.
    fs::remove_file(&beside).unwrap();
    save.sidecar_is_published();
    let reservation = save.into_published(since).unwrap();
    shared.index().cancel(reservation);
    shared.share_ledger().unwrap();
    assert_eq!(total(), Some(0));
}
