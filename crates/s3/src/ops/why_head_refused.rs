//! Finds out why a HEAD was refused. Its answer has no body, so it has no error code: an expired
//! token looks like a missing permission. A caller that sends nothing but HEADs, such as a node
//! that looks up and finds nothing, would never renew its credentials.
//!
//! A GET of one byte of the same object needs the same permission, and its answer names the cause.
//! Its retries apply the remedies that they have for every request: new credentials, a corrected
//! clock. If that helped, the HEAD is sent once more.
//!
//! One probe runs at a time, and the next begins [`PROBE_EVERY`] later at the soonest, since some
//! stores refuse every HEAD of an absent object. HEADs that are refused together wait for one
//! probe.

use std::time::Duration;

use crate::error::Error;
use crate::local_clock::Instant;

/// The least time from one probe to the next.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The last probe. Locked while one runs.
pub type LastProbe = tokio::sync::Mutex<Option<HeadProbe>>;

/// One probe.
#[derive(Clone, Copy, Debug)]
pub struct HeadProbe {
    /// When it ended; while it runs, and if its caller was dropped, when it began.
    at: Instant,
    /// Whether its GET was not refused.
    pub helped: bool,
}

impl HeadProbe {
    /// A probe that begins or ends now.
    pub fn now(helped: bool) -> Self {
        HeadProbe { at: Instant::now(), helped }
    }

    /// What this probe, the last one, means for a refused HEAD whose operation began then: whether
    /// it is sent again, or `None` if a probe of its own is due.
    pub fn repeats(&self, op_began: Instant) -> Option<bool> {
        // It ended while this operation ran. What it renewed may not have signed this HEAD yet.
        if self.at >= op_began {
            return Some(self.helped);
        }
        (self.at.elapsed() < PROBE_EVERY).then_some(false)
    }
}

/// Whether an error of a HEAD may have a cause that a probe finds.
pub fn is_unexplained(error: &Error) -> bool {
    error.code().is_none() && matches!(error.status(), Some(400 | 401 | 403))
}
