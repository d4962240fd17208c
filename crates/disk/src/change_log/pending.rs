//! Records that wait to be appended, with a bound.

use kvtier_index::journal::{self as format, Record};

use super::LOST;

/// The most records that wait because they could not be appended. When there are more, they are
/// dropped and [`LOST`] is appended for them.
pub const PENDING_MAX: usize = 4096;

/// The same in a simulation, so that it is reached there.
const SIMULATED_PENDING_MAX: usize = 16;

/// How many records may wait.
pub fn pending_max() -> usize {
    if kvtier_os::is_simulated() { SIMULATED_PENDING_MAX } else { PENDING_MAX }
}

/// What waits to be appended.
#[derive(Debug, Default)]
pub struct Pending {
    pub records: Vec<Record>,
    /// Records were dropped.
    pub lost: bool,
}

impl Pending {
    pub fn push(&mut self, record: Record) {
        if self.records.len() < pending_max() {
            self.records.push(record);
        } else {
            (self.records, self.lost) = (Vec::new(), true);
        }
    }

    /// What could not be appended waits again, before what came since.
    pub fn put_back(&mut self, batch: Pending) {
        self.lost |= batch.lost;
        let newer = std::mem::replace(&mut self.records, batch.records);
        newer.into_iter().for_each(|record| self.push(record));
    }

    pub fn encode(&self, at_ms: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let records: Vec<Record> =
            self.lost.then_some(LOST).into_iter().chain(self.records.iter().copied()).collect();
        format::encode(at_ms, &records, &mut bytes);
        bytes
    }
}
