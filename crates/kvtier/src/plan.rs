use std::sync::atomic::Ordering;

use kvtier_core::{Class, Ctx, Done, Error, Load, Loaded, MissReason, Save, Saved, ShedReason, Slot, TierExt};
use kvtier_mem::{Lease, View};

use crate::flights::Flight;
use crate::stack::Inner;

type LoadSlot = Slot<Load, Loaded>;

/// Loads a batch: what no other load is fetching at the moment at once, then, when they have landed, the rest.
pub async fn load(stack: &Inner, ctx: &Ctx, ops: Vec<(Load, LoadSlot)>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (op, slot) in ops {
        match stack.flights.begin(op.key.digest()) {
            Ok(flight) => own.push((op, slot, Some(flight))),
            Err(landed) => others.push((op, slot, landed)),
        }
    }
    fall_through(stack, ctx, own).await;
    let mut rest = Vec::with_capacity(others.len());
    for (op, slot, landed) in others {
        // How it ended below is of no matter: the chunk is above now, or it is not.
        let _ = landed.await;
        rest.push((op, slot, None));
    }
    fall_through(stack, ctx, rest).await;
}

/// Offers ops to tier after tier until one has the chunk.
async fn fall_through(stack: &Inner, ctx: &Ctx, ops: Vec<(Load, LoadSlot, Option<Flight>)>) {
    let mut open: Vec<_> = ops.into_iter().map(|(op, slot, flight)| (op, slot, flight, Verdict::default())).collect();
    for at in 0..stack.tiers.len() {
        if open.is_empty() {
            return;
        }
        let (ops, rest): (Vec<_>, Vec<_>) =
            open.into_iter().map(|(op, slot, flight, verdict)| (op, (slot, flight, verdict))).unzip();
        let answers = stack.tiers[at].load_waiting(ctx, ops).await;
        open = Vec::new();
        for (Done { op, result }, (slot, flight, mut verdict)) in answers.into_iter().zip(rest) {
            match result {
                Ok(Loaded::Hit { len }) => {
                    let op = if at > 0 { promote(stack, ctx, op, at).await } else { op };
                    slot.finish(op, Ok(Loaded::Hit { len }));
                    drop(flight);
                }
                other if op.into.is_empty() => slot.finish(op, other),
                other => {
                    verdict.hear(other);
                    open.push((op, slot, flight, verdict));
                }
            }
        }
    }
    open.into_iter().for_each(|(op, slot, _, verdict)| slot.finish(op, verdict.sum_up()));
}

/// What the tiers that do not have a chunk said of it.
#[derive(Default)]
struct Verdict {
    error: Option<Error>,
    throttled: bool,
    reason: Option<MissReason>,
}

impl Verdict {
    fn hear(&mut self, result: Result<Loaded, Error>) {
        match result {
            Err(e) => self.error = self.error.take().or(Some(e)),
            Ok(Loaded::Miss(reason)) if self.reason.is_none_or(|r| r == MissReason::Absent) => {
                self.reason = Some(reason)
            }
            Ok(Loaded::Miss(_)) => {}
            Ok(_) => self.throttled = true,
        }
    }

    /// An error speaks before a miss: the chunk may be there.
    fn sum_up(self) -> Result<Loaded, Error> {
        match self {
            Verdict { error: Some(e), .. } => Err(e),
            Verdict { throttled: true, .. } => Ok(Loaded::Throttled),
            Verdict { reason, .. } => Ok(Loaded::Miss(reason.unwrap_or(MissReason::Absent))),
        }
    }
}

/// Saves a chunk that tier `from` had to the tiers above it, out of the caller's own leases, and gives them back.
async fn promote(stack: &Inner, ctx: &Ctx, op: Load, from: usize) -> Load {
    let Load { key, into } = op;
    // The class tells a tier above that this memory goes back to the caller, so that it copies instead of keeping it.
    let ctx = &ctx.clone().with_class(Class::Prefetch);
    let views: Vec<View> = into.into_iter().map(Lease::freeze).collect();
    for tier in &stack.tiers[..from] {
        let full: Vec<View> = views.iter().filter(|v| !v.is_empty()).cloned().collect();
        let done = tier.save_one(ctx, Save { key: key.clone(), from: full }).await;
        if matches!(done.result, Ok(Saved::Stored)) {
            stack.promoted.fetch_add(1, Ordering::Relaxed);
        }
    }
    // A tier that outlived its deadline with a view still has it: that memory goes home later.
    Load { key, into: views.into_iter().filter_map(|v| v.into_lease().ok()).collect() }
}

/// Writes a batch through to all tiers at once.
pub async fn save(stack: &Inner, ctx: &Ctx, ops: Vec<(Save, Slot<Save, Saved>)>) {
    let copy = |op: &Save| Save { key: op.key.clone(), from: op.from.clone() };
    let (ops, slots): (Vec<Save>, Vec<_>) = ops.into_iter().unzip();
    let mut results: Vec<Option<Result<Saved, Error>>> = ops.iter().map(|_| None).collect();
    for tier in &stack.tiers {
        let answers = tier.save_waiting(ctx, ops.iter().map(copy).collect()).await;
        for (best, Done { result, .. }) in results.iter_mut().zip(answers) {
            if best.as_ref().is_none_or(|b| rank(&result) > rank(b)) {
                *best = Some(result);
            }
        }
    }
    for ((op, slot), result) in ops.into_iter().zip(slots).zip(results) {
        slot.finish(op, result.unwrap_or(Ok(Saved::Shed(ShedReason::Full))));
    }
}

/// Stored anywhere is stored; next best is that it was there already; an error only if nobody did better.
fn rank(result: &Result<Saved, Error>) -> u8 {
    match result {
        Ok(Saved::Stored) => 3,
        Ok(Saved::Present) => 2,
        Ok(_) => 1,
        Err(_) => 0,
    }
}
