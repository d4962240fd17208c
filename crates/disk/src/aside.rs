//! The quarantine and the books: what lies aside is counted, and the first to go.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::data_dir::quarantine::{self, Cleared};
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Deletes what is in quarantine until `wanted` bytes are free. Answers how many went.
    pub fn clear_aside(&self, wanted: u64) -> u64 {
        self.account(|own| quarantine::make_room(own, wanted))
    }

    /// Deletes what has been in quarantine for long, and learns what others put there.
    pub fn trim_aside(&self) {
        self.account(|own| {
            quarantine::trim(own, quarantine::bytes_max(self.capacity_bytes), self.clock.wall())
        });
    }

    fn account(&self, clear: impl FnOnce(&Path) -> io::Result<Cleared>) -> u64 {
        let (_moving, since) = (self.ledger_check.moving(), self.ledger.generation());
        let cleared =
            clear(&self.data_dir.own()).unwrap_or_else(|e| Cleared { bytes: 0, failed: Some(e) });
        let gone = cleared.bytes;
        if let Some(e) = cleared.failed {
            self.fault(format!("cannot clear the quarantine: {e}"));
        }
        if gone > 0 {
            self.uncount(gone, since);
        }
        if let Ok(all) = quarantine::list(&self.data_dir.own()) {
            self.aside_bytes.store(all.iter().map(|kept| kept.bytes).sum(), Ordering::Relaxed);
        }
        gone
    }
}
