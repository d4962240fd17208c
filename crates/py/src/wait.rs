//! Waiting for work on a thread of Python's, without its lock.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::buffer;

/// How long a signal, such as Ctrl-C, may wait to be heard.
const SIGNAL_EVERY: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the end of `work`. Errors with what a signal handler raised; the work then goes on
/// unseen.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    let mut work = pin!(work);
    loop {
        if let Some(end) = step(py, work.as_mut())? {
            return Ok(end);
        }
    }
}

/// The same, until a time at most: then `None`.
pub fn wait_until<T: Send>(
    py: Python<'_>,
    work: impl Future<Output = T> + Send,
    until: Option<Instant>,
) -> PyResult<Option<T>> {
    let mut work = pin!(work);
    loop {
        let end = step(py, work.as_mut())?;
        if end.is_some() || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(end);
        }
    }
}

/// The same for work on the caller's memory, which is not his before its end: what a signal handler
/// raises is raised then, but the second time at once.
pub fn wait_home<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    let (mut work, mut raised) = (pin!(work), None);
    loop {
        match step(py, work.as_mut()) {
            Ok(Some(end)) => return raised.map_or(Ok(end), Err),
            Ok(None) => {}
            Err(e) if raised.is_none() => raised = Some(e),
            Err(e) => return Err(e),
        }
    }
}

/// Waits a little; answers the end if it came.
fn step<T: Send>(
    py: Python<'_>,
    mut work: Pin<&mut (impl Future<Output = T> + Send)>,
) -> PyResult<Option<T>> {
    buffer::give_back(py);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let ended = py.detach(|| {
        let mut context = Context::from_waker(&waker);
        if let Poll::Ready(end) = work.as_mut().poll(&mut context) {
            return Some(end);
        }
        thread::park_timeout(SIGNAL_EVERY);
        None
    });
    match ended {
        Some(end) => {
            buffer::give_back(py);
            Ok(Some(end))
        }
        None => py.check_signals().map(|()| None),
    }
}
