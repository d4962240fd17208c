use std::sync::atomic::{AtomicU64, Ordering};

/// What the mover counts beside the directory's own counters; every field only grows.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes loaded into GPU memory through pinned memory.
    pub uploaded_bytes: AtomicU64,
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
            ("fetched_bytes", get(&self.fetched_bytes)),
            ("event_waits", get(&self.event_waits)),
        ]
    }
}

pub fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
