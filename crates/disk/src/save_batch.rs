//! Batches of operations: the index of this tier behind its lock, and what uses mean to the journal.

use kvtier_core::Hint;
use kvtier_evict::EvictionHint;
use kvtier_index::journal::Record;
use kvtier_index::{Index, SharedIndex};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

/// A batch of saves of this tier.
pub type SaveBatch<M> = kvtier_index::SaveBatch<Shared<M>>;
/// A chunk of this tier that is about to be saved.
pub type PendingChunk<M> = kvtier_index::PendingChunk<Shared<M>>;

impl<M: Mover> SharedIndex for Shared<M> {
    fn with_index<R>(&self, work: impl FnOnce(&mut Index) -> R) -> R {
        work(&mut self.index())
    }

    fn now_ms(&self) -> u64 {
        Shared::now_ms(self)
    }
}

impl<M: Mover> Shared<M> {
    /// Notes that a request used these chunks, in the order of its chain, and the caller's hint.
    pub fn used(&self, chain: &[Digest], hint: &EvictionHint) {
        let mut index = self.index();
        index.touch_batch(chain);
        // The next start needs nothing about chunks that are not stored.
        let known: Vec<Digest> =
            chain.iter().copied().filter(|digest| index.is_known(digest)).collect();
        drop(index);
        self.note_use(&known);
        self.hint(chain, hint);
    }

    /// Journals a use for the next start. The chunk touched last is the most recent: the head.
    pub fn note_use(&self, chain: &[Digest]) {
        self.journal.note(chain.iter().rev().map(|digest| Record::Touch(*digest)));
    }
}

/// A caller's hint for the policies.
pub fn eviction_hint(hint: &Hint) -> EvictionHint {
    EvictionHint::from_durations(
        hint.session_ended,
        hint.priority,
        hint.expected_return,
        hint.retention,
    )
}
