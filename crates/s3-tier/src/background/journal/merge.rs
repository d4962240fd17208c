//! Merges the journals of other nodes into the index.
//!
//! Each node writes numbered objects with what it used, saved and deleted. This node reads each
//! object once and applies its records. Three things can be out of order, and each has its rule:
//!
//! - **Objects of one node.** They apply in the order of their numbers. An object that cannot be
//!   read holds up the later ones for some rounds. Then those are applied, and the object comes
//!   late: its uses are ignored, and its saves and deletes only raise conflicts.
//! - **Clocks of nodes.** A batch has a range of times by the store's clock. A record changes the
//!   index only if it is clearly later than what this node saw itself, what the last listing
//!   showed, and what other journals reported. If that is unclear, the chunk becomes a conflict,
//!   and a HEAD decides.
//! - **Pages of a listing.** A key that a journal changed is entered into `ChangedKeys`, so that an
//!   older page does not revert it.
//!
//! A wrong decision costs space or a miss and never a wrong byte: an inserted chunk counts as
//! unseen, and each load verifies its bytes.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::Event;
use kvtier_index::journal::{self as format, Record, RecordBatch};
use kvtier_index::{Chunk, ReadEnd};
use kvtier_key::Digest;
use kvtier_s3::{Entry, try_for_each_concurrent};

use crate::background::journal::conflicts::Conflicts;
use crate::background::journal::last_writes::LastWrites;
use crate::background::journal::progress::{ReadProgress, node_of};
use crate::background::journal::time_range::{Newer, TimeRange};
use crate::background::objects;
use crate::background::reconcile::{CHUNKS_PER_LOCK, make_recent};
use crate::state::catalog::Catalog;
use crate::state::counters::add;
use crate::state::journal::OBJECT_BYTES_MAX;
use crate::state::shared::Shared;

/// The most objects that are read in a round; the others follow in the next.
const OBJECTS_MAX: usize = 4096;
/// The most bytes that are read in a round.
const BYTES_MAX: u64 = 256 << 20;
/// Objects that are read at a time.
const WIDTH: usize = 16;

/// Reads each journal object once and applies it.
#[derive(Debug, Default)]
pub struct JournalMerger {
    progress: ReadProgress,
    /// The last listing, and its date by the store's clock.
    listed: (Vec<Entry>, Option<i64>),
    last_writes: LastWrites,
    conflicts: Conflicts,
}

/// Records of a node with their time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct JournalBatch {
    /// The object that contains them.
    object: Arc<str>,
    /// A later object of the node was applied before.
    late: bool,
    /// The earliest and the latest time, in Unix milliseconds by the store's clock.
    from_ms: u64,
    to_ms: u64,
    records: Vec<Record>,
}

/// What one look at the journals did.
#[derive(Debug)]
pub struct Merged {
    /// The number of records that were applied.
    pub records: usize,
    /// Why an object could not be read. The others were applied all the same.
    pub failed: Option<kvtier_s3::Error>,
}

impl JournalMerger {
    /// Applies the objects in `directory` that were not read before. The node's own journal is
    /// skipped: its index contains it.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub async fn merge(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<Merged> {
        self.list(shared, directory).await?;
        let mut batches = Vec::new();
        let mut failed = None;
        let mut stuck = None;
        for (name, read) in read_all(shared, self.names(shared, |known, _| !known)).await {
            // Objects of a node behind one that is held up are not applied.
            if stuck.as_deref() == Some(node_of(&name)) {
                continue;
            }
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
                    (failed, stuck) = (Some(e), waits.then(|| node_of(&name).to_owned()));
                }
            }
        }
        shared.cluster.notes().journal = self.progress.fault().cloned();
        sort_by_time(&mut batches);
        let count = self.apply(shared, &batches);
        add(&shared.counters.merged, count as u64);
        Ok(Merged { records: count, failed })
    }

    /// Applies the order of all uses since then (Unix milliseconds by the store's clock) again,
    /// including this node's own.
    pub async fn reapply_since(&mut self, shared: &Shared, since_ms: u64) -> kvtier_s3::Result<()> {
        self.list(shared, &shared.cluster.paths.journals()).await?;
        // Times of the store are truncated to seconds.
        let since =
            |entry: &Entry| (entry.modified + 1).saturating_mul(1000) >= since_ms.cast_signed();
        let mut batches = Vec::new();
        for (name, read) in read_all(shared, self.names(shared, |_, entry| since(entry))).await {
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

    async fn list(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<()> {
        self.listed = objects::list(&shared.client, directory).await?;
        let listed: HashSet<&String> = self.listed.0.iter().map(|entry| &entry.key).collect();
        self.progress.keep(directory, &listed);
        Ok(())
    }

    /// Nodes that wrote a journal object in the last `age_s` seconds, and this one. Valid after a
    /// listing of all journals.
    pub fn nodes(&self, shared: &Shared, age_s: i64) -> usize {
        let (entries, date) = &self.listed;
        let own = shared.cluster.paths.journals_of(&shared.cluster.node);
        let is_young = |entry: &&Entry| date.is_none_or(|date| date - entry.modified <= age_s);
        let others = entries.iter().filter(is_young).filter(|entry| !entry.key.starts_with(&own));
        1 + others.map(|entry| node_of(&entry.key)).collect::<HashSet<&str>>().len()
    }

    /// The names of listed objects for which `wanted` holds; it gets whether the object was read
    /// before.
    fn names(&self, shared: &Shared, wanted: impl Fn(bool, &Entry) -> bool) -> Vec<String> {
        let own = shared.cluster.paths.journals_of(&shared.cluster.node);
        let known =
            |entry: &Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(&own);
        let mut entries: Vec<&Entry> =
            self.listed.0.iter().filter(|entry| wanted(known(entry), entry)).collect();
        // Some stores list unsorted. The order of names is the order of a node's objects.
        entries.sort_unstable_by_key(|entry| &entry.key);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.bytes.min(OBJECT_BYTES_MAX as u64);
            bytes <= BYTES_MAX
        };
        entries
            .into_iter()
            .take(OBJECTS_MAX)
            .take_while(fits)
            .map(|entry| entry.key.clone())
            .collect()
    }

    /// The last save or delete of chunks.
    pub fn last_writes(&self) -> &LastWrites {
        &self.last_writes
    }

    /// Resolves conflicts with requests to the bucket.
    pub async fn resolve_conflicts(&mut self, shared: &Shared) {
        self.conflicts.resolve(shared).await;
    }

    fn apply(&mut self, shared: &Shared, batches: &[JournalBatch]) -> usize {
        let mut count = 0;
        for batch in batches {
            let when = TimeRange::between(shared, batch.from_ms, batch.to_ms);
            let from = BatchSource { object: &batch.object, when, late: batch.late };
            for some in batch.records.chunks(CHUNKS_PER_LOCK) {
                let mut guard = shared.catalog();
                let mut apply = Apply { shared, catalog: &mut guard, merger: self };
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
        let (entries, date) = &self.listed;
        let old = |entry: &&Entry| date.is_some_and(|date| date - entry.modified >= age_s);
        let merged =
            |entry: &&Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(own);
        entries.iter().filter(old).filter(merged).map(|entry| entry.key.as_str()).collect()
    }
}

/// Reads objects, several at a time; returns them sorted by name.
async fn read_all(
    shared: &Shared,
    names: Vec<String>,
) -> Vec<(String, kvtier_s3::Result<JournalObject>)> {
    let read_some = Mutex::new(Vec::with_capacity(names.len()));
    let done = &read_some;
    let each = names.into_iter().map(|name| async move {
        let batches = read(shared, &name).await;
        done.lock().unwrap_or_else(PoisonError::into_inner).push((name, batches));
        Ok::<_, Infallible>(())
    });
    let Ok(()) = try_for_each_concurrent(each, WIDTH).await;
    let mut read_some = read_some.into_inner().unwrap_or_else(PoisonError::into_inner);
    read_some.sort_by(|(a, _), (b, _)| a.cmp(b));
    read_some
}

/// The content of an object.
#[derive(Debug, Default)]
struct JournalObject {
    batches: Vec<RecordBatch>,
    /// A description of the damage.
    what: Option<String>,
    /// It is damaged behind these batches.
    is_torn: bool,
}

async fn read(shared: &Shared, name: &str) -> kvtier_s3::Result<JournalObject> {
    let bytes = match objects::get(&shared.client, name, OBJECT_BYTES_MAX).await {
        Ok(Some(bytes)) => bytes,
        // The evictor merged and deleted it meanwhile.
        Ok(None) => return Ok(JournalObject::default()),
        Err(e) if e.kind() == kvtier_s3::ErrorKind::Corrupt && !e.is_retryable() => {
            let what = Some(format!("{name} is longer than any journal: not read"));
            return Ok(JournalObject { what, is_torn: true, ..JournalObject::default() });
        }
        Err(e) => return Err(e),
    };
    let mut journal = format::decode(&bytes);
    let batches = journal.by_ref().collect();
    let end = journal.end();
    let what = match &end {
        Some(ReadEnd::Version { version, .. }) => Some(format!(
            "{name} has version {version} of the journal's format: not read; a newer build can"
        )),
        Some(ReadEnd::Torn { at }) => {
            Some(format!("{name} is damaged from byte {at} on: the rest is not read"))
        }
        _ => None,
    };
    Ok(JournalObject { batches, what, is_torn: matches!(end, Some(ReadEnd::Torn { .. })) })
}

/// The batches of an object, with their times.
fn batches_of(shared: &Shared, name: &str, batches: Vec<RecordBatch>) -> Vec<JournalBatch> {
    with_times(name, batches, shared.cluster.config.journal_every.as_millis() as u64)
}

fn with_times(name: &str, batches: Vec<RecordBatch>, every_ms: u64) -> Vec<JournalBatch> {
    let object: Arc<str> = name.into();
    // Earlier builds give all records of an interval the time at which they wrote it. A newer build
    // may have only records of one time.
    let one_time = batches.iter().all(|batch| batch.at_ms == batches[0].at_ms);
    let before_ms = if one_time { every_ms } else { 0 };
    let place = |RecordBatch { at_ms, records, .. }| JournalBatch {
        object: Arc::clone(&object),
        late: false,
        from_ms: at_ms.saturating_sub(before_ms),
        to_ms: at_ms,
        records,
    };
    batches.into_iter().map(place).collect()
}

/// Sorts batches by time and keeps the order of each node's own, even if its clock was set back.
fn sort_by_time(batches: &mut [JournalBatch]) {
    let mut last: HashMap<String, u64> = HashMap::new();
    for batch in batches.iter_mut() {
        let last_ms = last.entry(node_of(&batch.object).to_owned()).or_default();
        batch.to_ms = batch.to_ms.max(*last_ms);
        *last_ms = batch.to_ms;
    }
    batches.sort_by_key(|batch| batch.to_ms);
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

/// The origin of a batch.
#[derive(Clone, Copy)]
struct BatchSource<'a> {
    object: &'a Arc<str>,
    when: TimeRange,
    /// A later object of the node was applied before. Without another report of the chunk only the
    /// bucket can decide.
    late: bool,
}

impl BatchSource<'_> {
    fn limit(&self, last: Newer) -> Newer {
        if self.late { last.and(Newer::Unclear) } else { last }
    }
}

/// Applies records of other nodes, unless this node has newer knowledge.
struct Apply<'a> {
    shared: &'a Shared,
    catalog: &'a mut Catalog,
    merger: &'a mut JournalMerger,
}

impl Apply<'_> {
    fn apply(&mut self, record: &Record, from: BatchSource<'_>) {
        match record {
            // A use in a late object is older than others of the node.
            Record::Touch(_) if from.late => {}
            Record::Touch(digest) => self.catalog.index.touch_batch(&[*digest]),
            Record::Insert(chunk) => {
                self.inserted(chunk, from);
                self.merger.last_writes.note(chunk.digest, from.object, from.when, true);
            }
            Record::Remove(digest) => {
                self.removed(digest, from);
                self.merger.last_writes.note(*digest, from.object, from.when, false);
            }
            _ => {}
        }
    }

    fn inserted(&mut self, chunk: &Chunk, from: BatchSource<'_>) {
        let catalog = &mut *self.catalog;
        let digest = chunk.digest;
        match catalog.index.get(&digest) {
            Some(entry) if entry.chunk.len == chunk.len => {
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
            // A name that the digest does not contain comes with the next listing.
            None if !self.shared.names.is_own() => return,
            // It may have been saved after this node's delete and before the answer to it.
            None if catalog.index.is_evicting(&digest) => return self.merger.conflicts.put(*chunk),
            None if catalog.index.is_known(&digest) => return,
            None => {}
        }
        // A later delete wins, and a listing that began clearly later would have found it.
        let absent = catalog
            .absent_for(&digest)
            .map_or(Newer::This, |ago| from.when.compare(&TimeRange::ago(self.shared, ago)));
        let listed = TimeRange::at(self.shared.cluster.listed_ms.load(Ordering::Relaxed));
        let unlisted = match from.when.compare(&listed) {
            Newer::Other => Newer::Other,
            _ => Newer::This,
        };
        let by_journal = self.merger.last_writes.compare(&digest, from.object, from.when, true);
        match from.limit(absent.and(unlisted).and(by_journal)) {
            Newer::Other => {}
            Newer::Unclear => self.merger.conflicts.put(*chunk),
            Newer::This => {
                let _ = self.catalog.insert_unseen(*chunk);
                self.catalog.changed_keys.note(digest);
                add(&self.shared.counters.added_externally, 1);
                self.shared.listeners.push(Event::Stored { key: digest, len: chunk.len });
            }
        }
    }

    fn removed(&mut self, digest: &Digest, from: BatchSource<'_>) {
        let Some(entry) = self.catalog.index.known(digest) else { return };
        let seen = match self.catalog.seen.ms(entry.slot) {
            // This node has not seen it.
            0 => Newer::This,
            ms => from.when.compare(&TimeRange::at(ms.cast_signed())),
        };
        let by_journal = self.merger.last_writes.compare(digest, from.object, from.when, false);
        match from.limit(seen.and(by_journal)) {
            Newer::Other => {}
            Newer::Unclear => self.merger.conflicts.put(entry.chunk),
            Newer::This => {
                let suspect = self.catalog.index.is_suspect(digest);
                self.catalog.forget(digest);
                self.catalog.changed_keys.note(*digest);
                // Suspects were reported as gone before.
                add(&self.shared.counters.deleted_externally, u64::from(!suspect));
                if !suspect {
                    self.shared.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(at_ms: u64, n: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        format::encode(at_ms, &[Record::Touch(Digest([n; 32]))], &mut bytes);
        bytes
    }

    fn batches_at(name: &str, times: &[u64]) -> Vec<JournalBatch> {
        let bytes: Vec<u8> =
            times.iter().zip(0..).flat_map(|(at_ms, n)| batch(*at_ms, n)).collect();
        with_times(name, format::decode(&bytes).collect(), 30_000)
    }

    #[test]
    fn a_journal_with_one_time_covers_an_interval_and_others_have_exact_times() {
        let spans = |times: &[u64]| {
            batches_at("j/a/1", times).iter().map(|n| (n.from_ms, n.to_ms)).collect::<Vec<_>>()
        };
        assert_eq!(spans(&[50_000]), [(20_000, 50_000)]);
        assert_eq!(spans(&[50_000, 50_000]), [(20_000, 50_000); 2]);
        assert_eq!(spans(&[50_000, 50_250]), [(50_000, 50_000), (50_250, 50_250)]);
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn the_batches_of_one_node_keep_their_order_in_spite_of_its_clock() {
        let mut all = batches_at("j/a/1", &[1000, 5000]);
        all.extend(batches_at("j/a/2", &[4000, 7000]));
        all.extend(batches_at("j/b/1", &[3000, 6000]));
        sort_by_time(&mut all);
        let batches: Vec<(&str, u64)> =
            all.iter().map(|batch| (node_of(&batch.object), batch.to_ms)).collect();
        let a = "j/a";
        let b = "j/b";
        assert_eq!(batches, [(a, 1000), (b, 3000), (a, 5000), (a, 5000), (b, 6000), (a, 7000)]);
        assert_eq!(all[2].records, [Record::Touch(Digest([1; 32]))], "of equals the first first");
    }
}
