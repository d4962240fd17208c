//! What batches tell of the chains that their chunks are in.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Chain, Ctx, Save};
use kvtier_evict::EvictionHint;
use kvtier_index::journal::Record;
use kvtier_index::{ChainPlace, DigestTag, SetId, SetsFull};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

/// A batch of saves: when the last of it has ended, all of it counts as used, once and in the order
/// of its chain.
#[derive(Debug)]
pub struct Together<M: Mover> {
    shared: Arc<Shared<M>>,
    chain: Vec<Digest>,
    hint: kvtier_core::Hint,
    set: Option<SetId>,
}

impl<M: Mover> Together<M> {
    /// Errors when its chunks are there together or not at all, and there are too many such
    /// already.
    pub fn new(shared: &Arc<Shared<M>>, ctx: &Ctx, ops: &[Save]) -> Result<Arc<Self>, SetsFull> {
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        let set =
            ctx.atomic_set_of(ops).map_or(Ok(None), |whole| shared.index().declare_set(&whole))?;
        Ok(Arc::new(Together { shared: Arc::clone(shared), chain, hint: ctx.hint, set }))
    }

    /// Whether what is said of one chunk is said of it when the batch is over.
    pub fn are_many(&self) -> bool {
        self.chain.len() > 1
    }
}

impl<M: Mover> Drop for Together<M> {
    fn drop(&mut self) {
        let mut index = self.shared.index();
        self.set.into_iter().for_each(|set| index.end_set(set));
        if self.are_many() {
            index.touch_batch(&self.chain);
        }
        drop(index);
        self.shared.hint(&self.chain, &self.hint);
    }
}

/// A chunk that is about to be saved, until it is there or this is dropped.
#[derive(Debug)]
pub struct Announced<M: Mover> {
    shared: Arc<Shared<M>>,
    key: Digest,
    place: ChainPlace,
    is_noted: bool,
}

impl<M: Mover> Announced<M> {
    /// Where the chunk stands in its chain.
    pub fn place(&self) -> ChainPlace {
        self.place
    }
}

impl<M: Mover> Drop for Announced<M> {
    fn drop(&mut self) {
        if self.is_noted {
            self.shared.index().remove_pending(DigestTag::from_digest(&self.key));
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Announces the chunks of a batch of saves at their places: as the caller says, else as
    /// lookups told. So none of them passes for an orphan because another thread is faster with
    /// it than with the one before.
    pub fn announce(self: &Arc<Self>, chain: Option<Chain>, ops: &[Save]) -> Vec<Announced<M>> {
        let mut index = self.index();
        let (mut before, mut depth) = chain.map_or((None, 0), |chain| (chain.parent, chain.depth));
        let mut announce = |op: &Save| {
            let (key, tag) = (*op.key.digest(), DigestTag::from_digest(op.key.digest()));
            let place = match chain {
                Some(_) => ChainPlace::new(before.as_ref().map(DigestTag::from_digest), depth),
                None => index.place_of(&op.key),
            };
            (before, depth) = (Some(*op.key.digest()), depth.saturating_add(1));
            let is_noted = index.add_pending(tag, place);
            Announced { shared: Arc::clone(self), key, place, is_noted }
        };
        ops.iter().map(&mut announce).collect()
    }

    /// Notes that a request used these chunks, in the order of its chain, and what its caller
    /// expects of them.
    pub fn used(&self, chain: &[Digest], hint: &kvtier_core::Hint) {
        let mut index = self.index();
        index.touch_batch(chain);
        // Of a chunk that is not there nothing has to be known at the next start.
        let known: Vec<Digest> =
            chain.iter().copied().filter(|digest| index.is_known(digest)).collect();
        drop(index);
        self.note_use(&known);
        self.hint(chain, hint);
    }

    /// Writes a use down for the next start. The last to be touched is the most recent: the head.
    pub fn note_use(&self, chain: &[Digest]) {
        self.journal.note(chain.iter().rev().map(|digest| Record::Touch(*digest)));
    }

    fn hint(&self, chain: &[Digest], told: &kvtier_core::Hint) {
        if *told == kvtier_core::Hint::default() {
            return;
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut hint = EvictionHint::new().with_priority(told.priority);
        hint.session_ended = told.session_ended;
        (hint.expected_return_ms, hint.retention_ms) =
            (told.expected_return.map(ms), told.retention.map(ms));
        self.index().hint_batch(self.now_ms(), chain, &hint);
    }
}
