//! Where requests go: to the configured endpoint, or for a while to another region of it that the
//! store named.
//!
//! One wrong answer can name a region: that of a proxy, of a store that is half started, or any
//! over plain HTTP. So a region is learned like all else that answers say. It must have the shape
//! of one and its host must resolve; it is on trial until an answer there was a success; what fails
//! there leads back to the configured endpoint. Now and then one request of ours asks the
//! configured endpoint again, while all others go on. The configured endpoint is never
//! forgotten: each move starts from it, so that no chain of answers leads further than one answer
//! could.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::http::Target;
use crate::local_clock::Instant;

/// A region that was learned is used for this long. Then the configured endpoint is asked again, by
/// one request more.
pub const LEARNED_FOR: Duration = Duration::from_secs(600);
/// Where that request never ends, there is another after this long.
const RECHECK_RETRY: Duration = Duration::from_secs(60);

/// An endpoint and where its connections go.
#[derive(Debug)]
pub struct Destination {
    pub endpoint: Endpoint,
    pub target: Arc<Target>,
    /// Whether the store named it; otherwise it is the configured one.
    is_learned: bool,
}

impl Destination {
    pub fn of(endpoint: Endpoint) -> Self {
        let target = Arc::new(endpoint.target());
        Destination { endpoint, target, is_learned: false }
    }
}

/// The configured destination, and the one that was learned.
#[derive(Debug)]
pub struct Destinations {
    configured: Arc<Destination>,
    learned: RwLock<Option<Learned>>,
}

#[derive(Debug)]
struct Learned {
    destination: Arc<Destination>,
    recheck_at: Instant,
    /// Whether an answer there was a success.
    proven: AtomicBool,
}

impl Destinations {
    /// At the configured endpoint.
    pub fn new(configured: Endpoint) -> Self {
        Destinations {
            configured: Arc::new(Destination::of(configured)),
            learned: RwLock::default(),
        }
    }

    /// Where requests go.
    pub fn current(&self) -> Arc<Destination> {
        let learned = self.read();
        Arc::clone(learned.as_ref().map_or(&self.configured, |learned| &learned.destination))
    }

    /// As it is configured.
    pub fn configured(&self) -> Arc<Destination> {
        Arc::clone(&self.configured)
    }

    /// The learned destination, where it is time to ask the configured endpoint again: for one
    /// caller.
    pub fn recheck_due(&self, now: Instant) -> Option<Arc<Destination>> {
        let is_due = |learned: &Learned| now >= learned.recheck_at;
        // The read lock is enough nearly always. Below, the check is repeated under the write lock,
        // so one caller gets the task.
        if !self.read().as_ref().is_some_and(is_due) {
            return None;
        }
        let mut learned = self.write();
        let learned = learned.as_mut().filter(|learned| is_due(learned))?;
        // Not the whole time: the caller's request may never end.
        learned.recheck_at = now + RECHECK_RETRY;
        Some(Arc::clone(&learned.destination))
    }

    /// Keeps the learned destination for as long again. Unless `is_confirmed`, it is on trial
    /// again.
    pub fn extend(&self, destination: &Arc<Destination>, is_confirmed: bool, now: Instant) {
        if let Some(learned) =
            self.write().as_mut().filter(|learned| Arc::ptr_eq(&learned.destination, destination))
        {
            learned.recheck_at = now + LEARNED_FOR;
            if !is_confirmed {
                learned.proven.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Where the bucket is if it is in this region; `None` where this endpoint cannot be left for
    /// it.
    pub fn in_region(&self, region: &str) -> Option<Destination> {
        // From the configured endpoint, not the learned one, see the module's head.
        let endpoint = self.configured.endpoint.in_region(region)?;
        Some(Destination {
            is_learned: endpoint != self.configured.endpoint,
            ..Destination::of(endpoint)
        })
    }

    /// Goes there from now on; whether that is not where requests go already.
    pub fn move_to(&self, destination: Destination, now: Instant) -> bool {
        // Several requests are sent elsewhere by the same cause; the first of them moves for all.
        if self.current().endpoint == destination.endpoint {
            return false;
        }
        let recheck_at = now + LEARNED_FOR;
        let proven = AtomicBool::new(false);
        // A move to the configured endpoint is the absence of a learned one.
        *self.write() = destination.is_learned.then(|| Learned {
            destination: Arc::new(destination),
            recheck_at,
            proven,
        });
        true
    }

    /// An answer from this destination was a success.
    pub fn confirm(&self, destination: &Arc<Destination>) {
        if !destination.is_learned {
            return;
        }
        if let Some(learned) =
            // A late success of an earlier destination proves nothing of this one.
            self
                .read()
                .as_ref()
                .filter(|learned| Arc::ptr_eq(&learned.destination, destination))
        {
            learned.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Something failed at this destination that another destination might do: back to the
    /// configured one, unless this is it or was proven. Returns whether a request that went to
    /// this destination should go elsewhere now.
    pub fn on_failure(&self, destination: &Arc<Destination>) -> bool {
        self.leave(destination, |learned| !learned.proven.load(Ordering::Relaxed))
    }

    /// This destination cannot be reached at all: back to the configured one, unless this is it.
    pub fn on_unreachable(&self, destination: &Arc<Destination>) -> bool {
        self.leave(destination, |_| true)
    }

    /// A whole operation had no answer: back to the configured destination, unless the learned one
    /// was proven.
    pub fn leave_unproven(&self) {
        self.write().take_if(|learned| !learned.proven.load(Ordering::Relaxed));
    }

    fn leave(&self, destination: &Arc<Destination>, is_over: impl Fn(&Learned) -> bool) -> bool {
        if !destination.is_learned {
            return false;
        }
        let mut learned = self.write();
        match &*learned {
            Some(current)
                if Arc::ptr_eq(&current.destination, destination) && !is_over(current) =>
            {
                false
            }
            // Compared by identity: a late failure at an older learned destination must not drop
            // the present one.
            Some(current) => {
                if Arc::ptr_eq(&current.destination, destination) {
                    *learned = None;
                }
                true
            }
            None => true,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Learned>> {
        self.learned.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Learned>> {
        self.learned.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::BucketAddress;

    fn destinations() -> Destinations {
        Destinations::new(BucketAddress::new("s3://b").region("us-east-1").resolve().unwrap())
    }

    #[test]
    fn a_region_is_on_trial_until_it_is_proven() {
        let destinations = destinations();
        let now = Instant::now();
        let configured = destinations.current();
        assert!(
            !destinations.on_failure(&configured) && !destinations.on_unreachable(&configured),
            "there is nowhere else to go"
        );
        for proven in [false, true] {
            assert!(destinations.move_to(destinations.in_region("eu-west-3").unwrap(), now));
            assert!(
                !destinations.move_to(destinations.in_region("eu-west-3").unwrap(), now),
                "it is there already"
            );
            let learned = destinations.current();
            if proven {
                destinations.confirm(&learned);
            }
            destinations.leave_unproven();
            assert_eq!(Arc::ptr_eq(&destinations.current(), &learned), proven);
            assert!(
                destinations.on_failure(&learned) != proven
                    && destinations.on_unreachable(&learned)
            );
            assert!(Arc::ptr_eq(&destinations.current(), &configured));
            assert!(destinations.on_failure(&learned), "a request that is late goes elsewhere too");
        }
    }

    #[test]
    fn a_region_expires_and_can_be_taken_back() {
        let destinations = destinations();
        let now = Instant::now();
        let to = |region: &str| destinations.move_to(destinations.in_region(region).unwrap(), now);
        assert!(!to("us-east-1"));
        assert!(to("eu-west-3") && to("ap-south-2"));
        assert_eq!(destinations.current().endpoint.region(), "ap-south-2");
        let after = now + LEARNED_FOR;
        assert!(destinations.recheck_due(after - Duration::from_millis(1)).is_none());
        let learned = destinations.recheck_due(after).unwrap();
        assert!(destinations.recheck_due(after).is_none(), "one asks");
        assert!(destinations.recheck_due(after + RECHECK_RETRY).is_some(), "it never ended");
        destinations.confirm(&learned);
        destinations.extend(&learned, true, after);
        assert!(
            destinations.recheck_due(after + RECHECK_RETRY).is_none()
                && !destinations.on_failure(&learned)
        );
        destinations.extend(&learned, false, after);
        assert!(destinations.on_failure(&learned), "on trial");
        assert_eq!(destinations.current().endpoint.region(), "us-east-1");
        assert!(to("ap-south-2"));
        assert!(to("us-east-1"));
        assert_eq!(destinations.current().endpoint.region(), "us-east-1");
        assert!(destinations.in_region("us-nowhere").is_none());
    }
}
