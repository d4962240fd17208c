use std::io;

use kvtier_disk::{Fetched, Finish, Moved, Transfer};
use kvtier_mem::View;

/// The duty to end a transfer. Dropped before, it ends as closed, with its memory.
pub struct Duty {
    transfer: Option<Transfer>,
    done: Option<Finish>,
}

impl Duty {
    pub fn new(transfer: Transfer, done: Finish) -> Self {
        Duty { transfer: Some(transfer), done: Some(done) }
    }

    /// The transfer; there until the end.
    pub fn transfer(&mut self) -> &mut Transfer {
        self.transfer.as_mut().expect("taken only by `finish`, which consumes the duty")
    }

    /// Ends it; `unseen`: its watch has not seen all bytes.
    pub fn finish(mut self, result: io::Result<u64>, unseen: bool) {
        self.end(result, unseen);
    }

    fn end(&mut self, result: io::Result<u64>, unseen: bool) {
        if let (Some(transfer), Some(done)) = (self.transfer.take(), self.done.take()) {
            done(Moved { transfer, result, unseen });
        }
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.end(Err(closed()), false);
    }
}

/// The duty to answer who wants bytes fetched.
pub struct FetchDuty(Option<Fetched>);

impl FetchDuty {
    pub fn new(done: Fetched) -> Self {
        FetchDuty(Some(done))
    }

    pub fn finish(mut self, result: io::Result<Vec<View>>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for FetchDuty {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(closed()));
        }
    }
}

pub fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the tier was closed before the end")
}
