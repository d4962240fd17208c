//! Limits the requests in flight, by additive increase and multiplicative decrease.
//!
//! Each kind of requests has a limit of its own, and all kinds share a total. A limit grows by
//! one after as many successes as it has permits. It is cut to 6/8 when the store asks to slow down
//! or responds far more slowly than usual, at most once in [`CUT_EVERY`], since one overload
//! delays many responses.
//!
//! A cut cannot take back permits that requests hold. Those become a debt: a permit that is
//! returned while there is a debt is forgotten instead. So permits, debt and limit always add up,
//! and no permit is lost or created.
//!
//! Requests can hang until [`crate::Config::stall_max`]. They must not keep others from a store that
//! works again. So a request for which nothing has moved for a second can be *abandoned*
//! ([`InFlight`]): it stays in flight, and its place goes to another one.
//!
//! - Where no request of a kind was answered for a second and another one waits for a place of that
//!   kind, one of the kind is abandoned, and again every second.
//! - Where a request of a kind was answered, all places of the kind are taken by requests for which
//!   nothing has moved for a second, and for eight times as long as that answer took, and another one
//!   waits for a place of the kind, one of them is abandoned at once: the store works, and no place is
//!   left that would be free soon. That is so where the place of the answered request pays a debt.
//! - Where no request at all was answered for a second and one waits for a place in the total, one of
//!   any kind is, and again every second.
//! - Each prompt answer shows that the store works, and abandons one if others wait.
//!
//! At most [`ABANDONED_MAX`](super::in_flight::ABANDONED_MAX) of a kind are abandoned at a time. Only
//! an answer that shows that the store works puts off what a second without an answer does: no request
//! that begins, ends without an answer, is answered by a server error, or is answered far more slowly
//! than usual. Sessions and probes bypass the limits: other requests wait for them.
//!
//! How many may be in flight, those beyond the limits included, is also in atomics: a caller with
//! queues of its own asks before each request.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::RequestKind;
use super::in_flight::{InFlight, Places};
use crate::counters::Counters;
use crate::http::{SILENT_AFTER, Silence};
use crate::local_clock::Instant;

/// One cut in this time: the answers to one overload arrive together.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// A cut leaves this many eighths.
const CUT_TO_EIGHTHS: usize = 6;
/// First bytes slower than this many times the usual, and than [`SLOW_MIN`], count as overload.
const SLOW_TIMES: u32 = 8;
const SLOW_MIN: Duration = Duration::from_millis(500);

/// An operation that waited less for an answer does not show that the store is silent: where its
/// speed is unknown, ...
const SILENCE_UNKNOWN: Duration = Duration::from_millis(50);
/// ... at least, ...
const SILENCE_MIN: Duration = Duration::from_millis(20);
/// ... and at most.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A waiter that found no request that hangs checks again after this time.
const CHECK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Deletes and listings each have at most one permit in this many, so that hung or throttled ones
/// leave the rest to other kinds.
const MINOR_SHARE: usize = 4;
/// Writes leave one permit in this many to loads.
const WRITES_LEAVE: usize = 16;

/// The limits of one endpoint: the requests in flight in total, and of each kind as many as the
/// store keeps up with.
#[derive(Debug)]
pub struct ConcurrencyLimits {
    all: Arc<Semaphore>,
    /// When a request that waits for a place in the total checks next whether one hangs.
    next_hung_check: Mutex<Instant>,
    kinds: [Arc<ClassLimit>; RequestKind::ALL.len()],
}

impl ConcurrencyLimits {
    /// At most `max` (at least one) at any time.
    pub fn new(max: usize) -> Self {
        // A semaphore with more permits than this panics.
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let of = |kind| match kind {
            RequestKind::Read => max,
            RequestKind::Write => max - max / WRITES_LEAVE,
            RequestKind::Delete | RequestKind::Control => max.div_ceil(MINOR_SHARE),
            // All other requests wait for the one session.
            RequestKind::Session => 1,
        };
        ConcurrencyLimits {
            all: Arc::new(Semaphore::new(max)),
            next_hung_check: Mutex::new(Instant::now()),
            kinds: RequestKind::ALL.map(|kind| ClassLimit::new(of(kind))),
        }
    }

    /// That of a kind.
    pub fn kind(&self, kind: RequestKind) -> &Arc<ClassLimit> {
        &self.kinds[kind as usize]
    }

    /// Waits for a permit. A session does not wait: only one is created at a time, and all other
    /// requests wait for it.
    pub async fn acquire(&self, kind: RequestKind) -> RequestPermit {
        if kind == RequestKind::Session {
            return self.bypass(kind);
        }
        // The usual case allocates no timer. It overtakes no waiter: the semaphore serves waiters
        // first.
        if let Some(permit) = self.try_acquire(kind) {
            return permit;
        }
        // First the kind, then the total. In the other order, requests of a kind at its limit
        // would hold places of the total while they wait, and other kinds would stand still.
        let turn = self.wait_for_kind(kind).await;
        turn.begin(self.wait_for_total().await)
    }

    async fn wait_for_kind(&self, kind: RequestKind) -> Turn {
        let limit = self.kind(kind);
        let mut waiting = pin!(limit.acquire());
        loop {
            // Before the time of the next check is read, so that no change of it is missed.
            let sooner = limit.check_sooner.notified();
            // In this order, also below: a place that is free is better than one of a request that
            // may only be slow.
            tokio::select! {
                biased;
                turn = waiting.as_mut() => return turn,
                () = sooner => {}
                () = tokio::time::sleep_until(limit.next_hung_check()) => {
                    self.abandon_hung_of(kind);
                }
            }
        }
    }

    async fn wait_for_total(&self) -> OwnedSemaphorePermit {
        let mut waiting = pin!(Arc::clone(&self.all).acquire_owned());
        loop {
            tokio::select! {
                biased;
                of_all = waiting.as_mut() => return of_all.expect("the semaphore is never closed"),
                () = tokio::time::sleep_until(self.next_hung_check()) => self.abandon_hung_of_any(),
            }
        }
    }

    /// Abandons a request of this kind that hangs, if none was answered for a second or all places are
    /// taken by those that hang. For one that waits for a place of the kind.
    pub fn abandon_hung_of(&self, kind: RequestKind) {
        let now = Instant::now();
        let limit = self.kind(kind);
        if limit.is_check_due(now) {
            drop(limit.abandon_hung(now));
        }
    }

    /// Abandons a request of any kind that hangs, if none was answered for a second. For one that
    /// waits for a place in the total.
    pub fn abandon_hung_of_any(&self) {
        let now = Instant::now();
        if now < self.next_hung_check() {
            return;
        }
        // Another waiter need not check soon.
        *self.next_total_check() = now + CHECK_AGAIN_AFTER;
        if let Some(places) = self.kinds.iter().find_map(|kind| kind.abandon_hung(now)) {
            *self.next_total_check() = now + SILENT_AFTER;
            drop(places);
        }
    }

    /// When a request that waits for a place in the total checks next whether one hangs.
    fn next_hung_check(&self) -> Instant {
        let answered = self.kinds.iter().map(|kind| kind.state().answered + SILENT_AFTER).max();
        let next = *self.next_total_check();
        answered.map_or(next, |answered| answered.max(next))
    }

    fn next_total_check(&self) -> MutexGuard<'_, Instant> {
        self.next_hung_check.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit, if one is free.
    pub fn try_acquire(&self, kind: RequestKind) -> Option<RequestPermit> {
        let turn = self.kind(kind).try_acquire()?;
        // If the total is reached, the place of the kind is dropped here, and goes to the next
        // waiter of the kind.
        Some(turn.begin(Arc::clone(&self.all).try_acquire_owned().ok()?))
    }

    /// Leave beyond the limits, for the one request that checks whether the endpoint is back.
    pub fn bypass(&self, kind: RequestKind) -> RequestPermit {
        RequestPermit { limit: Arc::clone(self.kind(kind)), number: None }
    }

    /// How many requests of all kinds are abandoned now. Takes no lock.
    pub fn abandoned(&self) -> usize {
        self.kinds.iter().map(|kind| kind.abandoned.load(Ordering::Relaxed)).sum()
    }
}

/// The gate of one kind.
#[derive(Debug)]
pub struct ClassLimit {
    gate: Arc<Semaphore>,
    max: usize,
    state: Mutex<State>,
    /// Wakes the waiters when their next check may be due sooner than it was.
    check_sooner: Notify,
    /// As `state` has it: how many may be in flight, and how many of those are abandoned.
    in_flight_max: AtomicUsize,
    abandoned: AtomicUsize,
}

#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits to swallow when they come back, because they were out when the limit was cut.
    debt: usize,
    successes: usize,
    last_cut: Option<Instant>,
    /// When an answer last showed that the store works.
    answered: Instant,
    /// How long the first byte of that answer took.
    answered_in: Duration,
    /// When a waiter checks next whether a request hangs, and not before [`State::may_hang_at`].
    next_hung_check: Instant,
    usual: Duration,
    in_flight: InFlight,
}

/// A place among the requests of a kind. Dropped before it begins, it goes to the next waiter.
#[derive(Debug)]
pub struct Turn {
    limit: Arc<ClassLimit>,
    of_kind: Option<OwnedSemaphorePermit>,
}

/// Leave to have one request in flight.
#[derive(Debug)]
pub struct RequestPermit {
    limit: Arc<ClassLimit>,
    /// That of the request among those in flight, unless it passes the limits by.
    number: Option<usize>,
}

impl ClassLimit {
    /// At most `max` (at least one) at any time.
    pub fn new(max: usize) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let now = Instant::now();
        let state = State {
            limit: max,
            debt: 0,
            successes: 0,
            last_cut: None,
            answered: now,
            answered_in: Duration::ZERO,
            next_hung_check: now,
            usual: Duration::ZERO,
            in_flight: InFlight::default(),
        };
        Arc::new(ClassLimit {
            gate: Arc::new(Semaphore::new(max)),
            max,
            state: Mutex::new(state),
            check_sooner: Notify::new(),
            in_flight_max: AtomicUsize::new(max),
            abandoned: AtomicUsize::new(0),
        })
    }

    /// Waits for its turn.
    pub async fn acquire(self: &Arc<Self>) -> Turn {
        let of_kind = Arc::clone(&self.gate).acquire_owned().await.ok();
        Turn { limit: Arc::clone(self), of_kind }
    }

    /// A place, if one is free.
    pub fn try_acquire(self: &Arc<Self>) -> Option<Turn> {
        let of_kind = Arc::clone(&self.gate).try_acquire_owned().ok()?;
        Some(Turn { limit: Arc::clone(self), of_kind: Some(of_kind) })
    }

    /// How many may be in flight now.
    pub fn current(&self) -> usize {
        self.state().limit
    }

    /// How long an operation must have waited for an answer before it can say that the store is
    /// silent.
    pub fn silence_min(&self) -> Duration {
        match self.state().usual {
            Duration::ZERO => SILENCE_UNKNOWN,
            usual => (usual * SLOW_TIMES).clamp(SILENCE_MIN, SILENCE_MAX),
        }
    }

    /// A request went well; its first byte took so long.
    pub fn succeeded(&self, now: Instant, first_byte: Duration, counters: &Counters) {
        let mut state = self.state();
        // Both limits must be passed: a fast store is not slow at 20 ms, and a slow one not at its
        // usual pace.
        let slow = state.usual * SLOW_TIMES;
        let is_slow = first_byte > SLOW_MIN && !slow.is_zero() && first_byte > slow;
        // What stays slow becomes usual in time, or it would be cut down to one request and never
        // grow back.
        // A moving average over about 16 responses. A slow one counts for at most eight times the
        // average, so a single stall does not hide the next ones.
        let counted =
            if slow.is_zero() { first_byte * 16 } else { state.usual * 15 + first_byte.min(slow) };
        state.usual = counted / 16;
        if is_slow {
            drop(state);
            return self.overloaded(now, counters);
        }
        // One that hung and was answered at last says nothing of those that still hang.
        (state.answered, state.answered_in) = (now, first_byte);
        // One a second is the pace for a store that may be away. This one works.
        let sooner = state.next_hung_check > now;
        state.next_hung_check = state.next_hung_check.min(now);
        // The store works: a request that hangs leaves its place to one that waits. Not one that is
        // slow as others are.
        let is_full = self.gate.available_permits() == 0;
        let min = state.usual * SLOW_TIMES;
        let freed = is_full.then(|| state.in_flight.abandon_hung(now, min)).flatten();
        // One more after as many successes as the limit: additive increase, once for about each
        // round trip.
        state.successes += 1;
        if state.successes >= state.limit && state.limit < self.max {
            state.successes = 0;
            state.limit += 1;
            // The limit grows by one in both cases. With a debt, a permit that is still out stays
            // valid instead of being forgotten later.
            match state.debt {
                0 => self.gate.add_permits(1),
                _ => state.debt -= 1,
            }
        }
        drop(state);
        drop(freed);
        if sooner {
            self.check_sooner.notify_waiters();
        }
    }

    /// The store asks to slow down, or does not keep up.
    pub fn overloaded(&self, now: Instant, counters: &Counters) {
        let mut state = self.state();
        // All requests in flight meet the same overload. Without this, the limit would fall to one
        // for a single event.
        if state.last_cut.is_some_and(|last| now.duration_since(last) < CUT_EVERY) {
            return;
        }
        // Multiplicative decrease, as in TCP: many clients of one store then converge to fair
        // shares.
        let limit = (state.limit * CUT_TO_EIGHTHS / 8).max(1);
        let cut = state.limit - limit;
        // `forget_permits` takes the free ones and returns their number. The rest is in use, and is
        // forgotten when it comes back.
        state.debt += cut - self.gate.forget_permits(cut);
        (state.limit, state.successes, state.last_cut) = (limit, 0, Some(now));
        counters.limit_cuts.one();
    }

    /// How many may be in flight now: as many as the limit, and those beyond it, since it was cut
    /// while they were, or since they are abandoned. Takes no lock.
    pub fn in_flight_max(&self) -> usize {
        self.in_flight_max.load(Ordering::Relaxed)
    }

    /// When a waiter checks next whether a request hangs.
    fn next_hung_check(&self) -> Instant {
        let state = self.state();
        state.next_hung_check.max(state.may_hang_at())
    }

    /// Whether that time has come, and a request that hangs keeps others from the store. Then another
    /// waiter need not check soon.
    fn is_check_due(&self, now: Instant) -> bool {
        let mut state = self.state();
        if now < state.next_hung_check.max(state.may_hang_at()) {
            return false;
        }
        state.next_hung_check = now + CHECK_AGAIN_AFTER;
        now >= state.answered + SILENT_AFTER || state.in_flight.all_hang(now, state.hung_after())
    }

    /// Abandons a request that hangs, which another waiter does a second later at the earliest. Its
    /// places are free when what this returns is dropped.
    fn abandon_hung(&self, now: Instant) -> Option<Places> {
        let mut state = self.state();
        let places = state.in_flight.abandon_hung(now, SILENT_AFTER)?;
        state.next_hung_check = now + SILENT_AFTER;
        Some(places)
    }

    /// Gives a place to the next waiter. Where a debt has taken it, those that hang may have all that
    /// are left.
    fn free(&self, place: Option<OwnedSemaphorePermit>) {
        match place {
            Some(place) => drop(place),
            None => self.check_sooner.notify_waiters(),
        }
    }

    fn state(&self) -> LockedState<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        LockedState { class: self, state }
    }
}

/// The locked state of a limit. What is also in atomics is written there before it is unlocked.
#[derive(Debug)]
struct LockedState<'a> {
    class: &'a ClassLimit,
    state: MutexGuard<'a, State>,
}

impl Deref for LockedState<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for LockedState<'_> {
    fn drop(&mut self) {
        let abandoned = self.state.in_flight.abandoned();
        let in_flight_max = self.state.limit + self.state.debt + abandoned;
        self.class.abandoned.store(abandoned, Ordering::Relaxed);
        self.class.in_flight_max.store(in_flight_max, Ordering::Relaxed);
    }
}

impl Turn {
    /// The request begins.
    fn begin(mut self, of_all: OwnedSemaphorePermit) -> RequestPermit {
        let now = Instant::now();
        let limit = Arc::clone(&self.limit);
        let number = self
            .of_kind
            .take()
            .map(|of_kind| limit.state().in_flight.begin(Places { of_kind, of_all }, now));
        RequestPermit { limit, number }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(of_kind) = self.of_kind.take() {
            let free = self.limit.state().release(of_kind);
            // Not under the lock: this wakes the next waiter.
            self.limit.free(free);
        }
    }
}

impl State {
    /// How long nothing has moved for a request that hangs, where another one was just answered.
    fn hung_after(&self) -> Duration {
        SILENT_AFTER.max(self.answered_in * SLOW_TIMES)
    }

    /// When requests that hang may keep others from the store, at the earliest: a second after the
    /// last answer, or when all that have places hang, if that is sooner.
    fn may_hang_at(&self) -> Instant {
        let silent = self.answered + SILENT_AFTER;
        let last_began = self.in_flight.last_began();
        last_began.map_or(silent, |began| silent.min(began + self.hung_after()))
    }

    /// A place comes back: it is free when what this returns is dropped.
    fn release(&mut self, of_kind: OwnedSemaphorePermit) -> Option<OwnedSemaphorePermit> {
        if self.debt == 0 {
            return Some(of_kind);
        }
        self.debt -= 1;
        of_kind.forget();
        None
    }
}

impl RequestPermit {
    /// The request is on a connection with this silence.
    pub fn watch(&self, silence: &Arc<Silence>) {
        if let Some(number) = self.number {
            self.limit.state().in_flight.watch(number, silence);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // Bypasses hold no place, so they change nothing here. Neither does a request that was
        // abandoned: another one has its places.
        let Some(number) = self.number else { return };
        let mut state = self.limit.state();
        let Some(Places { of_kind, of_all }) = state.in_flight.end(number) else { return };
        let free = state.release(of_kind);
        drop(state);
        self.limit.free(free);
        drop(of_all);
    }
}

#[cfg(test)]
mod tests;
