//! What a load from a foreign layout enters into the index when another thread deletes or replaces
//! the file that the load has open.

use std::fs;

use super::tests::{FOREIGN, LEN, foreign};
use crate::Layout;
use crate::layout::FoundChunk;

/// What a load finds in the file of [`foreign`].
fn found(layout: Layout) -> FoundChunk {
    FoundChunk { len: Some(LEN as u64), bytes: layout.counted_bytes(LEN as u64) }
}

#[test]
fn a_file_that_is_deleted_while_a_load_has_it_open_is_no_entry() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(layout, name, dir.path());
        let shared = &disk.shared;
        let seen = shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        shared.found_open(&key, seen, found(layout));
        assert!(shared.index().known(key.digest()).is_none(), "{layout}");
        assert_eq!(shared.index().usage().used, 0, "{layout}");
    }
}

#[test]
fn only_the_file_that_a_load_has_open_changes_an_entry() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(layout, name, dir.path());
        let shared = &disk.shared;
        let id = || shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
        let len = || shared.index().known(key.digest()).map(|entry| entry.chunk.len);
        let first = id();
        shared.found_open(&key, first, found(layout));
        assert_eq!(len(), Some(LEN as u64), "{layout}: it is still there");
        let other = path.with_extension("other");
        fs::write(&other, [8; LEN]).unwrap();
        fs::rename(&other, &path).unwrap();
        let shorter = FoundChunk { len: Some(1), ..found(layout) };
        shared.found_open(&key, first, shorter);
        shared.invalidate(&key, first, LEN as u64);
        assert_eq!(len(), Some(LEN as u64), "{layout}: the name means another file");
        shared.invalidate(&key, id(), LEN as u64);
        assert_eq!(len(), Some(0), "{layout}");
    }
}
