use std::path::PathBuf;

use kvtier_disk::DiskConfig;
use kvtier_uring::EngineKind;

/// How to open a file tier.
#[derive(Clone, Debug)]
pub struct FileConfig {
    pub(crate) disk: DiskConfig,
    pub(crate) engine: EngineKind,
}

impl FileConfig {
    /// A tier in the directory `path` (made if it is not there) of at most `capacity_bytes`, padding and footers included.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        FileConfig { disk: DiskConfig::new(path, capacity_bytes), engine: EngineKind::Auto }
    }

    /// Chooses what moves the bytes; the default asks the machine.
    pub fn with_engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// Names the tier in errors and reports; the default is `file`.
    pub fn with_name(mut self, name: &str) -> Self {
        self.disk.name = name.into();
        self
    }

    /// Sets the most ops and bytes in flight.
    pub fn with_inflight(mut self, ops_max: u32, bytes_max: u64) -> Self {
        self.disk.ops_max = ops_max;
        self.disk.inflight_bytes_max = bytes_max;
        self
    }

    /// Sets the memory, in bytes, through which chunks in unaligned memory are copied; 0 refuses such chunks as `Invalid`.
    pub fn with_bounce(mut self, bytes: usize) -> Self {
        self.disk.bounce_bytes = bytes;
        self
    }
}
