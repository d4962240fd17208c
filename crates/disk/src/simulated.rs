//! What a simulation looks at beside the status: how long the queues of a tier are, and its earlier faults.

use kvtier_core::QueueLength;

use crate::corrupt_chunks::{UNMOVED_MAX, corrupt_files_max};
use crate::disk::Disk;
use crate::mover::Mover;

impl<M: Mover> Disk<M> {
    /// Each fault that the status has named as the last one.
    pub fn faults(&self) -> Vec<String> {
        self.shared().last_fault.all()
    }

    /// The lengths of its queues.
    pub fn queues(&self) -> Vec<QueueLength> {
        let (shared, gate) = (self.shared(), self.gate_stats());
        let caps = &shared.caps;
        let counted = |name, (len, max): (usize, usize)| {
            let (len, max) = (len as u64, max as u64);
            QueueLength { name, len, max }
        };
        let corrupt = shared.chunks.corrupt_files().len();
        let unmoved = shared.chunks.unmoved_files().len();
        let mut queues = gate.queues(caps.ops_max, caps.inflight_bytes_max).to_vec();
        queues.extend([
            counted("records of the journal", shared.journal.waiting_records()),
            counted("records of the change log", shared.changes.pending_records()),
            counted("missing chunks", shared.space.ledger_validity.lost_chunks()),
            counted("corrupt files", (corrupt, corrupt_files_max())),
            counted("files for the quarantine", (unmoved, UNMOVED_MAX)),
            counted("files that could not be deleted", shared.data_dir.undeleted_files()),
        ]);
        queues
    }
}
