//! A save's written file becomes a chunk.
//!
//! The file gets its name and the index its entry while the chunk's name is locked, so that a
//! remove, an eviction or another save of the key sees both or neither. A file under a chunk's name
//! that the ledger does not count must not remain: a chunk that the index refuses is deleted again,
//! as is the chunk's file of another length.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kvtier_core::{Error, Event, Key, Saved, ShedReason};
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, InsertOutcome, Reservation};
use kvtier_key::Facts;

use super::Saving;
use crate::config::Durability;
use crate::counters::add;
use crate::data_dir::is_full;
use crate::layout;
use crate::ledger::Generation;
use crate::mover::{Moved, Mover};
use crate::shared::Shared;
use crate::space::SpaceReservation;

/// How a save ends that cannot be published.
type SaveEnd = Result<Saved, Error>;

impl<M: Mover> Saving<M> {
    /// Completes the file, publishes it, and answers when it is as durable as the tier promises.
    pub(super) fn publish(mut self, moved: Moved) {
        let Some(key) = self.key() else { return };
        let shared = Arc::clone(&self.shared);
        let Moved { transfer, result, .. } = moved;
        let written = match result {
            // Some file systems have no space although the file was allocated, for example where
            // blocks are compressed or copied on write. The same writes are submitted again.
            Err(e) if is_full(&e) && self.evict_for_device() => return self.submit(transfer),
            Err(e) if is_full(&e) => Err(shared.shed_by_device()),
            Err(e) => Err(shared.end_of_save(&key, "cannot write the chunk's file", e)),
            Ok(_) => self.complete_files(&key, &transfer.file),
        };
        // Before any answer: the caller may need its memory again.
        drop(transfer);
        shared.memory.queue.notify();
        self.release_encoded();
        if let Err(end) = written {
            return self.end(end);
        }
        // After a timeout the caller may have removed the key: the chunk must not appear then.
        if let Some(error) = self.ended("ended before it was published") {
            return self.end(Err(error.with_key(*key.digest())));
        }
        // This makes the chunk visible to all processes.
        let published = self.publish_files(&key);
        shared.listeners.notify();
        if let Err(end) = published {
            return self.end(end);
        }
        // The chunk serves loads already. Only the answer waits for the device.
        match shared.limits.durability {
            Durability::None => self.end_stored(&key, Ok(())),
            Durability::Fdatasync => {
                self.end_stored(&key, shared.data_dir.sync_name(key.digest()));
            }
            Durability::Syncfs => {
                let syncer = Arc::clone(&self.threads.syncer);
                syncer.after_sync(Box::new(move |synced| self.end_stored(&key, synced)));
            }
        }
    }

    /// Writes what follows the bytes: facts and sidecar of a foreign layout. Syncs the files if
    /// `durability` demands it.
    fn complete_files(&mut self, key: &Key, file: &OwnedFd) -> Result<(), SaveEnd> {
        let shared = Arc::clone(&self.shared);
        // The bytes are in the file; GPU staging memory is scarce.
        self.fetched = None;
        let failed = |what: &'static str, e: io::Error| Err(shared.end_of_save(key, what, e));
        if let Some(facts) = self.facts.take() {
            let len = shared.data_dir.data_len(self.len);
            if let Err(e) = finish_foreign_file(&shared, file, &facts, len) {
                return failed("cannot finish the chunk's file", e);
            }
        }
        // Before the rename: after a crash a name must not lead to a file without its bytes.
        let is_durable = shared.limits.durability == Durability::Fdatasync;
        if is_durable && let Err(e) = kvtier_os::fdatasync(file) {
            return failed("cannot bring the chunk to the device", e.into());
        }
        let Some(header) = self.header.take() else { return Ok(()) };
        let mut created = self.create_sidecar(&header, is_durable);
        if created.as_ref().is_err_and(is_full) && self.evict_for_device() {
            created = self.create_sidecar(&header, is_durable);
        }
        match created {
            Ok(()) => Ok(()),
            Err(e) if is_full(&e) => Err(shared.shed_by_device()),
            Err(e) => failed("cannot write the file beside the chunk's", e),
        }
    }

    fn create_sidecar(&mut self, header: &[u8], is_durable: bool) -> io::Result<()> {
        self.space.as_mut().map_or(Ok(()), |space| space.create_sidecar(header, is_durable))
    }

    /// Gives the files their names and enters the chunk into the index.
    fn publish_files(&mut self, key: &Key) -> Result<(), SaveEnd> {
        let Some(mut space) = self.space.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let digest = key.digest();
        // Only now: a chunk that cannot be saved does not define what the others look like.
        if let Err(error) = shared.learn_geometry(key, self.len) {
            self.space = Some(space);
            return Err(Err(error.with_tier(shared.caps.name.clone())));
        }
        let _name = shared.name(digest);
        let _moving = shared.space.ledger_validity.moving();
        let since = shared.space.ledger.generation();
        // Before the rename: afterwards the old file is gone.
        let foreign = shared.data_dir.foreign();
        foreign.into_iter().for_each(|foreign| foreign.learn(key));
        let indexed = shared.index().known(digest).map_or(0, |entry| entry.chunk.bytes);
        let foreign_bytes = shared.foreign_bytes_to_release(digest, indexed);
        let Some(draft) = space.draft() else { return Ok(()) };
        let replaced = match shared.data_dir.publish(draft, digest, self.len) {
            Ok(replaced) => {
                foreign.into_iter().for_each(|foreign| foreign.forget_gone(digest));
                replaced.map_or(0, |bytes| foreign_bytes.unwrap_or(bytes))
            }
            Err(e) => {
                self.space = Some(space);
                return Err(shared.end_of_save(key, "cannot publish the chunk's file", e));
            }
        };
        // The sidecar last: LMCache takes a chunk for stored when the sidecar exists.
        if let Some(sidecar) = space.sidecar()
            && let Err(e) = shared.data_dir.publish_sidecar(sidecar, digest)
        {
            shared.retract(key, self.len, space, since);
            if replaced > 0 {
                shared.uncount(replaced, since);
            }
            return Err(shared.end_of_save(key, "cannot publish the file beside the chunk's", e));
        }
        space.sidecar_is_published();
        // Only now: a replaced chunk's sidecar stays until the new one has its name, and a process
        // that is stopped in between must not have released its bytes.
        if replaced > 0 {
            shared.uncount(replaced, since);
        }
        let chunk = shared.chunk(key, self.len, space.published_bytes());
        let Some(reservation) = space.into_published(since) else { return Ok(()) };
        self.insert(chunk.with_place(self.pending.place()), reservation, since)
    }

    /// Enters the published chunk into the index, and reports it to peers and listeners.
    fn insert(
        &self,
        chunk: Chunk,
        reservation: Reservation,
        since: Generation,
    ) -> Result<(), SaveEnd> {
        let shared = &self.shared;
        let digest = &chunk.digest;
        // The reserved bytes become the entry's in one step, so the index is never above the cap.
        let inserted = shared.index().commit(reservation, chunk);
        // Under a chunk's name there must be no file that the ledger does not count.
        let superfluous = match inserted {
            InsertOutcome::Refused(_) => Some(self.len),
            InsertOutcome::Replaced { old } if shared.data_dir.foreign().is_none() => {
                Some(old.len).filter(|old| *old != self.len)
            }
            _ => None,
        };
        if let Some(superfluous) = superfluous
            && let Ok(Some(bytes)) = shared.data_dir.delete(digest, superfluous)
        {
            shared.uncount(bytes, since);
        }
        if matches!(inserted, InsertOutcome::Refused(_)) {
            // Peers may have the chunk in their index whose file was replaced.
            shared.append_change(Record::Remove(*digest));
            return Err(Ok(Saved::Shed(ShedReason::Full)));
        }
        shared.journal.note([Record::Insert(chunk)]);
        shared.append_change(Record::Insert(chunk));
        shared.listeners.push(Event::Stored { key: *digest, len: self.len });
        Ok(())
    }

    fn end_stored(self, key: &Key, synced: io::Result<()>) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = synced {
            let error = shared.io_error("save", key, "cannot bring the chunk to the device", e);
            return self.end(Err(error));
        }
        // Chunks of peers are looked for by lengths that are in use here.
        shared.learn_length(self.len);
        add(&shared.counters.stored, 1);
        add(&shared.counters.saved_bytes, self.len);
        self.end(Ok(Saved::Stored));
    }
}

impl<M: Mover> Shared<M> {
    /// Deletes a published file whose sidecar is missing: LMCache does not see such a chunk.
    pub fn retract(&self, key: &Key, len: u64, space: SpaceReservation<M>, since: Generation) {
        let digest = key.digest();
        match self.data_dir.delete(digest, len) {
            Ok(Some(_)) => {
                self.forget(digest, false);
                space.release_deleted(since);
            }
            // A peer deleted it, and released what it counted for the chunk.
            Ok(None) => {
                self.forget(digest, false);
                let reservation = space.into_published(since);
                reservation.into_iter().for_each(|reservation| self.index().cancel(reservation));
                self.compare_ledger_soon();
            }
            // It stays, and stays counted: a chunk of unknown length, which is evicted like others.
            Err(e) => {
                self.failed(&format!("cannot delete the file of {digest}"), &e);
                let chunk = self.chunk(key, 0, space.published_bytes());
                // A peer may have deleted it before the sidecar got its name, which stays alone then.
                let reservation = space.into_uncertain();
                self.compare_ledger_soon();
                let Some(reservation) = reservation else { return };
                let entered = self.index().commit(reservation, chunk);
                if !matches!(entered, InsertOutcome::Refused(_)) {
                    self.listeners.push(Event::Stored { key: *digest, len });
                }
            }
        }
    }

    /// How a save ends whose system call or transfer failed.
    fn end_of_save(&self, key: &Key, what: &'static str, e: io::Error) -> SaveEnd {
        if self.note_read_only(&e) {
            return Ok(Saved::Shed(ShedReason::ReadOnly));
        }
        Err(self.io_error("save", key, what, e))
    }

    /// How a save ends where the device is full after eviction.
    fn shed_by_device(&self) -> SaveEnd {
        self.space.full_device.note_shed(&self.clock);
        Ok(Saved::Shed(ShedReason::DeviceFull))
    }
}

/// Cuts a file that was written in whole pages to its payload's length, and writes its facts. Called
/// before the file gets its name.
fn finish_foreign_file<M: Mover>(
    shared: &Shared<M>,
    file: impl AsFd,
    facts: &Facts,
    len: u64,
) -> io::Result<()> {
    kvtier_os::ftruncate(&file, len.cast_signed())?;
    let why = match layout::xattr_facts::put(&file, facts) {
        Ok(true) => return Ok(()),
        Ok(false) => "the file system keeps no user attributes".to_owned(),
        // Without facts nothing would show what a device that fails keeps of the chunk.
        Err(e) if e.raw_os_error() == Some(nix::libc::EIO) => return Err(e),
        Err(e) => e.to_string(),
    };
    add(&shared.counters.facts_write_failed, 1);
    if shared.data_dir.foreign().is_some_and(layout::Foreign::is_without_facts) {
        tracing::warn!(tier = %shared.caps.name, "chunks are saved without facts, their loads are unverified: {why}");
    }
    Ok(())
}
