//! Somebody deleted `.kvtier` under a living tier: it comes back, and so do saves.

use std::io;
use std::sync::atomic::Ordering;

use crate::counters::add;
use crate::home::is_read_only;
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// What an operator should know of it, also after other faults; `None` where it never happened.
    pub fn tell_of_restoring(&self) -> Option<String> {
        let times = self.restored.load(Ordering::Relaxed);
        let own = self.home.own();
        (times > 0).then(|| format!("{} was deleted and made again, so often: {times}", own.display()))
    }

    /// Sees that the directory's own affairs are where they were, and makes them again if not. Answers whether they are there.
    pub fn restore_home(&self) -> bool {
        if is_read_only(self.home.root()) {
            self.home.set_read_only(true);
            return false;
        }
        // A cap below what lies there was refused when the directory was opened, if at all.
        let restored = self.home.restore().and_then(|anew| match (anew, self.home.is_read_only()) {
            (true, true) => self.begin_to_write(),
            (true, false) => self.go_on_anew(),
            _ => Ok(()),
        });
        let own = self.home.own();
        if restored.is_ok() {
            self.home.set_read_only(false);
        }
        restored
            .map_err(|e| {
                self.fault(format!(
                    "{} was deleted, or could only be read, and cannot be made again: {e}",
                    own.display()
                ))
            })
            .is_ok()
    }

    /// The file system was read-only when the directory was opened, and is no more.
    fn begin_to_write(&self) -> io::Result<()> {
        self.journal.rename(self.home.corner()?.name());
        self.count_anew()
    }

    fn go_on_anew(&self) -> io::Result<()> {
        let own = self.home.own();
        // Counted for itself: the next fault takes the place of this one.
        add(&self.restored, 1);
        self.fault(format!("{} was deleted; made it again: the order of use is lost, chunks are not", own.display()));
        self.journal.rename(self.home.corner()?.name());
        self.count_anew()?;
        // What changed meanwhile may be counted twice: a quiet moment will tell.
        self.bereaved.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn count_anew(&self) -> io::Result<()> {
        let own = self.home.own();
        self.ledger.reopen(&own)?;
        // Whoever comes first counts what lies there, and each adds what it has under way: that was counted in the file that is gone.
        self.ledger.recount(false, || match self.home.foreign() {
            Some(_) => Ok(self.index().usage().used),
            None => self.lying_bytes(),
        })?;
        let under_way = self.index().usage().reserved;
        self.ledger.shift(under_way.cast_signed())
    }
}
