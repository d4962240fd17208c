//! Waits for a future on a Python thread without the GIL, and runs signal handlers meanwhile.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::buffer;

/// The longest delay until the handler of a signal such as Ctrl-C runs.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future.
///
/// # Errors
/// What a signal handler raised. The operation continues, but its result is lost.
pub fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let mut future = pin!(future);
    loop {
        if let Some(output) = wait_once(py, future.as_mut())? {
            return Ok(output);
        }
    }
}

/// Waits for a future until the deadline; `None` if it has not resolved by then.
///
/// # Errors
/// As for [`wait`].
pub fn wait_until<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    deadline: Option<Instant>,
) -> PyResult<Option<T>> {
    let mut future = pin!(future);
    loop {
        let output = wait_once(py, future.as_mut())?;
        if output.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(output);
        }
    }
}

/// Waits for an operation that uses the caller's buffers.
///
/// # Errors
/// What a signal handler raised, but only after the operation has ended: until then the buffers
/// must not be reused. A second signal is raised at once.
pub fn wait_for_buffers<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
) -> PyResult<T> {
    let mut future = pin!(future);
    // Ctrl-C does not end the wait: the medium may write to the caller's memory until it returns
    // it. A second one does, for a user who has decided to end the process.
    let mut raised = None;
    loop {
        match wait_once(py, future.as_mut()) {
            Ok(Some(output)) => return raised.map_or(Ok(output), Err),
            Ok(None) => {}
            Err(e) if raised.is_none() => raised = Some(e),
            Err(e) => return Err(e),
        }
    }
}

/// Polls once and waits for a wake-up or the next check for signals.
fn wait_once<T: Send>(
    py: Python<'_>,
    mut future: Pin<&mut (impl Future<Output = T> + Send)>,
) -> PyResult<Option<T>> {
    buffer::release_returned(py);
    // A wake-up that comes between the poll and the park is not lost: `unpark` leaves a token, with
    // which the next park returns at once.
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    let output = py.detach(|| {
        let mut context = Context::from_waker(&waker);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        // Not for longer: handlers of signals run only when this thread asks for them, below.
        thread::park_timeout(SIGNAL_CHECK_INTERVAL);
        None
    });
    match output {
        Some(output) => {
            buffer::release_returned(py);
            Ok(Some(output))
        }
        None => py.check_signals().map(|()| None),
    }
}
