//! Whose request goes next: loads before lookups before deletes before saves, and nobody waits for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_core::Class;
use tokio::sync::oneshot;

use crate::Client;

/// So often a lane may be passed over before it is served all the same.
const PASSED_MAX: u32 = 16;

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
    lines: [VecDeque<oneshot::Sender<Go>>; Lane::COUNT],
    passed: [u32; Lane::COUNT],
}

/// Leave to have a request in flight.
#[derive(Debug)]
pub struct Go(Arc<Lanes>);

impl Lanes {
    /// Lines before this client.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Lanes { client, state: Mutex::default() })
    }

    /// Waits for one's turn.
    pub async fn turn(self: &Arc<Self>, lane: Lane) -> Go {
        let turn = {
            let mut state = self.lock();
            if state.running < self.client.requests_limit() && state.lines.iter().all(VecDeque::is_empty) {
                state.running += 1;
                return Go(Arc::clone(self));
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
        while let Some(next) = self.next() {
            // One who left just now gives the turn back by dropping it.
            drop(next.send(Go(Arc::clone(self))));
        }
    }

    fn next(&self) -> Option<oneshot::Sender<Go>> {
        let limit = self.client.requests_limit();
        let mut state = self.lock();
        if state.running >= limit {
            return None;
        }
        let State { lines, passed, .. } = &mut *state;
        lines.iter_mut().for_each(|line| line.retain(|waiter| !waiter.is_closed()));
        let waits = |lane: &usize| !lines[*lane].is_empty();
        let starving = (0..Lane::COUNT).filter(waits).find(|lane| passed[*lane] >= PASSED_MAX);
        let lane = starving.or_else(|| (0..Lane::COUNT).find(waits))?;
        (0..Lane::COUNT)
            .filter(|other| *other != lane && !lines[*other].is_empty())
            .for_each(|other| passed[other] += 1);
        passed[lane] = 0;
        let next = lines[lane].pop_front();
        state.running += 1;
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.call();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Config, Credentials, Place};

    fn lanes(requests_max: usize) -> Arc<Lanes> {
        let endpoint = Place::of("http://127.0.0.1:1").bucket("b").resolve().unwrap();
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
            let (lanes, order, done, lane) = (Arc::clone(&lanes), Arc::clone(&order), Arc::clone(&done), *lane);
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

    #[tokio::test]
    async fn who_leaves_the_line_takes_no_turn_with_him() {
        let lanes = lanes(1);
        let first = lanes.turn(Lane::Read).await;
        let mut gone = Box::pin(lanes.turn(Lane::Read));
        let mut stays = Box::pin(lanes.turn(Lane::Write));
        for waiting in [&mut gone, &mut stays] {
            let mut pending = |cx: &mut std::task::Context<'_>| waiting.as_mut().poll(cx).is_pending();
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(pending(cx))).await);
        }
        drop(first);
        drop(gone);
        drop(tokio::time::timeout(std::time::Duration::from_secs(5), stays).await.unwrap());
        assert_eq!(lanes.lock().running, 0);
    }
}
