//! Merges the journals of other nodes into the index.
//!
//! Each node writes numbered objects with what it used, saved and deleted. This node reads each
//! object once and applies its records. Three things can be out of order, and each has its rule:
//!
//! - **Objects of one node.** They apply in the order of their numbers. An object that cannot be
//!   read holds up the later ones for some rounds. Then those are applied, and the object comes
//!   late: its uses are ignored, and its saves and deletes only make chunks unclear.
//! - **Clocks of nodes.** A batch has a range of times by the store's clock. A record changes the
//!   index only if it is clearly later than what this node saw itself, what the last listing
//!   showed, and what other journals reported. If that is unclear, the chunk becomes a conflict,
//!   and a HEAD decides.
//! - **Pages of a listing.** A key that a journal changed is entered into `ChangedKeys`, so that an
//!   older page does not revert it.
//!
//! A wrong decision costs space or a miss and never a wrong byte: an inserted chunk counts as
//! unseen, and each load verifies its bytes.

use std::collections::HashSet;

use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_s3::Entry;

use crate::background::own_objects::{self, OwnListing};
use crate::background::peer_journals::apply::{Apply, BatchSource};
use crate::background::peer_journals::batches::{
    JournalBatch, JournalObject, batches_of, read_all, sort_by_time,
};
use crate::background::peer_journals::event_time::EventTime;
use crate::background::peer_journals::last_writes::LastWrites;
use crate::background::peer_journals::progress::{ReadProgress, node_of};
use crate::background::peer_journals::unclear_chunks::UnclearChunks;
use crate::background::reconcile::{CHUNKS_PER_LOCK, make_recent};
use crate::state::counters::add;
use crate::state::own_journal::OBJECT_BYTES_MAX;
use crate::state::shared::Shared;

/// The most objects that are read in a round; the others follow in the next.
const OBJECTS_MAX: usize = 4096;
/// The most bytes that are read in a round.
const BYTES_MAX: u64 = 256 << 20;

/// Reads each journal object once and applies it.
#[derive(Debug, Default)]
pub struct JournalMerger {
    progress: ReadProgress,
    /// The last listing.
    listed: OwnListing,
    last_writes: LastWrites,
    unclear_chunks: UnclearChunks,
}

/// What one look at the journals did.
#[derive(Debug)]
pub struct Merged {
    /// The number of records that were applied.
    pub records: usize,
    /// Why an object could not be read. The others were applied all the same.
    pub failed: Option<kvtier_s3::Error>,
    /// Not all that were tried failed, but for those that failed in several rounds before.
    pub is_readable: bool,
    /// Every listed object is applied.
    pub is_whole: bool,
}

impl JournalMerger {
    /// Applies the objects in `directory` that were not read before. The node's own journal is
    /// skipped: its index contains it.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub async fn merge(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<Merged> {
        self.list(shared, directory).await?;
        self.skip_empty(shared);
        let mut batches = Vec::new();
        let mut failed = None;
        let mut stuck = None;
        let mut is_readable = false;
        for (name, read) in read_all(shared, self.entries(shared, |known, _| !known)).await {
            // Objects of a node behind one that is held up are not applied.
            if stuck.as_deref() == Some(node_of(&name)) {
                continue;
            }
            is_readable |= read.is_ok();
            match read {
                Ok(JournalObject { what, is_torn, .. })
                    if is_torn && self.progress.failed(&name) =>
                {
                    // Perhaps still being written: it is read once more before any of it counts.
                    self.progress.note(&name, what);
                    stuck = Some(node_of(&name).to_owned());
                }
                Ok(found) => {
                    let late = self.progress.is_late(&name);
                    let some = batches_of(shared, &name, found.batches);
                    batches.extend(some.into_iter().map(|batch| JournalBatch { late, ..batch }));
                    self.progress.note(&name, found.what);
                    self.progress.done(name);
                }
                Err(e) => {
                    let waits = self.progress.failed(&name);
                    is_readable |= !waits;
                    (failed, stuck) = (Some(e), waits.then(|| node_of(&name).to_owned()));
                }
            }
        }
        shared.node.notes().journal = self.progress.fault().cloned();
        // All nodes together: a save of one and a delete of another apply in the order of their
        // times.
        sort_by_time(&mut batches);
        let count = self.apply(shared, &batches);
        add(&shared.counters.merged, count as u64);
        // Some wait for another attempt, or are more than one round reads.
        let is_whole = self.entries(shared, |known, _| !known).is_empty();
        is_readable |= failed.is_none();
        Ok(Merged { records: count, failed, is_readable, is_whole })
    }

    /// Applies the order of all uses since then (Unix milliseconds by the store's clock) again,
    /// including this node's own.
    pub async fn reapply_since(&mut self, shared: &Shared, since_ms: u64) -> kvtier_s3::Result<()> {
        self.list(shared, &shared.node.own_names.journals()).await?;
        // Times of the store are truncated to seconds.
        let since =
            |entry: &Entry| (entry.modified + 1).saturating_mul(1000) >= since_ms.cast_signed();
        let mut batches = Vec::new();
        for (name, read) in read_all(shared, self.entries(shared, |_, entry| since(entry))).await {
            // Deleted meanwhile, or not readable: a partial order is better than none.
            match read {
                Ok(found) => batches.extend(batches_of(shared, &name, found.batches)),
                Err(e) => drop(shared.error("journal", None, e)),
            }
        }
        sort_by_time(&mut batches);
        batches.retain(|batch| batch.to_ms >= since_ms);
        let used = batches.iter().flat_map(|batch| &batch.records);
        touch_again(shared, &used.copied().collect::<Vec<Record>>());
        Ok(())
    }

    /// Lists all journals without reading them; the number of nodes, as [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// The journals cannot be listed.
    pub async fn count_nodes(&mut self, shared: &Shared, age_s: i64) -> kvtier_s3::Result<usize> {
        self.list(shared, &shared.node.own_names.journals()).await?;
        Ok(self.nodes(shared, age_s))
    }

    /// Whether the last listing has this object, as far as it goes.
    pub fn lists(&self, name: &str) -> bool {
        let OwnListing { entries, is_cut, .. } = &self.listed;
        *is_cut || entries.iter().any(|entry| entry.key == name)
    }

    /// Announcements of nodes have nothing to read.
    fn skip_empty(&mut self, shared: &Shared) {
        let own = shared.node.own_names.journals_of(&shared.node.name);
        for entry in self.listed.entries.iter().filter(|entry| entry.bytes == 0) {
            if !entry.key.starts_with(&own) && !self.progress.is_read(&entry.key) {
                self.progress.done(entry.key.clone());
            }
        }
    }

    async fn list(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<()> {
        self.listed = own_objects::list(&shared.client, directory).await?;
        let listed: HashSet<&String> = self.listed.entries.iter().map(|entry| &entry.key).collect();
        // Objects that are gone from the bucket need not be remembered.
        self.progress.keep(directory, &listed);
        Ok(())
    }

    /// Nodes that wrote a journal object in the last `age_s` seconds, and this one. Valid after a
    /// listing of all journals.
    pub fn nodes(&self, shared: &Shared, age_s: i64) -> usize {
        let OwnListing { entries, date, .. } = &self.listed;
        let own = shared.node.own_names.journals_of(&shared.node.name);
        let is_young = |entry: &&Entry| date.is_none_or(|date| date - entry.modified <= age_s);
        let others = entries.iter().filter(is_young).filter(|entry| !entry.key.starts_with(&own));
        1 + others.map(|entry| node_of(&entry.key)).collect::<HashSet<&str>>().len()
    }

    /// The listed objects for which `wanted` holds; it gets whether the object was read before.
    fn entries(&self, shared: &Shared, wanted: impl Fn(bool, &Entry) -> bool) -> Vec<Entry> {
        let own = shared.node.own_names.journals_of(&shared.node.name);
        let known =
            |entry: &Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(&own);
        let mut entries: Vec<&Entry> =
            self.listed.entries.iter().filter(|entry| wanted(known(entry), entry)).collect();
        // Some stores list unsorted. The order of names is the order of a node's objects.
        entries.sort_unstable_by_key(|entry| &entry.key);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.bytes.min(OBJECT_BYTES_MAX as u64);
            bytes <= BYTES_MAX
        };
        entries.into_iter().take(OBJECTS_MAX).take_while(fits).cloned().collect()
    }

    /// The last save or delete of chunks.
    pub fn last_writes(&self) -> &LastWrites {
        &self.last_writes
    }

    /// Resolves unclear chunks with requests to the bucket.
    pub async fn resolve_conflicts(&mut self, shared: &Shared) {
        self.unclear_chunks.resolve(shared).await;
    }

    fn apply(&mut self, shared: &Shared, batches: &[JournalBatch]) -> usize {
        let mut count = 0;
        for batch in batches {
            let when = EventTime::between(shared, batch.from_ms, batch.to_ms);
            let from = BatchSource { object: &batch.object, when, late: batch.late };
            for some in batch.records.chunks(CHUNKS_PER_LOCK) {
                let mut guard = shared.catalog();
                let JournalMerger { last_writes, unclear_chunks, .. } = self;
                let mut apply = Apply { shared, catalog: &mut guard, last_writes, unclear_chunks };
                some.iter().for_each(|record| apply.apply(record, from));
                drop(guard);
                shared.listeners.notify();
            }
            count += batch.records.len();
        }
        // Deletes freed space.
        shared.freed.notify_waiters();
        count
    }

    /// Objects that a snapshot contains and that are at least `age_s` old; younger ones may not
    /// have been read by all nodes.
    pub fn superfluous(&self, own: &str, age_s: i64) -> Vec<&str> {
        let OwnListing { entries, date, at, .. } = &self.listed;
        // The listing may be older than the snapshot by as long as a journal took to come.
        let since_s = at.map_or(0, |at| at.elapsed().as_secs().cast_signed());
        let old =
            |entry: &&Entry| date.is_some_and(|date| date + since_s - entry.modified >= age_s);
        let merged =
            |entry: &&Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(own);
        entries.iter().filter(old).filter(merged).map(|entry| entry.key.as_str()).collect()
    }
}

/// Makes used or saved chunks the most recent, in their order.
pub fn touch_again(shared: &Shared, records: &[Record]) {
    for some in records.chunks(CHUNKS_PER_LOCK) {
        let mut catalog = shared.catalog();
        let slot = |record: &Record| match record {
            Record::Touch(digest) | Record::Insert(Chunk { digest, .. }) => {
                catalog.index.slot(digest)
            }
            _ => None,
        };
        let slots: Vec<u32> = some.iter().filter_map(slot).collect();
        make_recent(&mut catalog.index, &slots);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvtier_testkit::s3::Server;

    use super::*;
    use crate::test_shared::shared_at;

    /// Those that were too young when they were listed stayed until another snapshot.
    #[tokio::test]
    async fn objects_are_as_old_as_they_are_now_when_a_snapshot_makes_them_superfluous() {
        let server = Server::start(Default::default()).unwrap();
        let shared = shared_at(&server, |config| config.capacity_bytes = Some(1000));
        let names = &shared.node.own_names;
        let name = names.journal("other", 0);
        server.put_object(&name, Vec::new());
        let mut merger = JournalMerger::default();
        merger.merge(&shared, &names.journals()).await.unwrap();
        tokio::time::pause();
        let own = names.journals_of(&shared.node.name);
        assert!(merger.superfluous(&own, 3600).is_empty());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(merger.superfluous(&own, 3600), [name]);
    }
}
