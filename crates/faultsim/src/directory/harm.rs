//! Lets other programs and the medium harm the directory, and checks afterwards that it recovered.

use std::io;

use kvtier_disk::inspect::Directory;

use super::{CAP_BYTES, Scheduler};

/// The quota of a run that has one.
pub const QUOTA_BYTES: u64 = CAP_BYTES * 2 / 3;

impl Scheduler {
    /// Deletes chunks, or damages a file of the bookkeeping.
    pub fn harm(&self) {
        let (world, medium) = (&self.shared.world, &self.shared.medium);
        let done = match world.below(2) {
            0 => medium.delete_chunks(world, 3).map(|count| format!("{count} chunks deleted")),
            _ => medium.damage(world),
        };
        match done {
            Ok(said) => world.event(format_args!("from outside: {said}")),
            Err(e) => panic!("the simulated harm failed: {e}"),
        }
    }

    /// In half of the runs another program deletes chunks while nothing else is wrong.
    pub fn delete_late(&self) {
        let (world, medium) = (&self.shared.world, &self.shared.medium);
        if world.below(2) == 0 {
            return;
        }
        let count = medium.delete_chunks(world, 3).expect("files of the simulation");
        world.event(format_args!("from outside: {count} chunks deleted"));
    }

    /// After a time without operations the ledger counts what is in the directory.
    pub fn check_ledger(&self) {
        let world = &self.shared.world;
        let counted = Directory::open(self.shared.medium.root())
            .map_err(io::Error::other)
            .and_then(|directory| Ok(directory.summary()?.ledger_bytes));
        let stored = self.shared.medium.chunk_bytes();
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
