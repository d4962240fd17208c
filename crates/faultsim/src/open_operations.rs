//! The operations of callers that have not ended.

use std::collections::BTreeMap;
use std::time::Duration;

/// The operations of callers that have not ended, by their number.
#[derive(Debug, Default)]
pub struct OpenOperations {
    begun: u64,
    open: BTreeMap<u64, (Duration, String)>,
}

impl OpenOperations {
    /// An operation begins then. Returns its number.
    pub fn begin(&mut self, at: Duration, what: String) -> u64 {
        self.begun += 1;
        self.open.insert(self.begun, (at, what));
        self.begun
    }

    pub fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// When each began that is open, and what it does.
    pub fn all(&self) -> Vec<(Duration, String)> {
        self.open.values().cloned().collect()
    }
}
