//! Submits a transfer for an operation, which continues with the outcome or with the refusal.

use std::sync::{Arc, Mutex, PoisonError};

use crate::mover::{Moved, Mover, Refused, Transfer};

/// An operation that waits for a transfer. It continues exactly once; where the mover drops its
/// callback, the operation is dropped.
pub trait Submitted: Sized + Send + 'static {
    /// The transfer ended. Called on a thread of the mover's.
    fn finish(self, moved: Moved);

    /// The mover is full or closed.
    fn refused(self, refused: Refused);
}

/// Submits `transfer`. The callback and the refusal need the operation by value, and only one of
/// them happens.
pub fn submit(mover: &impl Mover, transfer: Transfer, op: impl Submitted) {
    let op = Arc::new(Mutex::new(Some(op)));
    let in_callback = Arc::clone(&op);
    let done = Box::new(move |moved: Moved| {
        if let Some(op) = take(&in_callback) {
            op.finish(moved);
        }
    });
    if let Err(refused) = mover.submit(transfer, done)
        && let Some(op) = take(&op)
    {
        op.refused(refused);
    }
}

fn take<T>(op: &Mutex<Option<T>>) -> Option<T> {
    op.lock().unwrap_or_else(PoisonError::into_inner).take()
}
