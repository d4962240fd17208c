//! Saves: to the tiers that are waited for, and behind them to those that are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kvtier_core::{Class, Ctx, Done, Error, Key, Save, Saved, ShedReason, Slot, Spill, Ticket, Tier, TierExt, View};

use super::dirty::Share;
use super::exec::Spawner;
use super::flights::Flight;
use super::plan::{SavePlan, SaveStep, Tiers};
use super::verdict::better;
use super::{Inner, add};

/// A save on its way through the tiers.
struct Saving {
    op: Save,
    slot: Slot<Save, Saved>,
    plan: SavePlan,
    best: Option<Result<Saved, Error>>,
}

/// A chunk that a lower tier gets in the background.
struct Behind {
    tiers: Tiers,
    save: Save,
    _share: Share,
    /// Ends the wait of removes for this key, when dropped.
    _flight: Flight,
}

/// Saves a batch.
pub async fn save(stack: &Arc<Inner>, ctx: &Ctx, ops: Vec<(Save, Slot<Save, Saved>)>) {
    let mut open = Vec::with_capacity(ops.len());
    for (op, slot) in ops {
        match slot.is_over() {
            None => open.push(Saving { op, slot, plan: SavePlan::new(), best: None }),
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
                None => saving.slot.finish(saving.op, saving.best.unwrap_or(Ok(Saved::Shed(ShedReason::Full)))),
            }
        }
        open = Vec::new();
        for (tiers, some) in waited {
            open.extend(save_to(stack, ctx, tiers, some).await);
        }
    }
    if !behind.is_empty() {
        stack.spawner.spawn(write_behind(Arc::clone(stack), behind));
    }
}

/// The tiers that a save is to wait for next; `None` when it may be answered.
fn next(stack: &Inner, saving: &mut Saving, behind: &mut Vec<Behind>) -> Option<Tiers> {
    loop {
        match saving.plan.next(&stack.rules) {
            SaveStep::Wait(tiers) => return Some(tiers),
            SaveStep::Done => return None,
            SaveStep::Later { tiers, from } => match stack.behind(&saving.op.key, tiers, from) {
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
async fn save_to(stack: &Inner, ctx: &Ctx, tiers: Tiers, mut some: Vec<Saving>) -> Vec<Saving> {
    let copies = || some.iter().map(|s| Save { key: s.op.key.clone(), from: s.op.from.clone() }).collect();
    // All have begun before the first is waited for.
    let begun: Vec<(usize, Ticket<_>)> = tiers.iter().map(|at| (at, stack.tiers[at].save(ctx, copies()))).collect();
    for (at, ticket) in begun {
        let answers = patient(&*stack.tiers[at], ctx, ticket.await).await;
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
async fn patient(tier: &dyn Tier, ctx: &Ctx, answers: Vec<Done<Save, Saved>>) -> Vec<Result<Saved, Error>> {
    let (mut results, mut again) = (Vec::with_capacity(answers.len()), Vec::new());
    for (at, Done { op, result }) in answers.into_iter().enumerate() {
        if matches!(result, Ok(Saved::Shed(ShedReason::Throttled))) {
            again.push((at, op));
        }
        results.push(result);
    }
    if !again.is_empty() && tier.ready(ctx).await.is_ok() {
        let (places, ops): (Vec<_>, Vec<_>) = again.into_iter().unzip();
        for (at, done) in places.into_iter().zip(tier.save_waiting(ctx, ops).await) {
            results[at] = done.result;
        }
    }
    results
}

/// Writes chunks to lower tiers. What cannot be written is lost to them, and counted.
async fn write_behind(stack: Arc<Inner>, chunks: Vec<Behind>) {
    let all = chunks.iter().fold(Tiers::default(), |all, chunk| all.and(chunk.tiers));
    for at in all.iter() {
        let here = chunks.iter().filter(|chunk| chunk.tiers.iter().any(|tier| tier == at));
        let saves = here.map(|chunk| Save { key: chunk.save.key.clone(), from: chunk.save.from.clone() }).collect();
        // A tier that hangs takes its own time, not that of the next.
        let ctx = Ctx::within(stack.behind_max).with_class(Class::Write);
        for done in stack.tiers[at].save_waiting(&ctx, saves).await {
            match done.result {
                Ok(Saved::Stored | Saved::Present) => add(&stack.counters.written_behind, 1),
                Ok(_) => add(&stack.counters.lost_behind, 1),
                Err(_) => {
                    add(&stack.counters.lost_behind, 1);
                    add(&stack.counters.tier_errors, 1);
                }
            }
        }
    }
}

impl Inner {
    /// What it takes to write a chunk of tier `from` to these tiers later; the inner `None` if that is under way already, the outer one when
    /// it cannot be done.
    fn behind(&self, key: &Key, tiers: Tiers, from: usize) -> Option<Option<Behind>> {
        let view = self.tiers[from].peek(key)?;
        self.behind_view(key.clone(), view, tiers)
    }

    fn behind_view(&self, key: Key, view: View, tiers: Tiers) -> Option<Option<Behind>> {
        let share = self.dirty.take(view.len() as u64)?;
        let Ok(flight) = self.behind.begin(key.digest()) else { return Some(None) };
        Some(Some(Behind { tiers, save: Save { key, from: vec![view] }, _share: share, _flight: flight }))
    }

    /// Resolves when a chunk that is on its way to a lower tier has arrived there, so that a remove takes it all.
    pub async fn settled(&self, key: &Key) {
        if let Some(landed) = self.behind.wait_for(key.digest()) {
            let _ = landed.await;
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
    fn take(&self, victims: Vec<(Key, View)>) {
        let Some(stack) = self.stack.upgrade() else { return };
        let mut behind = Vec::with_capacity(victims.len());
        for (key, view) in victims {
            match stack.behind_view(key, view, Tiers::only(self.below)) {
                Some(one) => behind.extend(one),
                None => add(&stack.counters.lost_behind, 1),
            }
        }
        add(&stack.counters.spilled, behind.len() as u64);
        if !behind.is_empty() {
            let spawner: Spawner = stack.spawner.clone();
            spawner.spawn(write_behind(stack, behind));
        }
    }
}
