use std::path::PathBuf;

use kvtier_core::{Error, ErrorKind};

/// How to open a directory tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directory; made if it is not there.
    pub path: PathBuf,
    /// The cap in bytes of files, padding and footers included.
    pub capacity_bytes: u64,
    /// The tier's name in errors and reports.
    pub name: String,
    /// The most ops in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// Memory for chunks whose own memory is not aligned, in bytes; they are copied once through it.
    pub bounce_bytes: usize,
    /// Threads for open, allocate, rename and unlink.
    pub threads: usize,
}

impl DiskConfig {
    /// A tier in `path` of at most `capacity_bytes`, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        DiskConfig {
            path: path.into(),
            capacity_bytes,
            name: "file".into(),
            ops_max: 256,
            inflight_bytes_max: 1 << 30,
            bounce_bytes: 64 << 20,
            threads: 4,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if self.capacity_bytes < 8192 {
            return bad(format!("a capacity of {} bytes holds no chunk; give at least 8192", self.capacity_bytes));
        }
        if self.ops_max == 0 || self.threads == 0 || self.inflight_bytes_max == 0 {
            return bad("ops_max, threads and inflight_bytes_max must be at least 1".into());
        }
        Ok(())
    }
}
