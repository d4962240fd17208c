//! Batches of saves and the chains that their chunks form.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Chain, Ctx, Save};
use kvtier_evict::EvictionHint;
use kvtier_index::journal::Record;
use kvtier_index::{ChainPlace, DigestTag, SetId, SetsFull};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

/// A batch of saves. When its last save has ended, all of its chunks count as used, once and in the
/// order of their chain.
#[derive(Debug)]
pub struct SaveBatch<M: Mover> {
    shared: Arc<Shared<M>>,
    chain: Vec<Digest>,
    hint: kvtier_core::Hint,
    set: Option<SetId>,
}

impl<M: Mover> SaveBatch<M> {
    /// Begins a batch.
    ///
    /// # Errors
    /// The batch is an atomic set, and too many atomic sets are incomplete.
    pub fn new(shared: &Arc<Shared<M>>, ctx: &Ctx, ops: &[Save]) -> Result<Arc<Self>, SetsFull> {
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        let set =
            ctx.atomic_set_of(ops).map_or(Ok(None), |whole| shared.index().declare_set(&whole))?;
        Ok(Arc::new(SaveBatch { shared: Arc::clone(shared), chain, hint: ctx.hint, set }))
    }

    /// Whether the batch has several chunks, so that uses and hints are applied at its end.
    pub fn has_many(&self) -> bool {
        self.chain.len() > 1
    }
}

impl<M: Mover> Drop for SaveBatch<M> {
    fn drop(&mut self) {
        let mut index = self.shared.index();
        self.set.into_iter().for_each(|set| index.end_set(set));
        if self.has_many() {
            index.touch_batch(&self.chain);
        }
        drop(index);
        self.shared.hint(&self.chain, &self.hint);
    }
}

/// A chunk that is about to be saved. The index has its place in the chain until the chunk is
/// inserted or this is dropped.
#[derive(Debug)]
pub struct PendingChunk<M: Mover> {
    shared: Arc<Shared<M>>,
    key: Digest,
    place: ChainPlace,
    is_added: bool,
}

impl<M: Mover> PendingChunk<M> {
    /// The chunk's place in its chain.
    pub fn place(&self) -> ChainPlace {
        self.place
    }
}

impl<M: Mover> Drop for PendingChunk<M> {
    fn drop(&mut self) {
        if self.is_added {
            self.shared.index().remove_pending(DigestTag::from_digest(&self.key));
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Adds the chunks of a batch of saves to the index as pending, at the places that the caller
    /// states, else at those that lookups showed. Without that, a chunk would look like an orphan
    /// when another thread saves it before its predecessor.
    pub fn add_pending(
        self: &Arc<Self>,
        chain: Option<Chain>,
        ops: &[Save],
    ) -> Vec<PendingChunk<M>> {
        let mut index = self.index();
        let mut before = chain.and_then(|chain| chain.parent);
        let mut depth = chain.map_or(0, |chain| chain.depth);
        let mut add = |op: &Save| {
            let key = *op.key.digest();
            let place = match chain {
                Some(_) => ChainPlace::new(before.as_ref().map(DigestTag::from_digest), depth),
                None => index.place_of(&op.key),
            };
            before = Some(key);
            depth = depth.saturating_add(1);
            let is_added = index.add_pending(DigestTag::from_digest(&key), place);
            PendingChunk { shared: Arc::clone(self), key, place, is_added }
        };
        ops.iter().map(&mut add).collect()
    }

    /// Notes that a request used these chunks, in the order of its chain, and the caller's hint.
    pub fn used(&self, chain: &[Digest], hint: &kvtier_core::Hint) {
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

    fn hint(&self, chain: &[Digest], given: &kvtier_core::Hint) {
        if *given == kvtier_core::Hint::default() {
            return;
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut hint = EvictionHint::new().with_priority(given.priority);
        hint.session_ended = given.session_ended;
        hint.expected_return_ms = given.expected_return.map(ms);
        hint.retention_ms = given.retention.map(ms);
        self.index().hint_batch(self.now_ms(), chain, &hint);
    }
}
