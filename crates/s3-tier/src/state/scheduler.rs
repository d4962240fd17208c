//! The order in which requests are sent: loads before lookups before deletes before saves.
//!
//! The client limits the requests in flight, in total and by class: loads and lookups, saves,
//! deletes. Above a limit requests wait here, in one queue for each kind, and not in the client,
//! which has no order. So what waits for a class that the store slows down takes no permit from the
//! others. Only one request beyond a class's limit is let through: it waits in the client, which
//! sends it although the others hang.
//!
//! A released permit goes to the most urgent queue, except that a queue passed over `PASSED_MAX`
//! times goes first: no kind starves. Saves and deletes together never take the last
//! `RESERVED_PART`th of the permits, so that hanging ones do not block loads.
//!
//! A waiter that is dropped closes its channel; closed ones are skipped. A permit that was sent to
//! a waiter at the moment it left is dropped with the message, and dropping a permit releases it.
//! So no permit is lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_core::Class;
use kvtier_s3::Client;
use tokio::sync::oneshot;

/// How often a kind may be passed over before it goes first.
const PASSED_MAX: u32 = 16;
/// Saves and deletes leave this part of the permits to others, and at least one.
const RESERVED_PART: usize = 16;

/// What a request is for, most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    Read,
    Lookup,
    Prefetch,
    Delete,
    Write,
}

impl RequestKind {
    const COUNT: usize = 5;
    const ALL: [RequestKind; RequestKind::COUNT] = [
        RequestKind::Read,
        RequestKind::Lookup,
        RequestKind::Prefetch,
        RequestKind::Delete,
        RequestKind::Write,
    ];

    /// The client's class of its requests.
    fn class(self) -> RequestClass {
        match self {
            RequestKind::Read | RequestKind::Lookup | RequestKind::Prefetch => RequestClass::Read,
            RequestKind::Delete => RequestClass::Delete,
            RequestKind::Write => RequestClass::Write,
        }
    }

    /// The kind of a load.
    pub fn for_load(class: Class) -> Self {
        if class == Class::Demand { RequestKind::Read } else { RequestKind::Prefetch }
    }
}

/// Requests that the client limits together. No caller waits for deletes, nor soon for writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestClass {
    Read,
    Delete,
    Write,
}

/// The client's limits of requests in flight.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of all requests.
    total: usize,
    /// Of one class, now.
    class: usize,
}

/// Queues in front of the client, which has a limit of requests in flight.
#[derive(Debug)]
pub struct RequestScheduler {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By class.
    running: [usize; 3],
    queues: [VecDeque<oneshot::Sender<RequestPermit>>; RequestKind::COUNT],
    passed: [u32; RequestKind::COUNT],
}

/// Permission for one request in flight.
#[derive(Debug)]
pub struct RequestPermit(Arc<RequestScheduler>, RequestKind);

impl State {
    /// Takes a permit of a class, if there is one.
    fn take(&mut self, class: RequestClass, limits: Limits) -> bool {
        let [reads, deletes, writes] = self.running;
        let reserved = (limits.total / RESERVED_PART).max(usize::from(limits.total > 1));
        let leaves_reserve =
            class == RequestClass::Read || deletes + writes + reserved < limits.total;
        let running = &mut self.running[class as usize];
        // Not `<`: one waits in the client.
        let is_free = reads + deletes + writes < limits.total && *running <= limits.class;
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
    pub async fn acquire(self: &Arc<Self>, kind: RequestKind) -> RequestPermit {
        let waiting = {
            let mut state = self.lock();
            if state.queues.iter().all(VecDeque::is_empty)
                && state.take(kind.class(), self.limits(kind.class()))
            {
                return RequestPermit(Arc::clone(self), kind);
            }
            let (permit, waiting) = oneshot::channel();
            state.queues[kind as usize].push_back(permit);
            waiting
        };
        // A waiter that left may have kept the others from being served.
        self.dispatch();
        match waiting.await {
            Ok(permit) => permit,
            // Senders are only dropped with the scheduler, which we hold.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sends permits to the waiters that may go.
    fn dispatch(self: &Arc<Self>) {
        while let Some((next, kind)) = self.next() {
            // A waiter that has left releases the permit by dropping it.
            drop(next.send(RequestPermit(Arc::clone(self), kind)));
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<RequestPermit>, RequestKind)> {
        let mut state = self.lock();
        state.queues.iter_mut().for_each(|queue| queue.retain(|waiter| !waiter.is_closed()));
        let waiting = state.queues.each_ref().map(|queue| !queue.is_empty());
        let starving = state.passed.map(|times| times >= PASSED_MAX);
        let waiting_kinds = |starves| {
            RequestKind::ALL
                .into_iter()
                .filter(move |kind| waiting[*kind as usize] && starving[*kind as usize] == starves)
        };
        let kind = waiting_kinds(true)
            .chain(waiting_kinds(false))
            .find(|kind| state.take(kind.class(), self.limits(kind.class())))?;
        let others =
            RequestKind::ALL.into_iter().filter(|other| *other != kind && waiting[*other as usize]);
        others.for_each(|other| state.passed[other as usize] += 1);
        state.passed[kind as usize] = 0;
        state.queues[kind as usize].pop_front().map(|next| (next, kind))
    }

    fn limits(&self, class: RequestClass) -> Limits {
        let class = match class {
            RequestClass::Read => self.client.requests_limit(),
            RequestClass::Delete => self.client.deletes_limit(),
            RequestClass::Write => self.client.writes_limit(),
        };
        Limits { total: self.client.requests_max(), class }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.lock().running[self.1.class() as usize] -= 1;
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
        let first = scheduler.acquire(RequestKind::Write).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let done = Arc::new(AtomicUsize::new(0));
        let ask = [
            vec![RequestKind::Write, RequestKind::Delete, RequestKind::Lookup],
            vec![RequestKind::Read; 40],
        ]
        .concat();
        for kind in &ask {
            let scheduler = Arc::clone(&scheduler);
            let order = Arc::clone(&order);
            let done = Arc::clone(&done);
            let kind = *kind;
            tokio::spawn(async move {
                let permit = scheduler.acquire(kind).await;
                order.lock().unwrap().push(kind);
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
        let at = |kind| order.iter().position(|other| *other == kind).unwrap();
        assert_eq!(at(RequestKind::Read), 0);
        assert!(
            at(RequestKind::Lookup) < at(RequestKind::Delete)
                && at(RequestKind::Delete) < at(RequestKind::Write)
        );
        assert!(
            at(RequestKind::Write) < 22,
            "it was served before all reads were: {}",
            at(RequestKind::Write)
        );
        assert_eq!(scheduler.lock().running, [0; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_saves_leave_permits_to_loads() {
        let scheduler = scheduler(32);
        let take = async |kind, count: usize| {
            let mut taken = Vec::new();
            for _ in 0..count {
                taken.push(
                    tokio::time::timeout(
                        std::time::Duration::from_secs(600),
                        scheduler.acquire(kind),
                    )
                    .await
                    .unwrap(),
                );
            }
            taken
        };
        // The client leaves deletes a quarter, and one more waits in it.
        let mut hung = take(RequestKind::Delete, 9).await;
        hung.extend(take(RequestKind::Write, 21).await);
        let mut next = Box::pin(scheduler.acquire(RequestKind::Write));
        let mut waits = |cx: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(next.as_mut().poll(cx).is_pending())
        };
        assert!(std::future::poll_fn(&mut waits).await, "two permits are left to others");
        drop(take(RequestKind::Read, 2).await);
        assert!(std::future::poll_fn(&mut waits).await);
        hung.pop();
        assert!(!std::future::poll_fn(&mut waits).await);
        drop((hung, next));
        assert_eq!(scheduler.lock().running, [0; 3]);
    }

    #[test]
    fn what_waits_for_a_class_that_is_slowed_down_takes_no_permit_of_others() {
        let permits = |state: &mut State, class, limit| {
            (0..99).take_while(|_| state.take(class, Limits { total: 16, class: limit })).count()
        };
        let mut state = State::default();
        assert_eq!(permits(&mut state, RequestClass::Write, 1), 2, "one of them in the client");
        assert_eq!(permits(&mut state, RequestClass::Delete, 4), 5);
        assert_eq!(permits(&mut state, RequestClass::Read, 16), 9);
        let mut state = State::default();
        assert_eq!(permits(&mut state, RequestClass::Read, 2), 3);
        assert_eq!(permits(&mut state, RequestClass::Write, 15), 13, "slow loads leave the rest");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_leaves_keeps_no_permit() {
        let scheduler = scheduler(1);
        let first = scheduler.acquire(RequestKind::Read).await;
        let mut gone = Box::pin(scheduler.acquire(RequestKind::Read));
        let mut stays = Box::pin(scheduler.acquire(RequestKind::Write));
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
