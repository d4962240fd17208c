//! Room for a file: claimed in the index and in the ledger before it is written, made by eviction
//! where there is none.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use kvtier_core::{Event, ShedReason};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, IndexEntry, Refusal, Reservation, Reserve, ReserveRequest};

use crate::counters::add;
use crate::data_dir::{Draft, is_full};
use crate::ledger::{Claimed, Generation};
use crate::mover::Mover;
use crate::shared::Shared;

/// How often eviction may free nothing before a save is shed.
const STUCK_MAX: u32 = 8;

/// Room for one file, and the unfinished file itself. Dropped before it is spent, it is given back.
#[derive(Debug)]
pub struct Room<M: Mover> {
    shared: Arc<Shared<M>>,
    size: Size,
    want: ReserveRequest,
    /// Until when it waits for others to free some.
    patience: Instant,
    tries: Tries,
    reservation: Option<Reservation>,
    /// The ledger counts `size.claimed` for us.
    counted: bool,
    /// The unfinished file.
    draft: Option<Draft>,
    /// The same, open, until it is taken to be written.
    file: Option<File>,
    /// A victim's file of just this length, to be written over.
    spare: Option<Draft>,
}

/// How large a chunk's files are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The most that they take together before they are published, which is what is claimed.
    pub claimed: u64,
    /// What they take then.
    pub published: u64,
    /// What is allocated for the unfinished file.
    pub allocated: u64,
}

/// What a claim has tried so far.
#[derive(Debug, Default)]
struct Tries {
    /// How often the ledger was full and nothing was left to evict.
    refused: u32,
    /// How often in a row eviction freed nothing.
    stuck: u32,
    /// Bytes evicted because the medium was full, whatever became of them.
    squeezed: u64,
    checked: bool,
    restored: bool,
}

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The room is ours.
    Granted,
    /// Others are freeing room: claim again when the line of those who wait is called.
    Later,
}

/// Why a claim fails.
#[derive(Debug)]
pub enum Denied {
    /// There is no room.
    Shed(ShedReason),
    /// The file cannot be made.
    Failed(io::Error),
}

/// What became of a file's room in the ledger and on the medium.
enum Made {
    Yes,
    /// The ledger has none.
    LedgerFull,
    /// The medium has none.
    MediumFull,
}

impl From<ShedReason> for Denied {
    fn from(reason: ShedReason) -> Self {
        Denied::Shed(reason)
    }
}

impl<M: Mover> Room<M> {
    /// Room for a file; not claimed yet. `want` asks for the bytes that `size` claims.
    pub fn new(
        shared: &Arc<Shared<M>>,
        want: ReserveRequest,
        size: Size,
        deadline: Instant,
    ) -> Self {
        let (patience, tries) =
            (deadline.min(shared.clock.now() + shared.room_wait_max), Tries::default());
        let shared = Arc::clone(shared);
        let (reservation, counted, draft, file, spare) = (None, false, None, None, None);
        Room { shared, size, want, patience, tries, reservation, counted, draft, file, spare }
    }

    /// Claims the room, evicting what the index chooses, and makes the file. Never waits.
    pub fn claim(&mut self) -> Result<Claim, Denied> {
        if self.reservation.is_some() {
            return Ok(Claim::Granted);
        }
        let shared = Arc::clone(&self.shared);
        loop {
            if !shared.may_evict() && !shared.fits(&self.want) {
                // Nobody knows yet what evicting would free, or it is not allowed.
                return self.later(ShedReason::Full);
            }
            let asked = shared.index().reserve_for(shared.now_ms(), &self.want);
            let again = match asked {
                Reserve::Granted(reservation) => {
                    self.reservation = Some(reservation);
                    let made = self.make().inspect_err(|_| self.release())?;
                    if matches!(made, Made::Yes) {
                        return Ok(Claim::Granted);
                    }
                    self.release();
                    match made {
                        Made::MediumFull => self.medium_is_full()?,
                        _ => shared.clear_aside(self.size.claimed) > 0 || self.ledger_is_full()?,
                    }
                }
                Reserve::Evict(victims) => {
                    // Victims that cannot be deleted are there again, and would be chosen for ever.
                    self.tries.stuck =
                        if self.take_from(victims) { 0 } else { self.tries.stuck + 1 };
                    if self.tries.stuck == STUCK_MAX {
                        return Err(ShedReason::Full.into());
                    }
                    true
                }
                Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge.into()),
                Reserve::Full(Refusal::NotWorth) => return Err(ShedReason::NotWorth.into()),
                Reserve::Full(Refusal::Quota { .. }) => return Err(ShedReason::Quota.into()),
                Reserve::Full(_) => return Err(ShedReason::Full.into()),
                _ => return self.later(ShedReason::Full),
            };
            if !again {
                return Ok(Claim::Later);
            }
        }
    }

    /// Waits as long as there is patience.
    fn later(&self, reason: ShedReason) -> Result<Claim, Denied> {
        if self.shared.clock.now() < self.patience { Ok(Claim::Later) } else { Err(reason.into()) }
    }

    /// Makes the unfinished file and counts it in one step, then allocates it: see the ledger.
    fn make(&mut self) -> Result<Made, Denied> {
        let shared = Arc::clone(&self.shared);
        if let Some(spare) = self.spare.take() {
            if let Ok(Some(file)) = shared.data_dir.reopen(&spare, self.size.allocated) {
                (self.draft, self.file) = (Some(spare), Some(file));
                return Ok(Made::Yes);
            }
            // It has not the length that its name said.
            self.spare = Some(spare);
            self.uncount();
        }
        let (mut made, bytes) = (None, self.size.claimed);
        let mut make = || {
            let making = made.insert(shared.data_dir.create(bytes));
            making.is_ok()
        };
        let claimed = shared.claim_bytes(bytes, &mut make);
        let (draft, file) = match made {
            Some(Ok(made)) => made,
            Some(Err(e)) => return self.not_made(e),
            None => return self.not_counted(claimed),
        };
        self.draft = Some(draft);
        if claimed != Claimed::Granted {
            self.uncount();
            return self.not_counted(claimed);
        }
        self.counted = true;
        match shared.data_dir.allocate(&file, self.size.allocated) {
            Ok(()) => self.file = Some(file),
            Err(e) => {
                self.uncount();
                return self.not_made(e);
            }
        }
        Ok(Made::Yes)
    }

    /// The unfinished file could not be made.
    fn not_made(&mut self, e: io::Error) -> Result<Made, Denied> {
        if is_full(&e) {
            return Ok(Made::MediumFull);
        }
        if self.shared.note_read_only(&e) {
            return Err(ShedReason::ReadOnly.into());
        }
        let is_gone = e.kind() == io::ErrorKind::NotFound
            && !std::mem::replace(&mut self.tries.restored, true);
        if is_gone && self.shared.restore_data_dir() { self.make() } else { Err(Denied::Failed(e)) }
    }

    /// The ledger did not take it. A damaged one is recounted, and asked again.
    fn not_counted(&mut self, claimed: Claimed) -> Result<Made, Denied> {
        if claimed == Claimed::Damaged {
            match self.shared.recount(false) {
                Ok(()) => return self.make(),
                Err(e) => self.shared.failed("cannot recount the ledger", &e),
            }
        }
        Ok(Made::LedgerFull)
    }

    /// The index has room and the ledger none: what fills the directory are files that the index
    /// does not know, unfinished files of other processes, or files that are gone and still
    /// counted. Does something about it and answers whether to claim again at once.
    fn ledger_is_full(&mut self) -> Result<bool, Denied> {
        if self.shared.follow_changes().records > 0 {
            return Ok(true);
        }
        self.shared.ledger_check.suspect();
        // A listing is expensive; between two, the oldest of what the index has is evicted.
        if self.shared.relist() || self.take_oldest() {
            return Ok(true);
        }
        self.tries.refused += 1;
        match self.tries.refused {
            1 => Ok(self.shared.remove_stale()),
            _ if self.shared.clock.now() < self.patience => Ok(false),
            _ if !std::mem::replace(&mut self.tries.checked, true) => {
                // Another may have been faster: whatever was done, there may be room now.
                self.shared.check_ledger();
                Ok(true)
            }
            _ => Err(ShedReason::Full.into()),
        }
    }

    /// The medium is full below the cap. Evicts as much as is wanted, and, where others were faster
    /// with what that freed, again each time the line is called. Answers whether to claim again
    /// at once.
    fn medium_is_full(&mut self) -> Result<bool, Denied> {
        let shared = Arc::clone(&self.shared);
        add(&shared.counters.device_full, 1);
        shared.medium.note_seen(&shared.clock);
        if shared.clear_aside(self.size.claimed) > 0 {
            return Ok(true);
        }
        if self.take_oldest() {
            self.tries.squeezed += self.size.claimed;
            return Ok(self.tries.squeezed <= 2 * self.size.claimed);
        }
        // What is left is held, or being written.
        match self.later(ShedReason::DeviceFull) {
            Ok(_) => Ok(false),
            Err(denied) => {
                shared.medium.note_shed(&shared.clock);
                Err(denied)
            }
        }
    }

    /// The unfinished file, to be written.
    pub fn file(&mut self) -> Option<File> {
        self.file.take()
    }

    /// The unfinished file, to be published.
    pub fn draft(&self) -> Option<&Draft> {
        self.draft.as_ref()
    }

    /// The file is published: what was claimed is now counted as there. `since` was asked before it
    /// was.
    pub fn spend(mut self, since: Generation) -> Option<Reservation> {
        self.draft = None;
        self.counted = false;
        // It was cut to its length.
        let cut = self.size.claimed - self.size.published;
        if cut > 0 {
            self.shared.ledger.release_later(cut, since);
        }
        self.reservation.take()
    }

    /// The file is deleted already: gives back what was counted for it. `since` was asked before it
    /// was deleted.
    pub fn lose(mut self, since: Generation) {
        self.draft = None;
        self.counted = false;
        self.shared.uncount(self.size.claimed, since);
    }

    /// Makes room on a medium that is full before its cap, while the file is written. Answers
    /// whether anything went.
    pub fn squeeze(&self) -> bool {
        self.shared.medium.note_seen(&self.shared.clock);
        let cleared = self.shared.clear_aside(self.size.claimed);
        if !self.shared.may_evict() {
            return cleared > 0;
        }
        let wanted = self.size.claimed.saturating_sub(cleared);
        let victims = self.shared.index().evict_bytes(self.shared.now_ms(), wanted);
        self.shared.evict(victims) + cleared as usize > 0
    }

    fn take_oldest(&mut self) -> bool {
        if !self.shared.may_evict() {
            return false;
        }
        let victims = self.shared.index().evict_bytes(self.shared.now_ms(), self.size.claimed);
        self.take_from(victims)
    }

    /// Evicts; the first victim whose file has our length is not deleted but becomes ours. Answers
    /// whether any went.
    fn take_from(&mut self, victims: Vec<IndexEntry>) -> bool {
        let (shared, mut rest) = (Arc::clone(&self.shared), Vec::with_capacity(victims.len()));
        let mut recycled = 0;
        for victim in victims {
            let fits =
                self.spare.is_none() && !self.counted && victim.chunk.bytes == self.size.claimed;
            if fits && self.recycle(&victim.chunk) { recycled += 1 } else { rest.push(victim) }
        }
        let gone = recycled + shared.evict(rest);
        // Who waits for victims to be gone looks again, also when their room is ours.
        shared.for_room.call();
        gone > 0
    }

    /// Takes over a victim's file, and with it its place in the ledger.
    fn recycle(&mut self, victim: &Chunk) -> bool {
        let (shared, digest) = (Arc::clone(&self.shared), &victim.digest);
        let one = shared.name(digest);
        let moving = shared.ledger_check.moving();
        if shared.readers.has(digest) || !shared.index().is_evicting(digest) {
            return false;
        }
        let Ok(Some(draft)) = shared.data_dir.recycle(digest, victim.len) else { return false };
        shared.index().finish_evict(digest);
        shared.journal.note([Record::Remove(*digest)]);
        shared.announce_change(Record::Remove(*digest));
        shared.listeners.push(Event::Gone { key: *digest, len: victim.len });
        drop((moving, one));
        add(&shared.counters.evicted, 1);
        add(&shared.counters.recycled, 1);
        shared.listeners.notify();
        (self.spare, self.counted) = (Some(draft), true);
        true
    }

    fn release(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.index().cancel(reservation);
        }
    }

    /// Deletes the unfinished file, then gives back what was counted for it.
    fn uncount(&mut self) {
        if !self.counted && self.spare.is_none() && self.draft.is_none() {
            return;
        }
        let (_moving, since) = (self.shared.ledger_check.moving(), self.shared.ledger.generation());
        self.file = None;
        for draft in [self.spare.take(), self.draft.take()].into_iter().flatten() {
            let _ = self.shared.data_dir.unlink_draft(&draft);
        }
        if std::mem::take(&mut self.counted) {
            self.shared.uncount(self.size.claimed, since);
        }
    }
}

impl<M: Mover> Drop for Room<M> {
    fn drop(&mut self) {
        self.uncount();
        if self.reservation.is_some() {
            self.release();
            self.shared.for_room.call();
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Whether `bytes` more stay under the cap, as far as the index knows.
    fn fits(&self, want: &ReserveRequest) -> bool {
        let index = self.index();
        let usage = index.usage();
        let is_below_cap =
            usage.used.saturating_add(usage.reserved).saturating_add(want.bytes) <= usage.capacity;
        is_below_cap && !index.is_above_quota(want)
    }

    /// Brings the index and the ledger into agreement with the directory, whichever process wrote
    /// there. `false` if that failed, or was done a moment ago.
    pub fn relist(&self) -> bool {
        self.looks.now_and_then(&self.clock, || {
            let listed = self.reconcile();
            self.check_ledger();
            listed
        })
    }

    /// Deletes what eviction chose. Answers how many are gone.
    pub fn evict(&self, victims: Vec<IndexEntry>) -> usize {
        let gone = self.delete(victims);
        add(&self.counters.evicted, gone as u64);
        gone
    }

    /// Deletes what the index marked as leaving, and says so. What cannot be deleted stays. Answers
    /// how many are gone.
    pub fn delete(&self, victims: Vec<IndexEntry>) -> usize {
        let gone = victims.iter().filter(|victim| self.delete_one(&victim.chunk)).count();
        if !victims.is_empty() {
            self.for_room.call();
            self.listeners.notify();
        }
        gone
    }

    /// Whether it is gone.
    fn delete_one(&self, victim: &Chunk) -> bool {
        let Chunk { digest, len, bytes, .. } = *victim;
        let _one = self.name(&digest);
        // Saved again while it waited for its end: it stays.
        if !self.index().is_evicting(&digest) {
            return false;
        }
        let (_moving, since) = (self.ledger_check.moving(), self.ledger.generation());
        match self.data_dir.delete(&digest, len) {
            Ok(there) => {
                if there {
                    let is_counted = !self
                        .data_dir
                        .foreign()
                        .is_some_and(|foreign| foreign.is_uncounted(&digest));
                    self.uncount(if is_counted { bytes } else { 0 }, since);
                    self.announce_change(Record::Remove(digest));
                } else {
                    self.lost(&digest, bytes);
                }
                self.journal.note([Record::Remove(digest)]);
                let gone = self.index().finish_evict(&digest);
                if gone {
                    self.listeners.push(Event::Gone { key: digest, len });
                }
                gone
            }
            Err(e) => {
                self.failed(&format!("cannot delete the file of {digest}"), &e);
                self.index().abort_evict(&digest);
                false
            }
        }
    }
}
