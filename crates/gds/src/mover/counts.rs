use std::sync::atomic::{AtomicU64, Ordering};

/// What the mover counts beside the directory's own counters; every field only grows.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes loaded into GPU memory through pinned memory.
    pub uploaded_bytes: AtomicU64,
    /// Bytes loaded into GPU memory by cuFile.
    pub direct_bytes: AtomicU64,
    /// Reads by cuFile that failed and went through pinned memory.
    pub direct_failed: AtomicU64,
    /// Bytes that cuFile had loaded and that were copied back to compare their checksums.
    pub verified_host_bytes: AtomicU64,
    /// Bytes that cuFile had loaded and whose checksums the GPU took.
    pub verified_gpu_bytes: AtomicU64,
    /// Loads by cuFile that were not compared with their checksums, as configured.
    pub unverified_loads: AtomicU64,
    /// Bytes brought from GPU memory to be saved.
    pub fetched_bytes: AtomicU64,
    /// Times that work on a GPU waited for an event of the caller's.
    pub event_waits: AtomicU64,
}

impl Counts {
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        vec![
            ("uploaded_bytes", get(&self.uploaded_bytes)),
            ("direct_bytes", get(&self.direct_bytes)),
            ("direct_failed", get(&self.direct_failed)),
            ("verified_host_bytes", get(&self.verified_host_bytes)),
            ("verified_gpu_bytes", get(&self.verified_gpu_bytes)),
            ("unverified_loads", get(&self.unverified_loads)),
            ("fetched_bytes", get(&self.fetched_bytes)),
            ("event_waits", get(&self.event_waits)),
        ]
    }
}

pub fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
