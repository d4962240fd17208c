use std::collections::{BTreeMap, HashMap};

use kvtier_key::Digest;

/// Keys whose bytes were found wrong and not overwritten since: bounded, the oldest forgotten first. Forgetting one is
/// safe: it is found wrong again when it is loaded again.
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

    pub fn insert(&mut self, digest: Digest) {
        if self.max == 0 || self.since.contains_key(&digest) {
            return;
        }
        if self.since.len() == self.max
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.since.remove(&oldest);
        }
        self.since.insert(digest, self.next);
        self.oldest.insert(self.next, digest);
        self.next += 1;
    }

    pub fn remove(&mut self, digest: &Digest) {
        // There are none, mostly: then nothing has to be hashed.
        if !self.since.is_empty()
            && let Some(since) = self.since.remove(digest)
        {
            self.oldest.remove(&since);
        }
    }

    pub fn contains(&self, digest: &Digest) -> bool {
        !self.since.is_empty() && self.since.contains_key(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_suspect_is_forgotten_first() {
        let [a, b, c] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        let mut suspects = Suspects::new(2);
        [a, b, a, c].into_iter().for_each(|digest| suspects.insert(digest));
        assert_eq!([a, b, c].map(|digest| suspects.contains(&digest)), [false, true, true]);
        suspects.remove(&b);
        suspects.insert(a);
        assert_eq!([a, b, c].map(|digest| suspects.contains(&digest)), [true, false, true]);
        assert_eq!(suspects.oldest.len(), 2);
    }
}
