//! What a load into GPU memory consists of.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_disk::{Part, Sums, Watch};

use super::MoverInner;
use super::executor::GpuExecutor;

/// The alignment of direct I/O.
pub const PAGE: u64 = 4096;

/// A range of one part that is read by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPiece {
    /// Index of the part.
    pub part: usize,
    /// Offset in the file.
    pub at: u64,
    /// Offset in the part.
    pub offset: usize,
    pub len: usize,
}

/// Verify what arrives: by the bytes, or by checksums that the GPU computed.
pub struct Verifiers {
    pub bytes: Option<Watch>,
    pub checksums: Option<Sums>,
}

/// A load of the GPU parts of a transfer.
pub struct GpuLoad<'a> {
    pub inner: &'a MoverInner,
    pub executor: &'a GpuExecutor,
    pub file: &'a Arc<OwnedFd>,
    /// The parts; `None` for those in host memory.
    pub parts: Vec<Option<Part>>,
    pub verifiers: Verifiers,
}
