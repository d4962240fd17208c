//! The order in which requests are sent: loads before lookups before deletes before saves.
//!
//! The client limits the requests in flight, in total and by kind: loads and lookups, saves,
//! deletes. Above a limit requests wait here, in the queues of `RequestQueue`, and not in the client,
//! which has no order. So what waits for a kind that the store slows down takes no permit from the
//! others. Only one request beyond those that the client sends is let through: it waits in the
//! client, which sends it although others hang. What was sent before the client cut a limit, or hangs,
//! counts no longer there (`BeyondLimits`), and not here.
//!
//! A released permit goes to the most urgent queue, except that a queue passed over `PASSED_MAX`
//! times goes first: no queue starves. Saves and deletes together never take the last
//! `RESERVED_PART`th of the permits, so that hanging ones do not block loads.
//!
//! A waiter that is dropped closes its channel; closed ones are skipped. A permit that was sent to
//! a waiter at the moment it left is dropped with the message, and dropping a permit releases it.
//! So no permit is lost.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::Class;
use kvtier_s3::Client;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How often a queue may be passed over before it goes first.
const PASSED_MAX: u32 = 16;
/// How often a waiter looks whether the client sends more now.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
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

/// How many requests the client has in flight at most, now.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of all kinds.
    total: usize,
    /// Of one kind.
    of_kind: usize,
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
}

/// Permission for one request in flight.
#[derive(Debug)]
pub struct SchedulerPermit(Arc<RequestScheduler>, RequestQueue);

impl State {
    /// Takes a permit of a kind, if there is one.
    fn take(&mut self, kind: LimitKind, limits: Limits) -> bool {
        let [reads, deletes, writes] = self.running;
        let reserved = (limits.total / RESERVED_PART).max(usize::from(limits.total > 1));
        let leaves_reserve = kind == LimitKind::Read || deletes + writes + reserved < limits.total;
        let running = &mut self.running[kind as usize];
        // Not `<`: one waits in the client.
        let is_free = reads + deletes + writes < limits.total && *running <= limits.of_kind;
        let is_taken = is_free && leaves_reserve;
        *running += usize::from(is_taken);
        is_taken
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
                && state.take(queue.limit_kind(), self.limits(queue.limit_kind()))
            {
                return SchedulerPermit(Arc::clone(self), queue);
            }
            let (permit, waiting) = oneshot::channel();
            state.queues[queue as usize].push_back(permit);
            waiting
        };
        let mut waiting = pin!(waiting);
        loop {
            // A waiter that left may have kept the others from being served. So may a request that
            // hangs, until it counts no longer.
            self.dispatch();
            match timeout(LOOK_AGAIN, waiting.as_mut()).await {
                Ok(Ok(permit)) => return permit,
                // Senders are only dropped with the scheduler, which we hold.
                Ok(Err(_)) => std::future::pending().await,
                // The limits above may let none into the client to look there.
                Err(_) => self.client.make_way(),
            }
        }
    }

    /// Sends permits to the waiters that may go.
    fn dispatch(self: &Arc<Self>) {
        while let Some((next, queue)) = self.next() {
            // A waiter that has left releases the permit by dropping it.
            drop(next.send(SchedulerPermit(Arc::clone(self), queue)));
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<SchedulerPermit>, RequestQueue)> {
        let mut state = self.lock();
        state.queues.iter_mut().for_each(|queue| queue.retain(|waiter| !waiter.is_closed()));
        let waiting = state.queues.each_ref().map(|queue| !queue.is_empty());
        let starving = state.passed.map(|times| times >= PASSED_MAX);
        let waiting_queues = |starves| {
            RequestQueue::ALL.into_iter().filter(move |queue| {
                waiting[*queue as usize] && starving[*queue as usize] == starves
            })
        };
        let queue = waiting_queues(true)
            .chain(waiting_queues(false))
            .find(|queue| state.take(queue.limit_kind(), self.limits(queue.limit_kind())))?;
        let others = RequestQueue::ALL
            .into_iter()
            .filter(|other| *other != queue && waiting[*other as usize]);
        others.for_each(|other| state.passed[other as usize] += 1);
        state.passed[queue as usize] = 0;
        state.queues[queue as usize].pop_front().map(|next| (next, queue))
    }

    fn limits(&self, kind: LimitKind) -> Limits {
        let client = &self.client;
        let beyond = client.beyond_limits();
        let of_kind = match kind {
            LimitKind::Read => client.requests_limit() + beyond.reads,
            LimitKind::Delete => client.deletes_limit() + beyond.deletes,
            LimitKind::Write => client.writes_limit() + beyond.writes,
        };
        Limits { total: client.requests_max() + beyond.hanging, of_kind }
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
            (0..99).take_while(|_| state.take(kind, Limits { total: 16, of_kind: limit })).count()
        };
        let mut state = State::default();
        assert_eq!(permits(&mut state, LimitKind::Write, 1), 2, "one of them in the client");
        assert_eq!(permits(&mut state, LimitKind::Delete, 4), 5);
        assert_eq!(permits(&mut state, LimitKind::Read, 16), 9);
        let mut state = State::default();
        assert_eq!(permits(&mut state, LimitKind::Read, 2), 3);
        assert_eq!(permits(&mut state, LimitKind::Write, 15), 13, "slow loads leave the rest");
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
}
