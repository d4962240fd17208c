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
//! works again. So a request for which nothing has moved for a second can be *written off*
//! ([`InFlight`]): it stays in flight, and its place goes to another one.
//!
//! - Where no request of a kind has begun or was answered for a second and another one waits, one is
//!   written off, and again every second.
//! - Each prompt answer shows that the store works, and writes one off if others wait.
//!
//! At most [`WRITTEN_OFF_MAX`] of a kind are written off at a time. A request that is given up without
//! an answer shows nothing. Sessions and probes bypass the limits: other requests wait for them.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// A waiter that found no request that hangs looks again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
        let limit = self.kind(kind);
        let mut waiting = pin!(self.wait_for_permit(kind));
        loop {
            // In this order: a place that is free is better than one of a request that may only be
            // slow.
            tokio::select! {
                biased;
                permit = waiting.as_mut() => return permit,
                () = tokio::time::sleep_until(limit.next_look()) => self.make_way(kind),
            }
        }
    }

    /// Where nothing has moved for a request of this kind, or else of another one, that takes a place
    /// which a waiter lacks, it is written off.
    fn make_way(&self, kind: RequestKind) {
        if !self.kind(kind).is_look_due(Instant::now()) {
            return;
        }
        let others = self.kinds.iter().filter(|other| !Arc::ptr_eq(other, self.kind(kind)));
        let mut kinds = std::iter::once(self.kind(kind)).chain(others);
        drop(kinds.find_map(|kind| kind.write_off(Instant::now(), SILENT_AFTER)));
    }

    /// As if a request of each kind waited here that waits before it gets to these limits.
    pub fn make_way_for_all(&self) {
        let now = Instant::now();
        for kind in [RequestKind::Read, RequestKind::Write, RequestKind::Delete] {
            let limit = self.kind(kind);
            if limit.is_look_due(now) {
                drop(limit.write_off(now, SILENT_AFTER));
            }
        }
    }

    async fn wait_for_permit(&self, kind: RequestKind) -> RequestPermit {
        let limit = self.kind(kind);
        // First the kind, then the total. In the other order, requests of a kind at its limit
        // would hold places of the total while they wait, and other kinds would stand still.
        let turn = limit.acquire().await;
        let of_all = Arc::clone(&self.all).acquire_owned().await;
        let of_all = of_all.expect("the semaphore is never closed");
        turn.begin(of_all)
    }

    /// A permit, if one is free.
    pub fn try_acquire(&self, kind: RequestKind) -> Option<RequestPermit> {
        let turn = self.kind(kind).try_acquire()?;
        // If the total is reached, the place of the kind is dropped here, and goes to the next
        // waiter of the kind.
        Some(turn.begin(Arc::clone(&self.all).try_acquire_owned().ok()?))
    }

    /// Leave beyond the limits, for the one request that looks whether the endpoint is back.
    pub fn bypass(&self, kind: RequestKind) -> RequestPermit {
        RequestPermit { limit: Arc::clone(self.kind(kind)), number: None }
    }

    /// How many requests of all kinds are written off now.
    pub fn written_off(&self) -> usize {
        self.kinds.iter().map(|kind| kind.state().in_flight.written_off()).sum()
    }
}

/// The gate of one kind.
#[derive(Debug)]
pub struct ClassLimit {
    gate: Arc<Semaphore>,
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits to swallow when they come back, because they were out when the limit was cut.
    debt: usize,
    successes: usize,
    last_cut: Option<Instant>,
    /// When a waiter looks next whether a request hangs: a second after one last took a place or was
    /// answered.
    next_look: Instant,
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
        let state = State {
            limit: max,
            debt: 0,
            successes: 0,
            last_cut: None,
            next_look: Instant::now() + SILENT_AFTER,
            usual: Duration::ZERO,
            in_flight: InFlight::default(),
        };
        Arc::new(ClassLimit { gate: Arc::new(Semaphore::new(max)), max, state: Mutex::new(state) })
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
        // The store works: a request that hangs leaves its place to one that waits. Not one that is
        // slow as others are.
        let is_full = self.gate.available_permits() == 0;
        let min = state.usual * SLOW_TIMES;
        let freed = is_full.then(|| state.in_flight.write_off(now, min)).flatten();
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

    /// How many are in flight beyond the limit: since it was cut while they were, or since they are
    /// written off.
    pub fn beyond(&self) -> usize {
        let state = self.state();
        state.debt + state.in_flight.written_off()
    }

    /// When a waiter looks next whether a request hangs.
    fn next_look(&self) -> Instant {
        self.state().next_look
    }

    /// Whether that time has come. Then another waiter need not look soon.
    fn is_look_due(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_due = now >= state.next_look;
        if is_due {
            state.next_look = now + LOOK_AGAIN;
        }
        is_due
    }

    /// Writes off a request that hangs and began `min` ago or earlier. Its places are free when what
    /// this returns is dropped.
    fn write_off(&self, now: Instant, min: Duration) -> Option<Places> {
        self.state().in_flight.write_off(now, min)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The request begins.
    fn begin(mut self, of_all: OwnedSemaphorePermit) -> RequestPermit {
        let now = Instant::now();
        let limit = Arc::clone(&self.limit);
        let number = self.of_kind.take().map(|of_kind| {
            let mut state = limit.state();
            state.next_look = now + SILENT_AFTER;
            state.in_flight.begin(Places { of_kind, of_all }, now)
        });
        RequestPermit { limit, number }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(of_kind) = self.of_kind.take() {
            let free = self.limit.state().give_back(of_kind);
            // Not under the lock: this wakes the next waiter.
            drop(free);
        }
    }
}

impl State {
    /// A place comes back: it is free when what this returns is dropped.
    fn give_back(&mut self, of_kind: OwnedSemaphorePermit) -> Option<OwnedSemaphorePermit> {
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

    /// The store answered.
    pub fn answered(&self, now: Instant) {
        self.limit.state().next_look = now + SILENT_AFTER;
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // Bypasses hold no place, so they change nothing here. Neither does a request that was
        // written off: another one has its places.
        let Some(number) = self.number else { return };
        let mut state = self.limit.state();
        let Some(Places { of_kind, of_all }) = state.in_flight.end(number) else { return };
        let free = state.give_back(of_kind);
        drop(state);
        drop((free, of_all));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::in_flight::WRITTEN_OFF_MAX;

    #[test]
    fn it_is_cut_grows_back_and_loses_no_permit() {
        let limit = ClassLimit::new(16);
        let counters = Counters::default();
        let start = Instant::now();
        let mut held: Vec<_> = (0..16).map(|_| limit.try_acquire().unwrap()).collect();
        assert!(limit.try_acquire().is_none());
        limit.overloaded(start, &counters);
        limit.overloaded(start, &counters);
        assert_eq!((limit.current(), counters.read().limit_cuts), (12, 1));
        held.truncate(12);
        assert!(limit.try_acquire().is_none(), "the cut swallowed four");
        held.clear();
        for n in 1..20 {
            limit.overloaded(start + CUT_EVERY * n, &counters);
        }
        assert_eq!(limit.current(), 1);
        let only = limit.try_acquire().unwrap();
        assert!(limit.try_acquire().is_none());
        drop(only);
        for _ in 0..1000 {
            limit.succeeded(start, Duration::from_millis(1), &counters);
        }
        assert_eq!(limit.current(), 16);
        let held: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
        assert_eq!(held.len(), 16);
    }

    #[tokio::test]
    async fn kinds_have_a_pace_of_their_own_and_one_number_together() {
        let limits = ConcurrencyLimits::new(16);
        let counters = Counters::default();
        let free = |kind| std::iter::from_fn(|| limits.try_acquire(kind)).collect::<Vec<_>>();
        for (kind, places) in [
            (RequestKind::Read, 16),
            (RequestKind::Write, 15),
            (RequestKind::Delete, 4),
            (RequestKind::Control, 4),
        ] {
            assert_eq!(free(kind).len(), places, "{kind:?}");
        }
        for n in 0..20 {
            limits.kind(RequestKind::Delete).overloaded(Instant::now() + CUT_EVERY * n, &counters);
        }
        assert_eq!(free(RequestKind::Delete).len(), 1);
        assert_eq!(free(RequestKind::Read).len(), 16, "loads are as fast as before");
        let writes = free(RequestKind::Write);
        let loads = free(RequestKind::Read);
        assert_eq!((writes.len(), loads.len(), free(RequestKind::Delete).len()), (15, 1, 0));
        // Other requests may wait for a session, so a session waits for no permit.
        limits.acquire(RequestKind::Session).await;
        drop((writes, loads));
        assert_eq!(free(RequestKind::Read).len(), 16, "no place is lost");
    }

    /// All permits of writes that there are.
    fn all_writes(limits: &ConcurrencyLimits) -> Vec<RequestPermit> {
        std::iter::from_fn(|| limits.try_acquire(RequestKind::Write)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_hang_one_more_goes_each_second_and_no_place_is_lost() {
        let limits = ConcurrencyLimits::new(16);
        let counters = Counters::default();
        let hung = all_writes(&limits);
        let began = Instant::now();
        // A limit that was cut meanwhile changes nothing: all that are out hang.
        (0..20).for_each(|n| {
            limits.kind(RequestKind::Write).overloaded(began + CUT_EVERY * n, &counters)
        });
        let mut more = Vec::new();
        for n in 1..=WRITTEN_OFF_MAX {
            // It hangs as well.
            more.push(limits.acquire(RequestKind::Write).await);
            let (waited, due) = (began.elapsed(), SILENT_AFTER * n as u32);
            assert!((due..due + LOOK_AGAIN * 2).contains(&waited), "{n}: {waited:?}");
        }
        let beyond = limits.kind(RequestKind::Write).beyond();
        assert_eq!((limits.written_off(), beyond), (WRITTEN_OFF_MAX, 14 + WRITTEN_OFF_MAX));
        let next = tokio::time::timeout(SILENT_AFTER * 9, limits.acquire(RequestKind::Write));
        assert!(next.await.is_err(), "no more than the most beyond the limit");
        drop((hung, more));
        assert_eq!((limits.written_off(), limits.kind(RequestKind::Write).beyond()), (0, 0));
        assert_eq!(all_writes(&limits).len(), 1, "as the limit says");
        let succeed = || {
            limits.kind(RequestKind::Write).succeeded(began, Duration::from_millis(1), &counters)
        };
        (0..1000).for_each(|_| succeed());
        assert_eq!(all_writes(&limits).len(), 15, "no place is lost");
        assert_eq!(limits.all.available_permits(), 16);
    }

    /// Requests that are given up one after the other say nothing of the others.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_unanswered_puts_nothing_off() {
        let limits = Arc::new(ConcurrencyLimits::new(16));
        let mut hung = all_writes(&limits);
        let counters = Counters::default();
        let began = Instant::now();
        (0..20).for_each(|n| {
            limits.kind(RequestKind::Write).overloaded(began + CUT_EVERY * n, &counters)
        });
        let give_up = async {
            loop {
                tokio::time::sleep(SILENT_AFTER / 2).await;
                hung.pop();
            }
        };
        tokio::select! {
            _ = limits.acquire(RequestKind::Write) => {}
            () = give_up => {}
        }
        assert!(began.elapsed() < SILENT_AFTER + LOOK_AGAIN * 2, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_moves_keeps_its_place() {
        let limits = ConcurrencyLimits::new(16);
        let writes = all_writes(&limits);
        let silences: Vec<_> = writes.iter().map(|_| Arc::<Silence>::default()).collect();
        writes.iter().zip(&silences).for_each(|(permit, silence)| permit.watch(silence));
        let mut next = pin!(limits.acquire(RequestKind::Write));
        let long = SILENT_AFTER * 20;
        assert!(tokio::time::timeout(long, &mut next).await.is_err(), "long uploads");
        silences[7].begin();
        let one = tokio::time::timeout(SILENT_AFTER, &mut next).await;
        assert!(one.is_ok(), "one of them stopped");
        let counts = (limits.written_off(), limits.all.available_permits());
        assert_eq!(counts, (1, 1), "its places went over, and no others");
    }

    #[tokio::test(start_paused = true)]
    async fn prompt_answers_write_off_what_hangs_and_not_what_is_slow_as_usual() {
        let limits = ConcurrencyLimits::new(16);
        let counters = Counters::default();
        let usual = Duration::from_millis(20);
        let writes = limits.kind(RequestKind::Write);
        let hung = all_writes(&limits);
        writes.succeeded(Instant::now(), usual, &counters);
        assert_eq!(limits.written_off(), 0, "none hangs yet");
        tokio::time::advance(SILENT_AFTER * 2).await;
        for n in 1..=5 {
            // Each success makes way for one: what waits is served as fast as it is answered.
            writes.succeeded(Instant::now(), usual, &counters);
            let one = limits.try_acquire(RequestKind::Write);
            assert!(one.is_some() && limits.written_off() == n);
            std::mem::forget(one);
        }
        drop(hung);
        // A store that always needs two seconds: what has waited three does not hang.
        let limits = ConcurrencyLimits::new(16);
        let writes = limits.kind(RequestKind::Write);
        let slow = SILENT_AFTER * 2;
        writes.succeeded(Instant::now(), slow, &counters);
        let busy = all_writes(&limits);
        tokio::time::advance(SILENT_AFTER * 3).await;
        writes.succeeded(Instant::now(), slow, &counters);
        assert_eq!((limits.written_off(), busy.len()), (0, 15));
    }

    /// Loads that hang take all places; writes, which have places of their kind, are sent all the same.
    #[tokio::test(start_paused = true)]
    async fn a_kind_is_not_kept_from_the_store_by_another_that_hangs() {
        let limits = ConcurrencyLimits::new(16);
        let loads: Vec<_> = std::iter::from_fn(|| limits.try_acquire(RequestKind::Read)).collect();
        assert_eq!(loads.len(), 16);
        let write = limits.acquire(RequestKind::Write);
        assert!(tokio::time::timeout(SILENT_AFTER * 2, write).await.is_ok());
    }

    #[test]
    fn a_store_that_stays_slow_is_not_cut_for_ever() {
        let limit = ClassLimit::new(16);
        let counters = Counters::default();
        assert_eq!(limit.silence_min(), SILENCE_UNKNOWN);
        let mut now = Instant::now();
        let slow = Duration::from_secs(2);
        (0..100).for_each(|_| limit.succeeded(now, Duration::from_millis(1), &counters));
        assert_eq!(limit.silence_min(), SILENCE_MIN);
        for _ in 0..40 {
            now += slow;
            limit.succeeded(now, slow, &counters);
        }
        assert!(limit.current() < 16);
        for _ in 0..1000 {
            now += slow;
            limit.succeeded(now, slow, &counters);
        }
        assert_eq!((limit.current(), limit.silence_min()), (16, SILENCE_MAX));
    }

    #[test]
    fn slow_first_bytes_cut_it_too() {
        let limit = ClassLimit::new(16);
        let counters = Counters::default();
        (0..10).for_each(|_| limit.succeeded(Instant::now(), Duration::from_millis(5), &counters));
        limit.succeeded(Instant::now(), Duration::from_secs(1), &counters);
        assert_eq!(limit.current(), 12);
    }
}
