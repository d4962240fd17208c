//! What happened to which chunk, so that the order of use survives a restart: a journal of each
//! process, and now and then a snapshot of the index by one of them. The listing stays the
//! authority on what is there.

mod journal;
mod reader;
mod snapshot;

use std::io;
use std::path::Path;

use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index, LastUses, TenantId};

pub use journal::Journal;
pub use reader::Reader;
pub use snapshot::write as write_snapshot;

/// What snapshot and journals say.
#[derive(Debug)]
pub struct History {
    /// The least recent first.
    pub records: Vec<Record>,
    /// Of the journals; it knows how far each was read.
    pub reader: Reader,
    /// What could not be read: the order of use lacks it.
    pub damage: Vec<String>,
}

/// Puts the listed chunks of `index` into the order of use that snapshot and journals tell. What
/// they do not tell of is least recent. Answers the reader of the journals, and what could not be
/// read.
pub fn restore(own: &Path, index: &mut Index) -> io::Result<(Reader, Vec<String>)> {
    let History { records, reader, damage } = history(own)?;
    records.iter().for_each(|record| apply(index, record));
    Ok((reader, damage))
}

/// What snapshot and journals tell, as far as they can be read.
pub fn history(own: &Path) -> io::Result<History> {
    let snapshot = snapshot::read(own);
    // The most recent come first, so that of a torn snapshot the best part is left; they are
    // entered last.
    let mut records: Vec<Record> =
        snapshot.chunks.iter().rev().map(|chunk| Record::Insert(*chunk)).collect();
    let mut reader = Reader::new(own, snapshot.at_ms);
    records.extend(reader.read(None)?);
    let damage = snapshot.damage.into_iter().chain(reader.take_damage()).collect();
    Ok(History { records, reader, damage })
}

/// When chunks were used last, as far as snapshot and journals say.
pub fn last_uses(own: &Path) -> io::Result<LastUses> {
    let (snapshot, mut uses) = (snapshot::read(own), LastUses::default());
    uses.add_snapshot(snapshot.at_ms, &snapshot.chunks);
    Reader::new(own, snapshot.at_ms).batches(None)?.iter().for_each(|batch| uses.add_batch(batch));
    Ok(uses)
}

/// Takes over what a record says about a chunk that the index knows.
pub fn apply(index: &mut Index, record: &Record) {
    match record {
        Record::Touch(digest) => index.touch_batch(&[*digest]),
        Record::Insert(chunk) => match index.get(&chunk.digest).map(|known| known.chunk) {
            // Where only the file can tell the length, it stays so: the record may be of another
            // one.
            Some(known) if known.len == chunk.len || known.len == 0 => {
                let mut chunk: Chunk = *chunk;
                (chunk.len, chunk.bytes) = (known.len, known.bytes);
                // One that does not say whose it is takes nothing away.
                if chunk.tenant == TenantId::NONE {
                    chunk.tenant = known.tenant;
                }
                let _ = index.insert(chunk);
            }
            _ => {}
        },
        _ => {}
    }
}
