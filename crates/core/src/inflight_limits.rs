//! Admission to a tier: limits on the ops and bytes in flight.
//!
//! Each admitted op holds a [`Pass`]. While its result is awaited, the op counts in `ops` and
//! `bytes`. When its deadline passes and the medium still holds its memory, the pass is *stranded*:
//! it leaves those two budgets and counts in `stranded_ops` and `stranded_bytes`. So a slow medium
//! does not block new work at once, but a medium that never returns memory does, when one of the
//! stranded budgets is full. The one of ops bounds what small ops cost beside their bytes.
//!
//! Why no waiter is lost: `ready` appends to `waiters` under the lock under which every change of
//! the counters happens, and every change that may free capacity takes all waiters out (`wake`).
//! WokenWaiters waiters compete; those that lose wait again. `refused` closes the loop that this would
//! allow: after a refusal `ready` resolves only when something has changed, because the capacity
//! that remains was already too small for that caller.
//!
//! Wakers are code of the caller, so they run after the lock is released ([`WokenWaiters`]).
//!
//! `close` waits for all passes, stranded ones too. A pass therefore leaves in two steps: `release`
//! returns its capacity, and only its drop, which comes after the result is sent, lets `close`
//! resolve.

use std::fmt;
use std::time::Instant;

use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::timers::Expire;
use crate::{Completer, Error, ErrorKind, Ticket, ticket};

/// The limits of a tier on its work in flight.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GateLimits {
    /// Ops in flight.
    pub ops_max: u32,
    /// Bytes in flight.
    pub bytes_max: u64,
    /// Ops past their deadline whose memory the medium still holds.
    pub stranded_ops_max: u32,
    /// The bytes of these ops.
    pub stranded_bytes_max: u64,
    /// Callers that wait in [`Gate::ready`].
    pub waiters_max: usize,
}

impl GateLimits {
    /// Limits on ops and bytes. As many bytes again and four times as many ops may be stranded, and
    /// 1024 callers may wait.
    pub fn new(ops_max: u32, bytes_max: u64) -> Self {
        GateLimits {
            ops_max,
            bytes_max,
            // More than are admitted at once: if one stall strands all of them, others may still
            // enter. Bytes cost more, so they have no such margin.
            stranded_ops_max: ops_max.saturating_mul(4),
            stranded_bytes_max: bytes_max,
            waiters_max: 1024,
        }
    }
}

/// The length of a queue, and its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLength {
    /// What waits in it.
    pub name: &'static str,
    /// How much of that there is.
    pub len: u64,
    /// The most there may be.
    pub max: u64,
}

/// The load of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// Ops in flight whose result is awaited.
    pub ops: u32,
    /// The bytes of these ops.
    pub bytes: u64,
    /// Ops past their deadline whose memory the medium still holds.
    pub stranded_ops: u32,
    /// The bytes of these ops.
    pub stranded_bytes: u64,
    /// Ops refused so far.
    pub throttled: u64,
    /// Ops stranded so far.
    pub stranded_total: u64,
}

impl GateStats {
    /// The load as queues, of a gate that admits this many ops and bytes.
    pub fn queues(&self, ops_max: u32, bytes_max: u64) -> [QueueLength; 4] {
        let GateLimits { stranded_ops_max, stranded_bytes_max, .. } =
            GateLimits::new(ops_max, bytes_max);
        let queue = |name, len, max| QueueLength { name, len, max };
        // Those in flight may be stranded while the budget of those that are is almost full.
        let stranded_max = u64::from(stranded_ops_max) + u64::from(ops_max);
        [
            queue("operations", self.ops.into(), ops_max.into()),
            queue("bytes of operations", self.bytes, bytes_max),
            queue("stranded operations", self.stranded_ops.into(), stranded_max),
            queue(
                "stranded bytes",
                self.stranded_bytes,
                stranded_bytes_max.saturating_add(bytes_max),
            ),
        ]
    }
}

/// Admits ops up to its limits. A clone is the same gate. Ops past their deadline move to a budget
/// of their own, so that a slow medium does not block the tier at once; while that budget is full,
/// no new op is admitted.
///
/// ```
/// use kvtier_core::{ErrorKind, Gate, GateLimits};
///
/// let gate = Gate::new(GateLimits::new(8, 1 << 20));
/// let pass = gate.enter(1 << 20)?; // held while the op is in flight
/// assert_eq!(gate.enter(1).err(), Some(ErrorKind::Throttled));
/// drop(pass);
/// assert!(gate.enter(1).is_ok());
/// # Ok::<(), ErrorKind>(())
/// ```
#[derive(Clone)]
pub struct Gate(Arc<SharedGate>);

struct SharedGate {
    limits: GateLimits,
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    now: GateStats,
    waiters: Vec<Waiter>,
    idle: Vec<Completer<Result<(), Error>>>,
    /// Passes that exist.
    all: u32,
    closed: bool,
    /// An op was refused and nothing has changed since: to try again would fail again.
    refused: bool,
}

/// One op's share of a gate, returned on drop.
pub struct Pass {
    gate: Arc<SharedGate>,
    bytes: u64,
    share: Share,
}

/// What a pass occupies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Capacity for an op whose result is awaited.
    Awaited,
    /// Capacity for an op past its deadline.
    Stranded,
    /// No capacity; only `close` still waits for the pass.
    Nothing,
}

/// Waiters to wake once no lock is held, since their wakers are the callers' code.
#[must_use]
pub(crate) struct WokenWaiters(Vec<Waiter>);

type Waiter = (Instant, Completer<Result<(), Error>>);

impl Gate {
    /// A gate with these limits.
    pub fn new(limits: GateLimits) -> Self {
        Gate(Arc::new(SharedGate { limits, state: Mutex::default() }))
    }

    /// Admits one op of `bytes`.
    ///
    /// # Errors
    ///
    /// `Throttled` when the limits are reached; wait for [`ready`](Gate::ready). `Closed` after
    /// [`close`](Gate::close).
    pub fn enter(&self, bytes: u64) -> Result<Pass, ErrorKind> {
        let mut state = lock(&self.0.state);
        // Before the limits: a closed gate stays closed however much capacity there is.
        if state.closed {
            return Err(ErrorKind::Closed);
        }
        // `refused` is set under the same lock: a caller that then asks `ready` waits for a change
        // instead of the capacity that was too small for it.
        if !self.0.has_capacity(&state, bytes) {
            state.now.throttled += 1;
            state.refused = true;
            return Err(ErrorKind::Throttled);
        }
        state.now.ops += 1;
        state.now.bytes += bytes;
        state.all += 1;
        Ok(Pass { gate: Arc::clone(&self.0), bytes, share: Share::Awaited })
    }

    /// Resolves when the gate may admit another op. After a refusal it resolves when another op has
    /// ended, since the free capacity was already too small. Register [`expiry`](Gate::expiry) with
    /// the tier's [`Timekeeper`](crate::Timekeeper) at `deadline`.
    ///
    /// # Errors
    ///
    /// `Timeout` at `deadline`, `Closed` after [`close`](Gate::close), `Throttled` when too many
    /// callers wait.
    pub fn ready(&self, deadline: Instant) -> Ticket<Result<(), Error>> {
        let mut state = lock(&self.0.state);
        if state.closed {
            return Ticket::ready(Err(closed()));
        }
        // One byte stands for any op. A caller with a larger one may be refused again, and then
        // waits for the next change.
        if !state.refused && self.0.has_capacity(&state, 1) {
            return Ticket::ready(Ok(()));
        }
        // Each waiter is memory of this process. A caller beyond the bound gets an error that it
        // can act upon instead.
        if state.waiters.len() >= self.0.limits.waiters_max {
            let what = format!(
                "{} callers already wait for capacity; lower the concurrency",
                self.0.limits.waiters_max
            );
            return Ticket::ready(Err(Error::new(ErrorKind::Throttled, what)));
        }
        let (completer, ticket) = ticket();
        state.waiters.push((deadline, completer));
        ticket
    }

    /// Admits nothing more. Resolves when all ops in flight have ended, stranded ones too.
    pub fn close(&self) -> Ticket<Result<(), Error>> {
        let mut state = lock(&self.0.state);
        state.closed = true;
        // After `closed` is set, no further waiter can be added, so this takes all there will ever
        // be.
        let waiters = std::mem::take(&mut state.waiters);
        let (completer, ticket) = ticket();
        // Not `now.ops`: stranded passes hold memory, and released ones may not have sent their
        // result.
        if state.all == 0 {
            completer.complete(Ok(()));
        } else {
            state.idle.push(completer);
        }
        drop(state);
        waiters.into_iter().for_each(|(_, waiter)| waiter.complete(Err(closed())));
        ticket
    }

    /// Whether [`close`](Gate::close) was called.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.state).closed
    }

    /// The current load.
    pub fn stats(&self) -> GateStats {
        lock(&self.0.state).now
    }

    /// Register this with the tier's timekeeper at each deadline given to [`ready`](Gate::ready).
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.0.clone()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the tier is closed")
}

impl SharedGate {
    /// An op larger than the whole byte budget is admitted alone. The tier then refuses it by name;
    /// here it would wait for ever.
    fn has_capacity(&self, state: &GateState, bytes: u64) -> bool {
        let now = &state.now;
        now.ops < self.limits.ops_max
            // `bytes == 0` lets the one op through that is larger than the budget.
            && (now.bytes == 0 || now.bytes.saturating_add(bytes) <= self.limits.bytes_max)
            // The size of the new op does not count here: what matters is how much the medium
            // failed to return.
            && now.stranded_ops < self.limits.stranded_ops_max
            && now.stranded_bytes < self.limits.stranded_bytes_max
    }
}

impl Expire for SharedGate {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        // Taken under the lock and answered without it, as everywhere here.
        let late: Vec<_> = state.waiters.extract_if(.., |(deadline, _)| *deadline <= now).collect();
        // One registration may serve several waiters: this says when the next of them is due.
        let next = state.waiters.iter().map(|(deadline, _)| *deadline).min();
        drop(state);
        for (_, waiter) in late {
            waiter.complete(Err(Error::new(
                ErrorKind::Timeout,
                "the tier had no capacity before the deadline; lower the concurrency or raise the deadline",
            )));
        }
        next
    }
}

impl SharedGate {
    /// Takes all waiters out after capacity was freed. The first to enter gets it; the others wait
    /// again.
    fn wake(&self, state: &mut GateState) -> WokenWaiters {
        // Even without capacity for one byte: the next `enter` decides anew.
        state.refused = false;
        WokenWaiters(if self.has_capacity(state, 1) {
            std::mem::take(&mut state.waiters)
        } else {
            Vec::new()
        })
    }
}

impl WokenWaiters {
    /// Wakes them.
    pub(crate) fn notify(self) {
        self.0.into_iter().for_each(|(_, waiter)| waiter.complete(Ok(())));
    }
}

impl Pass {
    /// Moves the op to the stranded budget: its result is no longer awaited, but the medium still
    /// holds its memory.
    pub fn strand(&mut self) {
        self.mark_stranded().notify();
    }

    /// Like [`strand`](Pass::strand) for callers that hold a lock: they wake the waiters later.
    pub(crate) fn mark_stranded(&mut self) -> WokenWaiters {
        let mut state = lock(&self.gate.state);
        // An op may finish while its deadline passes. A pass that is released already must not
        // count as stranded.
        if self.share == Share::Awaited {
            self.share = Share::Stranded;
            state.now.ops -= 1;
            state.now.bytes -= self.bytes;
            state.now.stranded_ops += 1;
            state.now.stranded_bytes += self.bytes;
            state.now.stranded_total += 1;
        }
        // The ops budget is free again, so others may enter, unless a stranded budget is full now.
        self.gate.wake(&mut state)
    }

    /// Returns the capacity. [`close`](Gate::close) still waits for the pass to drop.
    pub(crate) fn release(&mut self) {
        let mut state = lock(&self.gate.state);
        match std::mem::replace(&mut self.share, Share::Nothing) {
            Share::Awaited => {
                state.now.ops -= 1;
                state.now.bytes -= self.bytes;
            }
            Share::Stranded => {
                state.now.stranded_ops -= 1;
                state.now.stranded_bytes -= self.bytes;
            }
            // `Drop` calls this again after an explicit release.
            Share::Nothing => return,
        }
        let woken = self.gate.wake(&mut state);
        drop(state);
        woken.notify();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.release();
        let mut state = lock(&self.gate.state);
        state.all -= 1;
        // The last pass after `close`. One that enters later is impossible, since `enter` checks
        // `closed` under this lock.
        let idle = if state.all == 0 && state.closed {
            std::mem::take(&mut state.idle)
        } else {
            Vec::new()
        };
        drop(state);
        idle.into_iter().for_each(|waiter| waiter.complete(Ok(())));
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({:?} of {:?})", self.stats(), self.0.limits)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({} bytes)", self.bytes)
    }
}
