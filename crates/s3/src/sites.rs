//! Where requests go: to the configured endpoint, or for a while to another region of it that the
//! store named.
//!
//! One wrong answer can name a region: that of a proxy, of a store that is half started, or any
//! over plain HTTP. So a region is learned like all else that answers say. It must have the shape
//! of one and its host must resolve; it is on trial until an answer there was a success; what fails
//! there leads back to the configured endpoint. Now and then one request of ours asks the configured
//! endpoint again, while all others go on. The configured endpoint is never
//! forgotten: each move starts from it, so that no chain of answers leads further than one answer
//! could.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::http::Target;
use crate::time::Instant;

/// A region that was learned is used for this long. Then the configured endpoint is asked again, by
/// one request more.
pub const LEARNED_FOR: Duration = Duration::from_secs(600);
/// Where that request never ends, there is another after this long.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// An endpoint and where its connections go.
#[derive(Debug)]
pub struct Site {
    pub endpoint: Endpoint,
    pub target: Arc<Target>,
    /// Whether the store named it; otherwise it is the configured one.
    is_learned: bool,
}

impl Site {
    pub fn of(endpoint: Endpoint) -> Self {
        let target = Arc::new(endpoint.target());
        Site { endpoint, target, is_learned: false }
    }
}

/// The configured site, and the one that was learned.
#[derive(Debug)]
pub struct Sites {
    configured: Arc<Site>,
    learned: RwLock<Option<Learned>>,
}

#[derive(Debug)]
struct Learned {
    site: Arc<Site>,
    ask_at: Instant,
    /// Whether an answer there was a success.
    proven: AtomicBool,
}

impl Sites {
    /// At the configured endpoint.
    pub fn new(configured: Endpoint) -> Self {
        Sites { configured: Arc::new(Site::of(configured)), learned: RwLock::default() }
    }

    /// Where requests go.
    pub fn current(&self) -> Arc<Site> {
        let learned = self.read();
        Arc::clone(learned.as_ref().map_or(&self.configured, |learned| &learned.site))
    }

    /// As it is configured.
    pub fn configured(&self) -> Arc<Site> {
        Arc::clone(&self.configured)
    }

    /// The learned site, where it is time to ask the configured endpoint again: for one caller.
    pub fn due(&self, now: Instant) -> Option<Arc<Site>> {
        let is_due = |learned: &Learned| now >= learned.ask_at;
        if !self.read().as_ref().is_some_and(is_due) {
            return None;
        }
        let mut learned = self.write();
        let learned = learned.as_mut().filter(|learned| is_due(learned))?;
        learned.ask_at = now + ASKED_AGAIN;
        Some(Arc::clone(&learned.site))
    }

    /// The learned site stays for as long again. Where nobody confirmed it, it is on trial again.
    pub fn stay(&self, site: &Arc<Site>, is_confirmed: bool, now: Instant) {
        if let Some(learned) =
            self.write().as_mut().filter(|learned| Arc::ptr_eq(&learned.site, site))
        {
            learned.ask_at = now + LEARNED_FOR;
            if !is_confirmed {
                learned.proven.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Where the bucket is if it is in this region; `None` where this endpoint cannot be left for
    /// it.
    pub fn in_region(&self, region: &str) -> Option<Site> {
        let endpoint = self.configured.endpoint.in_region(region)?;
        Some(Site { is_learned: endpoint != self.configured.endpoint, ..Site::of(endpoint) })
    }

    /// Goes there from now on; whether that is not where requests go already.
    pub fn move_to(&self, site: Site, now: Instant) -> bool {
        if self.current().endpoint == site.endpoint {
            return false;
        }
        let (ask_at, proven) = (now + LEARNED_FOR, AtomicBool::new(false));
        *self.write() = site.is_learned.then(|| Learned { site: Arc::new(site), ask_at, proven });
        true
    }

    /// An answer from this site was a success.
    pub fn prove(&self, site: &Arc<Site>) {
        if !site.is_learned {
            return;
        }
        if let Some(learned) =
            self.read().as_ref().filter(|learned| Arc::ptr_eq(&learned.site, site))
        {
            learned.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Something failed at this site that another site might do: back to the configured one, unless
    /// this is it or was proven. Returns whether a request that went to this site should go
    /// elsewhere now.
    pub fn fail(&self, site: &Arc<Site>) -> bool {
        self.leave(site, |learned| !learned.proven.load(Ordering::Relaxed))
    }

    /// This site cannot be reached at all: back to the configured one, unless this is it.
    pub fn lose(&self, site: &Arc<Site>) -> bool {
        self.leave(site, |_| true)
    }

    /// A whole operation had no answer: back to the configured site, unless the learned one was
    /// proven.
    pub fn leave_unproven(&self) {
        self.write().take_if(|learned| !learned.proven.load(Ordering::Relaxed));
    }

    fn leave(&self, site: &Arc<Site>, is_over: impl Fn(&Learned) -> bool) -> bool {
        if !site.is_learned {
            return false;
        }
        let mut learned = self.write();
        match &*learned {
            Some(current) if Arc::ptr_eq(&current.site, site) && !is_over(current) => false,
            Some(current) => {
                if Arc::ptr_eq(&current.site, site) {
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

    fn sites() -> Sites {
        Sites::new(BucketAddress::new("s3://b").region("us-east-1").resolve().unwrap())
    }

    #[test]
    fn a_region_is_on_trial_until_it_is_proven() {
        let (sites, now) = (sites(), Instant::now());
        let configured = sites.current();
        assert!(
            !sites.fail(&configured) && !sites.lose(&configured),
            "there is nowhere else to go"
        );
        for proven in [false, true] {
            assert!(sites.move_to(sites.in_region("eu-west-3").unwrap(), now));
            assert!(
                !sites.move_to(sites.in_region("eu-west-3").unwrap(), now),
                "it is there already"
            );
            let learned = sites.current();
            if proven {
                sites.prove(&learned);
            }
            sites.leave_unproven();
            assert_eq!(Arc::ptr_eq(&sites.current(), &learned), proven);
            assert!(sites.fail(&learned) != proven && sites.lose(&learned));
            assert!(Arc::ptr_eq(&sites.current(), &configured));
            assert!(sites.fail(&learned), "a request that is late goes elsewhere too");
        }
    }

    #[test]
    fn a_region_expires_and_can_be_taken_back() {
        let (sites, now) = (sites(), Instant::now());
        let to = |region: &str| sites.move_to(sites.in_region(region).unwrap(), now);
        assert!(!to("us-east-1"));
        assert!(to("eu-west-3") && to("ap-south-2"));
        assert_eq!(sites.current().endpoint.region(), "ap-south-2");
        let after = now + LEARNED_FOR;
        assert!(sites.due(after - Duration::from_millis(1)).is_none());
        let learned = sites.due(after).unwrap();
        assert!(sites.due(after).is_none(), "one asks");
        assert!(sites.due(after + ASKED_AGAIN).is_some(), "it never ended");
        sites.prove(&learned);
        sites.stay(&learned, true, after);
        assert!(sites.due(after + ASKED_AGAIN).is_none() && !sites.fail(&learned));
        sites.stay(&learned, false, after);
        assert!(sites.fail(&learned), "on trial");
        assert_eq!(sites.current().endpoint.region(), "us-east-1");
        assert!(to("ap-south-2"));
        assert!(to("us-east-1"));
        assert_eq!(sites.current().endpoint.region(), "us-east-1");
        assert!(sites.in_region("us-nowhere").is_none());
    }
}
