//! Guards that complete an operation exactly once, also if its task is dropped or panics.

use std::io;

use kvtier_disk::{Fetched, Finish, Moved, Transfer};
use kvtier_mem::View;

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

pub fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the tier was closed before the end")
}
