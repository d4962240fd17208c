//! Applies what peers publish and delete to the index, from the [change log](crate::change_log).
//!
//! A record is only a hint: before the index changes, the file system is asked for the file. So a
//! record may be read twice, in any order, or after the file changed again. Where records are
//! missing, [`reconcile`](Shared::reconcile) lists the directory instead.

use std::io;

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::chunk_file_name;
use crate::mover::Mover;
use crate::shared::Shared;

/// The most bytes of records that a lookup reads on its caller's thread; more are read on a thread
/// of the tier.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// The result of following the change log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowOutcome {
    /// How many records were read.
    pub records: usize,
    /// The index agrees with the directory.
    pub is_complete: bool,
}

impl<M: Mover> Shared<M> {
    /// Whether a lookup asks the file system for each name, because chunks of peers can be found only
    /// by their names. Otherwise the change log lists them.
    pub fn asks_names(&self) -> bool {
        self.data_dir.foreign().is_some() || !self.changes.is_prompt()
    }

    /// The same as [`follow_changes`](Self::follow_changes) on a caller's thread. Returns whether the
    /// index agrees with the directory; where many records are new, none is read.
    pub fn follow_few_changes(&self) -> bool {
        !self.asks_names() && self.follow_up_to(INLINE_BYTES_MAX).is_complete
    }

    /// Follows the change log for [lookups in memory](crate::index_age). On a network mount that is
    /// left to the rounds: it is slow there, and absent keys are asked for by name anyway.
    pub fn follow_for_lookups(&self) {
        if !self.asks_names() {
            self.follow_changes();
        }
    }

    /// Appends to the change log that a chunk was published or deleted. Foreign layouts have no such
    /// log.
    pub fn append_change(&self, record: Record) {
        if self.data_dir.foreign().is_none() {
            self.changes.append(record);
        }
    }

    /// Applies what peers published and deleted until now. The caller holds no chunk's
    /// [name](Shared::name).
    pub fn follow_changes(&self) -> FollowOutcome {
        self.follow_up_to(u64::MAX)
    }

    fn follow_up_to(&self, bytes_max: u64) -> FollowOutcome {
        if self.data_dir.foreign().is_some() {
            return FollowOutcome::default();
        }
        // Before the log is read: what is appended meanwhile may be missed.
        let began_ms = self.now_ms();
        let followed = self.changes.follow(bytes_max, |record| self.follow(record));
        // Also of what was read before an error.
        self.listeners.notify();
        let begins_to_fail = self.changes.begins_to_fail(followed.is_err());
        match followed {
            Ok(followed) => {
                let is_complete = !followed.is_more && !self.changes.has_missed();
                if is_complete {
                    self.index_age.agreed(began_ms);
                }
                FollowOutcome { records: followed.records, is_complete }
            }
            Err(e) => {
                // Each lookup tries again; one report is enough.
                if begins_to_fail {
                    self.fault(format!(
                        "cannot read the change log: {e}; the directory is listed instead"
                    ));
                }
                FollowOutcome::default()
            }
        }
    }

    fn follow(&self, record: &Record) {
        let look = |digest| {
            let known = self.index().known(digest).map(|entry| entry.chunk.len);
            known.map_or(Ok(()), |len| self.removed_by_another(digest, len))
        };
        let looked = match record {
            Record::Insert(chunk) => self.follow_insert(*chunk),
            Record::Remove(digest) => {
                self.space.ledger_validity.explained(digest);
                look(digest)
            }
            // A peer found no file. Perhaps no process released its bytes.
            Record::Touch(digest) => look(digest),
            _ => Ok(()),
        };
        // The record does not come again: a listing shows whether the file is there.
        if looked.is_err() {
            self.changes.note_missed();
        }
    }

    /// Enters a chunk that a peer published, if its file exists.
    ///
    /// # Errors
    /// Those of the look for the file.
    pub fn follow_insert(&self, mut chunk: Chunk) -> io::Result<()> {
        let Chunk { digest, len, bytes, .. } = chunk;
        let known = |digest: &Digest| self.index().known(digest).map(|entry| entry.chunk);
        let is_same = |known: Chunk| (known.len, known.bytes) == (len, bytes);
        // Most records name what the index has, this process's own among them: no system call for
        // those.
        let is_suspect = self.index().is_suspect(&digest);
        if (known(&digest).is_some_and(is_same) && !is_suspect)
            || len == 0
            || len > chunk_file_name::LEN_MAX
        {
            return Ok(());
        }
        // A peer may have begun to encode.
        if bytes != chunk_file_name::file_len(len)
            && !self.data_dir.may_have_encoded()
            && self.data_dir.look_for_encoded()
        {
            // What this process deleted or replaced since was counted by its name.
            self.space.ledger_validity.suspect();
        }
        // From here on no thread of this process changes the file or the entry.
        let one = self.name(&digest);
        let Some(file) = self.data_dir.find(&digest, len)? else { return Ok(()) };
        self.clear_corrupt_if_replaced(&digest, file);
        if known(&digest).is_some_and(|known| known.len != len) {
            // The comparison of two files takes the lock of the name itself.
            drop(one);
            self.resolve_duplicate(&digest, len);
            return Ok(());
        }
        let bytes = self.data_dir.counted_bytes(len, &file);
        let mut index = self.index();
        if index.is_known(&digest) {
            // The file was replaced by one in another encoding.
            index.resize(&digest, len, bytes);
            return Ok(());
        }
        if index.is_suspect(&digest) {
            return Ok(());
        }
        chunk.bytes = bytes;
        let _ = index.insert(chunk);
        self.listeners.push(Event::Stored { key: digest, len });
        drop(index);
        self.learn_length(len);
        Ok(())
    }
}
