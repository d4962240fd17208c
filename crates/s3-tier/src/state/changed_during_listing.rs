//! The keys that changed during a listing. Its pages may be older than those changes.

use std::collections::HashSet;

use kvtier_index::DigestTag;
use kvtier_key::Digest;

/// The most keys stored one by one.
const CHANGED_MAX: usize = 1 << 20;
/// Bits for the keys beyond, 8 MiB that are allocated only then.
const BITS: u64 = 1 << 26;

/// The keys that changed during a listing. Pages of it must not touch them.
#[derive(Debug, Default)]
pub struct ChangedKeys(Option<ChangedSet>);

#[derive(Debug, Default)]
struct ChangedSet {
    keys: HashSet<Digest>,
    /// Bits of further keys. Keys that share a bit with one seem changed: the listing leaves them
    /// as they are.
    more: Vec<u64>,
}

impl ChangedKeys {
    /// A listing begins.
    pub fn begin(&mut self) {
        self.0 = Some(ChangedSet::default());
    }

    /// The listing is over.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// The key was saved, deleted, or seen now.
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

    /// Whether the key may have changed since the listing began; `true` for all that did.
    pub fn has(&self, digest: &Digest) -> bool {
        let (word, bit) = place(digest);
        let noted = |ChangedSet { keys, more }: &ChangedSet| {
            keys.contains(digest) || more.get(word).is_some_and(|bits| bits & bit != 0)
        };
        self.0.as_ref().is_some_and(noted)
    }
}

/// The word and the bit of a digest; digests are uniform.
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
    fn keys_are_kept_while_a_listing_runs() {
        let mut changed = ChangedKeys::default();
        let one = digest(1);
        changed.note(one);
        assert!(!changed.has(&one), "no listing runs");
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
    fn of_very_many_keys_all_are_kept_and_few_others_seem_changed() {
        let mut changed = ChangedKeys::default();
        changed.begin();
        let many = CHANGED_MAX + CHANGED_MAX / 4;
        (0..many).for_each(|n| changed.note(digest(n)));
        assert_eq!(changed.0.as_ref().unwrap().keys.len(), CHANGED_MAX);
        assert!((0..many).all(|n| changed.has(&digest(n))));
        let others = (many..many + 100_000).filter(|n| changed.has(&digest(*n))).count();
        assert!(others < 1000, "{others} of 100,000");
    }

    #[test]
    fn the_first_keys_are_stored_one_by_one() {
        let mut changed = ChangedKeys::default();
        changed.begin();
        (0..3).for_each(|n| changed.note(digest(n)));
        let ChangedSet { keys, more } = changed.0.as_ref().unwrap();
        assert!(keys.len() == 3 && more.is_empty());
    }

    #[test]
    fn each_bit_has_one_word_and_one_place_in_it() {
        let at = |n: u64| {
            let mut bytes = [0xff; 32];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            place(&Digest(bytes))
        };
        assert_eq!([1, 63, 64, 65].map(at), [(0, 2), (0, 1 << 63), (1, 1), (1, 2)]);
        assert_eq!(at(BITS - 1), ((BITS / 64 - 1) as usize, 1 << 63));
        assert_eq!(at(BITS + 130), (2, 4));
    }
}
