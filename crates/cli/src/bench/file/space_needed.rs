//! The space that a benchmark needs in its directory.

use anyhow::Result;
use kvtier::byte_size::format;

use super::Plan;
use super::fill_case::Case;
use crate::BadInput;

/// What the cells of one size and concurrency need of the directory.
pub struct Need {
    /// Chunks in a cell.
    pub count: u64,
    /// Bytes of a chunk's file.
    pub file: u64,
    /// The tier's cap.
    pub capacity: u64,
    /// The most bytes that lie there at once.
    bytes: u64,
}

impl Need {
    pub fn of(plan: &Plan, size: usize, concurrency: usize) -> Self {
        let count = ((plan.gb * 1e9 / size as f64).ceil() as u64).max(1);
        // The payload is padded to a page, and the footer takes one more.
        let file = (size as u64).next_multiple_of(4096) + 4096;
        // The tier keeps below a high mark of its cap.
        let full = (count + concurrency as u64).saturating_mul(file).saturating_mul(104) / 100;
        let (capacity, bytes) = match plan.case {
            Case::Fresh => (
                (count + 16).saturating_mul(file + 4096).saturating_mul(11) / 10,
                count.saturating_mul(file),
            ),
            Case::Churning | Case::Recycled => (full, full),
        };
        let capacity = plan.capacity.unwrap_or(capacity);
        Need { count, file, capacity, bytes: bytes.min(capacity) }
    }

    /// Refuses what the file system cannot hold: another tier on it would evict
    /// its own chunks for those of the bench.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        let space = crate::disk_space::of(&plan.path)?;
        let available = space.free.saturating_sub(space.reserve());
        if self.bytes <= available {
            return Ok(());
        }
        let fits = plan.gb * available as f64 / self.bytes as f64;
        let what = format!(
            "the bench writes {} to {}, whose file system has {} free beside the {} that stay so; --gb {:.3} fits",
            format(self.bytes),
            plan.path.display(),
            format(available),
            format(space.reserve()),
            (fits * 1e3 * 0.99).floor() / 1e3
        );
        Err(BadInput(what).into())
    }
}
