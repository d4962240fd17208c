//! What the nodes noted, brought together.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::Event;
use kvtier_index::journal::{self as format, Record, RecordBatch};
use kvtier_index::{Chunk, ReadEnd};
use kvtier_key::Digest;
use kvtier_s3::{Entry, try_for_each_concurrent};

use crate::background::journal::conflicts::Questions;
use crate::background::journal::last_writes::Heard;
use crate::background::journal::progress::{Progress, node_of};
use crate::background::journal::time_range::{Last, When};
use crate::background::objects;
use crate::background::reconcile::{SOME, make_recent};
use crate::state::catalog::Books;
use crate::state::counters::add;
use crate::state::journal::OBJECT_BYTES_MAX;
use crate::state::shared::Shared;

/// The most objects that are read at a time; the rest waits for the next.
const OBJECTS_MAX: usize = 4096;
/// And the most bytes of them.
const BYTES_MAX: u64 = 256 << 20;
/// How many of them are on their way at once.
const WIDTH: usize = 16;

/// Reads journals, each object once.
#[derive(Debug, Default)]
pub struct Merger {
    progress: Progress,
    /// What lay there at the last look, and when that was by the store's clock.
    listed: (Vec<Entry>, Option<i64>),
    heard: Heard,
    questions: Questions,
}

/// What a node noted at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct News {
    /// The object that says so.
    object: Arc<str>,
    /// A later object of that node was read before.
    late: bool,
    /// When that was at the earliest and at the latest, in Unix milliseconds by the store's clock.
    from_ms: u64,
    to_ms: u64,
    records: Vec<Record>,
}

impl Merger {
    /// Takes in what lies in `directory` and was not read before; answers how many records. The
    /// node's own journal is not read: its index knows.
    pub async fn merge(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<usize> {
        self.list(shared, directory).await?;
        let (mut told, mut failed, mut stuck) = (Vec::new(), None, None);
        for (name, batches) in read_all(shared, self.names(shared, |known, _| !known)).await {
            // Before one that cannot be read nothing of that node is read which comes behind it.
            if stuck.as_deref() == Some(node_of(&name)) {
                continue;
            }
            match batches {
                Ok(Found { what, is_torn, .. }) if is_torn && self.progress.failed(&name) => {
                    // On its way, perhaps: nothing of it counts until it is read once more.
                    self.progress.note(&name, what);
                    stuck = Some(node_of(&name).to_owned());
                }
                Ok(found) => {
                    let late = self.progress.is_late(&name);
                    let some = news(shared, &name, found.batches);
                    told.extend(some.into_iter().map(|news| News { late, ..news }));
                    self.progress.note(&name, found.what);
                    self.progress.done(name);
                }
                Err(e) => {
                    let waits = self.progress.failed(&name);
                    (failed, stuck) = (Some(e), waits.then(|| node_of(&name).to_owned()));
                }
            }
        }
        shared.truth.told().journal = self.progress.complaint().cloned();
        in_order(&mut told);
        let count = self.take_in(shared, &told);
        add(&shared.counters.merged, count as u64);
        failed.map_or(Ok(count), Err)
    }

    /// All use that journals tell of since then (Unix milliseconds by the store's clock), the
    /// node's own too, gives the order once more.
    pub async fn again(&mut self, shared: &Shared, since_ms: u64) -> kvtier_s3::Result<()> {
        self.list(shared, &shared.truth.paths.journals()).await?;
        // Times of the store are cut to seconds.
        let since =
            |entry: &Entry| (entry.modified + 1).saturating_mul(1000) >= since_ms.cast_signed();
        let mut told = Vec::new();
        for (name, batches) in read_all(shared, self.names(shared, |_, entry| since(entry))).await {
            // Deleted meanwhile, or not to be had: some order is better than none.
            match batches {
                Ok(found) => told.extend(news(shared, &name, found.batches)),
                Err(e) => drop(shared.error("journal", None, e)),
            }
        }
        in_order(&mut told);
        told.retain(|news| news.to_ms >= since_ms);
        let used = told.iter().flat_map(|news| &news.records);
        use_again(shared, &used.copied().collect::<Vec<Record>>());
        Ok(())
    }

    async fn list(&mut self, shared: &Shared, directory: &str) -> kvtier_s3::Result<()> {
        self.listed = objects::list(&shared.client, directory).await?;
        let listed: HashSet<&String> = self.listed.0.iter().map(|entry| &entry.key).collect();
        self.progress.keep(directory, &listed);
        Ok(())
    }

    /// How many nodes wrote to the bucket of late, this one included, where all journals were
    /// listed: those that have an object that is not older than `age_s`.
    pub fn nodes(&self, shared: &Shared, age_s: i64) -> usize {
        let (entries, date) = &self.listed;
        let own = shared.truth.paths.journals_of(&shared.truth.node);
        let is_young = |entry: &&Entry| date.is_none_or(|date| date - entry.modified <= age_s);
        let others = entries.iter().filter(is_young).filter(|entry| !entry.key.starts_with(&own));
        1 + others.map(|entry| node_of(&entry.key)).collect::<HashSet<&str>>().len()
    }

    /// The names of some of what lies there: `wanted` is told whether it is known already.
    fn names(&self, shared: &Shared, wanted: impl Fn(bool, &Entry) -> bool) -> Vec<String> {
        let own = shared.truth.paths.journals_of(&shared.truth.node);
        let known =
            |entry: &Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(&own);
        let mut entries: Vec<&Entry> =
            self.listed.0.iter().filter(|entry| wanted(known(entry), entry)).collect();
        // Some stores list in no order; that of a node's objects is that of what it did.
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

    /// What was heard of chunks.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// Asks the bucket what journals left open.
    pub async fn ask(&mut self, shared: &Shared) {
        self.questions.ask(shared).await;
    }

    fn take_in(&mut self, shared: &Shared, told: &[News]) -> usize {
        let mut count = 0;
        for news in told {
            let when = When::between(shared, news.from_ms, news.to_ms);
            let from = Source { object: &news.object, when, late: news.late };
            for some in news.records.chunks(SOME) {
                let mut guard = shared.books();
                let mut desk = Desk { shared, books: &mut guard, merger: self };
                some.iter().for_each(|record| desk.apply(record, from));
                drop(guard);
                shared.listeners.notify();
            }
            count += news.records.len();
        }
        // What went left room.
        shared.freed.notify_waiters();
        count
    }

    /// The objects that a snapshot has made superfluous, and that lay there for at least so many
    /// seconds: others may still read them.
    pub fn superfluous(&self, own: &str, age_s: i64) -> Vec<&str> {
        let (entries, date) = &self.listed;
        let old = |entry: &&Entry| date.is_some_and(|date| date - entry.modified >= age_s);
        let merged =
            |entry: &&Entry| self.progress.is_read(&entry.key) || entry.key.starts_with(own);
        entries.iter().filter(old).filter(merged).map(|entry| entry.key.as_str()).collect()
    }
}

/// Reads objects, several at a time; in the order of their names.
async fn read_all(shared: &Shared, names: Vec<String>) -> Vec<(String, kvtier_s3::Result<Found>)> {
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

/// What an object holds.
#[derive(Debug, Default)]
struct Found {
    batches: Vec<RecordBatch>,
    /// What is wrong with it.
    what: Option<String>,
    /// It is damaged behind these batches.
    is_torn: bool,
}

async fn read(shared: &Shared, name: &str) -> kvtier_s3::Result<Found> {
    let bytes = match objects::get(&shared.client, name, OBJECT_BYTES_MAX).await {
        Ok(Some(bytes)) => bytes,
        // Merged and deleted by the evictor meanwhile.
        Ok(None) => return Ok(Found::default()),
        Err(e) if e.kind() == kvtier_s3::ErrorKind::Corrupt && !e.is_retryable() => {
            let what = Some(format!("{name} is longer than any journal: not read"));
            return Ok(Found { what, is_torn: true, ..Found::default() });
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
    Ok(Found { batches, what, is_torn: matches!(end, Some(ReadEnd::Torn { .. })) })
}

/// The batches of an object, and when what they tell of happened.
fn news(shared: &Shared, name: &str, batches: Vec<RecordBatch>) -> Vec<News> {
    placed(name, batches, shared.truth.config.journal_every.as_millis() as u64)
}

fn placed(name: &str, batches: Vec<RecordBatch>, every_ms: u64) -> Vec<News> {
    let object: Arc<str> = name.into();
    // Builds before this one tell everything under the time at which they wrote it, up to an
    // interval later; so may one that had nothing to tell at any other time.
    let one_time = batches.iter().all(|batch| batch.at_ms == batches[0].at_ms);
    let before_ms = if one_time { every_ms } else { 0 };
    let place = |RecordBatch { at_ms, records, .. }| News {
        object: Arc::clone(&object),
        late: false,
        from_ms: at_ms.saturating_sub(before_ms),
        to_ms: at_ms,
        records,
    };
    batches.into_iter().map(place).collect()
}

/// Sorts by time what was read, in which each node's is in the order that it wrote: that stays,
/// whatever became of its clock.
fn in_order(told: &mut [News]) {
    let mut last: HashMap<String, u64> = HashMap::new();
    for news in told.iter_mut() {
        let last_ms = last.entry(node_of(&news.object).to_owned()).or_default();
        news.to_ms = news.to_ms.max(*last_ms);
        *last_ms = news.to_ms;
    }
    told.sort_by_key(|news| news.to_ms);
}

/// Chunks that were used or saved become the most recent, in that order, as if they came now.
pub fn use_again(shared: &Shared, records: &[Record]) {
    for some in records.chunks(SOME) {
        let mut books = shared.books();
        let slot = |record: &Record| match record {
            Record::Touch(digest) | Record::Insert(Chunk { digest, .. }) => {
                books.index.slot(digest)
            }
            _ => None,
        };
        let slots: Vec<u32> = some.iter().filter_map(slot).collect();
        make_recent(&mut books.index, &slots);
    }
}

/// Where something was noted, and when.
#[derive(Clone, Copy)]
struct Source<'a> {
    object: &'a Arc<str>,
    when: When,
    /// A later object of that node was read before: what nobody here has any other word of, only
    /// the bucket can tell.
    late: bool,
}

impl Source<'_> {
    fn judge(&self, last: Last) -> Last {
        if self.late { last.and(Last::Unclear) } else { last }
    }
}

/// Where what others noted is taken over, as far as it is not older than what is known here.
struct Desk<'a> {
    shared: &'a Shared,
    books: &'a mut Books,
    merger: &'a mut Merger,
}

impl Desk<'_> {
    fn apply(&mut self, record: &Record, from: Source<'_>) {
        match record {
            // Who used it since comes behind, wherever that was noted.
            Record::Touch(_) if from.late => {}
            Record::Touch(digest) => self.books.index.touch_batch(&[*digest]),
            Record::Insert(chunk) => {
                self.inserted(chunk, from);
                self.merger.heard.note(chunk.digest, (from.object, from.when, true));
            }
            Record::Remove(digest) => {
                self.removed(digest, from);
                self.merger.heard.note(*digest, (from.object, from.when, false));
            }
            _ => {}
        }
    }

    fn inserted(&mut self, chunk: &Chunk, from: Source<'_>) {
        let (books, digest) = (&mut *self.books, chunk.digest);
        match books.index.get(&digest) {
            Some(entry) if entry.chunk.len == chunk.len => {
                if from.late {
                    return;
                }
                let _ = books.index.insert(*chunk);
                // A page of a listing may be older.
                return books.changed(digest);
            }
            // Of another length than it had when it was seen here.
            Some(_) => {
                books.index.touch_batch(&[digest]);
                return books.doubt(&digest);
            }
            // A name that the digest does not tell comes with the next listing.
            None if !self.shared.names.is_own() => return,
            // Perhaps it was saved when our delete was done and not yet answered.
            None if books.index.is_evicting(&digest) => return self.merger.questions.put(*chunk),
            None if books.index.is_known(&digest) => return,
            None => {}
        }
        // What went since stays so, and a listing that began clearly later would have shown it.
        let absent = books
            .absent_for(&digest)
            .map_or(Last::This, |ago| from.when.against(&When::ago(self.shared, ago)));
        let listed = When::at(self.shared.truth.listed_ms.load(Ordering::Relaxed));
        let unlisted = match from.when.against(&listed) {
            Last::Other => Last::Other,
            _ => Last::This,
        };
        let heard = self.merger.heard.compare(&digest, (from.object, from.when, true));
        match from.judge(absent.and(unlisted).and(heard)) {
            Last::Other => {}
            Last::Unclear => self.merger.questions.put(*chunk),
            Last::This => {
                let _ = self.books.hear_of(*chunk);
                self.books.watch.note(digest);
                add(&self.shared.counters.added_externally, 1);
                self.shared.listeners.push(Event::Stored { key: digest, len: chunk.len });
            }
        }
    }

    fn removed(&mut self, digest: &Digest, from: Source<'_>) {
        let Some(entry) = self.books.index.known(digest) else { return };
        let seen = match self.books.seen.ms(entry.slot) {
            // Nobody here saw it.
            0 => Last::This,
            ms => from.when.against(&When::at(ms.cast_signed())),
        };
        let heard = self.merger.heard.compare(digest, (from.object, from.when, false));
        match from.judge(seen.and(heard)) {
            Last::Other => {}
            Last::Unclear => self.merger.questions.put(entry.chunk),
            Last::This => {
                let suspect = self.books.index.is_suspect(digest);
                self.books.forget(digest);
                self.books.watch.note(*digest);
                // A suspect was gone for everybody already.
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

    fn news_of(name: &str, times: &[u64]) -> Vec<News> {
        let bytes: Vec<u8> =
            times.iter().zip(0..).flat_map(|(at_ms, n)| batch(*at_ms, n)).collect();
        placed(name, format::decode(&bytes).collect(), 30_000)
    }

    #[test]
    fn journals_with_one_time_may_tell_of_an_interval_and_others_tell_when_it_was() {
        let spans = |times: &[u64]| {
            news_of("j/a/1", times).iter().map(|n| (n.from_ms, n.to_ms)).collect::<Vec<_>>()
        };
        assert_eq!(spans(&[50_000]), [(20_000, 50_000)]);
        assert_eq!(spans(&[50_000, 50_000]), [(20_000, 50_000); 2]);
        assert_eq!(spans(&[50_000, 50_250]), [(50_000, 50_000), (50_250, 50_250)]);
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn what_one_node_did_stays_in_its_order_whatever_its_clock_says() {
        let mut all = news_of("j/a/1", &[1000, 5000]);
        all.extend(news_of("j/a/2", &[4000, 7000]));
        all.extend(news_of("j/b/1", &[3000, 6000]));
        in_order(&mut all);
        let told: Vec<(&str, u64)> =
            all.iter().map(|news| (node_of(&news.object), news.to_ms)).collect();
        let (a, b) = ("j/a", "j/b");
        assert_eq!(told, [(a, 1000), (b, 3000), (a, 5000), (a, 5000), (b, 6000), (a, 7000)]);
        assert_eq!(all[2].records, [Record::Touch(Digest([1; 32]))], "of equals the first first");
    }
}
