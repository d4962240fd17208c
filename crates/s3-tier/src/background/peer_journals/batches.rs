//! Reads journal objects, and orders their batches by time.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_index::ReadEnd;
use kvtier_index::journal::{self as format, Record, RecordBatch};
use kvtier_s3::{Entry, try_for_each_concurrent};

use crate::background::own_objects;
use crate::background::peer_journals::progress::node_of;
use crate::state::own_journal::OBJECT_BYTES_MAX;
use crate::state::shared::Shared;

/// Objects that are read at a time.
const WIDTH: usize = 16;

/// Records of a node with their time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalBatch {
    /// The object that contains them.
    pub object: Arc<str>,
    /// A later object of the node was applied before.
    pub late: bool,
    /// The earliest and the latest time, in Unix milliseconds by the store's clock.
    pub from_ms: u64,
    pub to_ms: u64,
    pub records: Vec<Record>,
}

/// Reads objects, several at a time; returns them sorted by name.
pub async fn read_all(
    shared: &Shared,
    entries: Vec<Entry>,
) -> Vec<(String, kvtier_s3::Result<JournalObject>)> {
    let read_some = Mutex::new(Vec::with_capacity(entries.len()));
    let done = &read_some;
    let each = entries.into_iter().map(|entry| async move {
        let batches = read(shared, &entry).await;
        done.lock().unwrap_or_else(PoisonError::into_inner).push((entry.key, batches));
        Ok::<_, Infallible>(())
    });
    let Ok(()) = try_for_each_concurrent(each, WIDTH).await;
    let mut read_some = read_some.into_inner().unwrap_or_else(PoisonError::into_inner);
    read_some.sort_by(|(a, _), (b, _)| a.cmp(b));
    read_some
}

/// The content of an object.
#[derive(Debug, Default)]
pub struct JournalObject {
    pub batches: Vec<RecordBatch>,
    /// A description of the damage.
    pub what: Option<String>,
    /// It is damaged behind these batches.
    pub is_torn: bool,
}

async fn read(shared: &Shared, entry: &Entry) -> kvtier_s3::Result<JournalObject> {
    let name = &entry.key;
    let bytes = match own_objects::get_listed(&shared.client, entry, OBJECT_BYTES_MAX).await {
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
pub fn batches_of(shared: &Shared, name: &str, batches: Vec<RecordBatch>) -> Vec<JournalBatch> {
    with_times(name, batches, shared.node.config.journal_every.as_millis() as u64)
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
pub fn sort_by_time(batches: &mut [JournalBatch]) {
    let mut last: HashMap<String, u64> = HashMap::new();
    for batch in batches.iter_mut() {
        let last_ms = last.entry(node_of(&batch.object).to_owned()).or_default();
        batch.to_ms = batch.to_ms.max(*last_ms);
        *last_ms = batch.to_ms;
    }
    batches.sort_by_key(|batch| batch.to_ms);
}

#[cfg(test)]
mod tests {
    use kvtier_key::Digest;

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
