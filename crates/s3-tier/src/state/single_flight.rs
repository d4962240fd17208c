//! One HEAD a key at a time: a lookup of a key that another lookup has just asked for waits for
//! that answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_key::Digest;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The keys that lookups ask the bucket for now; no more than HEADs that wait or are in flight.
#[derive(Debug, Default)]
pub struct HeadRequests(Mutex<HashMap<Digest, Arc<Notify>>>);

/// What a lookup has to do for a key.
#[derive(Debug)]
pub enum HeadRole<'a> {
    /// Ask the bucket; dropping this wakes those who wait for the answer.
    Lead(HeadFlight<'a>),
    /// Wait for another's answer, and see what is known then.
    Follow(OwnedNotified),
}

/// A question that is on its way.
#[derive(Debug)]
pub struct HeadFlight<'a> {
    heads: &'a HeadRequests,
    digest: Digest,
}

impl HeadRequests {
    /// Begins to ask for a key, unless somebody does already.
    pub fn join(&self, digest: &Digest) -> HeadRole<'_> {
        match self.lock().entry(*digest) {
            Entry::Occupied(asked) => HeadRole::Follow(Arc::clone(asked.get()).notified_owned()),
            Entry::Vacant(free) => {
                free.insert(Arc::default());
                HeadRole::Lead(HeadFlight { heads: self, digest: *digest })
            }
        }
    }

    /// Begins to ask for those of these keys that nobody asks for yet: at once, so that two lookups
    /// of the same keys are never both asked in part.
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
    /// The key that is asked for.
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
    async fn the_second_waits_for_the_first_and_nobody_for_an_answer_that_came() {
        let (heads, key) = (HeadRequests::default(), Digest([7; 32]));
        let HeadRole::Lead(first) = heads.join(&key) else { panic!("nobody asks") };
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
        let (heads, keys) =
            (HeadRequests::default(), [Digest([1; 32]), Digest([2; 32]), Digest([3; 32])]);
        let first = heads.lead_all(&keys[..2]);
        let second = heads.lead_all(&keys);
        assert_eq!((first.len(), second.len()), (2, 1));
        assert_eq!(second[0].digest(), &keys[2]);
        drop((first, second));
        assert!(heads.lock().is_empty(), "nothing is remembered");
    }
}
