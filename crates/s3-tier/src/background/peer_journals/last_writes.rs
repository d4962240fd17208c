//! The last save or delete of each chunk that journals reported lately. The save of one node and
//! the delete of another may be read in the wrong order; this table detects it.
//!
//! Objects of one node are numbered, so their order is certain, whatever the clocks show. Between
//! nodes only times decide, and only if they are clearly apart (`EventTime::compare`). Everything
//! else is `Unclear`, and the bucket is asked.

use std::collections::HashMap;
use std::sync::Arc;

use kvtier_key::Digest;

use crate::background::peer_journals::event_time::{EventTime, Newer};
use crate::background::peer_journals::progress::node_of;

/// The most chunks in the table.
const CHUNKS_MAX: usize = 1 << 16;

/// For each chunk its last save or delete.
#[derive(Debug, Default)]
pub struct LastWrites {
    young: HashMap<Digest, LastWrite>,
    /// The generation before, which is dropped when the young one is full.
    old: HashMap<Digest, LastWrite>,
}

#[derive(Clone, Debug)]
struct LastWrite {
    /// The journal object that contains it.
    object: Arc<str>,
    when: EventTime,
    there: bool,
}

impl LastWrite {
    /// For an object of the same node: whether it comes after this write. `None` for another node.
    fn is_before(&self, object: &str) -> Option<bool> {
        (node_of(&self.object) == node_of(object)).then(|| *self.object <= *object)
    }
}

impl LastWrites {
    /// Whether a save (`there`) or delete in `object` came after the opposite one in the table.
    pub fn compare(
        &self,
        digest: &Digest,
        object: &Arc<str>,
        when: EventTime,
        there: bool,
    ) -> Newer {
        match self.write(digest).filter(|write| write.there != there) {
            None => Newer::This,
            Some(write) => match write.is_before(object) {
                Some(true) => Newer::This,
                Some(false) => Newer::Other,
                None => when.compare(&write.when),
            },
        }
    }

    /// Enters a write, unless the table has a later one.
    pub fn note(&mut self, digest: Digest, object: &Arc<str>, when: EventTime, there: bool) {
        let is_older =
            |write: &LastWrite| !write.is_before(object).unwrap_or(write.when.to_ms <= when.to_ms);
        if self.write(&digest).is_some_and(is_older) {
            return;
        }
        if self.young.len() >= CHUNKS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, LastWrite { object: Arc::clone(object), when, there });
    }

    /// When the chunk was deleted, if that was its last write.
    pub fn gone(&self, digest: &Digest) -> Option<EventTime> {
        self.write(digest).filter(|write| !write.there).map(|write| write.when)
    }

    fn write(&self, digest: &Digest) -> Option<&LastWrite> {
        self.young.get(digest).or_else(|| self.old.get(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nodes_journal_is_in_order_and_two_are_compared_by_time() {
        let mut writes = LastWrites::default();
        let chunk = Digest([7; 32]);
        let a: Arc<str> = "a".into();
        let b: Arc<str> = "b".into();
        assert_eq!(
            writes.compare(&chunk, &a, EventTime::at(0), false),
            Newer::This,
            "an empty table"
        );
        writes.note(chunk, &a, EventTime::at(100_000), true);
        assert_eq!(writes.compare(&chunk, &a, EventTime::at(100_000), false), Newer::This);
        assert_eq!(writes.compare(&chunk, &b, EventTime::at(101_000), false), Newer::Unclear);
        assert_eq!(writes.compare(&chunk, &b, EventTime::at(90_000), false), Newer::Other);
        assert_eq!(writes.compare(&chunk, &b, EventTime::at(110_000), false), Newer::This);
        assert_eq!(
            writes.compare(&chunk, &b, EventTime::at(90_000), true),
            Newer::This,
            "it says the same"
        );
        assert_eq!(writes.gone(&chunk), None);
        writes.note(chunk, &b, EventTime::at(90_000), false);
        assert_eq!(
            writes.compare(&chunk, &b, EventTime::at(90_000), false),
            Newer::Other,
            "the later write stays"
        );
        writes.note(chunk, &b, EventTime::at(120_000), false);
        assert_eq!(writes.gone(&chunk), Some(EventTime::at(120_000)));
    }

    #[test]
    fn an_object_that_is_read_late_undoes_no_later_write_of_its_node() {
        let mut writes = LastWrites::default();
        let chunk = Digest([7; 32]);
        let one: Arc<str> = "j/a/1".into();
        let two: Arc<str> = "j/a/2".into();
        writes.note(chunk, &two, EventTime::at(0), false);
        assert_eq!(writes.compare(&chunk, &one, EventTime::at(100_000), true), Newer::Other);
        writes.note(chunk, &one, EventTime::at(100_000), true);
        assert_eq!(writes.gone(&chunk), Some(EventTime::at(0)), "the later write stays");
        assert_eq!(writes.compare(&chunk, &two, EventTime::at(0), true), Newer::This);
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let mut writes = LastWrites::default();
        let node = Arc::from("a");
        let digest = |n: usize| Digest::derive("test", &n.to_le_bytes());
        (0..3 * CHUNKS_MAX).for_each(|n| writes.note(digest(n), &node, EventTime::at(0), true));
        assert!(writes.young.len() + writes.old.len() <= CHUNKS_MAX);
        assert!(
            writes.write(&digest(3 * CHUNKS_MAX - 1)).is_some()
                && writes.write(&digest(0)).is_none()
        );
    }
}
