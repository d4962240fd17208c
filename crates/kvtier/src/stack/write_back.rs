//! Write-back: chunks that are written to lower tiers in the background, after their save was
//! answered or because the tier above evicts them.
//!
//! A chunk in the background is read from the tier above through a view, so that the caller's memory
//! is returned with the answer. It holds a reservation of [`dirty_bytes`](super::dirty_bytes) and one
//! flight per target tier, both released when it is dropped, also if the executor ends first.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvtier_core::{Class, Ctx, Digest, Key, Save, Saved, Spill, Spilled, TierExt, View};

use super::dirty_bytes::DirtyShare;
use super::executor::Spawner;
use super::placement::TierSet;
use super::single_flight::Flight;
use super::{Inner, add};

/// A chunk to be written to lower tiers in the background.
pub struct WriteBack {
    /// Its index in the batch.
    at: usize,
    tiers: TierSet,
    save: Save,
    _share: DirtyShare,
    /// One for each tier: dropping them wakes the removes of this key.
    _flights: Vec<Flight>,
}

/// The context of a batch, and all of its keys.
pub struct WriteBackBatch {
    ctx: Ctx,
    keys: Vec<Digest>,
}

impl WriteBackBatch {
    pub fn new(ctx: &Ctx, keys: Vec<Digest>) -> Self {
        WriteBackBatch { ctx: ctx.clone(), keys }
    }

    /// The context for a tier that gets the chunks at these indices.
    pub fn part(&self, places: &[usize]) -> Ctx {
        self.ctx.for_part(&self.keys, places)
    }
}

/// Writes chunks to lower tiers. Chunks that cannot be written are counted and dropped.
pub async fn run_write_back(stack: Arc<Inner>, batch: WriteBackBatch, chunks: Vec<WriteBack>) {
    let all = chunks.iter().fold(TierSet::default(), |all, chunk| all.and(chunk.tiers));
    for at in all.iter() {
        let here = chunks.iter().filter(|chunk| chunk.tiers.iter().any(|tier| tier == at));
        let copy = |chunk: &WriteBack| {
            (chunk.at, Save { key: chunk.save.key.clone(), from: chunk.save.from.clone() })
        };
        let (places, saves): (Vec<usize>, Vec<Save>) = here.map(copy).unzip();
        // Each tier has a deadline of its own, so that one that hangs does not delay the next.
        let mut ctx = batch.part(&places).with_class(Class::Write);
        ctx.deadline = Ctx::within_on(&stack.time, stack.write_back_timeout).deadline;
        // It waits while the tier throttles: a write-back has no caller that could try again.
        for done in stack.tiers[at].save_waiting(&ctx, saves).await {
            match done.result {
                Ok(Saved::Stored | Saved::Present) => add(&stack.counters.written_behind, 1),
                Ok(_) => add(&stack.counters.writeback_dropped, 1),
                Err(_) => {
                    add(&stack.counters.writeback_dropped, 1);
                    add(&stack.counters.tier_errors, 1);
                }
            }
        }
    }
}

impl Inner {
    /// Prepares to write a chunk to these tiers later. The inner `None` says that it is under way
    /// already, the outer one that too many bytes wait.
    pub fn write_back_of(
        &self,
        at: usize,
        key: Key,
        view: View,
        tiers: TierSet,
    ) -> Option<Option<WriteBack>> {
        // Taken before the view is kept: the bound is on memory that cannot be evicted while it
        // waits.
        let share = self.dirty.take(view.len() as u64)?;
        let begun = tiers
            .iter()
            // A write of the same key to this tier is under way, and equal keys have equal bytes. A
            // second write would only cost.
            .filter_map(|to| Some((to, self.write_backs[to].begin(key.digest()).ok()?)));
        let (to, flights): (Vec<usize>, Vec<Flight>) = begun.unzip();
        let tiers = to.into_iter().fold(TierSet::default(), |all, to| all.and(TierSet::only(to)));
        let save = Save { key, from: vec![view] };
        Some((!tiers.is_empty()).then_some(WriteBack {
            at,
            tiers,
            save,
            _share: share,
            _flights: flights,
        }))
    }

    /// Waits until no write of this key to a lower tier is under way.
    pub async fn settled(&self, key: &Key) {
        for flights in &self.write_backs {
            // A remove asks for this. Otherwise a write that began before it would bring the chunk
            // back after it.
            if let Some(landed) = flights.wait_for(key.digest()) {
                let _ = landed.await;
            }
        }
    }
}

/// Writes the chunks that a tier evicts to the tier below it.
#[derive(Debug)]
pub struct Spiller {
    stack: Weak<Inner>,
    below: usize,
}

impl Spiller {
    pub fn new(stack: &Arc<Inner>, below: usize) -> Arc<Self> {
        Arc::new(Spiller { stack: Arc::downgrade(stack), below })
    }
}

impl Spill for Spiller {
    fn take(&self, victims: Vec<Spilled>) {
        // The stack is gone: no tier below is left to write to. A strong handle here would keep the
        // stack alive through its own tier.
        let Some(stack) = self.stack.upgrade() else { return };
        let spawner: Spawner = stack.spawner.clone();
        // They are no batch of a caller: only chunks of one set belong together.
        for group in victims.chunk_by(|a, b| a.atomic_set.is_some() && a.atomic_set == b.atomic_set)
        {
            let mut ctx = Ctx::within(Duration::ZERO);
            (ctx.atomic, ctx.atomic_set) =
                (group[0].atomic_set.is_some(), group[0].atomic_set.clone());
            let batch =
                WriteBackBatch::new(&ctx, group.iter().map(|one| *one.key.digest()).collect());
            let mut deferred = Vec::with_capacity(group.len());
            for (at, one) in group.iter().enumerate() {
                match stack.write_back_of(
                    at,
                    one.key.clone(),
                    one.bytes.clone(),
                    TierSet::only(self.below),
                ) {
                    Some(one) => deferred.extend(one),
                    // The chunk is lost from the stack. Waiting is no choice: this runs on the
                    // thread of the save that evicts.
                    None => add(&stack.counters.writeback_dropped, 1),
                }
            }
            add(&stack.counters.spilled, deferred.len() as u64);
            if !deferred.is_empty() {
                spawner.spawn(run_write_back(Arc::clone(&stack), batch, deferred));
            }
        }
    }
}
