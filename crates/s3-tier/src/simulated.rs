//! What a simulation looks at beside the status: how long the queues of a tier are.

use kvtier_core::QueueLength;

use crate::S3Tier;
use crate::state::catalog;
use crate::state::own_journal::{OBJECTS_MAX, WAITING_MAX};

/// The most journal objects of a node that wait to be merged.
pub const JOURNAL_OBJECTS_MAX: usize = OBJECTS_MAX;

impl S3Tier {
    /// The lengths of its queues.
    pub fn queues(&self) -> Vec<QueueLength> {
        let shared = &self.shared;
        let (caps, gate) = (&shared.caps, shared.gate.stats());
        let journal = shared.node.journal.lengths();
        let catalog = shared.catalog().lengths();
        let queue = |name, len, max| QueueLength { name, len, max };
        let mut queues = gate.queues(caps.ops_max, caps.inflight_bytes_max).to_vec();
        queues.extend([
            queue("records of the journal", journal.waiting as u64, WAITING_MAX as u64),
            queue("objects of the journal", journal.written as u64, OBJECTS_MAX as u64),
            queue("absent keys", catalog.absent as u64, catalog::ABSENT_MAX as u64),
            queue("corrupt objects", catalog.corrupt as u64, catalog::CORRUPT_MAX as u64),
        ]);
        queues
    }

    /// Whether it may write these bytes before its next exchange with other nodes.
    pub fn has_budget_for(&self, bytes: u64) -> bool {
        let cap = self.shared.capacity_bytes.unwrap_or(u64::MAX);
        self.shared.node.budget.allows(bytes, cap)
    }
}
