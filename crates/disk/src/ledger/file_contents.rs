//! What the ledger's file says: 32 bytes with a checksum.

use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use kvtier_key::BlockSums;

use super::locked_file::LockedFile;
use crate::data_dir::internal_files;

const MAGIC: [u8; 8] = *b"KVTLEDG2";
/// Magic, total, generation, number of changes, CRC32C of these.
pub const BYTES: usize = 32;
const SUMMED: usize = 28;
/// What the file says from the start of a process that found no other until someone has counted.
pub const UNCOUNTED: [u8; BYTES] = *b"not counted since the last start";

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerContents {
    pub total: u64,
    pub generation: u64,
    /// How often the total was changed. Wraps around.
    pub changes: u32,
}

/// The ledger at one moment: two that are equal had no change between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerState(Option<LedgerContents>);

impl LedgerState {
    /// The present state, read without opening the ledger to write.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn read(own: &Path) -> io::Result<Self> {
        match internal_files::open_to_read(&own.join("ledger")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound || internal_files::is_not_a_file(&e) => {
                Ok(LedgerState(None))
            }
            file => read(&file?).map(LedgerState),
        }
    }

    /// The total; `None` where there is no ledger, or it is damaged.
    pub fn total(&self) -> Option<u64> {
        self.0.map(|contents| contents.total)
    }
}

/// How many generations one may be after the first that is possible: a second of them.
const RANDOM_STEPS: u64 = 1_000_000_000;

/// A generation that no process has seen: also not one that the file lost when it was damaged, or one of
/// another process that the clock went back since.
pub fn next_generation(seen: u64) -> u64 {
    let now = kvtier_os::wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    u64::try_from(now).unwrap_or(0).max(seen + 1) + fastrand::u64(..RANDOM_STEPS)
}

/// What the file says; `None` for a ledger that was never written, is damaged or of another
/// version.
pub fn read(file: &impl LockedFile) -> io::Result<Option<LedgerContents>> {
    let mut bytes = [0; BYTES];
    match file.read(&mut bytes) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let word = |at: usize| {
        bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let changes = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
    let contents = LedgerContents { total: word(8), generation: word(16), changes };
    Ok((bytes == encode(contents)).then_some(contents))
}

/// A write of the file that failed.
#[derive(Debug)]
pub struct WriteFailed {
    pub error: io::Error,
    /// Whether the file may have the new contents all the same.
    pub may_have_arrived: bool,
}

impl From<WriteFailed> for io::Error {
    fn from(failed: WriteFailed) -> Self {
        failed.error
    }
}

/// Replaces what the file says. A write may arrive and fail nevertheless, so the file is read again
/// after an error: where it has the new contents, the write has succeeded. That proves nothing on a
/// network mount (`is_local` is `false`), where a cache may answer.
pub fn write(
    file: &impl LockedFile,
    contents: LedgerContents,
    is_local: bool,
) -> Result<(), WriteFailed> {
    let Err(error) = file.write(&encode(contents)) else { return Ok(()) };
    match is_local.then(|| read(file)) {
        Some(Ok(Some(now))) if now == contents => Ok(()),
        Some(Ok(_)) => Err(WriteFailed { error, may_have_arrived: false }),
        Some(Err(_)) | None => Err(WriteFailed { error, may_have_arrived: true }),
    }
}

fn encode(contents: LedgerContents) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&contents.total.to_le_bytes());
    bytes[16..24].copy_from_slice(&contents.generation.to_le_bytes());
    bytes[24..SUMMED].copy_from_slice(&contents.changes.to_le_bytes());
    let sum = BlockSums::from_bytes(&bytes[..SUMMED]).whole();
    bytes[SUMMED..SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}
