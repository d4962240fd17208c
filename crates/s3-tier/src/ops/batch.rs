//! Batches of saves: chunks that wait to be saved, the order in which they ask for space, and what
//! the batch means for eviction.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Chain, Ctx, Save};
use kvtier_evict::EvictionHint;
use kvtier_index::{ChainPlace, DigestTag, SetId, SetsFull};
use kvtier_key::Digest;
use tokio::sync::oneshot;

use crate::state::shared::Shared;

/// A batch of saves. When its last save has ended, all of its chunks count as used once, in the
/// order of their chain.
#[derive(Debug)]
pub struct SaveBatch {
    shared: Arc<Shared>,
    chain: Vec<Digest>,
    hint: kvtier_core::Hint,
    set: Option<SetId>,
}

impl SaveBatch {
    /// Errors if the batch is an atomic set and there are too many incomplete sets.
    pub fn new(shared: &Arc<Shared>, ctx: &Ctx, ops: &[Save]) -> Result<Arc<Self>, SetsFull> {
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        let set = ctx
            .atomic_set_of(ops)
            .map_or(Ok(None), |whole| shared.catalog().index.declare_set(&whole))?;
        Ok(Arc::new(SaveBatch { shared: Arc::clone(shared), chain, hint: ctx.hint, set }))
    }

    /// Whether uses are recorded for the whole batch at its end.
    pub fn has_many(&self) -> bool {
        self.chain.len() > 1
    }
}

impl Drop for SaveBatch {
    fn drop(&mut self) {
        let mut catalog = self.shared.catalog();
        self.set.into_iter().for_each(|set| catalog.index.end_set(set));
        if self.has_many() {
            catalog.index.touch_batch(&self.chain);
        }
        drop(catalog);
        self.shared.hint(&self.chain, &self.hint);
    }
}

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

/// A chunk that is about to be saved, until it is stored or this is dropped.
#[derive(Debug)]
pub struct PendingChunk {
    shared: Arc<Shared>,
    key: Digest,
    place: ChainPlace,
    is_noted: bool,
}

impl PendingChunk {
    /// The chunk's position in its chain.
    pub fn place(&self) -> ChainPlace {
        self.place
    }
}

impl Drop for PendingChunk {
    fn drop(&mut self) {
        if self.is_noted {
            self.shared.catalog().index.remove_pending(DigestTag::from_digest(&self.key));
        }
    }
}

impl Shared {
    /// Registers the chunks of a batch at their positions: those of the caller, else those of
    /// earlier lookups. So none of them looks like an orphan because its request is faster than
    /// that of its parent.
    pub fn add_pending(self: &Arc<Self>, chain: Option<Chain>, ops: &[Save]) -> Vec<PendingChunk> {
        let mut catalog = self.catalog();
        let (mut before, mut depth) = chain.map_or((None, 0), |chain| (chain.parent, chain.depth));
        let mut add = |op: &Save| {
            let key = *op.key.digest();
            let tag = DigestTag::from_digest(op.key.digest());
            let place = match chain {
                Some(_) => ChainPlace::new(before.as_ref().map(DigestTag::from_digest), depth),
                None => catalog.index.place_of(&op.key),
            };
            (before, depth) = (Some(key), depth.saturating_add(1));
            let is_noted = catalog.index.add_pending(tag, place);
            PendingChunk { shared: Arc::clone(self), key, place, is_noted }
        };
        ops.iter().map(&mut add).collect()
    }

    /// Records that a request used these chunks, in the order of its chain, with the caller's
    /// hints.
    pub fn used(&self, chain: &[Digest], hint: &kvtier_core::Hint) {
        self.catalog().index.touch_batch(chain);
        self.cluster.touched(chain);
        self.hint(chain, hint);
    }

    fn hint(&self, chain: &[Digest], given: &kvtier_core::Hint) {
        if *given == kvtier_core::Hint::default() {
            return;
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut hint = EvictionHint::new().with_priority(given.priority);
        hint.session_ended = given.session_ended;
        (hint.expected_return_ms, hint.retention_ms) =
            (given.expected_return.map(ms), given.retention.map(ms));
        self.catalog().index.hint_batch(self.now_ms(), chain, &hint);
    }
}
