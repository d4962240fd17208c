//! A foreign layout evicts once its files were scanned and its cap is agreed on. Until then saves find no
//! space in a full directory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use kvtier_os::simulated::Call;

use super::{RETRY_AFTER, Rounds};
use crate::disk::tests::{FOREIGN, open_foreign, shared_of};
use crate::fake_process;

const EVERY: Duration = Duration::from_secs(60);

/// What fails.
#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Nothing,
    Looks,
    Manifest,
}

#[test]
fn a_tier_whose_medium_failed_evicts_within_a_second_after_it_is_well() {
    let dir = tempfile::tempdir().unwrap();
    let fails = Rc::new(Cell::new(Fails::Nothing));
    let now = Rc::clone(&fails);
    // A simulated process has no thread that scans.
    let _process = fake_process::enter(move |call| match (call, now.get()) {
        (Call::Look(_), Fails::Looks) => Err(nix::Error::EIO),
        (Call::Rename(_, to), Fails::Manifest) if to.path.ends_with("manifest") => {
            Err(nix::Error::EIO)
        }
        _ => Ok(()),
    });
    let disk = open_foreign(FOREIGN[2].0, dir.path());
    let shared = shared_of(&disk);
    let foreign = shared.data_dir.foreign().unwrap();
    let mut rounds = Rounds { every: EVERY, listed: true, retry: RETRY_AFTER };
    let mut scan = |what| {
        fails.set(what);
        (rounds.scan(shared, foreign), foreign.is_scanned(), foreign.may_evict())
    };
    for _ in 0..5 {
        assert_eq!(scan(Fails::Looks), (RETRY_AFTER, false, false));
    }
    for _ in 0..5 {
        assert_eq!(scan(Fails::Manifest), (RETRY_AFTER, true, false));
        assert!(foreign.describe().contains("no eviction until the cap"), "{}", foreign.describe());
    }
    assert_eq!(scan(Fails::Nothing), (EVERY, true, true));
    assert_eq!(scan(Fails::Looks), (RETRY_AFTER, true, true));
    assert_eq!(scan(Fails::Looks), (2 * RETRY_AFTER, true, true), "others' changes may come late");
}

#[test]
fn a_directory_that_can_be_written_to_again_is_scanned_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let _process = fake_process::enter(|_| Ok(()));
    let disk = open_foreign(FOREIGN[2].0, dir.path());
    let shared = shared_of(&disk);
    let foreign = shared.data_dir.foreign().unwrap();
    let mut rounds = Rounds { every: EVERY, listed: true, retry: RETRY_AFTER };
    let is_requested = || foreign.scan_requests.take().now;
    shared.data_dir.set_read_only(true);
    assert_eq!(rounds.scan(shared, foreign), EVERY);
    assert!(foreign.is_scanned() && !foreign.may_evict());
    assert!(shared.restore_data_dir() && is_requested());
    assert!(shared.restore_data_dir() && !is_requested(), "once");
    rounds.scan(shared, foreign);
    assert!(foreign.may_evict());
    shared.data_dir.set_read_only(true);
    assert!(shared.restore_data_dir() && !is_requested(), "it may evict already");
}
