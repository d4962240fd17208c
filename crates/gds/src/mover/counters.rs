use std::sync::atomic::{AtomicU64, Ordering};

/// The mover's counters, reported beside those of the directory. Every field only grows.
#[derive(Debug, Default)]
pub struct GdsCounters {
    /// Bytes loaded into GPU memory through host memory: pinned, or of the tier for decoded chunks.
    pub uploaded_bytes: AtomicU64,
    /// Bytes loaded into GPU memory by cuFile.
    pub direct_bytes: AtomicU64,
    /// Reads by cuFile that failed and were repeated through pinned memory.
    pub direct_failed: AtomicU64,
    /// Bytes loaded by cuFile and verified in host memory, after a copy back.
    pub verified_host_bytes: AtomicU64,
    /// Bytes loaded by cuFile and verified by checksums computed on the GPU.
    pub verified_gpu_bytes: AtomicU64,
    /// Loads by cuFile that were not verified, as configured.
    pub unverified_loads: AtomicU64,
    /// Bytes copied from GPU memory to be saved.
    pub fetched_bytes: AtomicU64,
    /// Waits for an event of the caller.
    pub event_waits: AtomicU64,
}

impl GdsCounters {
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
