//! Where batches are handed in without waiting, and their ends are fetched.

use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::buffer;
use crate::end::End;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::name::Name;
use crate::store::{Named, Store};
use crate::unlocked::unlocked;

/// Takes batches over open tiers. What becomes of their ends is said by `tell`.
pub struct Desk<T> {
    pub handle: Handle,
    inbox: Inbox<T>,
}

impl<T: Send + 'static> Desk<T> {
    /// Nothing is under way. Errors when the kernel has no event descriptor.
    pub fn new(handle: Handle) -> PyResult<Self> {
        let inbox = Inbox::new().map_err(|e| PyOSError::new_err(format!("no event descriptor: {e}")))?;
        Ok(Desk { handle, inbox })
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

    /// Starts a batch with memory for each key. Memory that cannot be lent ends it at once.
    pub fn submit_with<M: Send, F>(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        lent: Result<Vec<Vec<M>>, String>,
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
            Ok(lent) => {
                let work = work(handle.store(), handle.keys(keys), lent);
                inbox.start(async move { tell(work.await) })
            }
            Err(text) => inbox.start(std::future::ready(tell(End::failed(keys.len(), text)))),
        }))
    }
}
