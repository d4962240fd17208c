//! Which keys changed while the bucket was listed.

use std::collections::HashSet;

use kvtier_index::DigestTag;
use kvtier_key::Digest;

/// The most keys noted one by one while one listing runs.
const CHANGED_MAX: usize = 1 << 20;
/// Those beyond are noted as a bit each, of so many: 8 MiB, which are there only then.
const BITS: u64 = 1 << 26;

/// Which keys changed while a listing runs, whose pages may tell of them as they were before.
#[derive(Debug, Default)]
pub struct ChangedKeys(Option<ChangedSet>);

#[derive(Debug, Default)]
struct ChangedSet {
    keys: HashSet<Digest>,
    /// More than that: some that did not change seem to have. The listing is too old for those,
    /// and leaves them as they are.
    more: Vec<u64>,
}

impl ChangedKeys {
    /// A listing begins.
    pub fn begin(&mut self) {
        self.0 = Some(ChangedSet::default());
    }

    /// It is over.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// The key was saved, deleted, or looked at just now.
    pub fn note(&mut self, digest: Digest) {
        let Some(ChangedSet { keys, more }) = &mut self.0 else { return };
        if keys.len() < CHANGED_MAX {
            keys.insert(digest);
        } else if !keys.contains(&digest) {
            more.resize((BITS / 64) as usize, 0);
            let (word, bit) = place(&digest);
            more[word] |= bit;
        }
    }

    /// Whether the key was noted since the listing began, as far as can be told; one that was noted
    /// always.
    pub fn has(&self, digest: &Digest) -> bool {
        let (word, bit) = place(digest);
        let noted = |ChangedSet { keys, more }: &ChangedSet| {
            keys.contains(digest) || more.get(word).is_some_and(|bits| bits & bit != 0)
        };
        self.0.as_ref().is_some_and(noted)
    }
}

/// The word of a digest, and its bit in it: digests are uniform.
fn place(digest: &Digest) -> (usize, u64) {
    let at = DigestTag::from_digest(digest).as_u64() % BITS;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: usize) -> Digest {
        Digest::derive("test", &n.to_le_bytes())
    }

    #[test]
    fn it_notes_while_a_listing_runs() {
        let (mut changed, one) = (ChangedKeys::default(), digest(1));
        changed.note(one);
        assert!(!changed.has(&one), "nobody lists");
        changed.begin();
        changed.note(one);
        assert!(changed.has(&one) && !changed.has(&digest(2)));
        changed.begin();
        assert!(!changed.has(&one));
        changed.end();
        changed.note(one);
        assert!(!changed.has(&one));
    }

    #[test]
    fn of_very_many_all_are_known_and_few_others_seem_to_be() {
        let mut changed = ChangedKeys::default();
        changed.begin();
        let many = CHANGED_MAX + CHANGED_MAX / 4;
        (0..many).for_each(|n| changed.note(digest(n)));
        assert!((0..many).all(|n| changed.has(&digest(n))));
        let others = (many..many + 100_000).filter(|n| changed.has(&digest(*n))).count();
        assert!(others < 1000, "{others} of 100,000");
    }
}
