//! Guards that complete an operation exactly once, also if its task is dropped or panics.

use std::io;

use kvtier_disk::{Fetched, Finish, Moved, Transfer, Uploaded};
use kvtier_mem::{Lease, View};

/// Completes a transfer. If it is dropped before, the transfer fails as closed, with its memory.
pub struct TransferCompletion {
    transfer: Option<Transfer>,
    done: Option<Finish>,
}

impl TransferCompletion {
    pub fn new(transfer: Transfer, done: Finish) -> Self {
        TransferCompletion { transfer: Some(transfer), done: Some(done) }
    }

    /// The transfer, until it completes.
    pub fn transfer(&mut self) -> &mut Transfer {
        self.transfer.as_mut().expect("taken only by `finish`, which consumes the completion")
    }

    /// Completes the transfer. `unverified`: its verifiers have not covered all bytes.
    pub fn finish(mut self, result: io::Result<u64>, unverified: bool) {
        self.complete(result, unverified);
    }

    fn complete(&mut self, result: io::Result<u64>, unverified: bool) {
        // Taken, so that the drop after `finish` does nothing.
        if let (Some(transfer), Some(done)) = (self.transfer.take(), self.done.take()) {
            done(Moved { transfer, result, unseen: unverified });
        }
    }
}

impl Drop for TransferCompletion {
    fn drop(&mut self) {
        self.complete(Err(closed_error()), false);
    }
}

/// Completes a fetch. If it is dropped before, the fetch fails as closed.
pub struct FetchCompletion(Option<Fetched>);

impl FetchCompletion {
    pub fn new(done: Fetched) -> Self {
        FetchCompletion(Some(done))
    }

    pub fn finish(mut self, result: io::Result<Vec<View>>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for FetchCompletion {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(closed_error()));
        }
    }
}

/// Completes an upload. If it is dropped before, the upload fails as closed, with its memory.
pub struct UploadCompletion {
    from: Option<View>,
    into: Vec<Lease>,
    done: Option<Uploaded>,
}

impl UploadCompletion {
    pub fn new(from: View, into: Vec<Lease>, done: Uploaded) -> Self {
        UploadCompletion { from: Some(from), into, done: Some(done) }
    }

    /// The bytes, and the memory to fill.
    pub fn memory(&mut self) -> (&[u8], &mut [Lease]) {
        let bytes = self.from.as_ref().and_then(View::as_host);
        (bytes.unwrap_or_default(), &mut self.into)
    }

    pub fn finish(mut self, result: io::Result<()>) {
        self.complete(result);
    }

    fn complete(&mut self, result: io::Result<()>) {
        if let Some(done) = self.done.take() {
            // First: the tier counts its memory as free then.
            self.from = None;
            done(std::mem::take(&mut self.into), result);
        }
    }
}

impl Drop for UploadCompletion {
    fn drop(&mut self) {
        self.complete(Err(closed_error()));
    }
}

pub fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the tier was closed before the end")
}
