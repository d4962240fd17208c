//! What journals told last of chunks, of late: one node's save and another's delete may be told in
//! the wrong order.

use std::collections::HashMap;
use std::sync::Arc;

use kvtier_key::Digest;

use crate::background::journal::progress::node_of;
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
    /// The object that said so.
    object: Arc<str>,
    when: When,
    there: bool,
}

impl Word {
    /// Whether an object of the same node says it, and then whether that comes after this word's:
    /// the numbers of a node's objects are in order.
    fn is_before(&self, object: &str) -> Option<bool> {
        (node_of(&self.object) == node_of(object)).then(|| *self.object <= *object)
    }
}

impl Heard {
    /// An object tells that a chunk is there, or not: whether that came after the opposite that was
    /// heard of it. What one node tells is in the order of its objects, however they are read.
    pub fn compare(&self, digest: &Digest, (object, when, there): (&Arc<str>, When, bool)) -> Last {
        match self.word(digest).filter(|word| word.there != there) {
            None => Last::This,
            Some(word) => match word.is_before(object) {
                Some(true) => Last::This,
                Some(false) => Last::Other,
                None => when.against(&word.when),
            },
        }
    }

    /// Remembers it, unless what is known is later.
    pub fn note(&mut self, digest: Digest, (object, when, there): (&Arc<str>, When, bool)) {
        let is_older =
            |word: &Word| !word.is_before(object).unwrap_or(word.when.to_ms <= when.to_ms);
        if self.word(&digest).is_some_and(is_older) {
            return;
        }
        if self.young.len() >= CHUNKS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, Word { object: Arc::clone(object), when, there });
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
    fn an_object_that_is_read_late_undoes_nothing_that_its_node_said_since() {
        let (mut heard, chunk) = (Heard::default(), Digest([7; 32]));
        let (one, two): (Arc<str>, Arc<str>) = ("j/a/1".into(), "j/a/2".into());
        heard.note(chunk, (&two, When::at(0), false));
        assert_eq!(heard.compare(&chunk, (&one, When::at(100_000), true)), Last::Other);
        heard.note(chunk, (&one, When::at(100_000), true));
        assert_eq!(heard.gone(&chunk), Some(When::at(0)), "the later word stays");
        assert_eq!(heard.compare(&chunk, (&two, When::at(0), true)), Last::This);
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
