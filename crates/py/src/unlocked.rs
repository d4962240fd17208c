//! Work of Python's threads without the interpreter's lock.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// Whether an interpreter is ending. From then on a thread that wants its lock back may wait for
/// ever, and there is no other left to spare.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Python calls this when its interpreter begins to end.
#[pyfunction]
pub fn ending() {
    ENDING.store(true, Ordering::Release);
}

/// Something whose drop may wait, for threads that end what they are at: Python drops it, with the
/// interpreter's lock, which must not keep Python's other threads waiting too.
#[derive(Debug)]
pub struct Apart<T: Send>(ManuallyDrop<T>);

impl<T: Send> Apart<T> {
    pub fn new(inner: T) -> Self {
        Apart(ManuallyDrop::new(inner))
    }
}

impl<T: Send> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Apart<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, in the drop.
        let mut inner = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        if !ENDING.load(Ordering::Acquire) {
            let _ = Python::try_attach(|py| py.detach(|| drop(inner.take())));
        }
    }
}

/// Does `work` while other threads of Python's may run.
#[cfg(not(feature = "lock-clock"))]
pub fn unlocked<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
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
