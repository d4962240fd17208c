//! Releases Python's global interpreter lock (GIL) around work in Rust.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// Whether an interpreter is shutting down. A thread that releases the GIL during the shutdown may
/// never get it back, and no other Python thread could use the time anyway.
static FINALIZING: AtomicBool = AtomicBool::new(false);

/// Registered with `atexit`: Python calls it when its interpreter begins to shut down.
#[pyfunction]
pub fn finalizing() {
    FINALIZING.store(true, Ordering::Release);
}

/// A value that is dropped without the GIL.
///
/// Dropping tiers may wait for their threads. Python drops objects while it holds the GIL, which
/// would stop all other Python threads for that time.
#[derive(Debug)]
pub struct DropWithoutGil<T: Send>(ManuallyDrop<T>);

impl<T: Send> DropWithoutGil<T> {
    pub fn new(inner: T) -> Self {
        DropWithoutGil(ManuallyDrop::new(inner))
    }
}

impl<T: Send> Deref for DropWithoutGil<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for DropWithoutGil<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, in the drop.
        // An option, because the closure below may never run: without an interpreter nothing can be
        // attached, and the value is dropped here then.
        let mut inner = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        // Otherwise `inner` is dropped at the end of this function, with the GIL held.
        if !FINALIZING.load(Ordering::Acquire) {
            let _ = Python::try_attach(|py| py.detach(|| drop(inner.take())));
        }
    }
}

/// Runs `work` without the GIL, so that other Python threads can run.
#[cfg(not(feature = "lock-clock"))]
pub fn without_gil<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(work)
}

#[cfg(feature = "lock-clock")]
pub use clock::{seconds_without_gil, without_gil};

/// For benchmarks: measures the CPU time that Python's threads spend without the GIL.
#[cfg(feature = "lock-clock")]
mod clock {
    use std::sync::atomic::{AtomicU64, Ordering};

    use pyo3::prelude::*;

    static SPENT_NS: AtomicU64 = AtomicU64::new(0);

    /// Runs `work` without the GIL and counts its CPU time.
    pub fn without_gil<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
        py.detach(|| {
            let before = cpu_ns();
            let done = work();
            SPENT_NS.fetch_add(cpu_ns().saturating_sub(before), Ordering::Relaxed);
            done
        })
    }

    /// CPU seconds that all threads spent on batches without the GIL.
    #[pyfunction]
    pub fn seconds_without_gil() -> f64 {
        SPENT_NS.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// CPU time of this thread; 0 if the kernel does not report it.
    fn cpu_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}
