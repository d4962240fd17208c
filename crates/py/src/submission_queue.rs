//! The submission side of a queue: starts batches and hands out their results, without waiting.
//!
//! A queue has two halves. [`SubmissionQueue`] checks the process, resolves keys, borrows Python's
//! buffers and starts the batch. [`CompletionQueue`] polls the batches and keeps the results until
//! the caller collects them. An id, unique within the queue, links the two.
//!
//! The life of a batch:
//!
//! 1. `submit` or `submit_with_buffers` returns the id. It never waits for a medium. A wrong key or
//!    buffer does not raise: the batch completes with the error as its result.
//! 2. The descriptor from `event_fd` becomes readable when a result may be available. An event loop
//!    watches it; a thread without one passes it to `poll(2)`.
//! 3. `poll` drives the batches that were woken and returns the results, each exactly once.
//! 4. A batch completes only after its buffers were returned (see [`crate::borrow`]), so that the
//!    caller may reuse them at once.
//!
//! `convert` turns the result of a batch into what the queue's user collects. It runs on the thread
//! that completes the batch, without the GIL. `Connector` and `Queue` are two users that differ only
//! in it; a public Python queue is a third. Registered memory belongs to the tiers, not to a queue:
//! every queue over the same tiers shares it. Waiting until `pending` is 0 (a drain) needs no state
//! here, since the descriptor and `poll` suffice.

use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::buffer::{self, BorrowedMemory};
use crate::catch_panic::catch_panic;
use crate::completion_queue::{Completion, CompletionQueue};
use crate::gil::without_gil;
use crate::key_name::KeyName;
use crate::open_store::{ParsedKey, Store};
use crate::result::BatchResult;
use crate::store_handle::StoreHandle;

/// Starts batches over open tiers and hands out their converted results.
pub struct SubmissionQueue<T> {
    // Dropped before the handle: its batches hold the store too, and the last holder must be the
    // handle, which drops the store without the GIL.
    completions: CompletionQueue<T>,
    pub handle: StoreHandle,
}

impl<T: Send + 'static> SubmissionQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// `OSError` if the kernel refuses an event descriptor.
    pub fn new(handle: StoreHandle) -> PyResult<Self> {
        let completions = CompletionQueue::new()
            .map_err(|e| PyOSError::new_err(format!("cannot create an event descriptor: {e}")))?;
        Ok(SubmissionQueue { completions, handle })
    }

    /// The descriptor that is readable while results may be available.
    pub fn event_fd(&self) -> PyResult<i32> {
        self.handle.check()?;
        Ok(self.completions.event_fd())
    }

    /// The number of batches without a collected result.
    pub fn pending(&self) -> PyResult<usize> {
        self.handle.check()?;
        Ok(self.completions.pending())
    }

    /// Whether a batch has no collected result yet.
    pub fn is_pending(&self, id: u64) -> PyResult<bool> {
        self.handle.check()?;
        Ok(self.completions.is_pending(id))
    }

    /// The batches that completed since the last call. Never waits.
    pub fn poll(&self, py: Python<'_>) -> PyResult<Vec<Completion<T>>> {
        self.handle.check()?;
        let completed = without_gil(py, || self.completions.poll());
        buffer::release_returned(py);
        Ok(completed)
    }

    /// Starts a batch without buffers and returns its id.
    pub fn submit<F>(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        op: impl FnOnce(Arc<Store>, Vec<ParsedKey>) -> F + Send,
        convert: fn(BatchResult) -> T,
    ) -> PyResult<u64>
    where
        F: Future<Output = BatchResult> + Send + 'static,
    {
        self.handle.check()?;
        buffer::release_returned(py);
        let handle = &self.handle;
        let completions = &self.completions;
        Ok(without_gil(py, || {
            let len = keys.len();
            let batch = op(handle.store(), handle.parse_keys(keys));
            completions.start(async move { convert(result_of(batch, len).await) })
        }))
    }

    /// Starts a batch with memory for each key and returns its id. The batch completes after all of
    /// its buffers were returned; if they could not be borrowed, it completes at once.
    pub fn submit_with_buffers<M: Send, F>(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        borrowed: Result<BorrowedMemory<M>, String>,
        op: impl FnOnce(Arc<Store>, Vec<ParsedKey>, Vec<Vec<M>>) -> F + Send,
        convert: fn(BatchResult) -> T,
    ) -> PyResult<u64>
    where
        F: Future<Output = BatchResult> + Send + 'static,
    {
        self.handle.check()?;
        buffer::release_returned(py);
        let handle = &self.handle;
        let completions = &self.completions;
        Ok(without_gil(py, || match borrowed {
            Ok(BorrowedMemory { memory, borrow }) => {
                // The batch holds the store: its timer must outlive the wait below, also after
                // `close`.
                let store = handle.store();
                let len = keys.len();
                let batch = op(handle.store(), handle.parse_keys(keys), memory);
                completions.start(async move {
                    let result = result_of(batch, len).await;
                    // Only then does the caller get the result, and with it the right to reuse its
                    // memory.
                    borrow.returned(&store.return_timer, store.settings.return_timeout).await;
                    convert(result)
                })
            }
            // A wrong buffer fails its batch, whose end the caller collects like any other.
            Err(text) => {
                let failed = convert(BatchResult::failed(keys.len(), text));
                completions.start(std::future::ready(failed))
            }
        }))
    }
}

/// The result of a batch. One that panics must not stay pending, and its panic must not come out of
/// `poll`, which the ends of all other batches come through.
async fn result_of(batch: impl Future<Output = BatchResult> + Send, len: usize) -> BatchResult {
    catch_panic(batch).await.unwrap_or_else(|_| BatchResult::panicked(len))
}
