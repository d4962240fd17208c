//! Tiers over each other that look like one.

mod ask;
mod config;
mod dirty;
mod exec;
mod flights;
mod holds;
mod load;
mod observe;
mod pace;
mod plan;
mod save;
mod seen;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod verdict;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{
    Batch, Caps, Clock, Ctx, Digest, Done, Error, ErrorKind, Gate, GateLimits, Hold, HoldId, Key,
    Load, Loaded, LookedUp, Mode, Op, Pass, Removed, Save, Saved, ShedReason, Slot, Ticket, Tier,
    Timekeeper, ticket,
};

use crate::metrics::StackCounters;
use crate::promise::Promise;
pub use config::StackConfig;
use dirty::Dirty;
use exec::{Exec, Spawner};
use flights::Flights;
use holds::{Holds, Rest};
use pace::Pace;
pub use plan::{Admit, Rule, Write};
use save::Spiller;
use seen::Seen;

/// The most ops of a stack in flight.
const OPS_MAX: u32 = 1024;
/// The most bytes of a stack in flight.
const BYTES_MAX: u64 = 4 << 30;

/// Tiers over each other that look like one; the first is the fastest.
///
/// A load falls through to the first tier that has the chunk, and a chunk found below is promoted
/// to those above that [admit](Admit) it. A save goes to the tiers as their [rules](Write) say.
/// Several loads of one key go below once: the others wait and are served from above. A tier that
/// fails is a miss there; the stack answers with an error only when all tiers failed, at the
/// caller's deadline, and for a remove. Dropping it waits for what is under way.
#[derive(Debug)]
pub struct Stack {
    caps: Caps,
    inner: Arc<Inner>,
    gate: Gate,
    // Dropped before the clock, so that deadlines are kept while it waits for what is under way.
    exec: Exec,
    clock: Timekeeper,
}

#[derive(Debug)]
struct Inner {
    tiers: Vec<Arc<dyn Tier>>,
    /// One for each tier, and so are `paces`.
    rules: Vec<Rule>,
    paces: Vec<Pace>,
    computed_per_s: Option<f64>,
    dirty: Arc<Dirty>,
    behind_max: Duration,
    /// For each tier, chunks on their way to it that nobody waits for but removes.
    behind: Vec<Flights>,
    seen: Seen,
    spawner: Spawner,
    flights: Flights,
    holds: Holds,
    time: Clock,
    counters: StackCounters,
}

impl Stack {
    /// A stack of at least one tier, all of them written through.
    pub fn new(name: &str, tiers: Vec<Arc<dyn Tier>>) -> Result<Self, Error> {
        Stack::open(tiers.into_iter().fold(StackConfig::new(name), StackConfig::with))
    }

    /// A stack by these rules.
    pub fn open(config: StackConfig) -> Result<Self, Error> {
        config.check()?;
        let StackConfig { name, levels, dirty_bytes_max, behind_max, computed_bytes_per_s, clock } =
            config;
        let (tiers, rules): (Vec<Arc<dyn Tier>>, Vec<Rule>) = levels.into_iter().unzip();
        let name = name.as_str();
        let thread =
            |e| Error::new(ErrorKind::Io, "cannot start a thread for the stack").with_source(e);
        let mut caps = Caps::new(name, OPS_MAX, BYTES_MAX);
        caps.chunk_bytes_max = tiers.iter().map(|t| t.caps().chunk_bytes_max).max().unwrap_or(0);
        caps.bounce = tiers.iter().all(|t| t.caps().bounce);
        caps.align = tiers.iter().map(|t| t.caps().align).max().unwrap_or(1);
        let exec = Exec::start(name).map_err(thread)?;
        let inner = Arc::new(Inner {
            paces: tiers.iter().map(|_| Pace::new(clock.now())).collect(),
            behind: tiers.iter().map(|_| Flights::default()).collect(),
            tiers,
            rules,
            computed_per_s: computed_bytes_per_s,
            dirty: Dirty::new(dirty_bytes_max),
            behind_max,
            seen: Seen::default(),
            spawner: exec.spawner().clone(),
            flights: Flights::default(),
            holds: Holds::new(clock.clone()),
            time: clock.clone(),
            counters: StackCounters::default(),
        });
        inner.take_what_is_spilled()?;
        Ok(Stack {
            caps,
            inner,
            gate: Gate::new(GateLimits::new(OPS_MAX, BYTES_MAX)),
            exec,
            clock: Timekeeper::start_on(clock, name).map_err(thread)?,
        })
    }

    /// Its tiers, fastest first.
    pub fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.inner.tiers
    }

    /// Resolves when nothing waits any more to be written to lower tiers, or with `Timeout` at the
    /// deadline. What is saved meanwhile is waited for too.
    pub fn flush(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let (promise, ticket) = Promise::new(self.clock.clock(), ctx.deadline);
        self.ask("flush", promise, |inner, promise| async move {
            inner.flush().await;
            drop(promise.keep(Ok(())));
        });
        ticket
    }

    /// Runs a question that is no batch, if it is let in and still of use.
    fn ask<T, F>(
        &self,
        op: &'static str,
        promise: Promise<T>,
        work: impl FnOnce(Arc<Inner>, Promise<T>) -> F,
    ) where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let no = |kind| {
            Error::new(kind, "the stack does not take this now")
                .with_op(op)
                .with_tier(self.caps.name.clone())
        };
        let pass: Pass = match promise.is_over().map_or_else(|| self.gate.enter(0), Err) {
            Ok(pass) => pass,
            Err(kind) => return drop(promise.keep(Err(no(self.closed_or(kind))))),
        };
        self.clock.schedule(promise.deadline(), &promise.expiry());
        let work = work(Arc::clone(&self.inner), promise);
        self.exec.spawn(async move {
            work.await;
            drop(pass);
        });
    }

    fn closed_or(&self, kind: ErrorKind) -> ErrorKind {
        if self.gate.is_closed() { ErrorKind::Closed } else { kind }
    }

    /// Lets the ops of a batch in; those that cannot be are answered here, and nothing of them
    /// waits for the stack's thread.
    fn admit<O: Op, T: Send + 'static>(
        &self,
        ops: Vec<O>,
        slots: Vec<Slot<O, T>>,
        throttled: fn() -> T,
    ) -> Asked<O, T> {
        let mut asked = Asked { keys: digests_of(&ops), taken: Vec::with_capacity(ops.len()) };
        for (at, (op, slot)) in ops.into_iter().zip(slots).enumerate() {
            match self.gate.enter(op.bytes()) {
                Ok(pass) => {
                    slot.attach(pass);
                    asked.taken.push((at, op, slot));
                }
                Err(ErrorKind::Throttled) => slot.finish(op, Ok(throttled())),
                Err(kind) => slot.finish(
                    op,
                    Err(Error::new(kind, "the stack is closed").with_tier(self.caps.name.clone())),
                ),
            }
        }
        asked
    }
}

/// What was asked for at once, and what of it was let in. What is said of the whole, the chain and
/// the set, is said of all of it.
struct Asked<O: Op, T: Send + 'static> {
    keys: Vec<Digest>,
    /// Each with its place among the keys.
    taken: Vec<(usize, O, Slot<O, T>)>,
}

impl Inner {
    async fn flush(&self) {
        while let Some(landed) = self.behind.iter().find_map(Flights::any) {
            let _ = landed.await;
        }
    }

    /// Counts what a batch waited for the stack's thread.
    fn waited(&self, since: Instant) {
        add(&self.counters.queue_us, self.time.elapsed(since).as_micros() as u64);
    }

    /// Connects each tier that gets what the one above it gives up to that one.
    fn take_what_is_spilled(self: &Arc<Self>) -> Result<(), Error> {
        for (at, tier) in self.tiers.iter().enumerate() {
            let Some(below) = plan::spill_below(&self.rules, at) else { continue };
            if !tier.spill_to(Spiller::new(self, below)) {
                let (name, below) = (&tier.caps().name, &self.tiers[below].caps().name);
                let what = format!(
                    "{name} cannot hand what it evicts to {below}; set write: through or back there"
                );
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
        }
        Ok(())
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn keys_of<O: Op>(ops: &[O]) -> Vec<Key> {
    ops.iter().map(|op| op.key().clone()).collect()
}

fn digests_of<O: Op>(ops: &[O]) -> Vec<Digest> {
    ops.iter().map(|op| *op.key().digest()).collect()
}

impl Tier for Stack {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        let (promise, ticket) = Promise::new(self.clock.clock(), ctx.deadline);
        let ctx = ctx.clone();
        self.ask("lookup", promise, move |inner, promise| async move {
            let found = inner.lookup(&ctx, &keys, mode, hold).await;
            // Nobody would release what came too late.
            if let Err(Ok(LookedUp { hold: Some(id), .. })) = promise.keep(found) {
                inner.release(inner.holds.take(id));
            }
        });
        if hold == Hold::None {
            return ticket;
        }
        let inner = Arc::downgrade(&self.inner);
        ticket.undo_if_dropped(move |answer| {
            if let (Ok(LookedUp { hold: Some(id), .. }), Some(inner)) = (answer, inner.upgrade()) {
                inner.release(inner.holds.take(id));
            }
        })
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let (batch, slots, ticket) = Batch::new_on(self.clock.clock(), ctx.deadline, keys_of(&ops));
        self.clock.schedule(ctx.deadline, &batch.expiry());
        let asked = self.admit(ops, slots, || Loaded::Throttled);
        if asked.taken.is_empty() {
            return ticket;
        }
        let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
        let since = self.clock.clock().now();
        self.exec.spawn(async move {
            inner.waited(since);
            load::load(&inner, &ctx, asked).await;
        });
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let (batch, slots, ticket) = Batch::new_on(self.clock.clock(), ctx.deadline, keys_of(&ops));
        self.clock.schedule(ctx.deadline, &batch.expiry());
        let asked = self.admit(ops, slots, || Saved::Shed(ShedReason::Throttled));
        if asked.taken.is_empty() {
            return ticket;
        }
        let (inner, ctx) = (Arc::clone(&self.inner), ctx.clone());
        let since = self.clock.clock().now();
        self.exec.spawn(async move {
            inner.waited(since);
            save::save(&inner, &ctx, asked).await;
        });
        ticket
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let (promise, ticket) = Promise::new(self.clock.clock(), ctx.deadline);
        let ctx = ctx.clone();
        self.ask("remove", promise, move |inner, promise| async move {
            let removed = inner.remove(&ctx, &keys).await;
            drop(promise.keep(removed));
        });
        ticket
    }

    fn release(&self, hold: HoldId) {
        self.inner.release(self.inner.holds.take(hold));
    }

    /// In each tier that holds some of them.
    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        match self.inner.holds.give_back(hold, keys) {
            Rest::Some(parts) => parts
                .into_iter()
                .for_each(|(tier, id)| self.inner.tiers[tier].release_keys(id, keys)),
            Rest::Nothing(parts) => self.inner.release(parts),
        }
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let ticket = self.gate.ready(ctx.deadline);
        self.clock.schedule(ctx.deadline, &self.gate.expiry());
        ticket
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.inner.tiers.iter().find_map(|tier| tier.atomic_set_of(key))
    }

    /// In each of its tiers.
    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.inner.tiers.iter().filter(|tier| tier.set_quota(tenant, bytes)).count() > 0
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        let (answer, ticket) = ticket();
        let (own, inner) = (self.gate.close(), Arc::clone(&self.inner));
        self.exec.spawn(async move {
            let mut result = own.await;
            inner.flush().await;
            for tier in &inner.tiers {
                let closed = tier.close().await;
                result = result.and(closed);
            }
            answer.complete(result);
        });
        ticket
    }
}
