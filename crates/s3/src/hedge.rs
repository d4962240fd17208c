//! Hedged requests: a second request for the same bytes when the first is slow. Exactly one of them
//! gets the caller's memory.
//!
//! Two responses that write into one memory would mix their bytes. So neither request holds the
//! memory while both run: each only reads the head of its response. The first good head wins. Its
//! side is returned by value, and the other future is dropped before that, which closes its
//! connection. The caller then reads the body of the winner into the memory, with no other request
//! alive. After the first byte there is no hedge: a body that breaks off is continued by a retry.
//!
//! A refusal does not win while the other request can still succeed. If both fail, the later
//! failure is the result. If the caller drops the future, both connections close.
//! `shuttle_tests` proves this for all orders of the events.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use crate::attempt::{PendingResponse, QueueMode};
use crate::client::Inner;
use crate::config::Hedge;
use crate::request::Request;
use crate::retry::AttemptError;

/// Opens the request, and a second one when the response is slow. Neither holds the memory yet: the
/// first good head gets it, and the other connection is closed.
pub async fn hedged(
    inner: &Arc<Inner>,
    request: &Request<'_>,
    hedge: Hedge,
) -> Result<PendingResponse, AttemptError> {
    let first = inner.open(request, QueueMode::Wait, &mut []);
    let start = async {
        tokio::time::sleep(hedge.after).await;
        // A share of all GETs, so that a store that is slow for all of them does not get twice the
        // load.
        let spent = inner.counters.read().hedges * 100;
        let earned = inner.gets.load(Ordering::Relaxed) * u64::from(hedge.percent_max);
        let started = spent < earned;
        inner.counters.hedges.add(u64::from(started));
        started
    };
    let good = |pending: &Result<PendingResponse, AttemptError>| {
        // A 404 wins too: it is an answer. Errors of the server leave the other request its chance.
        pending.as_ref().is_ok_and(|pending| pending.head.status < 500)
    };
    let (side, pending) =
        first_good(first, start, inner.open(request, QueueMode::TryNow, &mut []), good).await;
    if side == Winner::Hedge && good(&pending) {
        inner.counters.hedges_won.one();
    }
    pending
}

/// The request whose response is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Winner {
    /// The first request.
    Primary,
    /// The second request, sent because the first was slow.
    Hedge,
}

/// Runs `first`. If `start` returns true before `first` is ready, `second` runs concurrently. The
/// first `good` result wins; if neither is good, the last. `second` is not polled before `start` is
/// ready.
///
/// Neither future holds the caller's memory: the winner gets it afterwards, when the other is
/// dropped and its connection closed.
async fn first_good<T>(
    first: impl Future<Output = T>,
    start: impl Future<Output = bool>,
    second: impl Future<Output = T>,
    good: impl Fn(&T) -> bool,
) -> (Winner, T) {
    let mut first = pin!(Some(first));
    let mut start = pin!(Some(start));
    let mut second = pin!(Some(second));
    poll_fn(|cx| {
        if let Some(future) = first.as_mut().as_pin_mut()
            && let Poll::Ready(answer) = future.poll(cx)
        {
            // Finished: it is not polled again.
            first.set(None);
            // No other request runs: the hedge has not started, or has failed.
            // With `start` still pending the hedge was never sent, so this result is all there will
            // be. A refusal while the hedge runs is dropped: the hedge may still succeed.
            if good(&answer) || start.is_some() || second.is_none() {
                return Poll::Ready((Winner::Primary, answer));
            }
        }
        if let Some(future) = start.as_mut().as_pin_mut()
            && let Poll::Ready(started) = future.poll(cx)
        {
            start.set(None);
            // The caller decided against a hedge. Without its future, a failure of the first
            // request ends the wait above.
            if !started {
                second.set(None);
            }
        }
        if start.is_none()
            && let Some(future) = second.as_mut().as_pin_mut()
            && let Poll::Ready(answer) = future.poll(cx)
        {
            second.set(None);
            if good(&answer) || first.is_none() {
                return Poll::Ready((Winner::Hedge, answer));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use shuttle::sync::{Arc, Mutex};
    use shuttle::{future, thread};

    use super::*;

    /// A connection whose head comes from another thread. Dropping what holds it closes it.
    #[derive(Default)]
    struct Wire {
        head: Mutex<(Option<bool>, Option<Waker>)>,
        closed: AtomicBool,
        landed: AtomicBool,
    }

    impl Wire {
        fn say(&self, head: bool) {
            let waker = {
                let mut state = self.head.lock().unwrap();
                state.0 = Some(head);
                state.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Waits for the head, then is the answer.
    struct Asked(Option<Held>);
    struct Held(Arc<Wire>);
    struct FakeResponse {
        good: bool,
        held: Held,
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.closed.store(true, Ordering::SeqCst);
        }
    }

    impl Future for Asked {
        type Output = FakeResponse;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<FakeResponse> {
            let held = self.0.as_ref().unwrap();
            let mut state = held.0.head.lock().unwrap();
            let Some(good) = state.0 else {
                state.1 = Some(cx.waker().clone());
                return Poll::Pending;
            };
            drop(state);
            Poll::Ready(FakeResponse { good, held: self.0.take().unwrap() })
        }
    }

    /// The caller's memory: it moves to one answer, which writes into it.
    #[derive(Debug, PartialEq)]
    struct Lease(Vec<Winner>);

    impl FakeResponse {
        fn land(self, mut lease: Lease, side: Winner) -> Lease {
            self.held.0.landed.store(true, Ordering::SeqCst);
            for _ in 0..3 {
                thread::yield_now();
                lease.0.push(side);
            }
            lease
        }
    }

    /// Whether the timer fires, then what each server says; `None` is silence.
    fn scene(fires: bool, says: [Option<bool>; 2]) {
        let wires = [Arc::new(Wire::default()), Arc::new(Wire::default())];
        let timer = Arc::new(Wire::default());
        let mut servers = Vec::new();
        for (wire, says) in wires.iter().zip(says) {
            let wire = Arc::clone(wire);
            servers.push(thread::spawn(move || says.into_iter().for_each(|good| wire.say(good))));
        }
        let clock = Arc::clone(&timer);
        servers.push(thread::spawn(move || clock.say(fires)));
        let asked = |wire: &Arc<Wire>| Asked(Some(Held(Arc::clone(wire))));
        let first = asked(&wires[0]);
        let second = asked(&wires[1]);
        let tick = asked(&timer);
        let (side, answer) =
            future::block_on(first_good(first, async { tick.await.good }, second, |answer| {
                answer.good
            }));
        let (winner, loser) = match side {
            Winner::Primary => (&wires[0], &wires[1]),
            Winner::Hedge => (&wires[1], &wires[0]),
        };
        assert!(loser.closed.load(Ordering::SeqCst), "the other is closed before a byte lands");
        assert!(!winner.closed.load(Ordering::SeqCst));
        let any_good = says.contains(&Some(true));
        assert!(answer.good || !any_good || !fires || says[0] == Some(false), "a good answer wins");
        assert!(fires || side == Winner::Primary, "no hedge without the timer");
        let lease = answer.land(Lease(Vec::new()), side);
        assert_eq!(lease, Lease(vec![side; 3]));
        assert!(!loser.landed.load(Ordering::SeqCst) && winner.closed.load(Ordering::SeqCst));
        servers.into_iter().for_each(|server| server.join().unwrap());
    }

    fn check(scene: impl Fn() + Send + Sync + 'static) {
        let iterations = if std::env::var("KVTIER_NIGHTLY").is_ok() { 100_000 } else { 3_000 };
        shuttle::check_random(scene, iterations);
    }

    #[test]
    fn whichever_says_yes_first_gets_the_memory_and_the_other_is_closed() {
        check(|| scene(true, [Some(true), Some(true)]));
    }

    #[test]
    fn a_silent_one_is_not_waited_for() {
        check(|| scene(true, [None, Some(true)]));
        check(|| scene(true, [Some(true), None]));
        check(|| scene(false, [Some(true), None]));
    }

    #[test]
    fn a_refusal_loses_to_a_late_yes() {
        check(|| scene(true, [Some(false), Some(true)]));
        check(|| scene(true, [Some(true), Some(false)]));
        check(|| scene(true, [Some(false), Some(false)]));
    }

    /// The waiting caller goes away at any moment: no connection stays open, and no response gets
    /// the memory.
    #[test]
    fn a_dropped_race_closes_both() {
        check(|| {
            let wires = [Arc::new(Wire::default()), Arc::new(Wire::default())];
            let one = Arc::clone(&wires[0]);
            let two = Arc::clone(&wires[1]);
            let gone = Arc::new(Wire::default());
            let servers =
                [thread::spawn(move || one.say(true)), thread::spawn(move || two.say(true))];
            let leaver = Arc::clone(&gone);
            let leaving = thread::spawn(move || leaver.say(true));
            let asked = |wire: &Arc<Wire>| Asked(Some(Held(Arc::clone(wire))));
            let racing = first_good(asked(&wires[0]), async { true }, asked(&wires[1]), |answer| {
                answer.good
            });
            {
                let mut racing = pin!(racing);
                let mut gone = pin!(asked(&gone));
                future::block_on(poll_fn(|cx| {
                    let left = gone.as_mut().poll(cx).is_ready();
                    if left || racing.as_mut().poll(cx).is_ready() {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                }));
            }
            assert!(wires.iter().all(|wire| wire.closed.load(Ordering::SeqCst)));
            assert!(wires.iter().all(|wire| !wire.landed.load(Ordering::SeqCst)));
            servers.into_iter().chain([leaving]).for_each(|thread| thread.join().unwrap());
        });
    }
}
