//! Waiting for work on a thread of Python's, without its lock.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

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

/// Waits for the end of `work`. Errors with what a signal handler raised; the work then goes on unseen, and keeps its memory till its end.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    buffer::give_back(py);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut work = pin!(work);
    loop {
        let ended = py.detach(|| {
            let mut context = Context::from_waker(&waker);
            if let Poll::Ready(end) = work.as_mut().poll(&mut context) {
                return Some(end);
            }
            thread::park_timeout(SIGNAL_EVERY);
            None
        });
        if let Some(end) = ended {
            buffer::give_back(py);
            return Ok(end);
        }
        py.check_signals()?;
    }
}
