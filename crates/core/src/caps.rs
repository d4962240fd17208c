use std::sync::Arc;

use kvtier_mem::Place;

/// What a tier can take. Callers plan with it instead of guessing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// The tier's name in errors, metrics and reports.
    pub name: Arc<str>,
    /// Host memory must start on a multiple of this many bytes to move without a copy.
    pub align: usize,
    /// Whether memory that is not so aligned is taken all the same, through a bounce buffer;
    /// otherwise it is `Invalid`.
    pub bounce: bool,
    /// The places it can read from and write to.
    pub places: Vec<Place>,
    /// The most ops in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// The longest chunk in bytes.
    pub chunk_bytes_max: u64,
}

impl Caps {
    /// Caps of a tier of this name that takes any host memory and up to `ops_max` ops of
    /// `inflight_bytes_max` bytes together.
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
