//! Where batches are handed in without waiting, and their ends are fetched.

use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::buffer::{self, Lent};
use crate::end::End;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::name::Name;
use crate::store::{Named, Store};
use crate::unlocked::unlocked;

/// Takes batches over open tiers. What becomes of their ends is said by `tell`.
pub struct Desk<T> {
    // Dropped first: its batches hold the store too, and the last holder should be the one who
    // drops it without Python's lock.
    inbox: Inbox<T>,
    pub handle: Handle,
}

impl<T: Send + 'static> Desk<T> {
    /// Nothing is under way. Errors when the kernel has no event descriptor.
    pub fn new(handle: Handle) -> PyResult<Self> {
        let inbox =
            Inbox::new().map_err(|e| PyOSError::new_err(format!("no event descriptor: {e}")))?;
        Ok(Desk { inbox, handle })
    }

    /// Readable while ends wait.
    pub fn fd(&self) -> PyResult<i32> {
        self.handle.check()?;
        Ok(self.inbox.fd())
    }

    /// How many batches are under way or wait to be fetched.
    pub fn pending(&self) -> PyResult<usize> {
        self.handle.check()?;
        Ok(self.inbox.len())
    }

    /// What ended since the last time. Never waits.
    pub fn drain(&self, py: Python<'_>) -> PyResult<Vec<(u64, T)>> {
        self.handle.check()?;
        let ends = unlocked(py, || self.inbox.drain());
        buffer::give_back(py);
        Ok(ends)
    }

    /// Starts a batch without memory; answers its number.
    pub fn submit<F>(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        work: impl FnOnce(Arc<Store>, Vec<Named>) -> F + Send,
        tell: fn(End) -> T,
    ) -> PyResult<u64>
    where
        F: Future<Output = End> + Send + 'static,
    {
        self.handle.check()?;
        buffer::give_back(py);
        let (handle, inbox) = (&self.handle, &self.inbox);
        Ok(unlocked(py, || {
            let work = work(handle.store(), handle.keys(keys));
            inbox.start(async move { tell(work.await) })
        }))
    }

    /// Starts a batch with memory for each key; its end comes when all of that is home. Memory that
    /// cannot be lent ends it at once.
    pub fn submit_with<M: Send, F>(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        lent: Result<Lent<M>, String>,
        work: impl FnOnce(Arc<Store>, Vec<Named>, Vec<Vec<M>>) -> F + Send,
        tell: fn(End) -> T,
    ) -> PyResult<u64>
    where
        F: Future<Output = End> + Send + 'static,
    {
        self.handle.check()?;
        buffer::give_back(py);
        let (handle, inbox) = (&self.handle, &self.inbox);
        Ok(unlocked(py, || match lent {
            Ok(Lent { memory, loan }) => {
                let (store, work) =
                    (handle.store(), work(handle.store(), handle.keys(keys), memory));
                inbox.start(async move {
                    let end = work.await;
                    loan.home(&store.clock, store.settings.home).await;
                    tell(end)
                })
            }
            Err(text) => inbox.start(std::future::ready(tell(End::failed(keys.len(), text)))),
        }))
    }
}
