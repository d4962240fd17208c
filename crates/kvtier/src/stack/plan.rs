use kvtier_core::{
    Class, Ctx, Done, Error, ErrorKind, Load, Loaded, Save, Saved, ShedReason, Slot, Ticket, Tier, TierExt,
};
use kvtier_mem::{Lease, View};

use super::flights::Flight;
use super::verdict::{Verdict, better};
use super::{Inner, add};

type LoadSlot = Slot<Load, Loaded>;

/// A load on its way down.
struct Falling {
    op: Load,
    slot: LoadSlot,
    verdict: Verdict,
    /// Ends the wait of others for this key, when dropped. `None` for one that has waited itself.
    flight: Option<Flight>,
}

/// Loads a batch: what no other load is fetching at the moment at once, then, when they have landed, the rest.
pub async fn load(stack: &Inner, ctx: &Ctx, ops: Vec<(Load, LoadSlot)>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (op, slot) in ops {
        match stack.flights.begin(op.key.digest()) {
            Ok(flight) => own.push(Falling { op, slot, verdict: Verdict::default(), flight: Some(flight) }),
            Err(landed) => others.push((op, slot, landed)),
        }
    }
    add(&stack.counters.joined, others.len() as u64);
    fall(stack, ctx, own).await;
    let mut rest = Vec::with_capacity(others.len());
    for (op, slot, landed) in others {
        // How it ended is of no matter: the chunk is above now, or it is not.
        let _ = landed.await;
        rest.push(Falling { op, slot, verdict: Verdict::default(), flight: None });
    }
    fall(stack, ctx, rest).await;
}

/// Offers ops to tier after tier until one has the chunk.
async fn fall(stack: &Inner, ctx: &Ctx, mut open: Vec<Falling>) {
    for at in 0..stack.tiers.len() {
        open = still_wanted(open);
        if open.is_empty() {
            return;
        }
        let (ops, rest): (Vec<_>, Vec<_>) = open.into_iter().map(|f| (f.op, (f.slot, f.verdict, f.flight))).unzip();
        let answers = stack.tiers[at].load_waiting(ctx, ops).await;
        let (mut hits, mut next) = (Vec::new(), Vec::new());
        for (Done { op, result }, (slot, mut verdict, flight)) in answers.into_iter().zip(rest) {
            add(&stack.counters.tier_errors, u64::from(result.is_err()));
            match result {
                Ok(Loaded::Hit { len }) => hits.push((len, Falling { op, slot, verdict, flight })),
                // Its memory is still with that tier: nothing is left to offer to the next.
                Err(e) if op.into.is_empty() => slot.finish(op, Err(e)),
                other => {
                    verdict.hear(other);
                    next.push(Falling { op, slot, verdict, flight });
                }
            }
        }
        finish_hits(stack, ctx, at, hits).await;
        open = next;
    }
    for Falling { op, slot, verdict, .. } in open {
        add(&stack.counters.corrupt, u64::from(verdict.is_corrupt()));
        let answer = verdict.sum_up();
        add(&stack.counters.misses, u64::from(matches!(answer, Ok(Loaded::Miss(_)))));
        slot.finish(op, answer);
    }
}

/// Ends the ops that nobody waits for any more; they have not begun in the tier that would be next.
fn still_wanted(open: Vec<Falling>) -> Vec<Falling> {
    let mut wanted = Vec::with_capacity(open.len());
    for falling in open {
        match falling.slot.is_over() {
            None => wanted.push(falling),
            Some(kind) => {
                let error = Error::new(kind, "the load ended before a tier had answered it").with_op("load");
                let Falling { op, slot, .. } = falling;
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    wanted
}

/// Answers hits of tier `at`, after they were promoted to the tiers above.
async fn finish_hits(stack: &Inner, ctx: &Ctx, at: usize, hits: Vec<(u64, Falling)>) {
    let (mut ops, mut rest) = (Vec::with_capacity(hits.len()), Vec::with_capacity(hits.len()));
    for (len, Falling { op, slot, verdict, flight }) in hits {
        add(&stack.counters.corrupt, u64::from(verdict.is_corrupt()));
        rest.push((len, op.into.len(), slot, flight));
        ops.push(op);
    }
    let ops = if at > 0 { promote(stack, ctx, ops, at).await } else { ops };
    for (op, (len, leases, slot, flight)) in ops.into_iter().zip(rest) {
        let answer = if op.into.len() == leases {
            add(&stack.counters.hits, 1);
            Ok(Loaded::Hit { len })
        } else {
            // A hit says that all bytes are there, and some are in memory that cannot be handed back yet.
            let what = "a faster tier still copies from this memory";
            Err(Error::new(ErrorKind::Timeout, what).with_op("load").with_key(*op.key.digest()))
        };
        let op = if answer.is_ok() { op } else { Load { key: op.key, into: Vec::new() } };
        slot.finish(op, answer);
        drop(flight);
    }
}

/// Saves chunks that tier `from` had to the tiers above it, out of the callers' own leases, and gives them back. What a tier does not
/// take now, it does not get: the next load finds it below again.
async fn promote(stack: &Inner, ctx: &Ctx, ops: Vec<Load>, from: usize) -> Vec<Load> {
    if ops.is_empty() {
        return ops;
    }
    // The class tells a tier above that this memory goes back to the caller, so that it copies instead of keeping it.
    let ctx = &ctx.clone().with_class(Class::Prefetch);
    let frozen = |op: Load| (op.key, op.into.into_iter().map(Lease::freeze).collect::<Vec<View>>());
    let chunks: Vec<_> = ops.into_iter().map(frozen).collect();
    for tier in &stack.tiers[..from] {
        let filled = |views: &[View]| views.iter().filter(|v| !v.is_empty()).cloned().collect();
        let saves = chunks.iter().map(|(key, views)| Save { key: key.clone(), from: filled(views) }).collect();
        for done in tier.save(ctx, saves).await {
            add(&stack.counters.promoted, u64::from(matches!(done.result, Ok(Saved::Stored))));
            add(&stack.counters.tier_errors, u64::from(done.result.is_err()));
        }
    }
    let thawed = |views: Vec<View>| views.into_iter().filter_map(|v| v.into_lease().ok()).collect();
    chunks.into_iter().map(|(key, views)| Load { key, into: thawed(views) }).collect()
}

/// Writes a batch through to all tiers at once.
pub async fn save(stack: &Inner, ctx: &Ctx, ops: Vec<(Save, Slot<Save, Saved>)>) {
    let (mut wanted, mut slots) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
    for (op, slot) in ops {
        match slot.is_over() {
            None => {
                wanted.push(op);
                slots.push(slot);
            }
            Some(kind) => {
                let error = Error::new(kind, "the save ended before it began").with_op("save");
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    if wanted.is_empty() {
        return;
    }
    let copies = || wanted.iter().map(|op| Save { key: op.key.clone(), from: op.from.clone() }).collect();
    // All have begun before the first is waited for.
    let begun: Vec<Ticket<_>> = stack.tiers.iter().map(|tier| tier.save(ctx, copies())).collect();
    let mut best: Vec<Option<Result<Saved, Error>>> = wanted.iter().map(|_| None).collect();
    for (tier, ticket) in stack.tiers.iter().zip(begun) {
        for (best, answer) in best.iter_mut().zip(patient(&**tier, ctx, ticket.await).await) {
            add(&stack.counters.tier_errors, u64::from(answer.is_err()));
            *best = Some(match best.take() {
                Some(before) => better(before, answer),
                None => answer,
            });
        }
    }
    for ((op, slot), best) in wanted.into_iter().zip(slots).zip(best) {
        slot.finish(op, best.expect("a stack has a tier, and a tier answers every op"));
    }
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
