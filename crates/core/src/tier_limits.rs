use std::sync::Arc;

use kvtier_mem::Place;

/// The limits of a tier, for callers to plan with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// The tier's name in errors, metrics and reports.
    pub name: Arc<str>,
    /// The alignment in bytes that host memory needs to move without a copy.
    pub align: usize,
    /// Whether the tier accepts memory of a lesser alignment and copies it through a bounce buffer.
    /// If not, such memory is `Invalid`.
    pub bounce: bool,
    /// The memory that it can read from and write to.
    pub places: Vec<Place>,
    /// The most ops in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// The longest chunk in bytes.
    pub chunk_bytes_max: u64,
}

impl Caps {
    /// A tier of this name that accepts any host memory and `ops_max` ops of `inflight_bytes_max`
    /// bytes together.
    pub fn new(name: impl Into<Arc<str>>, ops_max: u32, inflight_bytes_max: u64) -> Self {
        Caps {
            name: name.into(),
            align: 1,
            bounce: true,
            places: vec![Place::Heap, Place::Shm, Place::Pinned],
            ops_max,
            inflight_bytes_max,
            chunk_bytes_max: inflight_bytes_max,
        }
    }
}
