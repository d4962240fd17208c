//! Checks whether the bucket is still in the learned region. At intervals one request in the
//! background asks the configured endpoint. No operation waits for it or fails because of it.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::QueueMode;
use crate::client::Inner;
use crate::local_clock::Instant;
use crate::region::Destination;
use crate::request::Request;
use crate::retry::{AttemptError, RetryAction};

/// The answer is waited for no longer than this.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl Inner {
    /// Asks for the region again, where that is due.
    pub fn recheck_region(self: &Arc<Self>, now: Instant) {
        let Some(learned) = self.destinations.recheck_due(now) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let inner = Arc::clone(self);
            runtime.spawn(async move { inner.confirm(&learned).await });
        }
    }

    /// What the configured endpoint says: that the bucket is there, or in which region it is. Where
    /// it says neither, what works stays.
    async fn confirm(self: &Arc<Self>, learned: &Arc<Destination>) {
        let request = Request { to_configured: true, ..Request::new("HEAD", None) };
        let asked = async {
            let open = self.open(&request, QueueMode::Wait, &mut []).await?;
            open.collect(self, 0).await.map(drop)
        };
        // Boxed: what opens a request may ask for the region.
        let asked: std::pin::Pin<Box<dyn Future<Output = Result<(), AttemptError>> + Send>> =
            Box::pin(asked);
        // Before the wait, so that a slow answer does not extend what it confirms.
        let now = Instant::now();
        match tokio::time::timeout(WAIT_MAX, asked).await {
            Ok(Ok(())) => {
                // The bucket is at the configured endpoint: back to it, proven or not.
                self.destinations.on_unreachable(learned);
            }
            Ok(Err(AttemptError { retry: RetryAction::Region(region), .. })) => {
                let is_same = learned.endpoint.region() == region;
                if !is_same && self.follow(&region).await.is_ok() {
                    return;
                }
                self.destinations.extend(learned, is_same, now);
            }
            // Silence and errors say nothing of the region that works.
            _ => self.destinations.extend(learned, true, now),
        }
    }
}
