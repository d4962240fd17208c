//! `.kvtier` was deleted under an open tier, or the file system became writable: makes what is
//! missing, so that saves go on.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::changes::ChangeLog;
use crate::counters::add;
use crate::data_dir::{Recovered, is_read_only};
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// What the status says of it, also after other faults; `None` where it never happened.
    pub fn restored_note(&self) -> Option<String> {
        let times = self.restored.load(Ordering::Relaxed);
        let own = self.data_dir.own();
        (times > 0)
            .then(|| format!("{} was deleted and made again, so often: {times}", own.display()))
    }

    /// Sees that `.kvtier` is complete, and makes it again if not. Answers whether it is. Callers
    /// wait for one another.
    pub fn restore_data_dir(&self) -> bool {
        // A file system that turned read-only after an error need not say so: once a write was
        // refused, one is tried.
        if is_read_only(self.data_dir.root())
            || (self.data_dir.is_read_only() && !self.data_dir.accepts_writes())
        {
            self.data_dir.set_read_only(true);
            return false;
        }
        // Until all of it has succeeded the next call tries again: a directory whose ledger is not
        // attached has no cap.
        let mut is_due = self.restore_is_due.lock().unwrap_or_else(PoisonError::into_inner);
        // A cap below what lies there was refused when the directory was opened, if at all.
        let restored = self.data_dir.restore().and_then(|made| {
            let anew = made != Recovered::Nothing;
            if made == Recovered::Directory {
                self.changes.begin_anew();
            }
            if anew && !self.data_dir.is_read_only() {
                // Counted for itself: the next fault takes the place of this one.
                add(&self.restored, 1);
                let own = self.data_dir.own();
                self.fault(match made {
                    Recovered::Directory => format!(
                        "{} was taken away; goes on in the directory that is there now, with the chunks that it has",
                        self.data_dir.root().display()
                    ),
                    _ => format!(
                        "{} was deleted; made it again: the order of use is lost, chunks are not",
                        own.display()
                    ),
                });
            }
            *is_due |= anew;
            if *is_due { self.reattach() } else { Ok(()) }
        });
        if let Err(e) = restored {
            let own = self.data_dir.own();
            self.failed(
                &format!(
                    "{} was deleted, or could only be read, and cannot be made again",
                    own.display()
                ),
                &e,
            );
            return false;
        }
        *is_due = false;
        self.data_dir.set_read_only(false);
        true
    }

    /// Goes on in a `.kvtier` that was just made, or that can be written for the first time.
    fn reattach(&self) -> io::Result<()> {
        let own = self.data_dir.own();
        self.journal.rename(self.data_dir.staging()?.name());
        self.tenants.restore(&self.data_dir)?;
        self.ledger.reopen(&own)?;
        // The process that comes first counts what lies there. What was under way was counted in
        // the file that is gone, and is published or released as of that generation.
        self.recount(false)?;
        if self.data_dir.foreign().is_none() {
            self.data_dir.with_registration_lock(|| ChangeLog::create(&own, &self.clock))?;
        }
        // What changed meanwhile may be counted twice.
        self.ledger_check.suspect();
        Ok(())
    }
}
