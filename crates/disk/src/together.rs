//! What batches tell of the chains that their chunks are in.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Chain, Ctx, Save};
use kvtier_evict::Hint;
use kvtier_index::journal::Record;
use kvtier_index::{ChainPlace, Tag};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

/// A batch of saves: when the last of it has ended, all of it counts as used, once and in the order of its chain.
#[derive(Debug)]
pub struct Together<M: Mover> {
    shared: Arc<Shared<M>>,
    chain: Vec<Digest>,
    hint: kvtier_core::Hint,
    is_set: bool,
}

impl<M: Mover> Together<M> {
    pub fn new(shared: &Arc<Shared<M>>, ctx: &Ctx, ops: &[Save]) -> Arc<Self> {
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        let is_set = ctx.together && shared.index().declare_set(&chain);
        Arc::new(Together { shared: Arc::clone(shared), chain, hint: ctx.hint, is_set })
    }

    /// Whether what is said of one chunk is said of it when the batch is over.
    pub fn are_many(&self) -> bool {
        self.chain.len() > 1
    }
}

impl<M: Mover> Drop for Together<M> {
    fn drop(&mut self) {
        if self.are_many() {
            let mut index = self.shared.index();
            if self.is_set {
                index.end_set(&self.chain);
            }
            index.touch_batch(&self.chain);
        }
        self.shared.hint(&self.chain, &self.hint);
    }
}

/// A chunk that is about to be saved, until it is there or this is dropped.
#[derive(Debug)]
pub struct Announced<M: Mover> {
    shared: Arc<Shared<M>>,
    key: Digest,
    place: ChainPlace,
    over: bool,
}

impl<M: Mover> Announced<M> {
    /// Where the chunk stands in its chain.
    pub fn place(&self) -> ChainPlace {
        self.place
    }

    /// The index has it.
    pub fn is_there(&mut self) {
        self.over = true;
    }
}

impl<M: Mover> Drop for Announced<M> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.index().settle(Tag::of(&self.key));
        }
    }
}

impl<M: Mover> Shared<M> {
    /// Announces the chunks of a batch of saves at their places: as the caller says, else as lookups told. So none of them passes for an
    /// orphan because another thread is faster with it than with the one before.
    pub fn announce(self: &Arc<Self>, chain: Option<Chain>, ops: &[Save]) -> Vec<Announced<M>> {
        let mut index = self.index();
        let (mut before, mut depth) = chain.map_or((None, 0), |chain| (chain.parent, chain.depth));
        let mut announce = |op: &Save| {
            let (key, tag) = (*op.key.digest(), Tag::of(op.key.digest()));
            let place = match chain {
                Some(_) => ChainPlace::new(before.as_ref().map(Tag::of), depth),
                None => index.place_of(&op.key),
            };
            (before, depth) = (Some(*op.key.digest()), depth.saturating_add(1));
            index.expect(tag, place);
            Announced { shared: Arc::clone(self), key, place, over: false }
        };
        ops.iter().map(&mut announce).collect()
    }

    /// Notes that a request used these chunks, in the order of its chain, and what its caller expects of them.
    pub fn used(&self, chain: &[Digest], hint: &kvtier_core::Hint) {
        self.index().touch_batch(chain);
        self.note_use(chain);
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
        let mut hint = Hint::new().with_priority(told.priority);
        hint.session_ended = told.session_ended;
        (hint.expected_return_ms, hint.retention_ms) = (told.expected_return.map(ms), told.retention.map(ms));
        self.index().hint_batch(self.now_ms(), chain, &hint);
    }
}
