//! What journals told last of chunks, of late: one node's save and another's delete may be told in
//! the wrong order.

use std::collections::HashMap;
use std::sync::Arc;

use kvtier_key::Digest;

use crate::background::journal::time_range::{Last, When};

/// The most chunks that are remembered.
const CHUNKS_MAX: usize = 1 << 16;

/// What was heard of chunks: that they were saved, or that they went.
#[derive(Debug, Default)]
pub struct Heard {
    young: HashMap<Digest, Word>,
    /// What was young before; it goes when the young are as many again.
    old: HashMap<Digest, Word>,
}

#[derive(Clone, Debug)]
struct Word {
    node: Arc<str>,
    when: When,
    there: bool,
}

impl Heard {
    /// A node tells that a chunk is there, or not: whether that came after the opposite that was
    /// heard of it. The journal of one node is in order.
    pub fn compare(&self, digest: &Digest, (node, when, there): (&Arc<str>, When, bool)) -> Last {
        match self.word(digest) {
            Some(word) if word.there != there && word.node != *node => when.against(&word.when),
            _ => Last::This,
        }
    }

    /// Remembers it, unless what is known is later.
    pub fn note(&mut self, digest: Digest, (node, when, there): (&Arc<str>, When, bool)) {
        if self.word(&digest).is_some_and(|word| word.node != *node && word.when.to_ms > when.to_ms)
        {
            return;
        }
        if self.young.len() >= CHUNKS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, Word { node: Arc::clone(node), when, there });
    }

    /// When the chunk went, if that is what was heard last.
    pub fn gone(&self, digest: &Digest) -> Option<When> {
        self.word(digest).filter(|word| !word.there).map(|word| word.when)
    }

    fn word(&self, digest: &Digest) -> Option<&Word> {
        self.young.get(digest).or_else(|| self.old.get(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nodes_journal_is_in_order_and_two_are_as_far_as_their_times_tell() {
        let (mut heard, chunk) = (Heard::default(), Digest([7; 32]));
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert_eq!(
            heard.compare(&chunk, (&a, When::at(0), false)),
            Last::This,
            "nothing was heard"
        );
        heard.note(chunk, (&a, When::at(100_000), true));
        assert_eq!(heard.compare(&chunk, (&a, When::at(100_000), false)), Last::This);
        assert_eq!(heard.compare(&chunk, (&b, When::at(101_000), false)), Last::Unclear);
        assert_eq!(heard.compare(&chunk, (&b, When::at(90_000), false)), Last::Other);
        assert_eq!(heard.compare(&chunk, (&b, When::at(110_000), false)), Last::This);
        assert_eq!(
            heard.compare(&chunk, (&b, When::at(90_000), true)),
            Last::This,
            "it says the same"
        );
        assert_eq!(heard.gone(&chunk), None);
        heard.note(chunk, (&b, When::at(90_000), false));
        assert_eq!(
            heard.compare(&chunk, (&b, When::at(90_000), false)),
            Last::Other,
            "the later word stays"
        );
        heard.note(chunk, (&b, When::at(120_000), false));
        assert_eq!(heard.gone(&chunk), Some(When::at(120_000)));
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let (mut heard, node) = (Heard::default(), Arc::from("a"));
        let digest = |n: usize| Digest::derive("test", &n.to_le_bytes());
        (0..3 * CHUNKS_MAX).for_each(|n| heard.note(digest(n), (&node, When::at(0), true)));
        assert!(heard.young.len() + heard.old.len() <= CHUNKS_MAX);
        assert!(
            heard.word(&digest(3 * CHUNKS_MAX - 1)).is_some() && heard.word(&digest(0)).is_none()
        );
    }
}
