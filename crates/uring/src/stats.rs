use std::sync::atomic::{AtomicU64, Ordering};

/// The work of an engine so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pieces moved whole.
    pub pieces: u64,
    /// Bytes of those pieces.
    pub bytes: u64,
    /// Requests that the kernel did in part and that were continued.
    pub short_ios: u64,
    /// Requests repeated after an interruption.
    pub retries: u64,
    /// Requests through registered memory.
    pub fixed: u64,
    /// Requests through other memory.
    pub unfixed: u64,
    /// Bytes of memory that the kernel has pinned.
    pub registered_bytes: u64,
    /// Jobs that wait to begin, now.
    pub queued: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub struct EngineCounts {
    pieces: AtomicU64,
    bytes: AtomicU64,
    short_ios: AtomicU64,
    retries: AtomicU64,
    fixed: AtomicU64,
    unfixed: AtomicU64,
    registered_bytes: AtomicU64,
}

impl EngineCounts {
    pub fn piece(&self, bytes: usize) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn short(&self) {
        self.short_ios.fetch_add(1, Ordering::Relaxed);
    }

    pub fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub fn request(&self, fixed: bool) {
        if fixed { &self.fixed } else { &self.unfixed }.fetch_add(1, Ordering::Relaxed);
    }

    pub fn registered(&self, bytes: usize) {
        self.registered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn stats(&self, queued: usize) -> Stats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Stats {
            pieces: get(&self.pieces),
            bytes: get(&self.bytes),
            short_ios: get(&self.short_ios),
            retries: get(&self.retries),
            fixed: get(&self.fixed),
            unfixed: get(&self.unfixed),
            registered_bytes: get(&self.registered_bytes),
            queued: queued as u64,
        }
    }
}
