//! Ends a future that panics, so that what waits for it does not wait for ever.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// The text of the error of work that panicked.
pub const PANIC_TEXT: &str =
    "the code of kvtier panicked, which is a bug; the process's log says where";

/// A future panicked. What it held was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// The output of a future, or that it panicked. The hook for panics has reported it then.
pub async fn catch_panic<T>(future: impl Future<Output = T> + Send) -> Result<T, Panicked> {
    let mut running = Some(Box::pin(future));
    poll_fn(|context| {
        let Some(mut future) = running.take() else { return Poll::Ready(Err(Panicked)) };
        // The future moves in: one that panics is dropped with what it holds, and never polled
        // again. So no caller sees a state that the panic left half changed.
        let polled = catch_unwind(AssertUnwindSafe(move || {
            let polled = future.as_mut().poll(context);
            (polled, future)
        }));
        match polled {
            Ok((Poll::Ready(output), _)) => Poll::Ready(Ok(output)),
            Ok((Poll::Pending, future)) => {
                running = Some(future);
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}
