use std::collections::{BTreeMap, HashMap};

use kvtier_key::Digest;

use crate::Index;

/// Keys with corrupt bytes that were not overwritten since: bounded, the oldest dropped first.
/// Dropping one is safe, since the next load finds it corrupt again.
#[derive(Debug)]
pub(crate) struct Suspects {
    since: HashMap<Digest, u64>,
    oldest: BTreeMap<u64, Digest>,
    next: u64,
    max: usize,
}

impl Suspects {
    pub fn new(max: usize) -> Self {
        Suspects { since: HashMap::new(), oldest: BTreeMap::new(), next: 0, max }
    }

    /// `None` if it was one already; otherwise the key that was dropped for it, if any.
    pub fn insert(&mut self, digest: Digest) -> Option<Option<Digest>> {
        if self.max == 0 || self.since.contains_key(&digest) {
            return None;
        }
        let is_full = self.since.len() == self.max;
        let forgotten =
            is_full.then(|| self.oldest.pop_first()).flatten().map(|(_, oldest)| oldest);
        if let Some(oldest) = &forgotten {
            self.since.remove(oldest);
        }
        self.since.insert(digest, self.next);
        self.oldest.insert(self.next, digest);
        self.next += 1;
        Some(forgotten)
    }

    /// Whether it was one.
    pub fn remove(&mut self, digest: &Digest) -> bool {
        // There are none, mostly: then skip the hash.
        let since = (!self.since.is_empty()).then(|| self.since.remove(digest)).flatten();
        since.is_some_and(|since| self.oldest.remove(&since).is_some())
    }

    /// How many of these are suspects.
    pub fn count(&self, digests: &[Digest]) -> usize {
        if self.since.is_empty() {
            0
        } else {
            digests.iter().filter(|digest| self.contains(digest)).count()
        }
    }

    pub fn contains(&self, digest: &Digest) -> bool {
        !self.since.is_empty() && self.since.contains_key(digest)
    }
}

impl Index {
    /// Marks the bytes of this key as corrupt: a miss until its next [`commit`](Self::commit). Its
    /// entry stays, counted and evictable, for media that cannot quarantine the bytes.
    ///
    /// The list of suspects is bounded. Returns the one that fell out of it, if any: it is an ordinary
    /// chunk again, whose next load verifies it anew.
    pub fn mark_suspect(&mut self, digest: &Digest) -> Option<Digest> {
        let forgotten = self.suspects.insert(*digest)?;
        self.sets.suspected(digest);
        forgotten.iter().for_each(|digest| self.sets.suspect_cleared(digest));
        forgotten
    }

    /// The corrupt bytes are gone: bytes found under this key from now on were written since.
    pub fn clear_suspect(&mut self, digest: &Digest) {
        if self.suspects.remove(digest) {
            self.sets.suspect_cleared(digest);
        }
    }

    /// Whether the key's bytes are corrupt and not overwritten since.
    pub fn is_suspect(&self, digest: &Digest) -> bool {
        self.suspects.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_suspect_is_dropped_first() {
        let [a, b, c] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        let mut suspects = Suspects::new(2);
        assert_eq!(
            [a, b, a, c].map(|digest| suspects.insert(digest)),
            [Some(None), Some(None), None, Some(Some(a))]
        );
        assert_eq!([a, b, c].map(|digest| suspects.contains(&digest)), [false, true, true]);
        assert!(suspects.remove(&b) && !suspects.remove(&b));
        assert_eq!(suspects.insert(a), Some(None));
        assert_eq!([a, b, c].map(|digest| suspects.contains(&digest)), [true, false, true]);
        assert_eq!(suspects.oldest.len(), 2);
    }

    #[test]
    fn suspects_are_counted_among_others() {
        let [a, b, c] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        let mut suspects = Suspects::new(5);
        assert_eq!(suspects.count(&[a, b, c]), 0);
        [a, b].into_iter().for_each(|digest| _ = suspects.insert(digest));
        assert_eq!([suspects.count(&[a, b, c]), suspects.count(&[c])], [2, 0]);
    }
}
