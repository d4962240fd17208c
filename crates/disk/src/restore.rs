//! Somebody deleted `.kvtier` under a living tier: it comes back, and so do saves.

use std::io;
use std::sync::atomic::Ordering;

use crate::counters::add;
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
        let restored = self.home.restore().and_then(|anew| if anew { self.go_on_anew() } else { Ok(()) });
        let own = self.home.own();
        restored.map_err(|e| self.fault(format!("{} was deleted and cannot be made again: {e}", own.display()))).is_ok()
    }

    fn go_on_anew(&self) -> io::Result<()> {
        let own = self.home.own();
        // Counted for itself: the next fault takes the place of this one.
        add(&self.restored, 1);
        self.fault(format!("{} was deleted; made it again: the order of use is lost, chunks are not", own.display()));
        self.journal.rename(self.home.corner().name());
        self.ledger.reopen(&own)?;
        // Whoever comes first counts what lies there, and each adds what it has under way: that was counted in the file that is gone.
        self.ledger.recount(false, || match self.home.foreign() {
            Some(_) => Ok(self.index().usage().used),
            None => self.lying_bytes(),
        })?;
        let under_way = self.index().usage().reserved;
        self.ledger.shift(under_way.cast_signed())?;
        // What changed meanwhile may be counted twice: a quiet moment will tell.
        self.bereaved.store(true, Ordering::Relaxed);
        Ok(())
    }
}
