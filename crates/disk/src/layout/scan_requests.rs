use std::sync::{Condvar, Mutex, PoisonError};

/// What the thread that scans a foreign directory shall do next.
#[derive(Debug, Default)]
pub struct ScanRequests {
    pub request: Mutex<ScanRequest>,
    /// The request changed.
    pub wake: Condvar,
}

/// A request to the thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanRequest {
    pub now: bool,
    pub stop: bool,
}

impl ScanRequests {
    /// The request, which is answered by that.
    pub fn take(&self) -> ScanRequest {
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        ScanRequest { now: std::mem::take(&mut request.now), ..*request }
    }

    /// Changes the request and wakes the thread.
    pub fn change(&self, what: impl Fn(&mut ScanRequest)) {
        what(&mut self.request.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}
