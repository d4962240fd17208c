//! What a simulation looks at beside the status: how long the queues of a tier are.

use crate::S3Tier;
use crate::state::catalog;
use crate::state::own_journal::{OBJECTS_MAX, WAITING_MAX};

/// The most journal objects of a node that wait to be merged.
pub const JOURNAL_OBJECTS_MAX: usize = OBJECTS_MAX;

/// The length of a queue, and its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueLength {
    /// What waits in it.
    pub name: &'static str,
    /// How much of that there is.
    pub len: u64,
    /// The most there may be.
    pub max: u64,
}

impl S3Tier {
    /// The lengths of its queues.
    pub fn queues(&self) -> Vec<QueueLength> {
        let shared = &self.shared;
        let (caps, gate) = (&shared.caps, shared.gate.stats());
        let ops_max = u64::from(caps.ops_max);
        let journal = shared.node.journal.lengths();
        let catalog = shared.catalog().lengths();
        let queue = |name, len, max| QueueLength { name, len, max };
        vec![
            queue("operations", gate.ops.into(), ops_max),
            queue("bytes of operations", gate.bytes, caps.inflight_bytes_max),
            // Those in flight may be stranded while the budget of those that are is almost full.
            queue("stranded operations", gate.stranded_ops.into(), 5 * ops_max),
            queue("stranded bytes", gate.stranded_bytes, 2 * caps.inflight_bytes_max),
            queue("records of the journal", journal.waiting as u64, WAITING_MAX as u64),
            queue("objects of the journal", journal.written as u64, OBJECTS_MAX as u64),
            queue("absent keys", catalog.absent as u64, catalog::ABSENT_MAX as u64),
            queue("corrupt objects", catalog.corrupt as u64, catalog::CORRUPT_MAX as u64),
        ]
    }

    /// Whether it may write these bytes before its next exchange with other nodes.
    pub fn has_budget_for(&self, bytes: u64) -> bool {
        let cap = self.shared.capacity_bytes.unwrap_or(u64::MAX);
        self.shared.node.budget.allows(bytes, cap)
    }
}
