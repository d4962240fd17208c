//! What the nodes noted, brought together.

use std::collections::HashSet;
use std::time::Duration;

use kvtier_core::Event;
use kvtier_index::End;
use kvtier_index::journal::{self as format, Batch, Record};

use super::bytes;
use super::journal::OBJECT_BYTES_MAX;
use super::round::SOME;
use crate::tier::books::Books;
use crate::tier::counters::add;
use crate::tier::shared::Shared;
use crate::{Client, Entry};

/// The most objects that are read at a time; the rest waits for the next.
const OBJECTS_MAX: usize = 4096;

/// Reads journals, each object once.
#[derive(Debug, Default)]
pub struct Merger {
    read: HashSet<String>,
    /// What lay there at the last look, and when that was by the store's clock.
    listed: (Vec<Entry>, Option<i64>),
}

impl Merger {
    /// Takes in what lies in `directory` and was not read before; answers how many records. The node's own journal is not read: its
    /// index knows.
    pub async fn merge(&mut self, shared: &Shared, directory: &str) -> crate::Result<usize> {
        let own = shared.truth.paths.journals_of(&shared.truth.node);
        self.listed = bytes::list(&shared.client, directory).await?;
        let listed: HashSet<&String> = self.listed.0.iter().map(|entry| &entry.key).collect();
        self.read.retain(|name| listed.contains(name));
        let new = |entry: &&Entry| !self.read.contains(&entry.key) && !entry.key.starts_with(&own);
        let new: Vec<String> = self.listed.0.iter().filter(new).take(OBJECTS_MAX).map(|e| e.key.clone()).collect();
        let (mut batches, mut failed) = (Vec::new(), None);
        for name in new {
            match read(shared, &shared.client, &name).await {
                Ok(more) => batches.extend(more),
                Err(e) => {
                    // What was read before it counts all the same: it is read but once.
                    failed = Some(e);
                    break;
                }
            }
            self.read.insert(name);
        }
        batches.sort_by_key(|batch| batch.at_ms);
        let (mut count, server_ms) = (0, shared.truth.server_ms(&shared.client));
        for batch in &batches {
            // When it was written, by the tier's own clock.
            let at_ms = shared.now_ms().saturating_sub(server_ms.saturating_sub(batch.at_ms));
            for some in batch.records.chunks(SOME) {
                let events = apply(shared, &mut shared.books(), (some, at_ms));
                shared.tell(&events);
            }
            count += batch.records.len();
        }
        add(&shared.counters.merged, count as u64);
        failed.map_or(Ok(count), Err)
    }

    /// The objects that a snapshot has made superfluous, and that lay there for at least so many seconds: others may still read them.
    pub fn superfluous(&self, own: &str, age_s: i64) -> Vec<&str> {
        let (entries, date) = &self.listed;
        let old = |entry: &&Entry| date.is_some_and(|date| date - entry.modified >= age_s);
        let merged = |entry: &&Entry| self.read.contains(&entry.key) || entry.key.starts_with(own);
        entries.iter().filter(old).filter(merged).map(|entry| entry.key.as_str()).collect()
    }
}

async fn read(shared: &Shared, client: &Client, name: &str) -> crate::Result<Vec<Batch>> {
    let bytes = match bytes::get(client, name, OBJECT_BYTES_MAX).await {
        Ok(Some(bytes)) => bytes,
        // Merged and deleted by the evictor meanwhile.
        Ok(None) => return Ok(Vec::new()),
        Err(e) if e.kind() == crate::ErrorKind::Corrupt && !e.is_retryable() => {
            shared.truth.told().journal = Some(format!("{name} is longer than any journal: not read"));
            return Ok(Vec::new());
        }
        Err(e) => return Err(e),
    };
    let mut journal = format::decode(&bytes);
    let batches = journal.by_ref().collect();
    match journal.end() {
        Some(End::Version { version, .. }) => {
            let what = format!("{name} has version {version} of the journal's format: not read; a newer build can");
            shared.truth.told().journal = Some(what);
        }
        Some(End::Torn { at }) => {
            shared.truth.told().journal = Some(format!("{name} is damaged from byte {at} on: the rest is not read"));
        }
        _ => {}
    }
    Ok(batches)
}

/// Takes over what others noted, as far as it is not older than what is known here.
fn apply(shared: &Shared, books: &mut Books, (records, at_ms): (&[Record], u64)) -> Vec<Event> {
    let mut events = Vec::new();
    // What was noted may have happened an interval before it was written.
    let age = Duration::from_millis(shared.now_ms().saturating_sub(at_ms));
    let since = age + shared.truth.config.journal_every;
    for record in records {
        match record {
            Record::Touch(digest) => books.index.touch_batch(&[*digest]),
            Record::Insert(chunk) => match books.index.get(&chunk.digest) {
                Some(entry) if entry.chunk.len == chunk.len => drop(books.index.insert(*chunk)),
                // Of another length than it had when it was seen here.
                Some(_) => {
                    books.index.touch_batch(&[chunk.digest]);
                    books.doubt(&chunk.digest);
                }
                // A name that the digest does not tell comes with the next listing; what we removed since stays so.
                None if !shared.names.is_own() || books.index.is_known(&chunk.digest) => {}
                None if books.was_absent_within(&chunk.digest, since) => {}
                None => {
                    let _ = books.hear_of(*chunk);
                    books.watch.note(chunk.digest);
                    add(&shared.counters.discovered, 1);
                    events.push(Event::Stored { key: chunk.digest, len: chunk.len });
                }
            },
            Record::Remove(digest) => {
                let suspect = books.index.is_suspect(digest);
                if books.index.slot(digest).is_some_and(|slot| books.seen.ms(slot) <= at_ms)
                    && let Some(entry) = books.forget(digest)
                {
                    books.watch.note(*digest);
                    // A suspect was gone for everybody already.
                    add(&shared.counters.vanished, u64::from(!suspect));
                    events.extend((!suspect).then_some(Event::Gone { key: *digest, len: entry.chunk.len }));
                }
            }
            _ => {}
        }
    }
    events
}
