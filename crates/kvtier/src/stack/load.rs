//! Loads: down until a tier has the chunk, and up again into the tiers above.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{
    Class, Ctx, Digest, Done, Error, ErrorKind, Key, Load, Loaded, MissReason, Op, Save, Saved,
    Slot, Ticket, TierExt,
};
use kvtier_mem::{Lease, View};

use super::flights::Flight;
use super::plan::{self, Tiers};
use super::verdict::Verdict;
use super::{Asked, Inner, add};

type LoadSlot = Slot<Load, Loaded>;

/// A load on its way down.
struct Falling {
    /// Its place in the batch.
    at: usize,
    op: Load,
    slot: LoadSlot,
    verdict: Verdict,
    /// Ends the wait of others for this key, when dropped. Who has none brings nothing up, since a
    /// remove may be on its way down.
    flight: Option<Flight>,
}

/// A chunk that was found, and where it may go.
struct Found {
    /// Its place in the batch.
    at: usize,
    op: Load,
    may_rise: bool,
}

/// A chunk on its way up.
struct Rising {
    /// Its place in the batch.
    at: usize,
    key: Key,
    views: Vec<View>,
    /// All that is there together with it, where it was found.
    set: Option<Arc<[Digest]>>,
}

/// Loads a batch: what no other load is fetching at the moment at once, then, when they have
/// landed, the rest.
pub async fn load(stack: &Inner, ctx: &Ctx, asked: Asked<Load, Loaded>) {
    let batch = Batch { stack, ctx, keys: asked.keys };
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (at, op, slot) in asked.taken {
        let begun = stack.flights.begin(op.key.digest());
        let falling = |flight| Falling { at, op, slot, verdict: Verdict::default(), flight };
        match begun {
            Ok(flight) => own.push(falling(Some(flight))),
            Err(landed) => others.push((falling(None), landed)),
        }
    }
    add(&stack.counters.coalesced, others.len() as u64);
    batch.fall(own).await;
    let mut rest = Vec::with_capacity(others.len());
    for (falling, landed) in others {
        // How it ended is of no matter: the chunk is above now, or it is not.
        let _ = landed.await;
        rest.push(falling);
    }
    rest.iter_mut()
        .for_each(|falling| falling.flight = stack.flights.begin(falling.op.key.digest()).ok());
    batch.fall(rest).await;
}

struct Batch<'a> {
    stack: &'a Inner,
    ctx: &'a Ctx,
    keys: Vec<Digest>,
}

impl Batch<'_> {
    /// Offers ops to tier after tier until one has the chunk.
    async fn fall(&self, mut open: Vec<Falling>) {
        let stack = self.stack;
        for at in 0..stack.tiers.len() {
            open = still_wanted(open);
            if open.is_empty() {
                return;
            }
            if !stack.is_worth(self.ctx, at, open.iter().map(|f| f.op.bytes()).sum()) {
                add(&stack.counters.skipped_slow, open.len() as u64);
                open.iter_mut().for_each(|f| f.verdict.hear(Ok(Loaded::Miss(MissReason::Slow))));
                continue;
            }
            let (ctx, began) = (self.ctx_for(at, &open), stack.time.now());
            let end = stack.a_little_before(self.ctx.deadline);
            let (ops, rest): (Vec<_>, Vec<_>) =
                open.into_iter().map(|f| (f.op, (f.at, f.slot, f.verdict, f.flight))).unzip();
            let answers = stack.tiers[at].load_waiting(&ctx, ops).await;
            stack.heard(at, &answers, stack.time.elapsed(began));
            let (mut hits, mut next) = (Vec::new(), Vec::new());
            for (Done { op, result }, (place, slot, mut verdict, flight)) in
                answers.into_iter().zip(rest)
            {
                add(&stack.counters.tier_errors, u64::from(result.is_err()));
                match result {
                    Ok(Loaded::Hit { len }) => {
                        hits.push((len, Falling { at: place, op, slot, verdict, flight }))
                    }
                    // Its memory is still with that tier: nothing is left to offer to the next.
                    Err(e) if op.into.is_empty() => slot.finish(op, Err(e)),
                    // What only this tier had no time for, others may have.
                    Err(e) if e.kind() == ErrorKind::Timeout && stack.time.now() < end => {
                        verdict.hear_own(e);
                        next.push(Falling { at: place, op, slot, verdict, flight });
                    }
                    other => {
                        verdict.hear(other);
                        next.push(Falling { at: place, op, slot, verdict, flight });
                    }
                }
            }
            self.finish_hits(at, hits).await;
            open = next;
        }
        for Falling { op, slot, verdict, .. } in open {
            add(&stack.counters.corrupt, u64::from(verdict.is_corrupt()));
            let answer = verdict.sum_up();
            add(&stack.counters.misses, u64::from(matches!(answer, Ok(Loaded::Miss(_)))));
            slot.finish(op, answer);
        }
    }

    /// What tier `at` is told: its own deadline, a little before the stack's, so that what it has
    /// by then is still heard; and where these ops stand in their chain, if they follow each
    /// other.
    fn ctx_for(&self, at: usize, open: &[Falling]) -> Ctx {
        let places: Vec<usize> = open.iter().map(|f| f.at).collect();
        self.stack.ctx_for(at, self.ctx).for_part(&self.keys, &places)
    }

    /// Answers hits of tier `at`, after they were promoted to the tiers above.
    async fn finish_hits(&self, at: usize, hits: Vec<(u64, Falling)>) {
        let (mut ops, mut rest) = (Vec::with_capacity(hits.len()), Vec::with_capacity(hits.len()));
        for (len, Falling { at: place, op, slot, verdict, flight }) in hits {
            add(&self.stack.counters.corrupt, u64::from(verdict.is_corrupt()));
            let leases = op.into.len();
            ops.push(Found { at: place, may_rise: flight.is_some(), op });
            rest.push((len, leases, slot, flight));
        }
        let ops = self.promote(ops, at).await;
        for (op, (len, leases, slot, flight)) in ops.into_iter().zip(rest) {
            let answer = if op.into.len() == leases {
                add(&self.stack.counters.hits, 1);
                Ok(Loaded::Hit { len })
            } else {
                // A hit says that all bytes are there, and some are in memory that cannot be handed
                // back yet.
                let what = "a faster tier still copies from this memory";
                Err(Error::new(ErrorKind::Timeout, what).with_op("load").with_key(*op.key.digest()))
            };
            let op = if answer.is_ok() { op } else { Load { key: op.key, into: Vec::new() } };
            slot.finish(op, answer);
            drop(flight);
        }
    }

    /// Saves chunks that tier `from` had to the tiers above that admit them, out of the callers'
    /// own leases, and gives them back. What is there together with others there is so above
    /// too. What a tier does not take now, it does not get: the next load finds it below again.
    async fn promote(&self, ops: Vec<Found>, from: usize) -> Vec<Load> {
        let stack = self.stack;
        let counted = plan::counts_hits(&stack.rules, from);
        let to = |found: &Found| {
            let hits = if counted { stack.seen.count(found.op.key.digest()) } else { 1 };
            if found.may_rise {
                plan::promote_to(&stack.rules, from, hits)
            } else {
                Tiers::default()
            }
        };
        let wanted: Vec<Tiers> = ops.iter().map(to).collect();
        let all = wanted.iter().fold(Tiers::default(), |all, tiers| all.and(*tiers));
        if all.is_empty() {
            add(&stack.counters.not_admitted, if from > 0 { ops.len() as u64 } else { 0 });
            return ops.into_iter().map(|found| found.op).collect();
        }
        let frozen = |Found { at, op: Load { key, into }, .. }: Found| Rising {
            at,
            set: stack.tiers[from].atomic_set_of(&key),
            key,
            views: into.into_iter().map(Lease::freeze).collect(),
        };
        let chunks: Vec<Rising> = ops.into_iter().map(frozen).collect();
        for tier in all.iter() {
            let some =
                chunks.iter().zip(&wanted).filter(|(_, wanted)| wanted.iter().any(|at| at == tier));
            let some: Vec<&Rising> = some.map(|(chunk, _)| chunk).collect();
            add(&stack.counters.not_admitted, (chunks.len() - some.len()) as u64);
            self.lift(tier, some).await;
        }
        let thawed =
            |views: Vec<View>| views.into_iter().filter_map(|v| v.into_lease().ok()).collect();
        chunks
            .into_iter()
            .map(|Rising { key, views, .. }| Load { key, into: thawed(views) })
            .collect()
    }

    /// Saves chunks to a tier above: those of one set as a part of it, and all others.
    async fn lift(&self, tier: usize, some: Vec<&Rising>) {
        let stack = self.stack;
        let mut groups: BTreeMap<Option<&Arc<[Digest]>>, Vec<&Rising>> = BTreeMap::new();
        some.into_iter()
            .for_each(|chunk| groups.entry(chunk.set.as_ref()).or_default().push(chunk));
        let begin = |(set, group): (Option<&Arc<[Digest]>>, Vec<&Rising>)| {
            let places: Vec<usize> = group.iter().map(|chunk| chunk.at).collect();
            // The class tells the tier that this memory goes back to the caller, so that it copies
            // instead of keeping it.
            let mut ctx = stack
                .ctx_for(tier, self.ctx)
                .for_part(&self.keys, &places)
                .with_class(Class::Prefetch);
            (ctx.atomic, ctx.atomic_set) = (set.is_some(), set.cloned());
            let save =
                |chunk: &&Rising| Save { key: chunk.key.clone(), from: filled(&chunk.views) };
            stack.tiers[tier].save(&ctx, group.iter().map(save).collect())
        };
        let begun: Vec<Ticket<_>> = groups.into_iter().map(begin).collect();
        for ticket in begun {
            for done in ticket.await {
                add(&stack.counters.promoted, u64::from(matches!(done.result, Ok(Saved::Stored))));
                add(&stack.counters.tier_errors, u64::from(done.result.is_err()));
            }
        }
    }
}

fn filled(views: &[View]) -> Vec<View> {
    views.iter().filter(|v| !v.is_empty()).cloned().collect()
}

/// Ends the ops that nobody waits for any more; they have not begun in the tier that would be next.
fn still_wanted(open: Vec<Falling>) -> Vec<Falling> {
    let mut wanted = Vec::with_capacity(open.len());
    for falling in open {
        match falling.slot.is_over() {
            None => wanted.push(falling),
            Some(kind) => {
                let error = Error::new(kind, "the load ended before a tier had answered it")
                    .with_op("load");
                let Falling { op, slot, .. } = falling;
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    wanted
}

impl Inner {
    /// Whether loading so much from a tier is quicker than computing it, as far as that is known.
    pub fn is_worth(&self, ctx: &Ctx, at: usize, bytes: u64) -> bool {
        // Above everything else a chunk has not even been looked for; and nobody waits for what is
        // no demand.
        let Some(computed_per_s) = self.computed_per_s.filter(|_| ctx.class == Class::Demand)
        else {
            return true;
        };
        self.paces[at].beats(self.time.now(), bytes, computed_per_s)
    }

    /// Measures a tier's pace by what it has just answered.
    fn heard(&self, at: usize, answers: &[Done<Load, Loaded>], took: Duration) {
        let bytes = |done: &Done<Load, Loaded>| match done.result {
            Ok(Loaded::Hit { len }) => len,
            _ => 0,
        };
        match answers.iter().map(bytes).sum() {
            0 => {}
            bytes => self.paces[at].heard(self.time.now(), bytes, took),
        }
    }

    /// The deadline that a tier is given: its own if it has one, and a little before the stack's.
    pub fn ctx_for(&self, at: usize, ctx: &Ctx) -> Ctx {
        let mut ctx = ctx.clone();
        ctx.deadline = self.a_little_before(ctx.deadline);
        if let Some(own) = self.rules[at].deadline.and_then(|own| self.time.now().checked_add(own))
        {
            ctx.deadline = ctx.deadline.min(own);
        }
        ctx
    }

    /// When a tier is to have answered so that the stack can answer in time.
    fn a_little_before(&self, deadline: Instant) -> Instant {
        let left = deadline.saturating_duration_since(self.time.now());
        deadline - (left / 16).min(MARGIN_MAX)
    }
}

/// How much earlier than the stack a tier below it answers, at most.
const MARGIN_MAX: Duration = Duration::from_millis(20);
