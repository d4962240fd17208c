//! Creates what is missing after `.kvtier` was deleted under an open tier, or after the file system
//! became writable, so that saves continue.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::change_log::ChangeLog;
use crate::counters::add;
use crate::data_dir::{Recovered, is_read_only};
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// How often `.kvtier` was restored, for the status; `None` where it never was.
    pub fn restored_note(&self) -> Option<String> {
        let times = self.recreation.times.load(Ordering::Relaxed);
        let own = self.data_dir.own();
        (times > 0)
            .then(|| format!("{} was deleted and created again, {times} times", own.display()))
    }

    /// Creates `.kvtier` again unless it is complete. Returns whether it is complete now. Concurrent
    /// callers wait.
    pub fn restore_data_dir(&self) -> bool {
        // A file system that became read-only after an error need not report it: after a refused
        // write, a small write is tried.
        if is_read_only(self.data_dir.root())
            || (self.data_dir.is_read_only() && !self.data_dir.accepts_writes())
        {
            self.data_dir.set_read_only(true);
            return false;
        }
        // Until all of it has succeeded the next call tries again: a directory whose ledger is not
        // attached has no cap.
        let mut is_due = self.recreation.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        let restored = self.data_dir.restore().and_then(|made| {
            let anew = made != Recovered::Nothing;
            if made == Recovered::Directory {
                self.changes.begin_anew();
            }
            if anew && !self.data_dir.is_read_only() {
                // Counted on its own: the next fault replaces this one in the status.
                add(&self.recreation.times, 1);
                let own = self.data_dir.own();
                self.fault(match made {
                    Recovered::Directory => format!(
                        "{} was moved or deleted; the tier continues in the directory that the path names now, with its chunks",
                        self.data_dir.root().display()
                    ),
                    _ => format!(
                        "{} was deleted and is created again: the order of use is lost, chunks are not",
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
                &format!("{} was deleted or read-only, and cannot be created again", own.display()),
                &e,
            );
            return false;
        }
        *is_due = false;
        let was_read_only = self.data_dir.set_read_only(false);
        // A foreign layout that was read-only has agreed on no cap yet, and evicts nothing before.
        if let Some(foreign) = self.data_dir.foreign()
            && was_read_only
            && !foreign.may_evict()
        {
            foreign.request_scan();
        }
        // The tier runs on with the manifest that it read; others could not open the directory.
        if let Err(e) = self.data_dir.repair_manifest() {
            let own = self.data_dir.own();
            self.failed(&format!("cannot repair {}", own.display()), &io::Error::other(e));
        }
        true
    }

    /// Continues in a `.kvtier` that was just created, or that is writable for the first time.
    fn reattach(&self) -> io::Result<()> {
        let own = self.data_dir.own();
        // Journals are named after the staging directory, by which readers find those of dead
        // processes.
        self.journal.rename(self.data_dir.staging()?.name());
        self.tenants.restore(&self.data_dir)?;
        // A new file, or the one that a peer created a moment ago.
        self.space.ledger.reopen(&own)?;
        // The first process counts the directory. Saves under way were counted in the deleted
        // ledger, and are published or released with its generation.
        self.recount(false)?;
        if self.data_dir.foreign().is_none() {
            self.data_dir.with_registration_lock(|| ChangeLog::create(&own, &self.clock))?;
        }
        // Files that changed meanwhile may be counted twice.
        self.space.ledger_validity.suspect();
        Ok(())
    }
}
