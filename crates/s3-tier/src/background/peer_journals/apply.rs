//! Applies records of other nodes to the index, where they are clearly newer than what this node
//! saw. `merge.rs` has the rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::background::peer_journals::event_time::{EventTime, Newer};
use crate::background::peer_journals::last_writes::LastWrites;
use crate::background::peer_journals::unclear_chunks::UnclearChunks;
use crate::state::catalog::{Catalog, UNKNOWN_LEN, best_len};
use crate::state::counters::add;
use crate::state::shared::Shared;

/// The origin of a batch.
#[derive(Clone, Copy)]
pub struct BatchSource<'a> {
    pub object: &'a Arc<str>,
    pub when: EventTime,
    /// A later object of the node was applied before. Without another report of the chunk only the
    /// bucket can decide.
    pub late: bool,
}

impl BatchSource<'_> {
    fn limit(&self, last: Newer) -> Newer {
        if self.late { last.and(Newer::Unclear) } else { last }
    }
}

/// Applies records of other nodes, unless this node has newer knowledge.
pub struct Apply<'a> {
    pub shared: &'a Shared,
    pub catalog: &'a mut Catalog,
    pub last_writes: &'a mut LastWrites,
    pub unclear_chunks: &'a mut UnclearChunks,
}

impl Apply<'_> {
    /// Applies one record.
    pub fn apply(&mut self, record: &Record, from: BatchSource<'_>) {
        match record {
            // A use in a late object is older than others of the node.
            Record::Touch(_) if from.late => {}
            Record::Touch(digest) => self.catalog.index.touch_batch(&[*digest]),
            Record::Insert(chunk) => {
                self.inserted(chunk, from);
                self.last_writes.note(chunk.digest, from.object, from.when, true);
            }
            Record::Remove(digest) => {
                self.removed(digest, from);
                self.last_writes.note(*digest, from.object, from.when, false);
            }
            _ => {}
        }
    }

    fn inserted(&mut self, chunk: &Chunk, from: BatchSource<'_>) {
        let catalog = &mut *self.catalog;
        let digest = chunk.digest;
        match catalog.index.get(&digest) {
            Some(entry)
                if entry.chunk.bytes == chunk.bytes
                    && [chunk.len, UNKNOWN_LEN].contains(&entry.chunk.len) =>
            {
                if from.late {
                    return;
                }
                let _ = catalog.index.insert(*chunk);
                // A page of a running listing may be older.
                return catalog.note_changed(digest);
            }
            // It has another length than this node saw.
            Some(_) => {
                catalog.index.touch_batch(&[digest]);
                return catalog.invalidate(&digest);
            }
            // It may have been saved after this node's delete and before the answer to it.
            None if catalog.index.is_evicting(&digest) => {
                self.unclear_chunks.put(*chunk);
                return;
            }
            None if catalog.index.is_known(&digest) => return,
            None if !self.shared.names.admits_unnamed() => return,
            None => {}
        }
        // A later delete wins, and a listing that began clearly later would have found it.
        let absent = catalog
            .absent_for(&digest)
            .map_or(Newer::This, |ago| from.when.compare(&EventTime::ago(self.shared, ago)));
        let listed = EventTime::at(self.shared.node.listed_ms.load(Ordering::Relaxed));
        let unlisted = match from.when.compare(&listed) {
            Newer::Other => Newer::Other,
            _ => Newer::This,
        };
        let by_journal = self.last_writes.compare(&digest, from.object, from.when, true);
        match from.limit(absent.and(unlisted).and(by_journal)) {
            Newer::Other => {}
            Newer::Unclear => _ = self.unclear_chunks.put(*chunk),
            Newer::This => {
                let _ = self.catalog.insert_unseen(*chunk);
                self.catalog.changed_keys.note(digest);
                add(&self.shared.counters.added_externally, 1);
                self.shared.report_stored(self.catalog, chunk);
            }
        }
    }

    fn removed(&mut self, digest: &Digest, from: BatchSource<'_>) {
        let Some(entry) = self.catalog.index.known(digest) else { return };
        let seen = match self.catalog.seen.ms(entry.slot) {
            // This node has not seen it.
            0 => Newer::This,
            ms => from.when.compare(&EventTime::at(ms.cast_signed())),
        };
        let by_journal = self.last_writes.compare(digest, from.object, from.when, false);
        match from.limit(seen.and(by_journal)) {
            Newer::Other => {}
            Newer::Unclear => _ = self.unclear_chunks.put(entry.chunk),
            // It may have been saved again since. Then it is still held: the bucket is asked.
            Newer::This
                if self.catalog.index.is_held(digest) && self.unclear_chunks.put(entry.chunk) =>
            {
                self.catalog.invalidate(digest);
            }
            Newer::This => {
                let suspect = self.catalog.index.is_suspect(digest);
                self.catalog.forget(digest);
                self.catalog.changed_keys.note(*digest);
                // Suspects were reported as gone before.
                add(&self.shared.counters.deleted_externally, u64::from(!suspect));
                if !suspect {
                    let len = best_len(&entry.chunk);
                    self.shared.listeners.push(Event::Gone { key: *digest, len });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvtier_testkit::s3::Server;

    use super::*;
    use crate::test_shared::shared_at;

    /// A held chunk, seen a second after the tier was opened.
    fn hold(shared: &Shared, digest: Digest) {
        let mut catalog = shared.catalog();
        let _ = catalog.insert_unseen(Chunk::new(digest, 100, 100));
        catalog.confirm(&digest, 1000);
        catalog.index.hold(&[digest], u64::MAX).unwrap();
    }

    /// Forgotten at once, it lost its hold, also where it was saved again: a remove deleted it then.
    #[tokio::test]
    async fn a_held_chunk_that_a_peer_deleted_stays_held_while_the_bucket_has_it() {
        let server = Server::start(Default::default()).unwrap();
        let shared = shared_at(&server, |config| config.capacity_bytes = Some(1000));
        let digest = Digest([1; 32]);
        let name = shared.names.format_digest(&digest);
        server.put_object(&name, vec![7; 100]);
        hold(&shared, digest);
        assert_eq!(shared.known(&digest), Some(Some(100)));
        let (mut last_writes, mut unclear_chunks) =
            (LastWrites::default(), UnclearChunks::default());
        let object: Arc<str> = "journal/other/00000001".into();
        let from = BatchSource { object: &object, when: EventTime::at(10_000), late: false };
        Apply {
            shared: &shared,
            catalog: &mut shared.catalog(),
            last_writes: &mut last_writes,
            unclear_chunks: &mut unclear_chunks,
        }
        .apply(&Record::Remove(digest), from);
        assert!(shared.catalog().index.is_held(&digest));
        assert_eq!(shared.known(&digest), None, "the bucket decides");
        // Where the machine stands still, the bucket is asked several times.
        let asked = async {
            while shared.known(&digest).is_none() {
                unclear_chunks.resolve(&shared).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(180), asked).await.unwrap();
        assert_eq!(shared.known(&digest), Some(Some(100)));
        assert!(shared.catalog().index.is_held(&digest));
    }
}
