//! A stack: several tiers that act as one.
//!
//! [`placement`] decides without I/O which tiers get a chunk; `load` and `save` carry it out on one
//! thread ([`executor`]). Three rules keep a stack consistent:
//!
//! - Chunks move between tiers only within a flight of their key ([`single_flight`]). A remove takes
//!   the flight first, so no chunk reappears after it was removed.
//! - Each tier gets a deadline slightly before the caller's, so that answers which are already in
//!   can be merged in time. An op that has passed its deadline is answered by the timekeeper; late
//!   answers of tiers release their holds and memory.
//! - Bytes in memory are bounded: batches by the gate, chunks that wait for lower tiers by
//!   [`dirty_bytes`].

mod config;
mod dirty_bytes;
mod executor;
mod hit_counter;
mod holds;
mod latency_model;
mod load;
mod lookup;
mod merge;
mod observe;
mod placement;
mod remove;
mod save;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod single_flight;
mod write_and_promote_rules;
mod write_back;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{
    Admission, Caps, Clock, Ctx, Digest, Done, Error, ErrorKind, GateLimits, Hint, Hold, HoldId,
    Key, Load, Loaded, LookedUp, Mode, Op, Presence, Removed, Reply, Save, Saved, ShedReason, Slot,
    Ticket, Tier, Timekeeper, ticket,
};

use crate::metrics::StackCounters;
pub use config::StackConfig;
use config::{BYTES_MAX, OPS_MAX};
use dirty_bytes::DirtyBytes;
use executor::{Executor, Spawner};
use hit_counter::HitCounter;
use holds::{Rest, StackHolds};
use latency_model::LatencyModel;
use single_flight::SingleFlight;
pub use write_and_promote_rules::{Admit, TierRule, Write};
use write_back::Spiller;

/// Several tiers that act as one; the first is the fastest.
///
/// A load tries the tiers in order until one has the chunk. A chunk found below is promoted to the
/// tiers above that [admit](Admit) it. A save goes to the tiers as their [rules](Write) say.
/// Concurrent loads of one key read it from below once; the others wait and are served from above.
/// A tier that fails counts as a miss. The stack answers with an error only if all tiers failed, at
/// the caller's deadline, and for a remove. Dropping a stack waits for ops under way.
///
/// ```
/// use std::sync::Arc;
/// use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace, Stack, Tier};
///
/// let fast = Arc::new(HostTier::open(HostConfig::new(1 << 20))?);
/// let slow = Arc::new(HostTier::open(HostConfig::new(4 << 20).with_name("slow"))?);
/// let stack = Stack::new("stack", vec![fast.clone() as Arc<dyn Tier>, slow.clone()])?;
///
/// let key = Key::from_name(&Namespace::from_name("model"), "chunk 0");
/// slow.save_bytes(&key, vec![7; 4096])?;
/// assert_eq!(stack.load_bytes(&key)?, Some(vec![7; 4096]));
/// assert!(fast.contains(&key)?, "the hit was promoted");
/// # Ok::<(), kvtier::core::Error>(())
/// ```
#[derive(Debug)]
pub struct Stack {
    caps: Caps,
    inner: Arc<Inner>,
    // Dropped before the timers of the admission, so that deadlines hold while it waits for open
    // tasks.
    executor: Executor,
    admission: Admission,
}

#[derive(Debug)]
struct Inner {
    tiers: Vec<Arc<dyn Tier>>,
    /// One for each tier, like `latencies`.
    rules: Vec<TierRule>,
    latencies: Vec<LatencyModel>,
    computed_per_s: Option<f64>,
    dirty: Arc<DirtyBytes>,
    write_back_timeout: Duration,
    /// For each tier, the chunks that are being written to it in the background.
    write_backs: Vec<SingleFlight>,
    hit_counter: HitCounter,
    spawner: Spawner,
    flights: SingleFlight,
    holds: StackHolds,
    time: Clock,
    counters: StackCounters,
}

impl Stack {
    /// A stack of at least one tier, all of them write-through.
    ///
    /// # Errors
    /// `Invalid` without a tier or with too many, `Io` if no thread can be started.
    pub fn new(name: &str, tiers: Vec<Arc<dyn Tier>>) -> Result<Self, Error> {
        Stack::open(tiers.into_iter().fold(StackConfig::new(name), StackConfig::with))
    }

    /// Builds a stack.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot work, `Unsupported` if a tier above one with
    /// [`Write::Spill`] cannot pass on what it evicts, `Io` if no thread can be started.
    pub fn open(config: StackConfig) -> Result<Self, Error> {
        config.check()?;
        let StackConfig {
            name,
            levels,
            dirty_bytes_max,
            write_back_timeout,
            computed_bytes_per_s,
            clock,
        } = config;
        let (tiers, rules): (Vec<Arc<dyn Tier>>, Vec<TierRule>) = levels.into_iter().unzip();
        let name = name.as_str();
        let thread =
            |e| Error::new(ErrorKind::Io, "cannot start a thread for the stack").with_source(e);
        let mut caps = Caps::new(name, OPS_MAX, BYTES_MAX);
        caps.chunk_bytes_max = tiers.iter().map(|t| t.caps().chunk_bytes_max).max().unwrap_or(0);
        caps.bounce = tiers.iter().all(|t| t.caps().bounce);
        caps.align = tiers.iter().map(|t| t.caps().align).max().unwrap_or(1);
        let executor = Executor::start(name).map_err(thread)?;
        let inner = Arc::new(Inner {
            latencies: tiers.iter().map(|_| LatencyModel::new(clock.now())).collect(),
            write_backs: tiers.iter().map(|_| SingleFlight::default()).collect(),
            tiers,
            rules,
            computed_per_s: computed_bytes_per_s,
            dirty: DirtyBytes::new(dirty_bytes_max),
            write_back_timeout,
            hit_counter: HitCounter::default(),
            spawner: executor.spawner().clone(),
            flights: SingleFlight::default(),
            holds: StackHolds::new(clock.clone()),
            time: clock.clone(),
            counters: StackCounters::default(),
        });
        inner.connect_spills()?;
        let timers = Timekeeper::of_process(clock, name).map_err(thread)?;
        let limits = GateLimits::new(OPS_MAX, BYTES_MAX);
        let admission = Admission::new(Arc::clone(&caps.name), limits, timers);
        Ok(Stack { caps, inner, executor, admission })
    }

    /// Its tiers, fastest first.
    pub fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.inner.tiers
    }

    /// Waits until no chunk waits to be written to lower tiers, including chunks saved meanwhile.
    ///
    /// # Errors
    /// `Timeout` at the deadline, `Closed` or `Throttled` if the stack does not accept the call.
    pub fn flush(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        self.spawn("flush", ctx.deadline, |inner, reply| async move {
            inner.flush().await;
            reply.complete(Ok(()));
        })
    }

    /// Runs an op that is not a batch, if the gate admits it and its deadline is not over.
    fn spawn<T, F>(
        &self,
        op: &'static str,
        deadline: Instant,
        work: impl FnOnce(Arc<Inner>, Reply<T>) -> F,
    ) -> Ticket<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (reply, ticket) = self.admission.begin(op, deadline);
        match reply {
            Some(reply) if reply.is_over() => reply.give_up(),
            Some(reply) => self.executor.spawn(work(Arc::clone(&self.inner), reply)),
            None => {}
        }
        ticket
    }

    /// Runs a batch. Ops that the gate rejects are answered here, without waiting for the stack's
    /// thread.
    fn spawn_batch<O: Op, T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
        &self,
        ctx: &Ctx,
        ops: Vec<O>,
        throttled: fn() -> T,
        work: fn(Arc<Inner>, Ctx, Admitted<O, T>) -> F,
    ) -> Ticket<Vec<Done<O, T>>> {
        let (slots, ticket) = self.admission.batch(ctx.deadline, &ops);
        let mut admitted = Admitted { keys: digests_of(&ops), ops: Vec::with_capacity(ops.len()) };
        for (at, (op, slot)) in ops.into_iter().zip(slots).enumerate() {
            if let Some((op, slot)) = self.admission.admit(op, slot, None, throttled()) {
                admitted.ops.push((at, op, slot));
            }
        }
        if !admitted.ops.is_empty() {
            let inner = Arc::clone(&self.inner);
            let ctx = ctx.clone();
            let since = inner.time.now();
            self.executor.spawn(async move {
                inner.waited(since);
                work(inner, ctx, admitted).await;
            });
        }
        ticket
    }
}

/// A batch, and those of its ops that were admitted. The chain and the atomic set of its context
/// refer to all of its keys.
struct Admitted<O: Op, T: Send + 'static> {
    keys: Vec<Digest>,
    /// Each with its place among the keys.
    ops: Vec<(usize, O, Slot<O, T>)>,
}

impl Inner {
    fn release_hold(&self, id: HoldId) {
        self.release(self.holds.take(id));
    }

    async fn flush(&self) {
        while let Some(landed) = self.write_backs.iter().find_map(SingleFlight::any) {
            let _ = landed.await;
        }
    }

    /// Counts the time that a batch waited for the stack's thread.
    fn waited(&self, since: Instant) {
        add(&self.counters.queue_us, self.time.elapsed(since).as_micros() as u64);
    }

    /// Connects each tier with [`Write::Spill`] to the tier above it.
    fn connect_spills(self: &Arc<Self>) -> Result<(), Error> {
        for (at, tier) in self.tiers.iter().enumerate() {
            let Some(below) = placement::spill_below(&self.rules, at) else { continue };
            if !tier.spill_to(Spiller::new(self, below)) {
                let name = &tier.caps().name;
                let below = &self.tiers[below].caps().name;
                let what = format!(
                    "{name} cannot pass evicted chunks to {below}; set write: through or back there"
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
        let deadline = ctx.deadline;
        let ctx = ctx.clone();
        let ticket = self.spawn("lookup", deadline, move |inner, reply| async move {
            let found = inner.lookup(&ctx, &keys, mode, hold).await;
            reply.complete_or_release(found, |id| inner.release_hold(id));
        });
        ticket.release_if_dropped(hold, &self.inner, Inner::release_hold)
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        self.inner.lookup_in_memory(keys)
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.inner.tiers.iter().for_each(|tier| tier.touch(keys, hint));
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.spawn_batch(ctx, ops, || Loaded::Throttled, load::load)
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.spawn_batch(ctx, ops, || Saved::Shed(ShedReason::Throttled), save::save)
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let deadline = ctx.deadline;
        let ctx = ctx.clone();
        self.spawn("remove", deadline, move |inner, reply| async move {
            reply.complete(inner.remove(&ctx, &keys).await);
        })
    }

    fn release(&self, hold: HoldId) {
        self.inner.release_hold(hold);
    }

    /// Releases them in each tier that holds some of them.
    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        match self.inner.holds.release_keys(hold, keys) {
            Rest::Some(parts) => parts
                .into_iter()
                .for_each(|(tier, id)| self.inner.tiers[tier].release_keys(id, keys)),
            Rest::Nothing(parts) => self.inner.release(parts),
        }
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        self.admission.ready(ctx.deadline)
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.inner.tiers.iter().find_map(|tier| tier.atomic_set_of(key))
    }

    /// Sets the limit in each of its tiers.
    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.inner.tiers.iter().filter(|tier| tier.set_quota(tenant, bytes)).count() > 0
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        let (answer, ticket) = ticket();
        let own = self.admission.gate().close();
        let inner = Arc::clone(&self.inner);
        self.executor.spawn(async move {
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
