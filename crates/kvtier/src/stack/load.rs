//! Loads: the tiers are tried in order, and a chunk found below is promoted to the tiers above.
//!
//! The memory of a load belongs to one tier at a time: an op is offered to the next tier only with
//! the leases that the tier before returned. If a tier keeps them past its deadline, the op ends
//! there with that tier's error. A promotion reads the caller's own leases, frozen to views, and
//! turns them back into leases before the caller gets them; a tier above that still reads one keeps
//! it, and the load ends with `Timeout` instead of a hit with part of its memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{
    Class, Ctx, Digest, Done, Error, ErrorKind, Key, Load, Loaded, MissReason, Op, Save, Saved,
    Slot, Ticket, TierExt,
};
use kvtier_mem::{Lease, View};

use super::merge::LoadMerge;
use super::placement::{self, TierSet};
use super::single_flight::Flight;
use super::{Admitted, Inner, add};

type LoadSlot = Slot<Load, Loaded>;

/// A load that no tier has answered yet.
struct PendingLoad {
    /// Its index in the batch.
    at: usize,
    op: Load,
    slot: LoadSlot,
    merge: LoadMerge,
    /// Dropping it wakes the other loads of this key. A load without a flight promotes nothing,
    /// because a remove of the key may be under way.
    flight: Option<Flight>,
}

/// A load that hit.
struct FoundBelow {
    /// Its index in the batch.
    at: usize,
    op: Load,
    may_promote: bool,
}

/// A chunk that is being promoted.
struct Promotion {
    /// Its index in the batch.
    at: usize,
    key: Key,
    views: Vec<View>,
    /// The atomic set that it belongs to in the tier where it was found.
    set: Option<Arc<[Digest]>>,
}

/// Loads a batch: first the keys that no other load is fetching, then, once those flights have
/// ended, the rest.
pub async fn load(stack: Arc<Inner>, ctx: Ctx, admitted: Admitted<Load, Loaded>) {
    let batch = LoadBatch { stack: &stack, ctx: &ctx, keys: admitted.keys };
    let mut own = Vec::new();
    let mut others = Vec::new();
    for (at, op, slot) in admitted.ops {
        // One load per key asks the tiers. The others wait for it, so that an engine whose workers
        // all miss the same prefix costs each tier one request.
        let begun = stack.flights.begin(op.key.digest());
        let pending = |flight| PendingLoad { at, op, slot, merge: LoadMerge::default(), flight };
        match begun {
            Ok(flight) => own.push(pending(Some(flight))),
            Err(landed) => others.push((pending(None), landed)),
        }
    }
    add(&stack.counters.coalesced, others.len() as u64);
    // The own flights come first and without waiting: two batches that each wait for a key of the
    // other would otherwise stand still until their deadlines.
    batch.load_from_tiers(own).await;
    let mut rest = Vec::with_capacity(others.len());
    for (pending, landed) in others {
        // The result is not needed: either the chunk is above now, or this load tries itself.
        let _ = landed.await;
        rest.push(pending);
    }
    // The waiters may find the key in flight again. They load all the same, without a flight and so
    // without promoting: waiting once more could go on until the deadline.
    rest.iter_mut()
        .for_each(|pending| pending.flight = stack.flights.begin(pending.op.key.digest()).ok());
    batch.load_from_tiers(rest).await;
}

struct LoadBatch<'a> {
    stack: &'a Inner,
    ctx: &'a Ctx,
    keys: Vec<Digest>,
}

impl LoadBatch<'_> {
    /// Offers ops to tier after tier until one has the chunk.
    async fn load_from_tiers(&self, mut open: Vec<PendingLoad>) {
        let stack = self.stack;
        for at in 0..stack.tiers.len() {
            // The tier before may have used up the time: what is over must not cost another tier a
            // request.
            open = end_canceled(open);
            if open.is_empty() {
                return;
            }
            // The engine would compute these bytes sooner than this tier returns them. A tier below
            // may be faster, so only this tier is left out.
            if !stack.is_worth(self.ctx, at, open.iter().map(|f| f.op.bytes()).sum()) {
                add(&stack.counters.skipped_slow, open.len() as u64);
                open.iter_mut().for_each(|f| f.merge.add(Ok(Loaded::Miss(MissReason::Slow))));
                continue;
            }
            let ctx = self.ctx_for(at, &open);
            let began = stack.time.now();
            let end = stack.before_deadline(self.ctx.deadline);
            // The tier takes the ops, with the callers' memory. The slots stay here and are joined
            // with its answers again, which have the order of the ops.
            let (ops, rest): (Vec<_>, Vec<_>) =
                open.into_iter().map(|f| (f.op, (f.at, f.slot, f.merge, f.flight))).unzip();
            let answers = stack.tiers[at].load_waiting(&ctx, ops).await;
            stack.measure(at, &answers, stack.time.elapsed(began));
            let mut hits = Vec::new();
            let mut next = Vec::new();
            for (Done { op, result }, (place, slot, mut merge, flight)) in
                answers.into_iter().zip(rest)
            {
                add(&stack.counters.tier_errors, u64::from(result.is_err()));
                match result {
                    Ok(Loaded::Hit { len }) => {
                        hits.push((len, PendingLoad { at: place, op, slot, merge, flight }))
                    }
                    // That tier still has the memory, so no other tier can be offered the op.
                    Err(e) if op.into.is_empty() => slot.finish(op, Err(e)),
                    // Only this tier ran out of time; others may still answer.
                    Err(e) if e.kind() == ErrorKind::Timeout && stack.time.now() < end => {
                        merge.add_tier_error(e);
                        next.push(PendingLoad { at: place, op, slot, merge, flight });
                    }
                    other => {
                        merge.add(other);
                        next.push(PendingLoad { at: place, op, slot, merge, flight });
                    }
                }
            }
            // Hits are answered before the next tier is asked: they must not wait for a slower
            // medium.
            self.finish_hits(at, hits).await;
            open = next;
        }
        for PendingLoad { op, slot, merge, .. } in open {
            // No tier had these. One answer is made of what all tiers said.
            add(&stack.counters.corrupt, u64::from(merge.is_corrupt()));
            let answer = merge.finish();
            add(&stack.counters.misses, u64::from(matches!(answer, Ok(Loaded::Miss(_)))));
            slot.finish(op, answer);
        }
    }

    /// The context for tier `at`: its deadline, slightly before the stack's, and the position of
    /// these ops in their chain, if they follow each other.
    fn ctx_for(&self, at: usize, open: &[PendingLoad]) -> Ctx {
        let places: Vec<usize> = open.iter().map(|f| f.at).collect();
        self.stack.ctx_for(at, self.ctx).for_part(&self.keys, &places)
    }

    /// Promotes the hits of tier `at` to the tiers above, then answers them.
    async fn finish_hits(&self, at: usize, hits: Vec<(u64, PendingLoad)>) {
        let mut ops = Vec::with_capacity(hits.len());
        let mut rest = Vec::with_capacity(hits.len());
        for (len, PendingLoad { at: place, op, slot, merge, flight }) in hits {
            add(&self.stack.counters.corrupt, u64::from(merge.is_corrupt()));
            let leases = op.into.len();
            // The flight stays open until the promotion has ended. A remove of this key waits for
            // it, and cannot be undone by a copy that arrives late.
            ops.push(FoundBelow { at: place, may_promote: flight.is_some(), op });
            rest.push((len, leases, slot, flight));
        }
        let ops = self.promote(ops, at).await;
        for (op, (len, leases, slot, flight)) in ops.into_iter().zip(rest) {
            // `promote` returns fewer leases if a tier that was to copy still reads from one of
            // them, which is so when its save timed out.
            let answer = if op.into.len() == leases {
                add(&self.stack.counters.hits, 1);
                Ok(Loaded::Hit { len })
            } else {
                // A hit promises the caller all of its memory, and some cannot be returned yet.
                let what = "a faster tier still copies from this memory";
                Err(Error::new(ErrorKind::Timeout, what).with_op("load").with_key(*op.key.digest()))
            };
            // This op hands out no memory, since some of it is still in use. Its other leases go
            // back to their arena here.
            let op = if answer.is_ok() { op } else { Load { key: op.key, into: Vec::new() } };
            slot.finish(op, answer);
            drop(flight);
        }
    }

    /// Saves chunks found in tier `from` to the tiers above that admit them, from the callers' own
    /// leases, and returns the leases. Chunks of an atomic set are saved as parts of it. A chunk
    /// that a tier rejects is not offered again; the next load finds it below.
    async fn promote(&self, ops: Vec<FoundBelow>, from: usize) -> Vec<Load> {
        let stack = self.stack;
        // Counting costs a lock and a hash. It is left out where no tier above looks at the count.
        let counted = placement::counts_hits(&stack.rules, from);
        let to = |found: &FoundBelow| {
            let hits = if counted { stack.hit_counter.count(found.op.key.digest()) } else { 1 };
            if found.may_promote {
                placement::promote_to(&stack.rules, from, hits)
            } else {
                TierSet::default()
            }
        };
        let wanted: Vec<TierSet> = ops.iter().map(to).collect();
        let all = wanted.iter().fold(TierSet::default(), |all, tiers| all.and(*tiers));
        if all.is_empty() {
            add(&stack.counters.not_admitted, if from > 0 { ops.len() as u64 } else { 0 });
            return ops.into_iter().map(|found| found.op).collect();
        }
        // A frozen lease can be read by several tiers at once and written by none. That makes it
        // safe to save out of the memory that the caller is about to get back.
        let frozen = |FoundBelow { at, op: Load { key, into }, .. }: FoundBelow| Promotion {
            at,
            set: stack.tiers[from].atomic_set_of(&key),
            key,
            views: into.into_iter().map(Lease::freeze).collect(),
        };
        let chunks: Vec<Promotion> = ops.into_iter().map(frozen).collect();
        for tier in all.iter() {
            let some =
                chunks.iter().zip(&wanted).filter(|(_, wanted)| wanted.iter().any(|at| at == tier));
            let some: Vec<&Promotion> = some.map(|(chunk, _)| chunk).collect();
            add(&stack.counters.not_admitted, (chunks.len() - some.len()) as u64);
            self.save_promoted(tier, some).await;
        }
        // A view becomes a lease again only if it is the last one. A tier that still has a copy
        // keeps the memory; `finish_hits` notices the missing lease.
        let thawed =
            |views: Vec<View>| views.into_iter().filter_map(|v| v.into_lease().ok()).collect();
        chunks
            .into_iter()
            .map(|Promotion { key, views, .. }| Load { key, into: thawed(views) })
            .collect()
    }

    /// Saves chunks to a tier above, grouped by atomic set.
    async fn save_promoted(&self, tier: usize, some: Vec<&Promotion>) {
        let stack = self.stack;
        let mut groups: BTreeMap<Option<&Arc<[Digest]>>, Vec<&Promotion>> = BTreeMap::new();
        // A save names one atomic set for all its chunks, so each set is a batch of its own.
        some.into_iter()
            .for_each(|chunk| groups.entry(chunk.set.as_ref()).or_default().push(chunk));
        let begin = |(set, group): (Option<&Arc<[Digest]>>, Vec<&Promotion>)| {
            let places: Vec<usize> = group.iter().map(|chunk| chunk.at).collect();
            // With this class the tier copies: the memory is returned to the caller.
            let mut ctx = stack
                .ctx_for(tier, self.ctx)
                .for_part(&self.keys, &places)
                .with_class(Class::Prefetch);
            (ctx.atomic, ctx.atomic_set) = (set.is_some(), set.cloned());
            let save =
                |chunk: &&Promotion| Save { key: chunk.key.clone(), from: filled(&chunk.views) };
            stack.tiers[tier].save(&ctx, group.iter().map(save).collect())
        };
        // All groups are submitted before the first is awaited: the tier works on them at the same
        // time.
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

/// Ends the ops that were canceled or are past their deadline, before the next tier gets them.
fn end_canceled(open: Vec<PendingLoad>) -> Vec<PendingLoad> {
    let mut wanted = Vec::with_capacity(open.len());
    for pending in open {
        match pending.slot.is_over() {
            None => wanted.push(pending),
            Some(kind) => {
                let error =
                    Error::new(kind, "the load ended before a tier answered").with_op("load");
                let PendingLoad { op, slot, .. } = pending;
                let error = error.with_key(*op.key.digest());
                slot.finish(op, Err(error));
            }
        }
    }
    wanted
}

impl Inner {
    /// Whether loading this much from a tier is faster than computing it, as far as is known.
    pub fn is_worth(&self, ctx: &Ctx, at: usize, bytes: u64) -> bool {
        // Only a demand load has a caller that would compute instead.
        let Some(computed_per_s) = self.computed_per_s.filter(|_| ctx.class == Class::Demand)
        else {
            return true;
        };
        self.latencies[at].is_faster_than_computing(self.time.now(), bytes, computed_per_s)
    }

    /// Records how long a tier's loads took.
    fn measure(&self, at: usize, answers: &[Done<Load, Loaded>], took: Duration) {
        let bytes = |done: &Done<Load, Loaded>| match done.result {
            Ok(Loaded::Hit { len }) => len,
            _ => 0,
        };
        // Only bytes that arrived count. A batch of misses is fast on every medium and would make
        // the tier look faster than it is.
        match answers.iter().map(bytes).sum() {
            0 => {}
            bytes => self.latencies[at].record(self.time.now(), bytes, took),
        }
    }

    /// The context for a tier, with its deadline: its own if it has one, and slightly before the
    /// stack's.
    pub fn ctx_for(&self, at: usize, ctx: &Ctx) -> Ctx {
        let mut ctx = ctx.clone();
        ctx.deadline = self.before_deadline(ctx.deadline);
        if let Some(own) = self.rules[at].deadline.and_then(|own| self.time.now().checked_add(own))
        {
            ctx.deadline = ctx.deadline.min(own);
        }
        ctx
    }

    /// The deadline of a tier, early enough that the stack can answer in time.
    fn before_deadline(&self, deadline: Instant) -> Instant {
        // A sixteenth of what is left: a short deadline keeps most of its time, and a long one
        // gives the stack enough to collect the answers of its tiers.
        let left = deadline.saturating_duration_since(self.time.now());
        deadline - (left / 16).min(MARGIN_MAX)
    }
}

/// The longest margin between a tier's deadline and the stack's.
const MARGIN_MAX: Duration = Duration::from_millis(20);
