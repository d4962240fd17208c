//! The order in which requests are sent: loads before lookups before deletes before saves.
//!
//! The client limits the requests in flight, in total and by kind: loads and lookups, saves,
//! deletes. Above a limit requests wait here, in the queues of `RequestQueue`, and not in the client,
//! which has no order. So what waits for a kind that the store slows down takes no permit from the
//! others. Only one request beyond those that the client sends is let through: it waits in the
//! client, which sends it although others hang. What was sent before the client cut a limit, or hangs,
//! counts no longer there, and not here (`Client::in_flight_max`).
//!
//! A released permit goes to the most urgent queue, except that a queue passed over `PASSED_MAX`
//! times goes first: no queue starves. Saves and deletes together never take the last
//! `RESERVED_PART`th of the permits, so that hanging ones do not block loads.
//!
//! A waiter that is dropped closes its channel; closed ones are skipped when they come first. A permit
//! that was sent to a waiter at the moment it left is dropped with the message, and dropping a permit
//! releases it. So no permit is lost.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::Class;
use kvtier_s3::{Client, FullLimit, InFlightMax};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How often a queue may be passed over before it goes first.
const PASSED_MAX: u32 = 16;
/// How often the waiters check whether the client sends more now, one of them for all.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Saves and deletes leave this part of the permits to others, and at least one.
const RESERVED_PART: usize = 16;

/// The queue in which a request waits, most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestQueue {
    Read,
    Lookup,
    Prefetch,
    Delete,
    Write,
}

impl RequestQueue {
    const COUNT: usize = 5;
    const ALL: [RequestQueue; RequestQueue::COUNT] = [
        RequestQueue::Read,
        RequestQueue::Lookup,
        RequestQueue::Prefetch,
        RequestQueue::Delete,
        RequestQueue::Write,
    ];

    /// The limit of the client that counts its requests.
    fn limit_kind(self) -> LimitKind {
        match self {
            RequestQueue::Read | RequestQueue::Lookup | RequestQueue::Prefetch => LimitKind::Read,
            RequestQueue::Delete => LimitKind::Delete,
            RequestQueue::Write => LimitKind::Write,
        }
    }

    /// That of a load.
    pub fn for_load(class: Class) -> Self {
        if class == Class::Demand { RequestQueue::Read } else { RequestQueue::Prefetch }
    }
}

/// Requests that the client limits together. No caller waits for deletes, nor soon for writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LimitKind {
    Read,
    Delete,
    Write,
}

impl LimitKind {
    /// How many of its requests the client has in flight at most.
    fn limit(self, in_flight_max: &InFlightMax) -> usize {
        match self {
            LimitKind::Read => in_flight_max.reads,
            LimitKind::Delete => in_flight_max.deletes,
            LimitKind::Write => in_flight_max.writes,
        }
    }
}

/// Queues in front of the client, which has a limit of requests in flight.
#[derive(Debug)]
pub struct RequestScheduler {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By kind.
    running: [usize; 3],
    queues: [VecDeque<oneshot::Sender<SchedulerPermit>>; RequestQueue::COUNT],
    passed: [u32; RequestQueue::COUNT],
    /// When a waiter checked last.
    checked: Option<Instant>,
}

/// Permission for one request in flight.
#[derive(Debug)]
pub struct SchedulerPermit(Arc<RequestScheduler>, RequestQueue);

impl State {
    /// The limit that keeps a request of this kind waiting, if one does.
    fn full_limit(&self, kind: LimitKind, in_flight_max: &InFlightMax) -> Option<FullLimit> {
        let [reads, deletes, writes] = self.running;
        let total = in_flight_max.total;
        let reserved = (total / RESERVED_PART).max(usize::from(total > 1));
        // Not `>=`: one waits in the client.
        if self.running[kind as usize] > kind.limit(in_flight_max) {
            return Some(match kind {
                LimitKind::Read => FullLimit::Reads,
                LimitKind::Delete => FullLimit::Deletes,
                LimitKind::Write => FullLimit::Writes,
            });
        }
        let is_full = reads + deletes + writes >= total;
        let takes_reserve = kind != LimitKind::Read && deletes + writes + reserved >= total;
        (is_full || takes_reserve).then_some(FullLimit::Total)
    }

    /// Takes a permit of a kind, if there is one.
    fn take(&mut self, kind: LimitKind, in_flight_max: &InFlightMax) -> bool {
        let is_free = self.full_limit(kind, in_flight_max).is_none();
        self.running[kind as usize] += usize::from(is_free);
        is_free
    }

    /// Whether a request waits in this queue. Drops those that have left from its front.
    fn has_waiter(&mut self, queue: RequestQueue) -> bool {
        let waiters = &mut self.queues[queue as usize];
        while waiters.pop_front_if(|waiter| waiter.is_closed()).is_some() {}
        !waiters.is_empty()
    }

    /// Whether a waiter checks now. Then no other does soon.
    fn is_check_due(&mut self, now: Instant) -> bool {
        let is_due = self.checked.is_none_or(|checked| now - checked >= CHECK_AGAIN_AFTER);
        if is_due {
            self.checked = Some(now);
        }
        is_due
    }
}

impl RequestScheduler {
    /// Queues in front of this client.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(RequestScheduler { client, state: Mutex::default() })
    }

    /// Waits for a permit.
    pub async fn acquire(self: &Arc<Self>, queue: RequestQueue) -> SchedulerPermit {
        let waiting = {
            let mut state = self.lock();
            if state.queues.iter().all(VecDeque::is_empty)
                && state.take(queue.limit_kind(), &self.client.in_flight_max())
            {
                return SchedulerPermit(Arc::clone(self), queue);
            }
            let (permit, waiting) = oneshot::channel();
            state.queues[queue as usize].push_back(permit);
            waiting
        };
        // A waiter that left may have kept the others from being served.
        self.dispatch();
        let mut waiting = pin!(waiting);
        loop {
            match timeout(CHECK_AGAIN_AFTER, waiting.as_mut()).await {
                Ok(Ok(permit)) => return permit,
                // Senders are only dropped with the scheduler, which we hold.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.look_for_hung_requests(),
            }
        }
    }

    /// A request that hangs may have kept waiters from being served, until the client abandons it. The
    /// limits above may let none into the client to check there.
    fn look_for_hung_requests(self: &Arc<Self>) {
        let full_limits: Vec<FullLimit> = {
            let mut state = self.lock();
            if !state.is_check_due(Instant::now()) {
                return;
            }
            let in_flight_max = self.client.in_flight_max();
            let mut waiting = RequestQueue::ALL.to_vec();
            waiting.retain(|queue| state.has_waiter(*queue));
            let full_limit =
                |queue: RequestQueue| state.full_limit(queue.limit_kind(), &in_flight_max);
            waiting.into_iter().filter_map(full_limit).collect()
        };
        full_limits.into_iter().for_each(|full| self.client.abandon_hung_request(full));
        self.dispatch();
    }

    /// Sends permits to the waiters that may go.
    fn dispatch(self: &Arc<Self>) {
        while let Some((next, queue)) = self.next() {
            // A waiter that has left releases the permit by dropping it.
            drop(next.send(SchedulerPermit(Arc::clone(self), queue)));
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<SchedulerPermit>, RequestQueue)> {
        let in_flight_max = self.client.in_flight_max();
        let mut state = self.lock();
        let waiting = RequestQueue::ALL.map(|queue| state.has_waiter(queue));
        let starving = state.passed.map(|times| times >= PASSED_MAX);
        let waiting_queues = |starves| {
            RequestQueue::ALL.into_iter().filter(move |queue| {
                waiting[*queue as usize] && starving[*queue as usize] == starves
            })
        };
        let queue = waiting_queues(true)
            .chain(waiting_queues(false))
            .find(|queue| state.take(queue.limit_kind(), &in_flight_max))?;
        let others = RequestQueue::ALL
            .into_iter()
            .filter(|other| *other != queue && waiting[*other as usize]);
        others.for_each(|other| state.passed[other as usize] += 1);
        state.passed[queue as usize] = 0;
        state.queues[queue as usize].pop_front().map(|next| (next, queue))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SchedulerPermit {
    fn drop(&mut self) {
        self.0.lock().running[self.1.limit_kind() as usize] -= 1;
        self.0.dispatch();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use kvtier_s3::{BucketAddress, Config, Credentials};

    fn scheduler(requests_max: usize) -> Arc<RequestScheduler> {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        let mut config = Config::new(endpoint, Credentials::new("a", "b"));
        config.requests_max = requests_max;
        RequestScheduler::new(Client::new(config))
    }

    #[tokio::test]
    async fn urgent_requests_go_first_and_no_kind_starves() {
        let scheduler = scheduler(1);
        let first = scheduler.acquire(RequestQueue::Write).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let done = Arc::new(AtomicUsize::new(0));
        let ask = [
            vec![RequestQueue::Write, RequestQueue::Delete, RequestQueue::Lookup],
            vec![RequestQueue::Read; 40],
        ]
        .concat();
        for queue in &ask {
            let scheduler = Arc::clone(&scheduler);
            let order = Arc::clone(&order);
            let done = Arc::clone(&done);
            let queue = *queue;
            tokio::spawn(async move {
                let permit = scheduler.acquire(queue).await;
                order.lock().unwrap().push(queue);
                drop(permit);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        tokio::task::yield_now().await;
        while scheduler.lock().queues.iter().map(VecDeque::len).sum::<usize>() < ask.len() {
            tokio::task::yield_now().await;
        }
        drop(first);
        while done.load(Ordering::SeqCst) < ask.len() {
            tokio::task::yield_now().await;
        }
        let order = order.lock().unwrap();
        let at = |queue| order.iter().position(|other| *other == queue).unwrap();
        assert_eq!(at(RequestQueue::Read), 0);
        assert!(
            at(RequestQueue::Lookup) < at(RequestQueue::Delete)
                && at(RequestQueue::Delete) < at(RequestQueue::Write)
        );
        assert!(
            at(RequestQueue::Write) < 22,
            "it was served before all reads were: {}",
            at(RequestQueue::Write)
        );
        assert_eq!(scheduler.lock().running, [0; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_saves_leave_permits_to_loads() {
        let scheduler = scheduler(32);
        let take = async |queue, count: usize| {
            let mut taken = Vec::new();
            for _ in 0..count {
                taken.push(
                    tokio::time::timeout(
                        std::time::Duration::from_secs(600),
                        scheduler.acquire(queue),
                    )
                    .await
                    .unwrap(),
                );
            }
            taken
        };
        // The client leaves deletes a quarter, and one more waits in it.
        let mut hung = take(RequestQueue::Delete, 9).await;
        hung.extend(take(RequestQueue::Write, 21).await);
        let mut next = Box::pin(scheduler.acquire(RequestQueue::Write));
        let mut waits = |cx: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(next.as_mut().poll(cx).is_pending())
        };
        assert!(std::future::poll_fn(&mut waits).await, "two permits are left to others");
        drop(take(RequestQueue::Read, 2).await);
        assert!(std::future::poll_fn(&mut waits).await);
        hung.pop();
        assert!(!std::future::poll_fn(&mut waits).await);
        drop((hung, next));
        assert_eq!(scheduler.lock().running, [0; 3]);
    }

    #[test]
    fn what_waits_for_a_class_that_is_slowed_down_takes_no_permit_of_others() {
        let permits = |state: &mut State, kind, limit| {
            let in_flight_max = in_flight_max(limit);
            (0..99).take_while(|_| state.take(kind, &in_flight_max)).count()
        };
        let mut state = State::default();
        assert_eq!(permits(&mut state, LimitKind::Write, 1), 2, "one of them in the client");
        assert_eq!(permits(&mut state, LimitKind::Delete, 4), 5);
        assert_eq!(permits(&mut state, LimitKind::Read, 16), 9);
        let mut state = State::default();
        assert_eq!(permits(&mut state, LimitKind::Read, 2), 3);
        assert_eq!(permits(&mut state, LimitKind::Write, 15), 13, "slow loads leave the rest");
    }

    /// Limits of 16 in total, and of this number for each kind.
    fn in_flight_max(of_kind: usize) -> InFlightMax {
        let mut limits = InFlightMax::default();
        (limits.reads, limits.writes, limits.deletes) = (of_kind, of_kind, of_kind);
        limits.total = 16;
        limits
    }

    #[test]
    fn the_limit_that_keeps_a_request_waiting_is_known() {
        let limits = |of_kind| in_flight_max(of_kind);
        let mut state = State::default();
        assert_eq!(state.full_limit(LimitKind::Write, &limits(1)), None);
        state.running = [0, 0, 2];
        assert_eq!(state.full_limit(LimitKind::Write, &limits(1)), Some(FullLimit::Writes));
        assert_eq!(state.full_limit(LimitKind::Read, &limits(1)), None);
        state.running = [0, 5, 10];
        assert_eq!(state.full_limit(LimitKind::Write, &limits(15)), Some(FullLimit::Total));
        assert_eq!(state.full_limit(LimitKind::Read, &limits(15)), None);
        state.running = [1, 5, 10];
        assert_eq!(state.full_limit(LimitKind::Read, &limits(15)), Some(FullLimit::Total));
    }

    #[tokio::test(start_paused = true)]
    async fn one_waiter_looks_for_all() {
        let mut state = State::default();
        let now = Instant::now();
        assert!(state.is_check_due(now) && !state.is_check_due(now));
        assert!(!state.is_check_due(now + CHECK_AGAIN_AFTER / 2));
        assert!(state.is_check_due(now + CHECK_AGAIN_AFTER));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_leaves_keeps_no_permit() {
        let scheduler = scheduler(1);
        let first = scheduler.acquire(RequestQueue::Read).await;
        let mut gone = Box::pin(scheduler.acquire(RequestQueue::Read));
        let mut stays = Box::pin(scheduler.acquire(RequestQueue::Write));
        for waiting in [&mut gone, &mut stays] {
            let mut pending =
                |cx: &mut std::task::Context<'_>| waiting.as_mut().poll(cx).is_pending();
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(pending(cx))).await);
        }
        drop(first);
        drop(gone);
        drop(tokio::time::timeout(std::time::Duration::from_secs(600), stays).await.unwrap());
        assert_eq!(scheduler.lock().running, [0; 3]);
    }

    #[test]
    fn of_two_requests_in_flight_one_is_left_to_loads() {
        let mut limits = in_flight_max(15);
        limits.total = 2;
        let mut state = State { running: [0, 0, 1], ..State::default() };
        assert_eq!(state.full_limit(LimitKind::Write, &limits), Some(FullLimit::Total));
        assert_eq!(state.full_limit(LimitKind::Read, &limits), None);
        limits.total = 1;
        state.running = [0; 3];
        assert_eq!(state.full_limit(LimitKind::Write, &limits), None, "none can be left of one");
    }

    #[test]
    fn loads_that_are_waited_for_have_a_queue_of_their_own() {
        assert_eq!(RequestQueue::for_load(Class::Demand), RequestQueue::Read);
        assert_eq!(RequestQueue::for_load(Class::Prefetch), RequestQueue::Prefetch);
    }
}
