use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier_core::{
    Batch, Caps, Ctx, Cursor, Done, Error, ErrorKind, Gate, GateLimits, Hold, HoldId, Key, KeyPage, Listener, Load,
    Loaded, LookedUp, Mode, Observe, Op, Presence, Removed, Save, Saved, ShedReason, Slot, Status, Ticket, Tier,
    Timekeeper, Usage, ticket,
};

use crate::exec::Exec;
use crate::flights::Flights;
use crate::plan;

const OPS_MAX: u32 = 1024;
const BYTES_MAX: u64 = 4 << 30;
const HOLDS_MAX: usize = 65_536;

/// Tiers over each other that look like one; the first is the fastest.
///
/// A load falls through to the first tier that has the chunk, and a chunk found below is promoted to those above. A save is written
/// through to all. Several loads of one key go below once: the others wait and are served from above. A tier that fails is a miss
/// there, and costs nothing more.
#[derive(Debug)]
pub struct Stack {
    caps: Caps,
    inner: Arc<Inner>,
    gate: Gate,
    clock: Timekeeper,
    exec: Exec,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub tiers: Vec<Arc<dyn Tier>>,
    pub flights: Flights,
    pub promoted: AtomicU64,
    holds: Mutex<Holds>,
}

#[derive(Debug, Default)]
struct Holds {
    next: u64,
    all: HashMap<u64, (Instant, Vec<(usize, HoldId)>)>,
}

impl Stack {
    /// A stack of at least one tier.
    pub fn new(name: &str, tiers: Vec<Arc<dyn Tier>>) -> Result<Self, Error> {
        if tiers.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a stack needs at least one tier"));
        }
        let thread = |e| Error::new(ErrorKind::Io, "cannot start a thread for the stack").with_source(e);
        let mut caps = Caps::new(name, OPS_MAX, BYTES_MAX);
        caps.chunk_bytes_max = tiers.iter().map(|t| t.caps().chunk_bytes_max).max().unwrap_or(0);
        caps.bounce = tiers.iter().all(|t| t.caps().bounce);
        caps.align = tiers.iter().map(|t| t.caps().align).max().unwrap_or(1);
        let inner = Inner { tiers, flights: Flights::default(), promoted: AtomicU64::new(0), holds: Mutex::default() };
        Ok(Stack {
            caps,
            inner: Arc::new(inner),
            gate: Gate::new(GateLimits::new(OPS_MAX, BYTES_MAX)),
            clock: Timekeeper::start(name).map_err(thread)?,
            exec: Exec::start(name).map_err(thread)?,
        })
    }

    /// Its tiers, fastest first.
    pub fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.inner.tiers
    }

    /// Lets the ops of a batch in; those that cannot be are answered here.
    fn admit<O: Op, T: Send + 'static>(
        &self,
        ops: Vec<O>,
        slots: Vec<Slot<O, T>>,
        throttled: fn() -> T,
    ) -> Vec<(O, Slot<O, T>)> {
        let mut taken = Vec::with_capacity(ops.len());
        for (op, slot) in ops.into_iter().zip(slots) {
            match self.gate.enter(op.bytes()) {
                Ok(pass) => {
                    slot.carry(pass);
                    taken.push((op, slot));
                }
                Err(ErrorKind::Throttled) => slot.finish(op, Ok(throttled())),
                Err(kind) => {
                    slot.finish(op, Err(Error::new(kind, "the stack is closed").with_tier(self.caps.name.clone())))
                }
            }
        }
        taken
    }
}

impl Inner {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the tiers from the top, each for what those above it have not.
    async fn lookup(&self, ctx: &Ctx, keys: &[Key], mode: Mode, hold: Hold) -> Result<LookedUp, Error> {
        let mut found = vec![Presence::Miss; keys.len()];
        let (mut held, mut failed) = (Vec::new(), None);
        for (at, tier) in self.tiers.iter().enumerate() {
            let missing: Vec<usize> = (0..keys.len()).filter(|i| !found[*i].is_hit()).collect();
            if missing.is_empty() {
                break;
            }
            let ask: Arc<[Key]> = missing.iter().map(|i| keys[*i].clone()).collect();
            // Only the last tier may stop at its first miss: for it alone a miss ends the prefix.
            let mode = if at + 1 == self.tiers.len() { mode } else { Mode::Each };
            match tier.lookup(ctx, ask, mode, hold).await {
                Ok(answer) => {
                    missing.iter().zip(&answer.found).for_each(|(i, presence)| found[*i] = *presence);
                    held.extend(answer.hold.map(|id| (at, id)));
                }
                Err(e) => failed = Some(e),
            }
        }
        if let Some(error) = failed.filter(|_| found.iter().all(|p| !p.is_hit())) {
            return Err(error);
        }
        let hold = match hold {
            Hold::For(ttl) if !held.is_empty() => Some(self.keep(held, ttl)?),
            _ => None,
        };
        Ok(LookedUp::new(found, hold))
    }

    fn keep(&self, held: Vec<(usize, HoldId)>, ttl: Duration) -> Result<HoldId, Error> {
        let mut holds = self.holds();
        let now = Instant::now();
        if holds.all.len() >= HOLDS_MAX {
            holds.all.retain(|_, (until, _)| *until > now);
        }
        if holds.all.len() >= HOLDS_MAX {
            drop(holds);
            held.into_iter().for_each(|(tier, id)| self.tiers[tier].release(id));
            return Err(Error::new(ErrorKind::Throttled, format!("{HOLDS_MAX} holds are out; release some")));
        }
        holds.next += 1;
        let id = holds.next;
        holds.all.insert(id, (now + ttl, held));
        Ok(HoldId(id))
    }

    /// Key by key, since only so the counts of several tiers add up.
    async fn remove(&self, ctx: &Ctx, keys: &[Key]) -> Result<Removed, Error> {
        let mut counts = Removed::default();
        for key in keys {
            let (mut removed, mut held) = (0, 0);
            for tier in &self.tiers {
                let answer = tier.remove(ctx, [key.clone()].into()).await?;
                removed += answer.removed;
                held += answer.held;
            }
            match (held, removed) {
                (1.., _) => counts.held += 1,
                (0, 1..) => counts.removed += 1,
                (0, 0) => counts.absent += 1,
            }
        }
        Ok(counts)
    }
}

fn keys_of<O: Op>(ops: &[O]) -> Vec<Key> {
    ops.iter().map(|op| op.key().clone()).collect()
}

impl Tier for Stack {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(&self, ctx: &Ctx, keys: Arc<[Key]>, mode: Mode, hold: Hold) -> Ticket<Result<LookedUp, Error>> {
        let (answer, ticket) = ticket();
        match self.gate.enter(0) {
            Ok(pass) => {
                let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
                self.exec.spawn(async move {
                    let found = inner.lookup(&ctx, &keys, mode, hold).await;
                    drop(pass);
                    answer.complete(found);
                });
            }
            Err(kind) => answer.complete(Err(Error::new(kind, "the stack takes no more work now").with_op("lookup"))),
        }
        ticket
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let (batch, slots, ticket) = Batch::new(ctx.deadline, keys_of(&ops));
        self.clock.at(ctx.deadline, &batch.expiry());
        let ops = self.admit(ops, slots, || Loaded::Throttled);
        let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
        self.exec.spawn(async move { plan::load(&inner, &ctx, ops).await });
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let (batch, slots, ticket) = Batch::new(ctx.deadline, keys_of(&ops));
        self.clock.at(ctx.deadline, &batch.expiry());
        let ops = self.admit(ops, slots, || Saved::Shed(ShedReason::Throttled));
        let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
        self.exec.spawn(async move { plan::save(&inner, &ctx, ops).await });
        ticket
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let (answer, ticket) = ticket();
        match self.gate.enter(0) {
            Ok(pass) => {
                let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
                self.exec.spawn(async move {
                    let removed = inner.remove(&ctx, &keys).await;
                    drop(pass);
                    answer.complete(removed);
                });
            }
            Err(kind) => answer.complete(Err(Error::new(kind, "the stack takes no more work now").with_op("remove"))),
        }
        ticket
    }

    fn release(&self, hold: HoldId) {
        let held = self.inner.holds().all.remove(&hold.0);
        held.into_iter().flat_map(|(_, held)| held).for_each(|(tier, id)| self.inner.tiers[tier].release(id));
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let ticket = self.gate.ready(ctx.deadline);
        self.clock.at(ctx.deadline, &self.gate.expiry());
        ticket
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        let (answer, ticket) = ticket();
        let (own, inner) = (self.gate.close(), Arc::clone(&self.inner));
        self.exec.spawn(async move {
            let mut result = own.await;
            for tier in &inner.tiers {
                let closed = tier.close().await;
                result = result.and(closed);
            }
            answer.complete(result);
        });
        ticket
    }
}

impl Observe for Stack {
    /// That of the slowest tier, through which everything passes.
    fn usage(&self) -> Usage {
        self.inner.tiers.last().map(|t| t.usage()).unwrap_or_default()
    }

    /// Those of the slowest tier.
    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        self.inner.tiers.last().map(|t| t.keys(from, max)).unwrap_or_default()
    }

    /// To the slowest tier: what is gone there is gone.
    fn listen(&self, listener: Arc<dyn Listener>) {
        if let Some(tier) = self.inner.tiers.last() {
            tier.listen(listener);
        }
    }

    fn status(&self) -> Status {
        let all: Vec<_> = self.inner.tiers.iter().map(|t| (t.caps().name.clone(), t.status())).collect();
        let reasons = all.iter().flat_map(|(name, s)| s.reasons.iter().map(move |r| format!("{name}: {r}"))).collect();
        let healthy = !self.gate.is_closed() && all.iter().any(|(_, s)| s.healthy);
        Status::new(healthy, reasons, vec![("promoted", self.inner.promoted.load(Ordering::Relaxed))])
    }
}
