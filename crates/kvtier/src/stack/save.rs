//! Saves: first to the tiers that the caller waits for, then to the others in the background.
//! [`write_back`](super::write_back) does the latter.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtier_core::{
    Ctx, Digest, Done, Error, Op, Save, Saved, ShedReason, Slot, Ticket, Tier, TierExt,
};

use super::merge::better;
use super::placement::{SavePlan, SaveStep, TierSet};
use super::write_back::{WriteBack, WriteBackBatch, run_write_back};
use super::{Admitted, Inner, add};

/// A save that is not answered yet.
struct StackSave {
    /// Its index in the batch.
    at: usize,
    op: Save,
    slot: Slot<Save, Saved>,
    plan: SavePlan,
    best: Option<Result<Saved, Error>>,
}

/// Saves a batch.
pub async fn save(stack: Arc<Inner>, ctx: Ctx, admitted: Admitted<Save, Saved>) {
    let batch = WriteBackBatch::new(&ctx, admitted.keys);
    let mut open = Vec::with_capacity(admitted.ops.len());
    for (at, op, slot) in admitted.ops {
        // A batch may have waited for this thread until its deadline. What is over must not reach a
        // tier.
        match slot.is_over() {
            None => open.push(StackSave { at, op, slot, plan: SavePlan::new(), best: None }),
            Some(kind) => {
                let error = Error::new(kind, "the save ended before it began").with_op("save");
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    let mut deferred = Vec::new();
    while !open.is_empty() {
        // Saves that wait for the same tiers go there as one batch. A map in order makes the order
        // of the batches the same in every run.
        let mut waited: BTreeMap<TierSet, Vec<StackSave>> = BTreeMap::new();
        for mut saving in open {
            match next(&stack, &mut saving, &mut deferred) {
                Some(tiers) => waited.entry(tiers).or_default().push(saving),
                // The caller is answered as soon as the tiers it waits for have answered. What is
                // deferred is written after all answers.
                None => saving
                    .slot
                    .finish(saving.op, saving.best.unwrap_or(Ok(Saved::Shed(ShedReason::Full)))),
            }
        }
        open = Vec::new();
        for (tiers, some) in waited {
            open.extend(save_to(&stack, &batch, tiers, some).await);
        }
    }
    if !deferred.is_empty() {
        // A task of its own: the next batch of this caller does not wait for slow tiers.
        stack.spawner.spawn(run_write_back(Arc::clone(&stack), batch, deferred));
    }
}

/// The tiers that a save waits for next; `None` if it can be answered.
fn next(stack: &Inner, saving: &mut StackSave, deferred: &mut Vec<WriteBack>) -> Option<TierSet> {
    loop {
        match saving.plan.next(&stack.rules) {
            SaveStep::Wait(tiers) => return Some(tiers),
            SaveStep::Done => return None,
            SaveStep::Later { tiers, from } => match stack.write_back(saving, tiers, from) {
                Some(one) => deferred.extend(one),
                None => {
                    // Too much waits already, or no tier above can show the bytes any more. The
                    // caller then waits for the tier itself, which slows it down to that tier's
                    // speed.
                    add(&stack.counters.dirty_full, 1);
                    saving.plan.cannot_defer(tiers);
                }
            },
        }
    }
}

/// Saves chunks to some tiers at once, and records each tier's answer.
async fn save_to(
    stack: &Inner,
    batch: &WriteBackBatch,
    tiers: TierSet,
    mut some: Vec<StackSave>,
) -> Vec<StackSave> {
    let ctx = batch.part(&some.iter().map(|saving| saving.at).collect::<Vec<_>>());
    // The ops share the caller's views, so several tiers read the same memory and nothing is copied
    // here.
    let copies =
        || some.iter().map(|s| Save { key: s.op.key.clone(), from: s.op.from.clone() }).collect();
    // All tiers begin before the first is waited for.
    let begun: Vec<(usize, Ticket<_>)> =
        tiers.iter().map(|at| (at, stack.tiers[at].save(&ctx, copies()))).collect();
    for (at, ticket) in begun {
        let answers = retry_throttled(&*stack.tiers[at], &ctx, ticket.await).await;
        for (saving, answer) in some.iter_mut().zip(answers) {
            add(&stack.counters.tier_errors, u64::from(answer.is_err()));
            // A tier that already has the chunk can serve it and be the origin of a write-back, as
            // if it had stored it now.
            if matches!(answer, Ok(Saved::Stored | Saved::Present)) {
                saving.plan.kept_by(TierSet::only(at));
            }
            saving.best = Some(match saving.best.take() {
                Some(before) => better(before, answer),
                None => answer,
            });
        }
    }
    some
}

/// A tier's answers, after throttled ops were retried until the deadline.
async fn retry_throttled(
    tier: &dyn Tier,
    ctx: &Ctx,
    answers: Vec<Done<Save, Saved>>,
) -> Vec<Result<Saved, Error>> {
    let keys: Vec<Digest> = answers.iter().map(|done| *done.op.key().digest()).collect();
    let mut results = Vec::with_capacity(answers.len());
    let mut again = Vec::new();
    for (at, Done { op, result }) in answers.into_iter().enumerate() {
        // Only what was throttled is sent once more. Other answers are final.
        if matches!(result, Ok(Saved::Shed(ShedReason::Throttled))) {
            again.push((at, op));
        }
        results.push(result);
    }
    // `ready` ends at the deadline with an error; the first answer, throttled, then stays.
    if !again.is_empty() && tier.ready(ctx).await.is_ok() {
        let (places, ops): (Vec<_>, Vec<_>) = again.into_iter().unzip();
        let ctx = ctx.for_part(&keys, &places);
        for (at, done) in places.into_iter().zip(tier.save_waiting(&ctx, ops).await) {
            results[at] = done.result;
        }
    }
    results
}

impl Inner {
    /// Prepares to write a chunk of tier `from` to these tiers later. The inner `None` says that it
    /// is under way already, the outer one that it is impossible.
    fn write_back(
        &self,
        saving: &StackSave,
        tiers: TierSet,
        from: usize,
    ) -> Option<Option<WriteBack>> {
        // The caller gets its memory back with the answer, so the bytes come from the tier that
        // keeps them. A tier without memory of its own has no view.
        let view = self.tiers[from].peek(&saving.op.key)?;
        self.write_back_of(saving.at, saving.op.key.clone(), view, tiers)
    }
}
