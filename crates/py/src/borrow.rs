//! Borrows the buffers of a batch from Python, and tracks them until the medium is done with them.
//!
//! A tier answers at the deadline of a batch, but an operation in the kernel may use the memory for
//! longer. In Rust the missing lease in the answer shows that. A Python caller still has the buffer
//! object and would reuse it as soon as the result arrives. Therefore:
//!
//! - A batch completes only after every [`BorrowedRange`] was dropped, or after `return_timeout`.
//!   By then LMCache has given the memory to other chunks anyway, so waiting on would not help.
//! - Each range is dropped by the owner of the memory (a lease or view), which a medium keeps for as
//!   long as it accesses the memory.
//! - Loads reserve their range in [`LoadTargets`]. Two loads into the same bytes would each report
//!   success over a mix of both chunks, so the second is refused. A save from a range that a load
//!   writes is refused for the same reason. Two saves may share a range.
//!
//! A range frees its reservation before it counts as returned. The caller may therefore submit the
//! same buffer again as soon as it has the result.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use kvtier::core::{Expire, Timekeeper};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The buffers of one batch.
#[derive(Clone, Debug, Default)]
pub struct BatchBorrow(Arc<BorrowCount>);

#[derive(Debug, Default)]
struct BorrowCount(Mutex<BorrowState>);

#[derive(Debug, Default)]
struct BorrowState {
    ranges: usize,
    is_timed_out: bool,
    waker: Option<Waker>,
}

/// Ends the wait for buffers that are not returned in time. The first wait starts its thread.
#[derive(Debug, Default)]
pub struct ReturnTimer(OnceLock<Option<Timekeeper>>);

/// One buffer of a batch. Dropped when the medium is done with it.
#[derive(Debug)]
pub struct BorrowedRange {
    borrow: Arc<BorrowCount>,
    reserved: Option<ReservedRange>,
}

/// The memory into which loads of one store write: end address by start address.
#[derive(Debug, Default)]
pub struct LoadTargets(Mutex<BTreeMap<usize, usize>>);

/// A range into which one load writes.
#[derive(Debug)]
struct ReservedRange {
    targets: Arc<LoadTargets>,
    start: usize,
}

impl BatchBorrow {
    /// Adds a buffer that the batch reads.
    pub fn read(&self) -> BorrowedRange {
        self.add(None)
    }

    /// Adds a buffer that the batch writes; `None` while another load writes into it.
    pub fn write(
        &self,
        targets: &Arc<LoadTargets>,
        start: usize,
        bytes: usize,
    ) -> Option<BorrowedRange> {
        let reserved =
            if bytes == 0 { None } else { Some(LoadTargets::reserve(targets, start, bytes)?) };
        Some(self.add(reserved))
    }

    fn add(&self, reserved: Option<ReservedRange>) -> BorrowedRange {
        lock(&self.0.0).ranges += 1;
        BorrowedRange { borrow: Arc::clone(&self.0), reserved }
    }

    /// Whether every buffer was returned.
    pub fn is_returned(&self) -> bool {
        lock(&self.0.0).ranges == 0
    }

    /// Resolves when every buffer was returned, or after `timeout`.
    pub async fn returned(self, timer: &ReturnTimer, timeout: Duration) {
        if lock(&self.0.0).ranges == 0 {
            return;
        }
        // The timer's thread is started only where a medium keeps memory past its answer, which is
        // rare.
        let expire: Arc<dyn Expire> = self.0.clone();
        if let (Some(deadline), Some(timer)) =
            (Instant::now().checked_add(timeout), timer.started())
        {
            timer.schedule(deadline, &expire);
        }
        poll_fn(|context| {
            let mut state = lock(&self.0.0);
            // Checked under the lock under which the last drop takes the waker: no wake-up falls
            // between.
            if state.ranges == 0 || state.is_timed_out {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Expire for BorrowCount {
    fn expire(&self, _: Instant) -> Option<Instant> {
        let mut state = lock(&self.0);
        // The ranges stay reserved. Only the wait ends, and a new load into them is refused until
        // the medium drops them.
        state.is_timed_out = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }
}

impl ReturnTimer {
    /// `None` if its thread could not be started; the wait then has no limit.
    fn started(&self) -> Option<&Timekeeper> {
        // Without a thread for it the wait has no limit, which is safe: it only takes longer.
        self.0.get_or_init(|| Timekeeper::start("kvtier-py").ok()).as_ref()
    }
}

impl Drop for BorrowedRange {
    fn drop(&mut self) {
        // Before the count: a caller with the result may load into the same memory again.
        self.reserved = None;
        let mut state = lock(&self.borrow.0);
        state.ranges -= 1;
        // Woken without the lock: the waker may poll at once, which takes it.
        let waker = if state.ranges == 0 { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl LoadTargets {
    /// Whether no load writes into the range.
    pub fn is_free(&self, start: usize, bytes: usize) -> bool {
        is_free(&lock(&self.0), start, start.saturating_add(bytes))
    }

    /// Reserves a range; `None` if a load writes into it.
    fn reserve(targets: &Arc<Self>, start: usize, bytes: usize) -> Option<ReservedRange> {
        let end = start.saturating_add(bytes);
        let mut ranges = lock(&targets.0);
        if !is_free(&ranges, start, end) {
            return None;
        }
        ranges.insert(start, end);
        Some(ReservedRange { targets: Arc::clone(targets), start })
    }
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        lock(&self.targets.0).remove(&self.start);
    }
}

/// Reserved ranges never overlap, so of those that start before `end` the last one ends last.
fn is_free(ranges: &BTreeMap<usize, usize>, start: usize, end: usize) -> bool {
    // Reserved ranges never overlap, so the last one that begins before `end` is the only one that
    // can reach into the new range.
    ranges.range(..end).next_back().is_none_or(|(_, last_end)| *last_end <= start)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Borrows the memory of one batch.
#[derive(Debug)]
pub struct Borrower<'a> {
    borrow: BatchBorrow,
    targets: &'a Arc<LoadTargets>,
}

impl<'a> Borrower<'a> {
    /// A borrower of one batch, and what tracks its buffers.
    pub fn new(targets: &'a Arc<LoadTargets>) -> Self {
        Borrower { borrow: BatchBorrow::default(), targets }
    }

    /// As [`new`](Self::new), for a batch whose buffers are tracked already.
    pub fn of(borrow: BatchBorrow, targets: &'a Arc<LoadTargets>) -> Self {
        Borrower { borrow, targets }
    }

    /// What tracks the buffers borrowed.
    pub fn into_borrow(self) -> BatchBorrow {
        self.borrow
    }

    /// Borrows `bytes` bytes at an address.
    ///
    /// # Errors
    /// `ValueError` while a load writes into them: the result of one of the two batches would
    /// describe bytes of the other.
    pub fn range(&self, address: usize, bytes: usize, write: bool) -> PyResult<BorrowedRange> {
        self.free_range(address, bytes, write).map_err(PyValueError::new_err)
    }

    /// As [`range`](Self::range), for threads without the GIL.
    ///
    /// # Errors
    /// The same reason.
    pub fn free_range(
        &self,
        address: usize,
        bytes: usize,
        write: bool,
    ) -> Result<BorrowedRange, &'static str> {
        let range = if write {
            self.borrow.write(self.targets, address, bytes)
        } else {
            self.targets.is_free(address, bytes).then(|| self.borrow.read())
        };
        range.ok_or(
            "another load is writing into this memory; wait for its end, or pass other memory",
        )
    }
}
