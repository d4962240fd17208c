//! Work of Python's threads without the interpreter's lock.

/// Does `work` while other threads of Python's may run.
#[cfg(not(feature = "lock-clock"))]
pub fn unlocked<T: Send>(py: pyo3::Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(work)
}

#[cfg(feature = "lock-clock")]
pub use clock::{seconds_unlocked, unlocked};

/// For benchmarks: how much of their CPU time threads of Python's spend so.
#[cfg(feature = "lock-clock")]
mod clock {
    use std::sync::atomic::{AtomicU64, Ordering};

    use pyo3::prelude::*;

    static SPENT_NS: AtomicU64 = AtomicU64::new(0);

    /// Does `work` while other threads of Python's may run, and counts what it costs.
    pub fn unlocked<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
        py.detach(|| {
            let before = cpu_ns();
            let done = work();
            SPENT_NS.fetch_add(cpu_ns().saturating_sub(before), Ordering::Relaxed);
            done
        })
    }

    /// CPU time so far of batches' work without the lock, in seconds, of all threads.
    #[pyfunction]
    pub fn seconds_unlocked() -> f64 {
        SPENT_NS.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// What this thread has run for; 0 where the kernel does not say.
    fn cpu_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}
