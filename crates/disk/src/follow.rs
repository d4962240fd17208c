//! What other processes publish and delete, taken over from the [change log](crate::changes) into the index.

use std::sync::atomic::Ordering;

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::changes::Followed;
use crate::mover::Mover;
use crate::name;
use crate::shared::Shared;

/// The most bytes of news that a lookup reads on its caller's thread; more are read on a thread of the tier.
const INLINE_BYTES_MAX: u64 = 64 << 10;

impl<M: Mover> Shared<M> {
    /// Whether a chunk of another process can be found by its name alone: then a lookup asks for each name. Otherwise the change log says
    /// which chunks there are.
    pub fn asks_names(&self) -> bool {
        self.home.foreign().is_some() || !self.changes.is_prompt()
    }

    /// The same as [`follow_changes`](Self::follow_changes) on a caller's thread. Answers whether the index has it all; where much is new, nothing
    /// is read.
    pub fn follow_few_changes(&self) -> bool {
        !self.asks_names() && !self.follow_up_to(INLINE_BYTES_MAX).is_more
    }

    /// Notes for the others that a chunk was published or deleted. In a layout of another program, whose writers note nothing, names tell.
    pub fn announce_change(&self, record: Record) {
        if self.home.foreign().is_none() {
            self.changes.append(record);
        }
    }

    /// Takes over what others published and deleted until now. Answers how many records there were. No chunk's
    /// [name](Shared::name) is held.
    pub fn follow_changes(&self) -> usize {
        self.follow_up_to(u64::MAX).records
    }

    fn follow_up_to(&self, bytes_max: u64) -> Followed {
        if self.home.foreign().is_some() {
            return Followed::default();
        }
        match self.changes.follow(bytes_max, |record| self.follow(record)) {
            Ok(followed) => {
                if followed.missed {
                    self.missed_changes.store(true, Ordering::Relaxed);
                }
                if followed.records > 0 {
                    self.listeners.tell();
                }
                followed
            }
            Err(e) => {
                self.fault(format!("cannot read what other processes changed: {e}"));
                Followed::default()
            }
        }
    }

    fn follow(&self, record: &Record) {
        match record {
            Record::Insert(chunk) => self.follow_insert(*chunk),
            Record::Remove(digest) => {
                let known = self.index().known(digest).map(|entry| entry.chunk.len);
                known.into_iter().for_each(|len| self.vanished(digest, len));
            }
            _ => {}
        }
    }

    /// A chunk that somebody says to have published: taken in if it lies there.
    fn follow_insert(&self, mut chunk: Chunk) {
        let Chunk { digest, len, .. } = chunk;
        let known_len = |digest: &Digest| self.index().known(digest).map(|entry| entry.chunk.len);
        if known_len(&digest) == Some(len) || len == 0 || len > name::LEN_MAX {
            return;
        }
        let one = self.name(&digest);
        if !self.home.find(&digest, len).is_ok_and(|there| there.is_some()) {
            return;
        }
        if known_len(&digest).is_some_and(|known| known != len) {
            drop(one);
            return self.part(&digest, len);
        }
        let mut index = self.index();
        if index.is_known(&digest) || index.is_suspect(&digest) {
            return;
        }
        chunk.bytes = name::file_len(len);
        let _ = index.insert(chunk);
        self.listeners.note(Event::Stored { key: digest, len });
        drop(index);
        self.learn_length(len);
    }
}
