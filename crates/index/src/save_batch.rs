//! Batches of saves, as every tier with an index runs them.
//!
//! A [`SaveBatch`] lives until its last save has ended, in whatever way. Then, in one critical
//! section, its atomic set is over and its chunks count as used, once and in the order of their
//! chain. Each save owns a [`PendingChunk`], which keeps the batch and the chunk's place in its
//! chain. A tier drops it before it answers the save, so that a caller with all results finds the
//! batch recorded.
//!
//! The index itself takes no lock and reads no clock: a tier gives both through [`SharedIndex`].
//! Both types lock when they are dropped, so no caller may hold the lock then.

use std::sync::Arc;

use kvtier_evict::EvictionHint;
use kvtier_key::{Digest, Key};

use crate::{ChainPlace, DigestTag, Index, SetId, SetsFull};

/// A tier's index behind its lock, and the tier's clock.
pub trait SharedIndex {
    /// Locks the index for `work`.
    fn with_index<R>(&self, work: impl FnOnce(&mut Index) -> R) -> R;

    /// Milliseconds on the index's clock.
    fn now_ms(&self) -> u64;

    /// Gives the policy the caller's hint for these chunks. An empty hint costs nothing.
    fn hint(&self, chain: &[Digest], hint: &EvictionHint) {
        if *hint != EvictionHint::default() {
            let now_ms = self.now_ms();
            self.with_index(|index| index.hint_batch(now_ms, chain, hint));
        }
    }
}

/// A batch of saves; see the module's notes.
#[derive(Debug)]
pub struct SaveBatch<S: SharedIndex> {
    shared: Arc<S>,
    chain: Vec<Digest>,
    hint: EvictionHint,
    set: Option<SetId>,
}

/// A chunk that is about to be saved. Until this is dropped, the index has its place in its chain,
/// and the chunk after it is no orphan.
#[derive(Debug)]
pub struct PendingChunk<S: SharedIndex> {
    batch: Arc<SaveBatch<S>>,
    tag: DigestTag,
    place: ChainPlace,
    is_added: bool,
}

impl<S: SharedIndex> SaveBatch<S> {
    /// Begins a batch with the caller's hint. `atomic_set` has the members of the atomic set that
    /// its chunks belong to.
    ///
    /// # Errors
    /// The chunks belong to an atomic set, and too many atomic sets are incomplete.
    pub fn begin<'a>(
        shared: &Arc<S>,
        keys: impl Iterator<Item = &'a Key>,
        atomic_set: Option<&[Digest]>,
        hint: EvictionHint,
    ) -> Result<Arc<Self>, SetsFull> {
        // Before the first save: a chunk that is committed before its set is declared would be a
        // hit by itself.
        let set = match atomic_set {
            Some(members) => shared.with_index(|index| index.declare_set(members))?,
            None => None,
        };
        let chain = keys.map(|key| *key.digest()).collect();
        Ok(Arc::new(SaveBatch { shared: Arc::clone(shared), chain, hint, set }))
    }

    /// Adds the chunks of the batch to the index as pending: from `first` on where the caller states
    /// the first one's place, else at the places that lookups showed. Without that, a chunk would
    /// look like an orphan when another thread saves it before its predecessor.
    pub fn add_pending<'a>(
        self: &Arc<Self>,
        mut first: Option<ChainPlace>,
        keys: impl Iterator<Item = &'a Key>,
    ) -> Vec<PendingChunk<S>> {
        let mut add = |index: &mut Index, key: &Key| {
            let tag = DigestTag::from_digest(key.digest());
            let place = index.place_in(&mut first, key);
            let is_added = index.add_pending(tag, place);
            PendingChunk { batch: Arc::clone(self), tag, place, is_added }
        };
        // One lock for the whole batch. No save of it can begin before all its predecessors are
        // known.
        self.shared.with_index(|index| keys.map(|key| add(index, key)).collect())
    }

    /// Whether the batch has several chunks, so that uses are recorded at its end.
    pub fn has_many(&self) -> bool {
        self.chain.len() > 1
    }
}

impl<S: SharedIndex> PendingChunk<S> {
    /// The chunk's place in its chain.
    pub fn place(&self) -> ChainPlace {
        self.place
    }

    /// The batch that the chunk is part of.
    pub fn batch(&self) -> &SaveBatch<S> {
        &self.batch
    }
}

impl<S: SharedIndex> Drop for SaveBatch<S> {
    fn drop(&mut self) {
        if self.set.is_some() || self.has_many() {
            self.shared.with_index(|index| {
                // One critical section for both, so that no victim is chosen between them.
                self.set.into_iter().for_each(|set| index.end_set(set));
                if self.has_many() {
                    index.touch_batch(&self.chain);
                }
            });
        }
        self.shared.hint(&self.chain, &self.hint);
    }
}

impl<S: SharedIndex> Drop for PendingChunk<S> {
    fn drop(&mut self) {
        if self.is_added {
            self.batch.shared.with_index(|index| index.remove_pending(self.tag));
        }
    }
}
