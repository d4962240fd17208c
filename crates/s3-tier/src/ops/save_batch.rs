//! Batches of operations: the index of this tier behind its lock, and the order in which the saves
//! of a batch ask for space.

use kvtier_core::Hint;
use kvtier_evict::EvictionHint;
use kvtier_index::{Index, SharedIndex};
use kvtier_key::Digest;
use tokio::sync::oneshot;

use crate::state::shared::Shared;

/// A batch of saves of this tier.
pub type SaveBatch = kvtier_index::SaveBatch<Shared>;
/// A chunk of this tier that is about to be saved.
pub type PendingChunk = kvtier_index::PendingChunk<Shared>;

/// The order in which the saves of a batch ask for space: each after the one before, so that the
/// head of a chain gets it.
#[derive(Debug)]
pub struct AdmissionOrder(Option<oneshot::Receiver<()>>, Option<oneshot::Sender<()>>);

impl AdmissionOrder {
    /// One for each save of a batch, in its order.
    pub fn for_batch(saves: usize) -> Vec<AdmissionOrder> {
        // A single save waits for no other.
        if saves == 1 {
            return vec![AdmissionOrder(None, None)];
        }
        let mut before = None;
        let mut place = |_| {
            let (over, next) = oneshot::channel();
            AdmissionOrder(before.replace(next), Some(over))
        };
        (0..saves).map(&mut place).collect()
    }

    /// Waits until the save before has asked, or has ended.
    pub async fn wait(&mut self) {
        if let Some(before) = self.0.take() {
            // Nothing is ever sent: the sender is dropped.
            let _ = before.await;
        }
    }

    /// This save has asked. Dropping it has the same effect.
    pub fn done(&mut self) {
        self.1 = None;
    }
}

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
        self.cluster.touched(chain);
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
