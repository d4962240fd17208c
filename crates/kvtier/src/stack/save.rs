//! Saves: first to the tiers that the caller waits for, then to the others in the background.
//!
//! A chunk in the background is read from the tier above through a view, so that the caller's memory
//! is returned with the answer. It holds a reservation of [`write_back`](super::write_back) and one
//! flight per target tier, both released when it is dropped, also if the executor ends first.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvtier_core::{
    Class, Ctx, Digest, Done, Error, Key, Op, Save, Saved, ShedReason, Slot, Spill, Spilled,
    Ticket, Tier, TierExt, View,
};

use super::executor::Spawner;
use super::merge::better;
use super::plan::{SavePlan, SaveStep, Tiers};
use super::single_flight::Flight;
use super::write_back::DirtyShare;
use super::{Admitted, Inner, add};

/// A save that is not answered yet.
struct PendingSave {
    /// Its index in the batch.
    at: usize,
    op: Save,
    slot: Slot<Save, Saved>,
    plan: SavePlan,
    best: Option<Result<Saved, Error>>,
}

/// A chunk to be written to lower tiers in the background.
struct WriteBack {
    /// Its index in the batch.
    at: usize,
    tiers: Tiers,
    save: Save,
    _share: DirtyShare,
    /// One for each tier: dropping them wakes the removes of this key.
    _flights: Vec<Flight>,
}

/// The context of a batch, and all of its keys.
struct Batch {
    ctx: Ctx,
    keys: Vec<Digest>,
}

impl Batch {
    fn new(ctx: &Ctx, keys: Vec<Digest>) -> Self {
        Batch { ctx: ctx.clone(), keys }
    }

    /// The context for a tier that gets the chunks at these indices.
    fn part(&self, places: &[usize]) -> Ctx {
        self.ctx.for_part(&self.keys, places)
    }
}

/// Saves a batch.
pub async fn save(stack: &Arc<Inner>, ctx: &Ctx, admitted: Admitted<Save, Saved>) {
    let batch = Batch::new(ctx, admitted.keys);
    let mut open = Vec::with_capacity(admitted.ops.len());
    for (at, op, slot) in admitted.ops {
        match slot.is_over() {
            None => open.push(PendingSave { at, op, slot, plan: SavePlan::new(), best: None }),
            Some(kind) => {
                let error = Error::new(kind, "the save ended before it began").with_op("save");
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    let mut deferred = Vec::new();
    while !open.is_empty() {
        let mut waited: BTreeMap<Tiers, Vec<PendingSave>> = BTreeMap::new();
        for mut saving in open {
            match next(stack, &mut saving, &mut deferred) {
                Some(tiers) => waited.entry(tiers).or_default().push(saving),
                None => saving
                    .slot
                    .finish(saving.op, saving.best.unwrap_or(Ok(Saved::Shed(ShedReason::Full)))),
            }
        }
        open = Vec::new();
        for (tiers, some) in waited {
            open.extend(save_to(stack, &batch, tiers, some).await);
        }
    }
    if !deferred.is_empty() {
        stack.spawner.spawn(run_write_back(Arc::clone(stack), batch, deferred));
    }
}

/// The tiers that a save waits for next; `None` if it can be answered.
fn next(stack: &Inner, saving: &mut PendingSave, deferred: &mut Vec<WriteBack>) -> Option<Tiers> {
    loop {
        match saving.plan.next(&stack.rules) {
            SaveStep::Wait(tiers) => return Some(tiers),
            SaveStep::Done => return None,
            SaveStep::Later { tiers, from } => match stack.write_back(saving, tiers, from) {
                Some(one) => deferred.extend(one),
                None => {
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
    batch: &Batch,
    tiers: Tiers,
    mut some: Vec<PendingSave>,
) -> Vec<PendingSave> {
    let ctx = batch.part(&some.iter().map(|saving| saving.at).collect::<Vec<_>>());
    let copies =
        || some.iter().map(|s| Save { key: s.op.key.clone(), from: s.op.from.clone() }).collect();
    // All tiers begin before the first is waited for.
    let begun: Vec<(usize, Ticket<_>)> =
        tiers.iter().map(|at| (at, stack.tiers[at].save(&ctx, copies()))).collect();
    for (at, ticket) in begun {
        let answers = retry_throttled(&*stack.tiers[at], &ctx, ticket.await).await;
        for (saving, answer) in some.iter_mut().zip(answers) {
            add(&stack.counters.tier_errors, u64::from(answer.is_err()));
            if matches!(answer, Ok(Saved::Stored | Saved::Present)) {
                saving.plan.kept_by(Tiers::only(at));
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
        if matches!(result, Ok(Saved::Shed(ShedReason::Throttled))) {
            again.push((at, op));
        }
        results.push(result);
    }
    if !again.is_empty() && tier.ready(ctx).await.is_ok() {
        let (places, ops): (Vec<_>, Vec<_>) = again.into_iter().unzip();
        let ctx = ctx.for_part(&keys, &places);
        for (at, done) in places.into_iter().zip(tier.save_waiting(&ctx, ops).await) {
            results[at] = done.result;
        }
    }
    results
}

/// Writes chunks to lower tiers. Chunks that cannot be written are counted and dropped.
async fn run_write_back(stack: Arc<Inner>, batch: Batch, chunks: Vec<WriteBack>) {
    let all = chunks.iter().fold(Tiers::default(), |all, chunk| all.and(chunk.tiers));
    for at in all.iter() {
        let here = chunks.iter().filter(|chunk| chunk.tiers.iter().any(|tier| tier == at));
        let copy = |chunk: &WriteBack| {
            (chunk.at, Save { key: chunk.save.key.clone(), from: chunk.save.from.clone() })
        };
        let (places, saves): (Vec<usize>, Vec<Save>) = here.map(copy).unzip();
        // Each tier has a deadline of its own, so that one that hangs does not delay the next.
        let mut ctx = batch.part(&places).with_class(Class::Write);
        ctx.deadline = Ctx::within_on(&stack.time, stack.write_back_timeout).deadline;
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
    /// Prepares to write a chunk of tier `from` to these tiers later. The inner `None` says that it
    /// is under way already, the outer one that it is impossible.
    fn write_back(
        &self,
        saving: &PendingSave,
        tiers: Tiers,
        from: usize,
    ) -> Option<Option<WriteBack>> {
        let view = self.tiers[from].peek(&saving.op.key)?;
        self.write_back_of(saving.at, saving.op.key.clone(), view, tiers)
    }

    fn write_back_of(
        &self,
        at: usize,
        key: Key,
        view: View,
        tiers: Tiers,
    ) -> Option<Option<WriteBack>> {
        let share = self.dirty.take(view.len() as u64)?;
        let begun = tiers
            .iter()
            .filter_map(|to| Some((to, self.write_backs[to].begin(key.digest()).ok()?)));
        let (to, flights): (Vec<usize>, Vec<Flight>) = begun.unzip();
        let tiers = to.into_iter().fold(Tiers::default(), |all, to| all.and(Tiers::only(to)));
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
        let Some(stack) = self.stack.upgrade() else { return };
        let spawner: Spawner = stack.spawner.clone();
        // They are no batch of a caller: only chunks of one set belong together.
        for group in victims.chunk_by(|a, b| a.atomic_set.is_some() && a.atomic_set == b.atomic_set)
        {
            let mut ctx = Ctx::within(Duration::ZERO);
            (ctx.atomic, ctx.atomic_set) =
                (group[0].atomic_set.is_some(), group[0].atomic_set.clone());
            let batch = Batch::new(&ctx, group.iter().map(|one| *one.key.digest()).collect());
            let mut deferred = Vec::with_capacity(group.len());
            for (at, one) in group.iter().enumerate() {
                match stack.write_back_of(
                    at,
                    one.key.clone(),
                    one.bytes.clone(),
                    Tiers::only(self.below),
                ) {
                    Some(one) => deferred.extend(one),
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
