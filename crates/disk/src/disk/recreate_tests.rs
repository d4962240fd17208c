//! What a save answers whose tier was creating `.kvtier` again when it was deleted once more.

use std::fs;
use std::time::Duration;

use kvtier_core::ManualClock;

use super::tests::{in_time, key, open_on};
use super::*;
use crate::data_dir::Recovered;

#[test]
fn a_save_over_a_ledger_that_was_deleted_before_it_was_counted_names_the_cause() {
    let (time, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let disk = open_on(&time, dir.path());
    let own = dir.path().join(".kvtier");
    let away = dir.path().join("lost+found");
    let delete = || {
        fs::rename(&own, &away).unwrap();
        fs::remove_dir_all(&away).unwrap();
    };
    let save = || {
        let ctx = Ctx::within_on(&time.clock(), Duration::from_secs(1 << 20));
        let op = kvtier_core::Save { key: key(1), from: vec![vec![1; 1000].into()] };
        let save = disk.save(&ctx, vec![op]);
        in_time(&time, "the save is answered", || save.is_done());
        save.wait().remove(0).result
    };
    // The first steps of a restoration, as far as the ledger that is not counted yet.
    delete();
    assert_eq!(disk.shared.data_dir.restore().unwrap(), Recovered::Bookkeeping);
    disk.shared.space.ledger.reopen(&own).unwrap();
    *disk.shared.recreation.is_due.lock().unwrap() = true;
    delete();
    fs::write(&own, "in the way").unwrap();
    let failed = save().unwrap_err().to_string();
    assert!(failed.contains("`.kvtier` was deleted and cannot be created again"), "{failed}");
    // What this tier moves nothing with is asked for once there is space.
    fs::remove_file(&own).unwrap();
    assert_eq!(save().unwrap_err().kind(), ErrorKind::Closed);
}
