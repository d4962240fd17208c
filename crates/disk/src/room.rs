//! Room for a file: claimed in the index and in the ledger before it is written, made by eviction where there is none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvtier_core::{Event, ShedReason};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Entry, Refusal, Reservation, Reserve, Want};
use kvtier_key::Digest;

use crate::counters::add;
use crate::home::{Buried, Draft, quarantine};
use crate::ledger::Ledger;
use crate::mover::Mover;
use crate::name;
use crate::shared::Shared;

/// How often eviction may free nothing before a save is shed.
const STUCK_MAX: u32 = 8;
/// How long apart two looks at the directory are that must find the same for the ledger to be wrong.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// Room for one file of `bytes`. Whoever drops it gives it back.
#[derive(Debug)]
pub struct Room<M: Mover> {
    shared: Arc<Shared<M>>,
    bytes: u64,
    want: Want,
    /// Until when it waits for others to free some.
    patience: Instant,
    tries: Tries,
    reservation: Option<Reservation>,
    /// The ledger counts `bytes` for us.
    counted: bool,
    /// A victim's file of just this length, to be written over.
    spare: Option<Draft>,
}

/// What a claim has tried so far.
#[derive(Debug, Default)]
struct Tries {
    /// How often the ledger was full and nothing was left to evict.
    refused: u32,
    /// How often in a row eviction freed nothing.
    stuck: u32,
    healed: bool,
}

/// What the ledger counts, `None` where it is damaged, and how many bytes lie there.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    counted: Option<u64>,
    lies: u64,
}

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The room is ours.
    Granted,
    /// Others are freeing room: claim again when the line of those who wait is called.
    Later,
}

impl<M: Mover> Room<M> {
    /// Room for a file; not claimed yet.
    pub fn new(shared: &Arc<Shared<M>>, want: Want, deadline: Instant) -> Self {
        let (patience, tries) = (deadline.min(shared.clock.now() + shared.room_wait_max), Tries::default());
        let bytes = want.bytes;
        Room {
            shared: Arc::clone(shared),
            bytes,
            want,
            patience,
            tries,
            reservation: None,
            counted: false,
            spare: None,
        }
    }

    /// Claims the room, evicting what the index chooses. Never waits.
    pub fn claim(&mut self) -> Result<Claim, ShedReason> {
        if self.reservation.is_some() {
            return Ok(Claim::Granted);
        }
        let shared = Arc::clone(&self.shared);
        loop {
            if !shared.may_evict() && !shared.fits(&self.want) {
                // Nobody knows yet what evicting would free, or it is not allowed.
                return if shared.clock.now() < self.patience { Ok(Claim::Later) } else { Err(ShedReason::Full) };
            }
            let asked = shared.index().reserve_for(shared.now_ms(), &self.want);
            match asked {
                Reserve::Granted(reservation) => {
                    self.reservation = Some(reservation);
                    if self.counted || shared.count(self.bytes) {
                        self.counted = true;
                        return Ok(Claim::Granted);
                    }
                    self.release();
                    if shared.clear_aside(self.bytes) > 0 {
                        continue;
                    }
                    if !self.ledger_is_full()? {
                        return Ok(Claim::Later);
                    }
                }
                Reserve::Evict(victims) => {
                    // Victims that cannot be deleted are there again, and would be chosen for ever.
                    self.tries.stuck = if self.take_from(victims) { 0 } else { self.tries.stuck + 1 };
                    if self.tries.stuck == STUCK_MAX {
                        return Err(ShedReason::Full);
                    }
                }
                Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
                Reserve::Full(Refusal::NotWorth) => return Err(ShedReason::NotWorth),
                Reserve::Full(Refusal::Quota { .. }) => return Err(ShedReason::Quota),
                Reserve::Full(_) => return Err(ShedReason::Full),
                _ if shared.clock.now() >= self.patience => return Err(ShedReason::Full),
                _ => return Ok(Claim::Later),
            }
        }
    }

    /// The index has room and the ledger none: what fills the directory are files that the index does not know, unfinished files of other
    /// processes, or a process that died counted. Does something about it and answers whether to claim again at once.
    fn ledger_is_full(&mut self) -> Result<bool, ShedReason> {
        if self.shared.follow_changes().records > 0 {
            return Ok(true);
        }
        self.shared.refused.store(true, Ordering::Relaxed);
        // A listing is expensive; between two, the oldest of what the index has is evicted.
        if self.shared.relist() || self.take_oldest() {
            return Ok(true);
        }
        self.tries.refused += 1;
        match self.tries.refused {
            1 => Ok(self.shared.bury_dead()),
            _ if self.shared.clock.now() < self.patience => Ok(false),
            _ if !std::mem::replace(&mut self.tries.healed, true) => {
                // Another may have been faster: whoever did it, there may be room now.
                self.shared.heal_ledger(self.bytes);
                Ok(true)
            }
            _ => Err(ShedReason::Full),
        }
    }

    /// The unfinished file to write over, if eviction left one.
    pub fn spare(&mut self) -> Option<Draft> {
        self.spare.take()
    }

    /// The file is published: what was claimed is now counted as there.
    pub fn spend(mut self) -> Option<Reservation> {
        self.counted = false;
        self.reservation.take()
    }

    /// Makes room on a medium that is full before its cap. Answers whether anything went.
    pub fn squeeze(&self) -> bool {
        let cleared = self.shared.clear_aside(self.bytes);
        if !self.shared.may_evict() {
            return cleared > 0;
        }
        let victims = self.shared.index().squeeze(self.shared.now_ms(), self.bytes.saturating_sub(cleared));
        self.shared.evict(victims) + cleared as usize > 0
    }

    fn take_oldest(&mut self) -> bool {
        if !self.shared.may_evict() {
            return false;
        }
        let victims = self.shared.index().squeeze(self.shared.now_ms(), self.bytes);
        self.take_from(victims)
    }

    /// Evicts; the first victim whose file has our length is not deleted but becomes ours. Answers whether any went.
    fn take_from(&mut self, victims: Vec<Entry>) -> bool {
        let (shared, mut rest) = (Arc::clone(&self.shared), Vec::with_capacity(victims.len()));
        let mut recycled = 0;
        for victim in victims {
            let fits = self.spare.is_none() && !self.counted && victim.chunk.bytes == self.bytes;
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
        if shared.readers.has(digest) || !shared.index().is_leaving(digest) {
            return false;
        }
        let Ok(Some(draft)) = shared.home.recycle(digest, victim.len) else { return false };
        shared.index().evicted(digest);
        shared.journal.note([Record::Remove(*digest)]);
        shared.announce_change(Record::Remove(*digest));
        shared.listeners.note(Event::Gone { key: *digest, len: victim.len });
        drop(one);
        add(&shared.counters.evicted, 1);
        add(&shared.counters.recycled, 1);
        shared.listeners.tell();
        (self.spare, self.counted) = (Some(draft), true);
        true
    }

    fn release(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.index().cancel(reservation);
        }
    }
}

impl<M: Mover> Drop for Room<M> {
    fn drop(&mut self) {
        if let Some(spare) = self.spare.take() {
            let _ = self.shared.home.unlink_draft(&spare);
        }
        if self.counted {
            self.shared.uncount(self.bytes);
        }
        if self.reservation.is_some() {
            self.release();
            self.shared.for_room.call();
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Counts `bytes` in the ledger if they fit below the cap. A ledger that cannot be used refuses nothing: the index's own cap holds.
    fn count(&self, bytes: u64) -> bool {
        self.ledger.take(bytes, self.capacity_bytes).unwrap_or_else(|e| {
            self.failed("cannot use the ledger", &e);
            true
        })
    }

    /// Counts `bytes` less.
    pub fn uncount(&self, bytes: u64) {
        if let Err(e) = self.ledger.give(bytes) {
            self.failed("cannot use the ledger", &e);
        }
    }

    /// Whether `bytes` more stay under the cap, as far as the index knows.
    fn fits(&self, want: &Want) -> bool {
        let index = self.index();
        let usage = index.usage();
        let is_below_cap = usage.used.saturating_add(usage.reserved).saturating_add(want.bytes) <= usage.capacity;
        is_below_cap && !index.is_above_quota(want)
    }

    /// Brings the index into agreement with the directory, whichever process wrote there. `false` if that failed, or was done a moment ago.
    pub fn relist(&self) -> bool {
        self.looks.now_and_then(&self.clock, || self.reconcile())
    }

    /// A chunk that we know lies there with a length `other` too: the newer stays.
    pub fn part(&self, digest: &Digest, other: u64) {
        let _one = self.name(digest);
        let Some(Entry { mut chunk, .. }) = self.index().known(digest) else { return };
        if chunk.len == other {
            return;
        }
        match self.home.keep_newer(digest, chunk.len, other) {
            Ok(kept) => {
                (chunk.len, chunk.bytes) = (kept.len, name::file_len(kept.len));
                let _ = self.index().insert(chunk);
                if kept.gone_bytes > 0 {
                    self.uncount(kept.gone_bytes);
                }
            }
            Err(e) => self.fault(format!("cannot delete one of two files of {digest}: {e}")),
        }
    }

    /// Clears what processes that died left unfinished, and counts it no more. Answers whether there was anything.
    pub fn bury_dead(&self) -> bool {
        let buried = self.home.bury_dead().unwrap_or_else(|e| {
            self.fault(format!("cannot clear what dead processes left: {e}"));
            Buried::default()
        });
        if buried.corners > 0 {
            self.bereaved.store(true, Ordering::Relaxed);
            self.uncount(buried.bytes);
            // It may have published or deleted chunks and died before it could append that.
            if self.home.foreign().is_none() {
                self.changes.append_lost();
            }
        }
        buried.bytes > 0
    }

    /// Bytes of all that the ledger counts and that lies there.
    pub fn lying_bytes(&self) -> std::io::Result<u64> {
        let mut bytes = self.home.all_drafts_bytes()?;
        bytes += quarantine::list(&self.home.own())?.iter().map(|kept| kept.bytes).sum::<u64>();
        self.home.list(|_, len| bytes += name::file_len(len))?;
        Ok(bytes)
    }

    /// Files that vanished outside our sight stay counted. When the ledger has no room for `bytes` and two looks, while nobody wrote, find
    /// the same less, the ledger was wrong: then it is right.
    pub fn heal_ledger(&self, bytes: u64) {
        let Some(look) = self.look_twice() else { return };
        // Else another was faster, and may have counted what it has yet to write.
        let is_full = look.counted.is_none_or(|counted| counted.saturating_add(bytes) > self.capacity_bytes);
        if is_full && self.is_wrong(&look) {
            self.correct(&look);
            // A neighbour may have stood still between counting and writing: then what it wrote will have to be counted again.
            self.bereaved.store(true, Ordering::Relaxed);
        }
    }

    /// The same when nobody waits for it, and the ledger need not be full: whoever has counted what it has yet to write may stand still for a
    /// while, so that a ledger is wrong only when it was `before` by just as much. Answers by how much it seems to be.
    pub fn doubt_ledger(&self, before: Option<i64>) -> Option<i64> {
        let Some(look) = self.look_twice() else { return before };
        let differs = look.counted.map(|counted| counted.wrapping_sub(look.lies).cast_signed());
        if self.is_wrong(&look) {
            if differs.is_some() && differs != before {
                return differs;
            }
            self.correct(&look);
        }
        self.bereaved.store(false, Ordering::Relaxed);
        None
    }

    /// What two looks, a moment apart, found alike.
    fn look_twice(&self) -> Option<Look> {
        // There the sweep counts.
        if self.home.foreign().is_some() {
            return None;
        }
        let look =
            || Ok::<_, std::io::Error>(Look { counted: Ledger::peek(&self.home.own())?, lies: self.lying_bytes()? });
        let looks = look().and_then(|first| {
            std::thread::sleep(LOOKS_APART);
            Ok((first, look()?))
        });
        match looks {
            Ok((first, second)) => (first == second).then_some(second),
            Err(e) => {
                self.fault(format!("cannot count the files: {e}"));
                None
            }
        }
    }

    /// Less than lies there is wrong only where we know that counting went wrong: else it is what others have yet to fold in.
    fn is_wrong(&self, look: &Look) -> bool {
        let raise = self.bereaved.load(Ordering::Relaxed);
        look.counted.is_none_or(|counted| counted > look.lies || (counted < look.lies && raise))
    }

    fn correct(&self, look: &Look) {
        match self.ledger.correct(look.counted, look.lies) {
            Ok(true) => {
                tracing::warn!(tier = %self.caps.name, "the ledger did not count what lies there; counted anew");
                self.for_room.call();
            }
            Ok(false) => {}
            Err(e) => self.fault(format!("cannot use the ledger: {e}")),
        }
    }

    /// Deletes what eviction chose. Answers how many are gone.
    pub fn evict(&self, victims: Vec<Entry>) -> usize {
        let gone = self.delete(victims);
        add(&self.counters.evicted, gone as u64);
        gone
    }

    /// Deletes what the index marked as leaving, and says so. What cannot be deleted stays. Answers how many are gone.
    pub fn delete(&self, victims: Vec<Entry>) -> usize {
        let gone = victims.iter().filter(|victim| self.delete_one(&victim.chunk)).count();
        if !victims.is_empty() {
            self.for_room.call();
            self.listeners.tell();
        }
        gone
    }

    /// Whether it is gone.
    fn delete_one(&self, victim: &Chunk) -> bool {
        let Chunk { digest, len, bytes, .. } = *victim;
        let _one = self.name(&digest);
        // Saved again while it waited for its end: it stays.
        if !self.index().is_leaving(&digest) {
            return false;
        }
        match self.home.delete(&digest, len) {
            Ok(there) => {
                if there {
                    self.uncount(bytes);
                    self.announce_change(Record::Remove(digest));
                }
                self.journal.note([Record::Remove(digest)]);
                let gone = self.index().evicted(&digest);
                if gone {
                    self.listeners.note(Event::Gone { key: digest, len });
                }
                gone
            }
            Err(e) => {
                self.failed(&format!("cannot delete the file of {digest}"), &e);
                self.index().restored(&digest);
                false
            }
        }
    }
}
