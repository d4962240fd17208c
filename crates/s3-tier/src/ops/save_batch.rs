//! Batches of saves over the index of this tier, which is behind its lock.

use kvtier_core::Hint;
use kvtier_evict::EvictionHint;
use kvtier_index::{Index, SharedIndex};
use kvtier_key::Digest;

use crate::state::shared::Shared;

/// A batch of saves of this tier.
pub type SaveBatch = kvtier_index::SaveBatch<Shared>;
/// A chunk of this tier that is about to be saved.
pub type PendingChunk = kvtier_index::PendingChunk<Shared>;

impl SharedIndex for Shared {
    fn with_index<R>(&self, work: impl FnOnce(&mut Index) -> R) -> R {
        work(&mut self.catalog().index)
    }

    fn now_ms(&self) -> u64 {
        Shared::now_ms(self)
    }
}

impl Shared {
    /// Records that a request used these chunks, in the order of its chain, with the caller's
    /// hint.
    pub fn used(&self, chain: &[Digest], hint: &EvictionHint) {
        self.catalog().index.touch_batch(chain);
        self.node.touched(chain);
        self.hint(chain, hint);
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
