//! What happened to which chunk, so that the order of use survives a restart: a journal of each process, and now and then a snapshot of
//! the index by one of them. The listing stays the authority on what is there.

mod journal;
mod snapshot;

use std::fs;
use std::io;
use std::path::Path;

use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index, LastUses, snapshot as format};

pub use journal::{Journal, Reader};
pub use snapshot::write as write_snapshot;

/// Puts the listed chunks of `index` into the order of use that snapshot and journals tell. What they do not tell of is least recent.
/// Answers the reader of the journals, which knows how far each was read.
pub fn restore(own: &Path, index: &mut Index) -> io::Result<Reader> {
    let (records, reader) = records(own)?;
    records.iter().for_each(|record| apply(index, record));
    Ok(reader)
}

/// What snapshot and journals tell, the least recent first, and the reader of the journals.
pub fn records(own: &Path) -> io::Result<(Vec<Record>, Reader)> {
    let bytes = match fs::read(own.join("snapshot")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let mut pieces = format::decode(&bytes);
    let chunks: Vec<_> = pieces.by_ref().collect();
    let at_ms = pieces.at_ms().unwrap_or(0);
    // The most recent come first, so that of a torn snapshot the best part is left; they are entered last.
    let listed = chunks.iter().rev().flat_map(|piece| piece.iter().rev());
    let mut records: Vec<Record> = listed.map(|chunk| Record::Insert(*chunk)).collect();
    drop(chunks);
    let mut reader = Reader::new(own, at_ms);
    records.extend(reader.read(None)?);
    Ok((records, reader))
}

/// When chunks were used last, as far as snapshot and journals say.
pub fn last_uses(own: &Path) -> io::Result<LastUses> {
    let bytes = match fs::read(own.join("snapshot")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let mut uses = LastUses::default();
    let mut pieces = format::decode(&bytes);
    while let Some(chunks) = pieces.next() {
        uses.add_snapshot(pieces.at_ms().unwrap_or(0), &chunks);
    }
    Reader::new(own, pieces.at_ms().unwrap_or(0)).batches(None)?.iter().for_each(|batch| uses.add_batch(batch));
    Ok(uses)
}

/// Takes over what a record says about a chunk that the index knows.
pub fn apply(index: &mut Index, record: &Record) {
    match record {
        Record::Touch(digest) => index.touch_batch(&[*digest]),
        Record::Insert(chunk) => match index.get(&chunk.digest).map(|known| known.chunk) {
            // Where only the file can tell the length, it stays so: the record may be of another one.
            Some(known) if known.len == chunk.len || known.len == 0 => {
                let mut chunk: Chunk = *chunk;
                (chunk.len, chunk.bytes) = (known.len, known.bytes);
                let _ = index.insert(chunk);
            }
            _ => {}
        },
        _ => {}
    }
}
