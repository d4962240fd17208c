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
//! Requests can hang until [`crate::Config::stall_max`]. If no request of a kind has started or
//! ended for [`HUNG_AFTER`], one more is allowed, so that the kind notices a store that works
//! again. Sessions and probes bypass the limits: other requests wait for them.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RequestKind;
use crate::counters::Counters;
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

/// Where no request of a kind has begun or ended for this long, those in flight hang: one more
/// goes, so that the others need not wait until it is known that they never end.
const HUNG_AFTER: Duration = Duration::from_secs(1);

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
            // In this order: a permit that is free is better than one beyond the limit. The timer
            // only makes the loop look again whether the kind hangs.
            tokio::select! {
                biased;
                permit = waiting.as_mut() => return permit,
                spare = Arc::clone(&limit.spare).acquire_owned(), if limit.is_hung() => {
                    let mut permit = self.bypass(kind);
                    permit.spare = spare.ok();
                    return permit;
                }
                () = tokio::time::sleep(HUNG_AFTER) => {}
            }
        }
    }

    async fn wait_for_permit(&self, kind: RequestKind) -> RequestPermit {
        // First the kind, then the total. In the other order, requests of a kind at its limit
        // would hold permits of the total while they wait, and other kinds would stand still.
        let mut permit = self.kind(kind).acquire().await;
        // The semaphores are never closed, so `ok` loses nothing.
        permit.all = Arc::clone(&self.all).acquire_owned().await.ok();
        permit.limit.record_progress();
        permit
    }

    /// A permit, if one is free.
    pub fn try_acquire(&self, kind: RequestKind) -> Option<RequestPermit> {
        let mut permit = self.kind(kind).try_acquire()?;
        // If the total is reached, the permit of the kind is dropped here, and goes to the next
        // waiter of the kind.
        permit.all = Some(Arc::clone(&self.all).try_acquire_owned().ok()?);
        permit.limit.record_progress();
        Some(permit)
    }

    /// Leave beyond the limits, for the one request that looks whether the endpoint is back.
    pub fn bypass(&self, kind: RequestKind) -> RequestPermit {
        RequestPermit { limit: Arc::clone(self.kind(kind)), permit: None, all: None, spare: None }
    }
}

/// The gate of one kind.
#[derive(Debug)]
pub struct ClassLimit {
    gate: Arc<Semaphore>,
    /// One place on top, for when all others hang.
    spare: Arc<Semaphore>,
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
    /// When a request last took a place or left one.
    last_progress: Instant,
    usual: Duration,
}

/// Leave to have one request in flight.
#[derive(Debug)]
pub struct RequestPermit {
    limit: Arc<ClassLimit>,
    permit: Option<OwnedSemaphorePermit>,
    /// Its place among all kinds.
    all: Option<OwnedSemaphorePermit>,
    /// The place on top, where it has that.
    spare: Option<OwnedSemaphorePermit>,
}

impl ClassLimit {
    /// At most `max` (at least one) at any time.
    pub fn new(max: usize) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let last_progress = Instant::now();
        let usual = Duration::ZERO;
        let state =
            State { limit: max, debt: 0, successes: 0, last_cut: None, last_progress, usual };
        let [gate, spare] = [max, 1].map(|places| Arc::new(Semaphore::new(places)));
        Arc::new(ClassLimit { gate, spare, max, state: Mutex::new(state) })
    }

    /// Waits for its turn.
    pub async fn acquire(self: &Arc<Self>) -> RequestPermit {
        let permit = Arc::clone(&self.gate).acquire_owned().await.ok();
        RequestPermit { limit: Arc::clone(self), permit, all: None, spare: None }
    }

    /// A permit, if one is free.
    pub fn try_acquire(self: &Arc<Self>) -> Option<RequestPermit> {
        let permit = Arc::clone(&self.gate).try_acquire_owned().ok()?;
        Some(RequestPermit {
            limit: Arc::clone(self),
            permit: Some(permit),
            all: None,
            spare: None,
        })
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

    fn record_progress(&self) {
        self.state().last_progress = Instant::now();
    }

    fn is_hung(&self) -> bool {
        self.state().last_progress.elapsed() >= HUNG_AFTER
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // Bypasses hold no permit of the kind, so they change nothing here.
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.limit.state();
        // A waiter that got the permit of its kind and was dropped before it had one of the total
        // has sent nothing: that is no progress.
        if self.all.is_some() {
            state.last_progress = Instant::now();
        }
        if state.debt > 0 {
            state.debt -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// What it comes to without any wait.
    async fn once<F: Future + Unpin>(mut future: F) -> std::task::Poll<F::Output> {
        std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut future).poll(cx)))
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_hang_one_more_goes_and_no_second() {
        let limits = ConcurrencyLimits::new(16);
        let hung: Vec<_> = std::iter::from_fn(|| limits.try_acquire(RequestKind::Write)).collect();
        let began = Instant::now();
        let spare = tokio::time::timeout(HUNG_AFTER * 20, limits.acquire(RequestKind::Write))
            .await
            .unwrap();
        let waited = began.elapsed();
        assert!(
            (HUNG_AFTER..HUNG_AFTER * 2).contains(&waited),
            "before that they do not count as hanging: {waited:?}"
        );
        let none = tokio::time::timeout(HUNG_AFTER * 2, limits.acquire(RequestKind::Write)).await;
        assert!(none.is_err(), "there is only one");
        drop(spare);
        // One after the other, and at once: neither is there a second look at the clock.
        let mut one = Box::pin(limits.acquire(RequestKind::Write));
        let mut two = Box::pin(limits.acquire(RequestKind::Write));
        let std::task::Poll::Ready(first) = once(&mut one).await else {
            panic!("the one place is free")
        };
        assert!(once(&mut two).await.is_pending());
        drop(first);
        let std::task::Poll::Ready(second) = once(&mut two).await else {
            panic!("it is free again")
        };
        drop((second, hung));
        let free: Vec<_> = std::iter::from_fn(|| limits.try_acquire(RequestKind::Write)).collect();
        assert_eq!(free.len(), 15, "no place is lost");
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
