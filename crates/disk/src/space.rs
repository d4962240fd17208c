//! Space for one file, reserved before the file is written.
//!
//! A reservation has two halves. The *index* reserves bytes below the cap and names the victims to
//! evict for them. The *ledger* counts the same bytes for all processes; in the same step, under
//! its lock, the unfinished file is created, so that each counted claim is a file that peers can
//! see. [`SpaceReservation::reserve`] gets both or neither.
//!
//! `reserve` never waits. It returns [`ReserveOutcome::Wait`] where space may become free without
//! its help; the save then enters the tier's space queue and calls it again, until `wait_until`.
//! Each refusal has its own answer: victims are evicted, a full ledger is checked against the
//! directory, and a device that is full below the cap is freed by eviction.
//!
//! A dropped reservation deletes its file first and releases its bytes second, so that the ledger
//! never counts less than the device holds. A victim's file of exactly the right length is written
//! over instead of deleted: it keeps its bytes counted (`recycle`).

mod on_full;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use kvtier_core::ShedReason;
use kvtier_index::{Refusal, Reservation, Reserve, ReserveRequest};

use crate::data_dir::Draft;
use crate::ledger::{Claimed, Generation};
use crate::mover::Mover;
use crate::shared::Shared;
use crate::space_state::EvictingSave;

/// How often in a row eviction may free nothing before a save is shed.
const STUCK_MAX: u32 = 8;

/// Space for one file, and the unfinished file itself; see the [module](self).
#[derive(Debug)]
pub struct SpaceReservation<M: Mover> {
    shared: Arc<Shared<M>>,
    size: FileSize,
    request: ReserveRequest,
    /// Until when the save waits for space that others free.
    wait_until: Instant,
    /// When the save itself ends.
    deadline: Instant,
    attempts: ReserveAttempts,
    reservation: Option<Reservation>,
    /// The ledger counts `size.claimed` for this reservation.
    is_counted: bool,
    /// The unfinished file.
    draft: Option<Draft>,
    /// The same file, open, until it is taken to be written.
    file: Option<File>,
    /// A victim's file of exactly this length, to be written over.
    recycled: Option<Draft>,
    /// The unfinished sidecar, which `size.claimed` includes.
    sidecar: Option<Draft>,
    /// Chunks were evicted, and what they freed is not yet reserved.
    evicting: Option<EvictingSave>,
}

/// The bytes of a chunk's files.
#[derive(Clone, Copy, Debug)]
pub struct FileSize {
    /// The most that is counted for the files until all are published; this is claimed.
    pub claimed: u64,
    /// What they take once they are published.
    pub published: u64,
    /// What is allocated for the unfinished file.
    pub allocated: u64,
}

/// What a reservation has tried so far.
#[derive(Debug, Default)]
struct ReserveAttempts {
    /// How often the ledger was full and no chunk was left to evict.
    refused: u32,
    /// How often in a row eviction freed nothing.
    stuck: u32,
    /// Bytes evicted because the device was full.
    device_evicted: u64,
    /// How often chunks were evicted because the ledger was unavailable.
    exchanges: u32,
    is_ledger_checked: bool,
    is_ledger_unavailable: bool,
    is_restored: bool,
}

/// The state of a reservation after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// The space is reserved and the file created.
    Reserved,
    /// Others are freeing space: try again when the space queue is notified.
    Wait,
}

/// Why space cannot be reserved.
#[derive(Debug)]
pub enum ReserveError {
    /// There is no space.
    Shed(ShedReason),
    /// The file cannot be created.
    Failed(io::Error),
}

/// How the creation of the unfinished file ended.
enum FileOutcome {
    Created,
    LedgerFull,
    LedgerUnavailable,
    DeviceFull,
}

impl From<ShedReason> for ReserveError {
    fn from(reason: ShedReason) -> Self {
        ReserveError::Shed(reason)
    }
}

impl<M: Mover> SpaceReservation<M> {
    /// A reservation for a file that holds no space yet. `request` asks for `size.claimed` bytes.
    pub fn new(
        shared: &Arc<Shared<M>>,
        request: ReserveRequest,
        size: FileSize,
        deadline: Instant,
    ) -> Self {
        SpaceReservation {
            shared: Arc::clone(shared),
            size,
            request,
            wait_until: deadline.min(shared.clock.now() + shared.limits.space_wait_max),
            deadline,
            attempts: ReserveAttempts::default(),
            reservation: None,
            is_counted: false,
            draft: None,
            file: None,
            recycled: None,
            sidecar: None,
            evicting: None,
        }
    }

    /// Reserves the space, evicts what the index chooses, and creates the file. Never waits.
    ///
    /// # Errors
    /// `Shed` where there is no space and no prospect of it before the save's wait ends; `Failed`
    /// where the file cannot be created.
    pub fn reserve(&mut self) -> Result<ReserveOutcome, ReserveError> {
        let reserved = self.try_reserve();
        // A victim's file is space that it has, also while it waits.
        if self.recycled.is_none() {
            self.evicting = None;
        }
        reserved
    }

    fn try_reserve(&mut self) -> Result<ReserveOutcome, ReserveError> {
        // An earlier call reserved it.
        if self.reservation.is_some() {
            return Ok(ReserveOutcome::Reserved);
        }
        let shared = Arc::clone(&self.shared);
        loop {
            if !shared.may_evict() && !shared.fits(&self.request) {
                // The sizes of victims are unknown yet, or eviction is not allowed.
                return self.wait_or_shed(ShedReason::Full);
            }
            // The index is locked for this one decision. Deleting victims and creating files happen
            // without it.
            let reserved = {
                let mut index = shared.index();
                let reserved = index.reserve_for(shared.now_ms(), &self.request);
                if matches!(reserved, Reserve::Granted(_)) {
                    self.evicting = None;
                }
                reserved
            };
            let try_again = match reserved {
                Reserve::Granted(reservation) => {
                    self.reservation = Some(reservation);
                    // The index agreed; now the ledger, which all processes share, must too.
                    let created = self.create_file().inspect_err(|_| self.cancel())?;
                    if matches!(created, FileOutcome::Created) {
                        return Ok(ReserveOutcome::Reserved);
                    }
                    self.cancel();
                    match created {
                        FileOutcome::DeviceFull => self.on_device_full()?,
                        FileOutcome::LedgerUnavailable => self.on_ledger_unavailable()?,
                        _ => {
                            shared.free_quarantined(self.size.claimed) > 0
                                || self.on_ledger_full()?
                        }
                    }
                }
                Reserve::Evict(victims) => {
                    // Victims that cannot be deleted return to the index, and would be chosen
                    // again and again.
                    self.attempts.stuck =
                        if self.evict_or_recycle(victims) { 0 } else { self.attempts.stuck + 1 };
                    if self.attempts.stuck == STUCK_MAX {
                        return Err(ShedReason::Full.into());
                    }
                    true
                }
                // These do not change by waiting: the save is shed at once.
                Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge.into()),
                Reserve::Full(Refusal::NotWorth) => return Err(ShedReason::NotWorth.into()),
                Reserve::Full(Refusal::Quota { .. }) => return Err(ShedReason::Quota.into()),
                Reserve::Full(_) => return Err(ShedReason::Full.into()),
                // Busy: other saves are deleting victims, and their bytes are free soon.
                _ => return self.wait_or_shed(ShedReason::Full),
            };
            if !try_again {
                return Ok(ReserveOutcome::Wait);
            }
        }
    }

    fn wait_or_shed(&self, reason: ShedReason) -> Result<ReserveOutcome, ReserveError> {
        if self.shared.clock.now() < self.wait_until {
            Ok(ReserveOutcome::Wait)
        } else {
            Err(reason.into())
        }
    }

    /// Creates the unfinished file and counts it in one step, then allocates it: see the ledger.
    fn create_file(&mut self) -> Result<FileOutcome, ReserveError> {
        let shared = Arc::clone(&self.shared);
        // A victim's file of the right length has its blocks, and its bytes are counted already: no
        // claim and no allocation.
        if let Some(recycled) = self.recycled.take() {
            if let Ok(Some(file)) = shared.data_dir.reopen(&recycled, self.size.allocated) {
                self.draft = Some(recycled);
                self.file = Some(file);
                return Ok(FileOutcome::Created);
            }
            self.release_recycled(recycled);
        }
        let bytes = self.size.claimed;
        // The ledger calls `create` under its lock, after the check of the cap and before the
        // count.
        let mut created = None;
        let mut create = || created.insert(shared.data_dir.create(bytes)).is_ok();
        let claimed = shared.claim_bytes(bytes, &mut create);
        let (draft, file) = match created {
            Some(Ok(created)) => created,
            Some(Err(e)) => return self.on_create_failed(e),
            None => return self.on_claim_refused(claimed),
        };
        self.draft = Some(draft);
        // The file exists and the count failed. Deleted at once, or a peer's recount would count
        // it.
        if claimed != Claimed::Granted {
            self.release_file();
            return self.on_claim_refused(claimed);
        }
        // From here on a drop of the reservation releases the bytes.
        self.is_counted = true;
        match shared.data_dir.allocate(&file, self.size.allocated) {
            Ok(()) => self.file = Some(file),
            Err(e) => {
                self.release_file();
                return self.on_create_failed(e);
            }
        }
        Ok(FileOutcome::Created)
    }

    /// Deletes a victim's file that cannot be written over: its length is not the one that its name
    /// states. Another process may count the length that it has.
    fn release_recycled(&mut self, recycled: Draft) {
        let claimed = self.size.claimed;
        let there = self.shared.data_dir.draft_bytes(&recycled).unwrap_or(0).min(claimed);
        self.is_counted = false;
        self.shared.delete_unfinished([recycled], there);
        if there != claimed {
            self.shared.space.ledger_validity.suspect();
        }
    }

    /// Takes the open unfinished file, to write it.
    pub fn take_file(&mut self) -> Option<File> {
        self.file.take()
    }

    /// The unfinished file, to be published.
    pub fn draft(&self) -> Option<&Draft> {
        self.draft.as_ref()
    }

    /// Creates the unfinished sidecar with these bytes, in the place of one that could not be
    /// finished.
    pub fn create_sidecar(&mut self, bytes: &[u8], is_durable: bool) -> io::Result<()> {
        let data_dir = &self.shared.data_dir;
        if let Some(earlier) = &self.sidecar {
            match data_dir.unlink_draft(earlier) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => self.sidecar = None,
            }
        }
        // Also where it fails: then it is deleted with the reservation, and counted until then.
        let draft = self.sidecar.insert(data_dir.small_draft()?);
        data_dir.write_small(draft, bytes, is_durable)
    }

    /// The unfinished sidecar, to be published.
    pub fn sidecar(&self) -> Option<&Draft> {
        self.sidecar.as_ref()
    }

    /// The sidecar was published.
    pub fn sidecar_is_published(&mut self) {
        self.sidecar = None;
    }

    /// What the files take once they are published.
    pub fn published_bytes(&self) -> u64 {
        self.size.published
    }

    /// Ends the reservation after its file was published: the ledger keeps the published bytes, and
    /// the index commits with the returned reservation. `since` was read before the file was
    /// published.
    pub fn into_published(mut self, since: Generation) -> Option<Reservation> {
        self.draft = None;
        self.is_counted = false;
        // In layout `kvtier` both are equal.
        let mut surplus = self.size.claimed - self.size.published;
        // One that could not be published, and cannot be deleted now, stays counted.
        if let Some(sidecar) = self.sidecar.take() {
            let head = self.shared.data_dir.head_bytes();
            surplus = surplus.saturating_sub(head) + self.shared.data_dir.discard(sidecar, head);
        }
        if surplus > 0 {
            self.shared.space.ledger.release_later(surplus, since);
        }
        self.reservation.take()
    }

    /// The same where it is uncertain which of the files are there: all that was claimed stays counted
    /// until the caller has the ledger compared with the directory.
    pub fn into_uncertain(mut self) -> Option<Reservation> {
        self.draft = None;
        self.is_counted = false;
        if let Some(sidecar) = self.sidecar.take() {
            self.shared.data_dir.discard(sidecar, 0);
        }
        self.reservation.take()
    }

    /// Ends the reservation after its published file was deleted again: releases the claim. `since`
    /// was read before the file was deleted.
    pub fn release_deleted(mut self, since: Generation) {
        self.draft = None;
        self.is_counted = false;
        let head = self.shared.data_dir.head_bytes();
        let discard = |sidecar| self.shared.data_dir.discard(sidecar, head);
        let of_sidecar = self.sidecar.take().map_or(head, discard);
        let of_file = self.size.claimed.saturating_sub(head);
        self.shared.uncount(of_file + of_sidecar, since);
    }

    /// Returns the reservation to the index.
    fn cancel(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.index().cancel(reservation);
        }
    }

    /// Deletes the unfinished file, then releases its bytes.
    fn release_file(&mut self) {
        let is_empty = self.recycled.is_none() && self.draft.is_none() && self.sidecar.is_none();
        if !self.is_counted && is_empty {
            return;
        }
        self.file = None;
        let files = [self.sidecar.take(), self.recycled.take(), self.draft.take()];
        let files = files.into_iter().flatten();
        let is_counted = std::mem::take(&mut self.is_counted);
        let counted_bytes = if is_counted { self.size.claimed } else { 0 };
        self.shared.delete_unfinished(files, counted_bytes);
    }
}

impl<M: Mover> Drop for SpaceReservation<M> {
    fn drop(&mut self) {
        self.release_file();
        if self.reservation.is_some() {
            self.cancel();
            self.shared.space.queue.notify();
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Whether the requested bytes fit below the cap and the quota without eviction, by the index.
    fn fits(&self, request: &ReserveRequest) -> bool {
        let index = self.index();
        let usage = index.usage();
        // Reserved bytes belong to saves that are being written: they count as if they were stored.
        let is_below_cap = usage.used.saturating_add(usage.reserved).saturating_add(request.bytes)
            <= usage.capacity;
        is_below_cap && !index.is_above_quota(request)
    }

    /// Whether chunks are in the index, or saves on their way into it, whose bytes eviction may free
    /// later. The caller's own reservation was cancelled before, and it has evicted nothing.
    pub fn may_free_bytes(&self) -> bool {
        let index = self.index();
        let usage = index.usage();
        usage.entries > 0 || usage.reserved > 0 || self.space.has_evicting_saves()
    }
}

#[cfg(test)]
mod tests;
