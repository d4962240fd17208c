//! Saves: to the tiers that are waited for, and behind them to those that are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvtier_core::{
    Class, Ctx, Digest, Done, Error, Key, Op, Save, Saved, ShedReason, Slot, Spill, Spilled,
    Ticket, Tier, TierExt, View,
};

use super::dirty::Share;
use super::exec::Spawner;
use super::flights::Flight;
use super::plan::{SavePlan, SaveStep, Tiers};
use super::verdict::better;
use super::{Asked, Inner, add};

/// A save on its way through the tiers.
struct Saving {
    /// Its place in the batch.
    at: usize,
    op: Save,
    slot: Slot<Save, Saved>,
    plan: SavePlan,
    best: Option<Result<Saved, Error>>,
}

/// A chunk that a lower tier gets in the background.
struct Behind {
    /// Its place in the batch.
    at: usize,
    tiers: Tiers,
    save: Save,
    _share: Share,
    /// End the wait of removes for this key, when dropped: one for each tier.
    _flights: Vec<Flight>,
}

/// What is said of all chunks of a batch.
struct Batch {
    ctx: Ctx,
    keys: Vec<Digest>,
}

impl Batch {
    fn new(ctx: &Ctx, keys: Vec<Digest>) -> Self {
        Batch { ctx: ctx.clone(), keys }
    }

    /// What a tier is told that gets the chunks at these places.
    fn part(&self, places: &[usize]) -> Ctx {
        self.ctx.for_part(&self.keys, places)
    }
}

/// Saves a batch.
pub async fn save(stack: &Arc<Inner>, ctx: &Ctx, asked: Asked<Save, Saved>) {
    let batch = Batch::new(ctx, asked.keys);
    let mut open = Vec::with_capacity(asked.taken.len());
    for (at, op, slot) in asked.taken {
        match slot.is_over() {
            None => open.push(Saving { at, op, slot, plan: SavePlan::new(), best: None }),
            Some(kind) => {
                let error = Error::new(kind, "the save ended before it began").with_op("save");
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    let mut behind = Vec::new();
    while !open.is_empty() {
        let mut waited: BTreeMap<Tiers, Vec<Saving>> = BTreeMap::new();
        for mut saving in open {
            match next(stack, &mut saving, &mut behind) {
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
    if !behind.is_empty() {
        stack.spawner.spawn(write_behind(Arc::clone(stack), batch, behind));
    }
}

/// The tiers that a save is to wait for next; `None` when it may be answered.
fn next(stack: &Inner, saving: &mut Saving, behind: &mut Vec<Behind>) -> Option<Tiers> {
    loop {
        match saving.plan.next(&stack.rules) {
            SaveStep::Wait(tiers) => return Some(tiers),
            SaveStep::Done => return None,
            SaveStep::Later { tiers, from } => match stack.behind(saving, tiers, from) {
                Some(one) => behind.extend(one),
                None => {
                    add(&stack.counters.dirty_full, 1);
                    saving.plan.no_room(tiers);
                }
            },
        }
    }
}

/// Saves chunks to some tiers, all at once, and notes what each made of it.
async fn save_to(stack: &Inner, batch: &Batch, tiers: Tiers, mut some: Vec<Saving>) -> Vec<Saving> {
    let ctx = batch.part(&some.iter().map(|saving| saving.at).collect::<Vec<_>>());
    let copies =
        || some.iter().map(|s| Save { key: s.op.key.clone(), from: s.op.from.clone() }).collect();
    // All have begun before the first is waited for.
    let begun: Vec<(usize, Ticket<_>)> =
        tiers.iter().map(|at| (at, stack.tiers[at].save(&ctx, copies()))).collect();
    for (at, ticket) in begun {
        let answers = patient(&*stack.tiers[at], &ctx, ticket.await).await;
        for (saving, answer) in some.iter_mut().zip(answers) {
            add(&stack.counters.tier_errors, u64::from(answer.is_err()));
            if matches!(answer, Ok(Saved::Stored | Saved::Present)) {
                saving.plan.heard(Tiers::only(at));
            }
            saving.best = Some(match saving.best.take() {
                Some(before) => better(before, answer),
                None => answer,
            });
        }
    }
    some
}

/// A tier's answers, with those that were throttled offered again until the deadline.
async fn patient(
    tier: &dyn Tier,
    ctx: &Ctx,
    answers: Vec<Done<Save, Saved>>,
) -> Vec<Result<Saved, Error>> {
    let keys: Vec<Digest> = answers.iter().map(|done| *done.op.key().digest()).collect();
    let (mut results, mut again) = (Vec::with_capacity(answers.len()), Vec::new());
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

/// Writes chunks to lower tiers. What cannot be written is lost to them, and counted.
async fn write_behind(stack: Arc<Inner>, batch: Batch, chunks: Vec<Behind>) {
    let all = chunks.iter().fold(Tiers::default(), |all, chunk| all.and(chunk.tiers));
    for at in all.iter() {
        let here = chunks.iter().filter(|chunk| chunk.tiers.iter().any(|tier| tier == at));
        let copy = |chunk: &Behind| {
            (chunk.at, Save { key: chunk.save.key.clone(), from: chunk.save.from.clone() })
        };
        let (places, saves): (Vec<usize>, Vec<Save>) = here.map(copy).unzip();
        // A tier that hangs takes its own time, not that of the next.
        let mut ctx = batch.part(&places).with_class(Class::Write);
        ctx.deadline = Ctx::within_on(&stack.time, stack.behind_max).deadline;
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
    /// What it takes to write a chunk of tier `from` to these tiers later; the inner `None` if that
    /// is under way already, the outer one when it cannot be done.
    fn behind(&self, saving: &Saving, tiers: Tiers, from: usize) -> Option<Option<Behind>> {
        let view = self.tiers[from].peek(&saving.op.key)?;
        self.behind_view(saving.at, (saving.op.key.clone(), view), tiers)
    }

    fn behind_view(
        &self,
        at: usize,
        (key, view): (Key, View),
        tiers: Tiers,
    ) -> Option<Option<Behind>> {
        let share = self.dirty.take(view.len() as u64)?;
        let begun =
            tiers.iter().filter_map(|to| Some((to, self.behind[to].begin(key.digest()).ok()?)));
        let (to, flights): (Vec<usize>, Vec<Flight>) = begun.unzip();
        let tiers = to.into_iter().fold(Tiers::default(), |all, to| all.and(Tiers::only(to)));
        let save = Save { key, from: vec![view] };
        Some((!tiers.is_empty()).then_some(Behind {
            at,
            tiers,
            save,
            _share: share,
            _flights: flights,
        }))
    }

    /// Resolves when a chunk that is on its way to lower tiers has arrived there, so that a remove
    /// takes it all.
    pub async fn settled(&self, key: &Key) {
        for flights in &self.behind {
            if let Some(landed) = flights.wait_for(key.digest()) {
                let _ = landed.await;
            }
        }
    }
}

/// Takes what a tier gives up to the tier below it.
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
        // They were nobody's batch: only those of one set have to do with each other.
        for together in
            victims.chunk_by(|a, b| a.atomic_set.is_some() && a.atomic_set == b.atomic_set)
        {
            let mut ctx = Ctx::within(Duration::ZERO);
            (ctx.atomic, ctx.atomic_set) =
                (together[0].atomic_set.is_some(), together[0].atomic_set.clone());
            let batch = Batch::new(&ctx, together.iter().map(|one| *one.key.digest()).collect());
            let mut behind = Vec::with_capacity(together.len());
            for (at, one) in together.iter().enumerate() {
                match stack.behind_view(
                    at,
                    (one.key.clone(), one.bytes.clone()),
                    Tiers::only(self.below),
                ) {
                    Some(one) => behind.extend(one),
                    None => add(&stack.counters.writeback_dropped, 1),
                }
            }
            add(&stack.counters.spilled, behind.len() as u64);
            if !behind.is_empty() {
                spawner.spawn(write_behind(Arc::clone(&stack), batch, behind));
            }
        }
    }
}
