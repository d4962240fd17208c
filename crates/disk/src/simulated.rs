//! What a simulation looks at beside the status: how long the queues of a tier are.

use crate::corrupt_chunks::{UNMOVED_MAX, corrupt_files_max};
use crate::disk::Disk;
use crate::mover::Mover;

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

impl<M: Mover> Disk<M> {
    /// The lengths of its queues.
    pub fn queues(&self) -> Vec<QueueLength> {
        let (shared, gate) = (self.shared(), self.gate_stats());
        let caps = &shared.caps;
        let ops_max = u64::from(caps.ops_max);
        let queue = |name, len, max| QueueLength { name, len, max };
        let counted = |name, (len, max): (usize, usize)| queue(name, len as u64, max as u64);
        let corrupt = shared.chunks.corrupt_files().len();
        let unmoved = shared.chunks.unmoved_files().len();
        vec![
            queue("operations", gate.ops.into(), ops_max),
            queue("bytes of operations", gate.bytes, caps.inflight_bytes_max),
            // Those in flight may be stranded while the budget of those that are is almost full.
            queue("stranded operations", gate.stranded_ops.into(), 5 * ops_max),
            queue("stranded bytes", gate.stranded_bytes, 2 * caps.inflight_bytes_max),
            counted("records of the journal", shared.journal.waiting_records()),
            counted("records of the change log", shared.changes.pending_records()),
            counted("missing chunks", shared.space.ledger_validity.lost_chunks()),
            counted("corrupt files", (corrupt, corrupt_files_max())),
            counted("files for the quarantine", (unmoved, UNMOVED_MAX)),
            counted("files that could not be deleted", shared.data_dir.undeleted_files()),
        ]
    }
}
