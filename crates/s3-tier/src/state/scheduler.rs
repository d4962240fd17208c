//! Whose request goes next: loads before lookups before deletes before saves, and nobody waits for
//! ever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_core::Class;
use kvtier_s3::Client;
use tokio::sync::oneshot;

/// So often a lane may be passed over before it is served all the same.
const PASSED_MAX: u32 = 16;
/// Saves and deletes leave one of so many turns, one at least, to what is asked for: those that
/// hang would keep all loads waiting.
const LEAVE: usize = 16;

/// What a request is for, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    Read,
    Lookup,
    Prefetch,
    Delete,
    Write,
}

impl Lane {
    const COUNT: usize = 5;
    const ALL: [Lane; Lane::COUNT] =
        [Lane::Read, Lane::Lookup, Lane::Prefetch, Lane::Delete, Lane::Write];

    /// Whether nobody waits for it.
    fn can_wait(self) -> bool {
        matches!(self, Lane::Delete | Lane::Write)
    }

    /// The lane of a load.
    pub fn of_load(class: Class) -> Self {
        if class == Class::Demand { Lane::Read } else { Lane::Prefetch }
    }
}

/// The waiting lines before the client, which lets no more in than it has requests in flight.
#[derive(Debug)]
pub struct Lanes {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Of these, saves and deletes.
    running_late: usize,
    lines: [VecDeque<oneshot::Sender<Go>>; Lane::COUNT],
    passed: [u32; Lane::COUNT],
}

/// Leave to have a request in flight.
#[derive(Debug)]
pub struct Go(Arc<Lanes>, Lane);

impl State {
    /// Takes a turn in a lane, if there is one.
    fn take(&mut self, lane: Lane, limit: usize) -> bool {
        let late = usize::from(lane.can_wait());
        let left = (limit / LEAVE).max(usize::from(limit > 1));
        if self.running >= limit || (late > 0 && self.running_late + left >= limit) {
            return false;
        }
        self.running += 1;
        self.running_late += late;
        true
    }

    fn give_back(&mut self, lane: Lane) {
        self.running -= 1;
        self.running_late -= usize::from(lane.can_wait());
    }
}

impl Lanes {
    /// Lines before this client.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Lanes { client, state: Mutex::default() })
    }

    /// Waits for one's turn.
    pub async fn turn(self: &Arc<Self>, lane: Lane) -> Go {
        let turn = {
            let mut state = self.lock();
            if state.lines.iter().all(VecDeque::is_empty)
                && state.take(lane, self.client.requests_limit())
            {
                return Go(Arc::clone(self), lane);
            }
            let (go, turn) = oneshot::channel();
            state.lines[lane as usize].push_back(go);
            turn
        };
        // Who waited and left may have kept the others from being called.
        self.call();
        match turn.await {
            Ok(go) => go,
            // Senders are only dropped with the lanes, which we hold.
            Err(_) => std::future::pending().await,
        }
    }

    /// Lets go who may.
    fn call(self: &Arc<Self>) {
        while let Some((next, lane)) = self.next() {
            // One who left just now gives the turn back by dropping it.
            drop(next.send(Go(Arc::clone(self), lane)));
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<Go>, Lane)> {
        let limit = self.client.requests_limit();
        let mut state = self.lock();
        state.lines.iter_mut().for_each(|line| line.retain(|waiter| !waiter.is_closed()));
        let waiting = state.lines.each_ref().map(|line| !line.is_empty());
        let starving = state.passed.map(|times| times >= PASSED_MAX);
        let who = |starves| {
            Lane::ALL
                .into_iter()
                .filter(move |lane| waiting[*lane as usize] && starving[*lane as usize] == starves)
        };
        let lane = who(true).chain(who(false)).find(|lane| state.take(*lane, limit))?;
        let others =
            Lane::ALL.into_iter().filter(|other| *other != lane && waiting[*other as usize]);
        others.for_each(|other| state.passed[other as usize] += 1);
        state.passed[lane as usize] = 0;
        state.lines[lane as usize].pop_front().map(|next| (next, lane))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        self.0.lock().give_back(self.1);
        self.0.call();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use kvtier_s3::{BucketAddress, Config, Credentials};

    fn lanes(requests_max: usize) -> Arc<Lanes> {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        let mut config = Config::new(endpoint, Credentials::new("a", "b"));
        config.requests_max = requests_max;
        Lanes::new(Client::new(config))
    }

    #[tokio::test]
    async fn the_urgent_go_first_and_nobody_waits_for_ever() {
        let lanes = lanes(1);
        let first = lanes.turn(Lane::Write).await;
        let (order, done) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let ask = [vec![Lane::Write, Lane::Delete, Lane::Lookup], vec![Lane::Read; 40]].concat();
        for lane in &ask {
            let (lanes, order, done, lane) =
                (Arc::clone(&lanes), Arc::clone(&order), Arc::clone(&done), *lane);
            tokio::spawn(async move {
                let go = lanes.turn(lane).await;
                order.lock().unwrap().push(lane);
                drop(go);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        tokio::task::yield_now().await;
        while lanes.lock().lines.iter().map(VecDeque::len).sum::<usize>() < ask.len() {
            tokio::task::yield_now().await;
        }
        drop(first);
        while done.load(Ordering::SeqCst) < ask.len() {
            tokio::task::yield_now().await;
        }
        let order = order.lock().unwrap();
        let at = |lane| order.iter().position(|other| *other == lane).unwrap();
        assert_eq!(at(Lane::Read), 0);
        assert!(at(Lane::Lookup) < at(Lane::Delete) && at(Lane::Delete) < at(Lane::Write));
        assert!(at(Lane::Write) < 22, "it was served before all reads were: {}", at(Lane::Write));
        assert_eq!(lanes.lock().running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn saves_that_hang_leave_turns_to_loads() {
        let lanes = lanes(32);
        let take = async |lane, count: usize| {
            let mut taken = Vec::new();
            for _ in 0..count {
                taken.push(
                    tokio::time::timeout(std::time::Duration::from_secs(600), lanes.turn(lane))
                        .await
                        .unwrap(),
                );
            }
            taken
        };
        let mut hung = take(Lane::Write, 20).await;
        hung.extend(take(Lane::Delete, 10).await);
        let mut next = Box::pin(lanes.turn(Lane::Write));
        let mut waits = |cx: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(next.as_mut().poll(cx).is_pending())
        };
        assert!(std::future::poll_fn(&mut waits).await, "two turns are left to others");
        drop(take(Lane::Read, 2).await);
        assert!(std::future::poll_fn(&mut waits).await);
        hung.pop();
        assert!(!std::future::poll_fn(&mut waits).await);
        drop((hung, next));
        let state = lanes.lock();
        assert_eq!((state.running, state.running_late), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_the_line_takes_no_turn_with_him() {
        let lanes = lanes(1);
        let first = lanes.turn(Lane::Read).await;
        let mut gone = Box::pin(lanes.turn(Lane::Read));
        let mut stays = Box::pin(lanes.turn(Lane::Write));
        for waiting in [&mut gone, &mut stays] {
            let mut pending =
                |cx: &mut std::task::Context<'_>| waiting.as_mut().poll(cx).is_pending();
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(pending(cx))).await);
        }
        drop(first);
        drop(gone);
        drop(tokio::time::timeout(std::time::Duration::from_secs(600), stays).await.unwrap());
        assert_eq!(lanes.lock().running, 0);
    }
}
