//! What a reservation does where it is refused: the ledger is full or damaged, the device is full
//! below the cap, or `.kvtier` is gone. Each step frees space, or ends in a wait or a shed save.

use std::io;
use std::sync::Arc;

use kvtier_core::{Event, ShedReason};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, IndexEntry};

use super::{FileOutcome, ReserveError, SpaceReservation};
use crate::counters::add;
use crate::data_dir::is_full;
use crate::ledger::Claimed;
use crate::mover::Mover;

/// How often a save evicts while the ledger is unavailable, whatever becomes of the bytes.
const EXCHANGES_MAX: u32 = 64;

impl<M: Mover> SpaceReservation<M> {
    pub(super) fn on_create_failed(&mut self, e: io::Error) -> Result<FileOutcome, ReserveError> {
        if is_full(&e) {
            return Ok(FileOutcome::DeviceFull);
        }
        if self.shared.note_read_only(&e) {
            return Err(ShedReason::ReadOnly.into());
        }
        // `.kvtier` was deleted under the tier. Created again at most once for each save, or a race
        // with the deleter could go on for ever.
        let is_gone = e.kind() == io::ErrorKind::NotFound
            && !std::mem::replace(&mut self.attempts.is_restored, true);
        if is_gone && self.shared.restore_data_dir() {
            self.create_file()
        } else {
            Err(ReserveError::Failed(e))
        }
    }

    /// The ledger refused the claim. A damaged ledger is recounted and asked again.
    pub(super) fn on_claim_refused(
        &mut self,
        claimed: Claimed,
    ) -> Result<FileOutcome, ReserveError> {
        if claimed == Claimed::Damaged {
            match self.shared.recount(false) {
                Ok(()) => return self.create_file(),
                // Deleted with `.kvtier`, which had just been created, before it was counted.
                Err(_) if !self.shared.data_dir.is_registered() => {
                    return self.on_create_failed(io::ErrorKind::NotFound.into());
                }
                Err(e) => {
                    self.shared.failed("cannot recount the ledger", &e);
                    return Ok(FileOutcome::LedgerUnavailable);
                }
            }
        }
        Ok(match claimed {
            Claimed::Unavailable => FileOutcome::LedgerUnavailable,
            _ => FileOutcome::LedgerFull,
        })
    }

    /// The index has space and the ledger has none. The directory is filled by files that the index
    /// lacks, by unfinished files of peers, or by files that are gone and still counted. Takes the
    /// next step against that, and returns whether to try again at once.
    pub(super) fn on_ledger_full(&mut self) -> Result<bool, ReserveError> {
        if self.shared.follow_changes().records > 0 {
            return Ok(true);
        }
        // The first scan of a foreign layout is on its way, and counts.
        if self.shared.data_dir.foreign().is_some_and(|foreign| !foreign.is_scanned()) {
            return self.wait_or_shed(ShedReason::Full).map(|_| false);
        }
        self.shared.space.ledger_validity.suspect();
        // A listing is expensive; between two listings the oldest chunks are evicted.
        if self.shared.relist() || self.evict_oldest() {
            return Ok(true);
        }
        self.attempts.refused += 1;
        match self.attempts.refused {
            // Files of dead processes may fill the directory, and to remove them is cheaper than a
            // count.
            1 => Ok(self.shared.remove_stale()),
            _ if self.shared.clock.now() < self.wait_until => Ok(false),
            _ if !std::mem::replace(&mut self.attempts.is_ledger_checked, true) => {
                // Another thread may have done it before: in both cases there may be space now.
                self.shared.check_before_shed();
                Ok(true)
            }
            _ => Err(ShedReason::Full.into()),
        }
    }

    /// Another process keeps the ledger's lock, or its file fails. A stopped process may keep it for
    /// hours. Until then this save can only take bytes that this process frees, so it evicts
    /// only where those bytes would count for it. Otherwise it would empty the cache for nothing.
    pub(super) fn on_ledger_unavailable(&mut self) -> Result<bool, ReserveError> {
        // To find the lock kept took seconds: the wait for space begins only now.
        if !std::mem::replace(&mut self.attempts.is_ledger_unavailable, true) {
            let until = self.shared.clock.now() + self.shared.limits.space_wait_max;
            self.wait_until = self.deadline.min(until);
        }
        // Another save of this process may take what this one freed, and becomes a chunk by it.
        if self.attempts.exchanges < EXCHANGES_MAX
            && self.shared.space.ledger.may_exchange()
            && self.evict_oldest()
        {
            self.attempts.exchanges += 1;
            return Ok(true);
        }
        // Saves that end now may become chunks to evict. Without any, to wait would hold the
        // caller's memory for nothing.
        if self.shared.may_free_bytes() && self.shared.clock.now() < self.wait_until {
            return Ok(false);
        }
        Err(ShedReason::Full.into())
    }

    /// The device is full below the cap. Evicts the bytes of one file at once, and again after each
    /// notification where other saves took the freed bytes. Returns whether to try again at once.
    pub(super) fn on_device_full(&mut self) -> Result<bool, ReserveError> {
        let shared = Arc::clone(&self.shared);
        // Other programs, or files that are not counted, fill the device. Eviction is the only
        // space that this process can make.
        add(&shared.counters.device_full, 1);
        shared.space.full_device.note_seen(&shared.clock);
        if shared.free_quarantined(self.size.claimed) > 0 {
            return Ok(true);
        }
        if self.evict_oldest() {
            self.attempts.device_evicted += self.size.claimed;
            return Ok(self.attempts.device_evicted <= 2 * self.size.claimed);
        }
        // All other chunks are held, or being written.
        match self.wait_or_shed(ShedReason::DeviceFull) {
            Ok(_) => Ok(false),
            Err(error) => {
                shared.space.full_device.note_shed(&shared.clock);
                Err(error)
            }
        }
    }

    /// Frees space on a device that is full below the cap, while the file is written. Returns
    /// whether anything was deleted.
    pub fn evict_for_device(&self) -> bool {
        self.shared.space.full_device.note_seen(&self.shared.clock);
        let cleared = self.shared.free_quarantined(self.size.claimed);
        if !self.shared.may_evict() {
            return cleared > 0;
        }
        let wanted = self.size.claimed.saturating_sub(cleared);
        let victims = self.shared.index().evict_bytes(self.shared.now_ms(), wanted);
        self.shared.evict(victims) + cleared as usize > 0
    }

    fn evict_oldest(&mut self) -> bool {
        if !self.shared.may_evict() {
            return false;
        }
        let victims = self.shared.index().evict_bytes(self.shared.now_ms(), self.size.claimed);
        self.evict_or_recycle(victims)
    }

    /// Evicts. The first victim whose file has the claimed length is taken over instead of deleted.
    /// Returns whether any chunk was evicted: none is while a peer counts the directory.
    pub fn evict_or_recycle(&mut self, victims: Vec<IndexEntry>) -> bool {
        let shared = Arc::clone(&self.shared);
        if victims.is_empty() {
            return false;
        }
        if !shared.space.ledger.may_release() {
            let mut index = shared.index();
            victims.iter().for_each(|victim| _ = index.abort_evict(&victim.chunk.digest));
            return false;
        }
        // Before the index loses the first of them.
        self.evicting.get_or_insert_with(|| shared.space.begin_evicting());
        let mut rest = Vec::with_capacity(victims.len());
        let mut recycled = 0;
        for victim in victims {
            // Only one file, only before a claim, and only of exactly this length: then nothing has
            // to be counted.
            let fits = self.recycled.is_none()
                && !self.is_counted
                && victim.chunk.bytes == self.size.claimed;
            if fits && self.recycle(&victim.chunk) { recycled += 1 } else { rest.push(victim) }
        }
        let gone = recycled + shared.evict(rest);
        // Saves that wait for the victims try again, also where this save took their space.
        if gone > 0 {
            shared.space.queue.notify();
        } else {
            self.evicting = None;
        }
        gone > 0
    }

    /// Takes over a victim's file, and with it its bytes in the ledger.
    fn recycle(&mut self, victim: &Chunk) -> bool {
        let shared = Arc::clone(&self.shared);
        let digest = &victim.digest;
        // The lock of the name keeps saves of the chunk away, and `moving` keeps a recount from
        // reading the directory while the file is renamed.
        let name = shared.name(digest);
        let moving = shared.space.ledger_validity.moving();
        // A load that began before still reads the file, or a save of the same key made the chunk
        // stay. A load that begins now finds other bytes than its footer says: a miss.
        if shared.readers.has(digest) || !shared.index().is_evicting(digest) {
            return false;
        }
        let since = shared.space.ledger.generation();
        let Ok(Some(draft)) = shared.data_dir.recycle(digest, victim.len, victim.bytes) else {
            return false;
        };
        // A peer may have replaced the file by one in another encoding, for which the ledger counts
        // other bytes.
        let bytes = match shared.data_dir.may_have_encoded() {
            true => shared.data_dir.draft_bytes(&draft).unwrap_or(victim.bytes),
            false => victim.bytes,
        };
        // A recount that has begun may have missed the file when it moved. Moved again, to the name of
        // the new chunk, it may be missed again.
        let may_move = shared.space.ledger.is_still(since);
        let taken = if bytes == victim.bytes && may_move {
            Some(draft)
        } else {
            shared.uncount(shared.data_dir.discard(draft, bytes), since);
            if bytes != victim.bytes {
                shared.space.ledger_validity.suspect();
            }
            None
        };
        let mut index = shared.index();
        index.finish_evict(digest);
        // A suspect was reported when it was marked.
        if !index.is_suspect(digest) {
            shared.listeners.push(Event::Gone { key: *digest, len: victim.len });
        }
        drop(index);
        shared.journal.note([Record::Remove(*digest)]);
        shared.append_change(Record::Remove(*digest));
        // Released before the listeners run, since they may call the tier.
        drop((moving, name));
        add(&shared.counters.evicted, 1);
        shared.listeners.notify();
        if taken.is_some() {
            add(&shared.counters.recycled, 1);
            self.recycled = taken;
            // The victim's bytes are this reservation's now. The total does not change.
            self.is_counted = true;
        }
        true
    }
}
