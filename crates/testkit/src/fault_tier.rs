use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kvtier_core::{
    Batch, Completer, Ctx, Done, Error, ErrorKind, Expire, Gate, GateLimits, Hold, Key, Load,
    Loaded, LookedUp, MissReason, Mode, Observe, Op, Pass, Presence, Removed, Save, Saved,
    ShedReason, Slot, Status, Ticket, Tier, Timekeeper, delegate_tier, ticket,
};

use crate::Seed;

/// The most batches with a fault in them at a time; each has a thread. Beyond that they are
/// throttled.
const FAULTY_MAX: u32 = 64;

/// How often what goes wrong, in thousandths of the ops.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Faults {
    /// The op waits for [`delay`](Faults::delay) before the tier sees it.
    pub delayed: u16,
    /// How long.
    pub delay: Duration,
    /// The op fails with `Io`.
    pub failed: u16,
    /// The op is throttled.
    pub throttled: u16,
    /// The op is lost: it gets no answer until its deadline, and its memory is returned a
    /// [`delay`](Faults::delay) later.
    pub lost: u16,
    /// A load is a miss as if the medium held something else. A save is not concerned.
    pub corrupt: u16,
}

impl Faults {
    /// No faults.
    pub fn none() -> Self {
        Faults::default()
    }

    /// Of everything, `per_mille` each, with delays of `delay`.
    pub fn all(per_mille: u16, delay: Duration) -> Self {
        let n = per_mille;
        Faults { delayed: n, delay, failed: n, throttled: n, lost: n, corrupt: n }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Spared,
    Delayed,
    Failed,
    Throttled,
    Lost,
    Corrupt,
}

/// A tier whose ops meet faults, drawn from a seed in the order of submission. What meets none goes
/// straight to the tier below.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use kvtier_testkit::conformance::Fixture;
/// use kvtier_testkit::{FaultTier, Faults, ModelTier};
///
/// let model = Arc::new(ModelTier::open(Default::default())?);
/// let faults = Faults::all(100, Duration::from_millis(1)); // each in one op of ten
/// let tier = FaultTier::new(model, faults, 42)?;
/// tier.heal(); // from here on no op fails
/// let f = Fixture::new(tier);
/// f.store(&f.keys(0..4), 4096);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FaultTier {
    inner: Arc<dyn Tier>,
    faults: Faults,
    seed: Mutex<Seed>,
    healed: AtomicBool,
    met: AtomicU64,
    gate: Gate,
    clock: Timekeeper,
}

impl FaultTier {
    /// Faults over `inner`. Errors when the system gives no thread.
    pub fn new(inner: Arc<dyn Tier>, faults: Faults, seed: u64) -> std::io::Result<Self> {
        let seed = Mutex::new(Seed::new(seed));
        let gate = Gate::new(GateLimits::new(FAULTY_MAX, u64::MAX));
        let clock = Timekeeper::start("fault")?;
        Ok(FaultTier {
            inner,
            faults,
            seed,
            healed: AtomicBool::new(false),
            met: AtomicU64::new(0),
            gate,
            clock,
        })
    }

    /// Ends all faults from now on.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Release);
    }

    /// How many ops met a fault so far.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    fn fate(&self) -> Fate {
        if self.healed.load(Ordering::Acquire) {
            return Fate::Spared;
        }
        let f = &self.faults;
        // One draw for each op. Its place among the ranges of the odds is the fate, so the same
        // seed gives the same faults in the same order.
        let mut drawn = self.seed.lock().unwrap_or_else(PoisonError::into_inner).below(1000);
        let odds = [
            (Fate::Delayed, f.delayed),
            (Fate::Failed, f.failed),
            (Fate::Throttled, f.throttled),
            (Fate::Lost, f.lost),
            (Fate::Corrupt, f.corrupt),
        ];
        for (fate, odds) in odds {
            match drawn.checked_sub(odds.into()) {
                Some(rest) => drawn = rest,
                None => {
                    self.met.fetch_add(1, Ordering::Relaxed);
                    return fate;
                }
            }
        }
        Fate::Spared
    }

    /// Fails a call that is about keys alone.
    fn key_fault(&self, op: &'static str) -> Result<(), Error> {
        match self.fate() {
            Fate::Failed | Fate::Lost => Err(fault().with_op(op)),
            Fate::Throttled => {
                Err(Error::new(ErrorKind::Throttled, "a fault on purpose").with_op(op))
            }
            _ => Ok(()),
        }
    }

    fn submit<V: Verb>(&self, ctx: &Ctx, ops: Vec<V>) -> Ticket<Vec<Done<V, V::Answer>>> {
        // Drawn before anything else, on the caller's thread: the order of draws must not depend on
        // threads.
        let fates: Vec<_> = ops.iter().map(|_| self.fate()).collect();
        // The usual case costs no thread. After the close the inner tier refuses by itself.
        if fates.iter().all(|fate| *fate == Fate::Spared) || self.gate.is_closed() {
            return V::submit(&*self.inner, ctx, ops);
        }
        let keys = ops.iter().map(|op| op.key().clone()).collect();
        let (batch, slots, ticket) = Batch::new(ctx.deadline, keys);
        // A batch with a lost op is answered at its deadline by the clock, as a real tier does it.
        self.clock.schedule(ctx.deadline, &batch.expiry());
        let all: Vec<_> = ops
            .into_iter()
            .zip(slots)
            .zip(fates)
            .map(|((op, slot), fate)| (op, slot, fate))
            .collect();
        match self.gate.enter(0) {
            Ok(pass) => {
                let inner = Arc::clone(&self.inner);
                let expiry = batch.expiry();
                let work = Work { inner, ctx: ctx.clone(), expiry, delay: self.faults.delay, pass };
                thread::spawn(move || work.run(all));
            }
            // Too many batches with faults, each of which has a thread.
            Err(_) => all.into_iter().for_each(|(op, slot, _)| slot.finish(op, Ok(V::THROTTLED))),
        }
        ticket
    }
}

fn fault() -> Error {
    Error::new(ErrorKind::Io, "a fault on purpose")
}

/// What loads and saves have in common.
trait Verb: Op {
    type Answer: Send + 'static;
    const THROTTLED: Self::Answer;
    fn submit(tier: &dyn Tier, ctx: &Ctx, ops: Vec<Self>) -> Ticket<Vec<Done<Self, Self::Answer>>>
    where
        Self: Sized;
    /// The op and its answer where the medium holds something else; the op alone where that does
    /// not concern it.
    fn corrupt(&mut self) -> Option<Self::Answer>;
}

impl Verb for Load {
    type Answer = Loaded;
    const THROTTLED: Loaded = Loaded::Throttled;
    fn submit(tier: &dyn Tier, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        tier.load(ctx, ops)
    }
    fn corrupt(&mut self) -> Option<Loaded> {
        self.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        Some(Loaded::Miss(MissReason::Corrupt))
    }
}

impl Verb for Save {
    type Answer = Saved;
    const THROTTLED: Saved = Saved::Shed(ShedReason::Throttled);
    fn submit(tier: &dyn Tier, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        tier.save(ctx, ops)
    }
    fn corrupt(&mut self) -> Option<Saved> {
        None
    }
}

/// One batch with faults, on a thread of its own.
struct Work {
    inner: Arc<dyn Tier>,
    ctx: Ctx,
    expiry: Arc<dyn Expire>,
    delay: Duration,
    pass: Pass,
}

impl Work {
    fn run<V: Verb>(self, all: Vec<(V, Slot<V, V::Answer>, Fate)>) {
        let mut ops = Vec::new();
        let mut slots = Vec::new();
        let mut lost = Vec::new();
        if all.iter().any(|(_, _, fate)| *fate == Fate::Delayed) {
            thread::sleep(self.delay);
        }
        for (mut op, slot, fate) in all {
            match fate {
                Fate::Failed => slot.finish(op, Err(fault())),
                Fate::Throttled => slot.finish(op, Ok(V::THROTTLED)),
                Fate::Lost => lost.push((op, slot)),
                // A save cannot be corrupt in this sense; it goes to the inner tier like one that
                // was spared.
                _ => match (fate == Fate::Corrupt).then(|| op.corrupt()).flatten() {
                    Some(answer) => slot.finish(op, Ok(answer)),
                    None => {
                        ops.push(op);
                        slots.push(slot);
                    }
                },
            }
        }
        let answers = V::submit(&*self.inner, &self.ctx, ops).wait();
        slots.into_iter().zip(answers).for_each(|(slot, done)| slot.finish(done.op, done.result));
        if !lost.is_empty() {
            // The memory of a lost op comes back after its deadline: until then it counts as
            // stranded.
            thread::sleep(self.ctx.deadline.saturating_duration_since(Instant::now()) + self.delay);
            // However late the clock's own thread is.
            self.expiry.expire(Instant::now());
        }
        // The medium returns the memory at last; no caller receives the answer.
        lost.into_iter().for_each(|(op, slot)| {
            slot.finish(op, Err(Error::new(ErrorKind::Timeout, "a lost op")))
        });
        // Last: `close` waits for the pass, and so for the memory of lost ops too.
        drop(self.pass);
    }
}

impl Tier for FaultTier {
    delegate_tier!(inner: caps lookup_in_memory touch release release_keys ready peek spill_to);
    delegate_tier!(inner: atomic_set_of set_quota);

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        match self.key_fault("lookup") {
            Ok(()) => self.inner.lookup(ctx, keys, mode, hold),
            // A lookup may answer `Unknown` instead of an error. With a hold it may not, since the
            // caller would miss its hold.
            Err(_) if hold == Hold::None => {
                Ticket::ready(Ok(LookedUp::new(vec![Presence::Unknown; keys.len()], None)))
            }
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.submit(ctx, ops)
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.submit(ctx, ops)
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        match self.key_fault("remove") {
            Ok(()) => self.inner.remove(ctx, keys),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        // Two ends to wait for: ops with faults, which the inner tier never got, and the inner
        // tier's own.
        let ours = self.gate.close();
        if ours.is_done() {
            return self.inner.close();
        }
        let (answer, ticket): (Completer<Result<(), Error>>, _) = ticket();
        let inner = Arc::clone(&self.inner);
        thread::spawn(move || {
            let closed = inner.close().wait();
            answer.complete(ours.wait().and(closed));
        });
        ticket
    }
}

impl Observe for FaultTier {
    delegate_tier!(inner: usage keys listen);

    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.reasons.push(format!("{} ops met a fault on purpose", self.met()));
        status
    }
}

impl fmt::Debug for FaultTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultTier({:?} over {:?})", self.faults, self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_faults_everything_is_passed_on() {
        crate::passes_everything_on(|inner| {
            Arc::new(FaultTier::new(inner, Faults::none(), 1).unwrap())
        });
    }
}
