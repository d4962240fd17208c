//! What is above the cap and no save evicts: what a crash of the machine brings back.

use std::fs;

use kvtier_core::ManualClock;
use kvtier_index::Chunk;

use super::tests::{FOREIGN, LEN, foreign, in_time, key, open_on};
use crate::chunk_file_name;
use crate::ledger::Ledger;

const CAP_BYTES: u64 = 1 << 20;

/// Else the directory stays above the cap until the next save.
#[test]
fn chunks_above_the_cap_that_cannot_be_deleted_are_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let disk = open_on(&time, dir.path());
    let shared = &disk.shared;
    let (digest, len) = (*key(1).digest(), LEN as u64);
    let path = chunk_file_name::path(dir.path(), &digest, len);
    // No file can be deleted there.
    fs::create_dir_all(&path).unwrap();
    let _ = shared.index().insert(Chunk::new(digest, len, 2 * CAP_BYTES));
    shared.evict_to_cap();
    assert!(shared.index().is_known(&digest));
    fs::remove_dir(&path).unwrap();
    fs::write(&path, [7; LEN]).unwrap();
    in_time(&time, "it is deleted", || !path.exists() && !shared.index().is_known(&digest));
}

#[test]
fn second_files_without_a_chunk_count_for_the_cap_and_chunks_go_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    let alone = "18/85/m%401%400%401a2b000000000001%40half.kvcache.safetensors.metadata";
    let scan = || {
        shared.scan_foreign(shared.data_dir.foreign().unwrap()).unwrap();
        shared.evict_to_cap();
        shared.evict_ledger_excess();
        Ledger::peek(&dir.path().join(".kvtier")).unwrap().unwrap()
    };
    let of_chunk = LEN as u64 + 4096;
    fs::write(dir.path().join(alone), vec![7; (CAP_BYTES - of_chunk) as usize]).unwrap();
    assert_eq!(scan(), CAP_BYTES);
    assert!(path.exists(), "all are just at the cap");
    fs::write(dir.path().join(alone), vec![7; (CAP_BYTES - of_chunk) as usize + 1]).unwrap();
    assert_eq!(scan(), CAP_BYTES - of_chunk + 1);
    assert!(!path.exists() && !shared.index().is_known(key.digest()));
}
