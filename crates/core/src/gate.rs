use std::fmt;
use std::time::Instant;

use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::timekeeper::Expire;
use crate::{Completer, Error, ErrorKind, Ticket, ticket};

/// The named maxima of a tier's work in flight.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GateLimits {
    /// Ops in flight.
    pub ops_max: u32,
    /// Bytes in flight.
    pub bytes_max: u64,
    /// Bytes of ops past their deadline that the medium still holds.
    pub stranded_bytes_max: u64,
    /// Callers waiting for room.
    pub waiters_max: usize,
}

impl GateLimits {
    /// Limits on ops and bytes; as many bytes again may be stranded, and 1024 callers may wait.
    pub fn new(ops_max: u32, bytes_max: u64) -> Self {
        GateLimits { ops_max, bytes_max, stranded_bytes_max: bytes_max, waiters_max: 1024 }
    }
}

/// What goes through a gate now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// Ops in flight whose answer is still awaited.
    pub ops: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of ops past their deadline that the medium still holds.
    pub stranded_bytes: u64,
    /// Ops turned away so far.
    pub throttled: u64,
    /// Ops stranded so far.
    pub stranded_total: u64,
}

/// Lets work in up to its limits; a clone is the same gate. Ops past their deadline move to a
/// budget of their own, so that a slow medium does not stop the tier at once; when that is full
/// nothing more comes in until memory comes home.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    limits: GateLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: GateStats,
    waiters: Vec<Waiter>,
    idle: Vec<Completer<Result<(), Error>>>,
    all: u32,
    closed: bool,
    /// Somebody was turned away and nothing has moved since: who asks again would be turned away
    /// again.
    refused: bool,
}

/// One op's share of a gate, given back on drop.
pub struct Pass {
    gate: Arc<Inner>,
    bytes: u64,
    share: Share,
}

/// What a pass takes up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Its op is awaited.
    Awaited,
    /// Its op is past its deadline.
    Stranded,
    /// No room any more; only `close` still waits for it.
    Nothing,
}

/// Waiters to be told that there is room, once no lock is held: their wakers are code of others.
#[must_use]
pub(crate) struct Woken(Vec<Waiter>);

type Waiter = (Instant, Completer<Result<(), Error>>);

impl Gate {
    /// A gate with these limits.
    pub fn new(limits: GateLimits) -> Self {
        Gate(Arc::new(Inner { limits, state: Mutex::default() }))
    }

    /// Room for one op of `bytes`, `Throttled` when there is none now, `Closed` after
    /// [`close`](Gate::close).
    pub fn enter(&self, bytes: u64) -> Result<Pass, ErrorKind> {
        let mut state = lock(&self.0.state);
        if state.closed {
            return Err(ErrorKind::Closed);
        }
        if !self.0.has_room(&state, bytes) {
            state.now.throttled += 1;
            state.refused = true;
            return Err(ErrorKind::Throttled);
        }
        state.now.ops += 1;
        state.now.bytes += bytes;
        state.all += 1;
        Ok(Pass { gate: Arc::clone(&self.0), bytes, share: Share::Awaited })
    }

    /// Resolves when there is room for something, at the deadline with `Timeout`, or with `Closed`.
    /// After an op was turned away, when some other has ended: room for less than that op needs
    /// would only have its caller ask again and again. The tier's
    /// [`Timekeeper`](crate::Timekeeper) must know [`expiry`](Gate::expiry).
    pub fn ready(&self, deadline: Instant) -> Ticket<Result<(), Error>> {
        let mut state = lock(&self.0.state);
        if state.closed {
            return Ticket::ready(Err(closed()));
        }
        if !state.refused && self.0.has_room(&state, 1) {
            return Ticket::ready(Ok(()));
        }
        if state.waiters.len() >= self.0.limits.waiters_max {
            let what = format!(
                "{} callers already wait for room; lower the concurrency",
                self.0.limits.waiters_max
            );
            return Ticket::ready(Err(Error::new(ErrorKind::Throttled, what)));
        }
        let (completer, ticket) = ticket();
        state.waiters.push((deadline, completer));
        ticket
    }

    /// Lets nothing more in; resolves when all that is in flight, stranded ops too, has ended.
    pub fn close(&self) -> Ticket<Result<(), Error>> {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let waiters = std::mem::take(&mut state.waiters);
        let (completer, ticket) = ticket();
        if state.all == 0 {
            completer.complete(Ok(()));
        } else {
            state.idle.push(completer);
        }
        drop(state);
        waiters.into_iter().for_each(|(_, waiter)| waiter.complete(Err(closed())));
        ticket
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.state).closed
    }

    /// What goes through now.
    pub fn stats(&self) -> GateStats {
        lock(&self.0.state).now
    }

    /// What to register with the tier's timekeeper for each deadline given to
    /// [`ready`](Gate::ready).
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.0.clone()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the tier is closed")
}

impl Inner {
    /// An op larger than the whole budget passes alone, so that it is refused by name elsewhere and
    /// never waits for ever here.
    fn has_room(&self, state: &State, bytes: u64) -> bool {
        let now = &state.now;
        now.ops < self.limits.ops_max
            && (now.bytes == 0 || now.bytes.saturating_add(bytes) <= self.limits.bytes_max)
            && now.stranded_bytes < self.limits.stranded_bytes_max
    }
}

impl Expire for Inner {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        let late: Vec<_> = state.waiters.extract_if(.., |(deadline, _)| *deadline <= now).collect();
        let next = state.waiters.iter().map(|(deadline, _)| *deadline).min();
        drop(state);
        for (_, waiter) in late {
            waiter.complete(Err(Error::new(
                ErrorKind::Timeout,
                "no room in the tier before the deadline",
            )));
        }
        next
    }
}

impl Inner {
    /// Every waiter is told when room came: who comes first takes it, the others are turned away
    /// and wait again.
    fn wake(&self, state: &mut State) -> Woken {
        state.refused = false;
        Woken(if self.has_room(state, 1) { std::mem::take(&mut state.waiters) } else { Vec::new() })
    }
}

impl Woken {
    /// Tells them.
    pub(crate) fn notify(self) {
        self.0.into_iter().for_each(|(_, waiter)| waiter.complete(Ok(())));
    }
}

impl Pass {
    /// Its answer is no longer awaited but the medium still holds its memory.
    pub fn strand(&mut self) {
        self.mark_stranded().notify();
    }

    /// The same, for callers that hold a lock.
    pub(crate) fn mark_stranded(&mut self) -> Woken {
        let mut state = lock(&self.gate.state);
        if self.share == Share::Awaited {
            self.share = Share::Stranded;
            state.now.ops -= 1;
            state.now.bytes -= self.bytes;
            state.now.stranded_bytes += self.bytes;
            state.now.stranded_total += 1;
        }
        self.gate.wake(&mut state)
    }

    /// Makes room for others, while [`close`](Gate::close) still waits for the pass to drop.
    pub(crate) fn release(&mut self) {
        let mut state = lock(&self.gate.state);
        match std::mem::replace(&mut self.share, Share::Nothing) {
            Share::Awaited => {
                state.now.ops -= 1;
                state.now.bytes -= self.bytes;
            }
            Share::Stranded => state.now.stranded_bytes -= self.bytes,
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
