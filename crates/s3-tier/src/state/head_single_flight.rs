//! One HEAD for each key at a time: further lookups of the key wait for its answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_key::Digest;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The keys with a HEAD that waits or is in flight.
#[derive(Debug, Default)]
pub struct HeadSingleFlight(Mutex<HashMap<Digest, Arc<Notify>>>);

/// What a lookup has to do for a key.
#[derive(Debug)]
pub enum HeadRole<'a> {
    /// Send the request; dropping this wakes the lookups that follow.
    Lead(HeadFlight<'a>),
    /// Wait for the request of another lookup, then read the catalog again.
    Follow(OwnedNotified),
}

/// A request that is under way.
#[derive(Debug)]
pub struct HeadFlight<'a> {
    heads: &'a HeadSingleFlight,
    digest: Digest,
}

impl HeadSingleFlight {
    /// Joins the request for a key, or begins one.
    pub fn join(&self, digest: &Digest) -> HeadRole<'_> {
        match self.lock().entry(*digest) {
            Entry::Occupied(asked) => HeadRole::Follow(Arc::clone(asked.get()).notified_owned()),
            Entry::Vacant(free) => {
                free.insert(Arc::default());
                HeadRole::Lead(HeadFlight { heads: self, digest: *digest })
            }
        }
    }

    /// Begins requests for those of these keys that have none. All at once: of two lookups of the
    /// same keys one begins all.
    pub fn lead_all(&self, digests: &[Digest]) -> Vec<HeadFlight<'_>> {
        let mut all = self.lock();
        let free = digests.iter().filter(|digest| match all.entry(**digest) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(Arc::default());
                true
            }
        });
        free.map(|digest| HeadFlight { heads: self, digest: *digest }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeadFlight<'_> {
    /// The key.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

impl Drop for HeadFlight<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.heads.lock().remove(&self.digest) {
            waiting.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_lookup_waits_for_the_first_and_none_for_an_old_answer() {
        let heads = HeadSingleFlight::default();
        let key = Digest([7; 32]);
        let HeadRole::Lead(first) = heads.join(&key) else { panic!("no request yet") };
        let HeadRole::Follow(second) = heads.join(&key) else { panic!("the first asks") };
        assert!(matches!(heads.join(&Digest([8; 32])), HeadRole::Lead(_)), "another key");
        // The answer comes before the second begins to wait.
        drop(first);
        second.await;
        assert!(matches!(heads.join(&key), HeadRole::Lead(_)));
        assert!(heads.lock().is_empty(), "nothing is remembered");
    }

    #[test]
    fn of_two_lookups_of_the_same_keys_one_asks_for_all() {
        let heads = HeadSingleFlight::default();
        let keys = [Digest([1; 32]), Digest([2; 32]), Digest([3; 32])];
        let first = heads.lead_all(&keys[..2]);
        let second = heads.lead_all(&keys);
        assert_eq!((first.len(), second.len()), (2, 1));
        assert_eq!(second[0].digest(), &keys[2]);
        drop((first, second));
        assert!(heads.lock().is_empty(), "nothing is remembered");
    }
}
