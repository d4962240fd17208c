//! What others do to the directory beside its faults, and whether it recovered.

use std::io;

use kvtier_disk::inspect::Directory;

use super::{CAP_BYTES, Scheduler};

/// The quota of a run that has one.
pub const QUOTA_BYTES: u64 = CAP_BYTES * 2 / 3;
/// The most journals of a process: four, and one more while the oldest is deleted.
const JOURNALS_MAX: usize = 5;

impl Scheduler {
    /// The journals of each process are bounded, whether or not a snapshot has them.
    pub fn check_journals(&self) {
        for (process, files) in self.shared.medium.journals() {
            if files > JOURNALS_MAX {
                let what = format!("{process} has {files} journals, {JOURNALS_MAX} are allowed");
                self.shared.world.finding("journals", what);
            }
        }
    }

    /// After a time without operations the ledger counts what is in the directory.
    pub fn check_ledger(&self) {
        let world = &self.shared.world;
        let counted = Directory::open(self.shared.medium.root())
            .map_err(io::Error::other)
            .and_then(|directory| Ok(directory.summary()?.ledger_bytes));
        let stored = self.shared.medium.counted_bytes(self.shared.setup.sidecar_bytes());
        match counted {
            Ok(Some(counted)) if counted == stored => {}
            Ok(counted) => {
                let what = format!("the ledger counts {counted:?} bytes, {stored} are there");
                world.finding("usage", what);
            }
            Err(e) => world.finding("open", format!("cannot inspect the directory: {e:#}")),
        }
    }
}
