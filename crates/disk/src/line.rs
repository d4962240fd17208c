use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use kvtier_core::{Expire, Timekeeper};

/// How long the first in a line waits before it looks again uncalled: other processes free room and
/// do not call.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

type Call = Box<dyn FnOnce(Turn) + Send>;

/// Ops that wait for what is used up, first come, first served, without keeping a thread busy.
/// Bounded by the tier's gate.
#[derive(Clone)]
pub struct Line(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    me: Weak<Inner>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Call>,
    /// The first was called and has not found out yet whether it gets what it waits for.
    called: bool,
    /// How often something was freed.
    freed: u64,
    /// A timekeeper calls us.
    watched: bool,
    closed: bool,
}

/// The right of the first in a line to try; when it is dropped the next is called.
pub struct Turn {
    line: Arc<Inner>,
    over: bool,
}

impl Default for Line {
    fn default() -> Self {
        Line(Arc::new_cyclic(|me| Inner { state: Mutex::default(), me: me.clone() }))
    }
}

impl Line {
    /// Whether nobody waits, so that who comes now may try at once.
    pub fn is_empty(&self) -> bool {
        let state = self.0.lock();
        state.waiting.is_empty() && !state.called
    }

    /// How often something was freed so far: to be asked before a try, so that what is freed during
    /// it is not missed.
    pub fn seen(&self) -> u64 {
        self.0.lock().freed
    }

    /// Something was freed: calls the first.
    pub fn call(&self) {
        let mut state = self.0.lock();
        state.freed += 1;
        self.0.call_first(state);
    }

    /// Joins the line: at its end, or, with the turn it had, at its head again. `seen` is what
    /// [`seen`](Line::seen) said before it tried; `None` for who did not try. Answers whether
    /// somebody must [watch](Line::look_again_by) the line from now on.
    pub fn wait(&self, call: Call, turn: Option<Turn>, seen: Option<u64>) -> bool {
        let mut state = self.0.lock();
        if state.closed {
            drop(state);
            drop(call);
            return false;
        }
        match turn {
            Some(mut turn) => {
                state.waiting.push_front(call);
                state.called = false;
                turn.over = true;
            }
            None => state.waiting.push_back(call),
        }
        let watch = !std::mem::replace(&mut state.watched, true);
        if seen != Some(state.freed) {
            self.0.call_first(state);
        }
        watch
    }

    /// Lets the clock call the first every now and then while anybody waits.
    pub fn look_again_by(&self, clock: &Timekeeper) {
        let watched: Arc<dyn Expire> = self.0.clone();
        clock.schedule(clock.clock().now() + LOOK_AGAIN, &watched);
    }

    /// Drops whoever waits, now and from now on.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call_first(&self, mut state: MutexGuard<'_, State>) {
        if state.called {
            return;
        }
        let Some(line) = self.me.upgrade() else { return };
        let Some(first) = state.waiting.pop_front() else { return };
        state.called = true;
        drop(state);
        first(Turn { line, over: false });
    }
}

impl Expire for Inner {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        if state.waiting.is_empty() && !state.called {
            state.watched = false;
            return None;
        }
        self.call_first(state);
        Some(now + LOOK_AGAIN)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.line.lock();
            state.called = false;
            self.line.call_first(state);
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} waiting)", self.0.lock().waiting.len())
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use kvtier_core::ManualClock;

    use super::*;

    /// Waits in `line` and says its number and its turn when it is called.
    fn join(
        line: &Line,
        tell: &SyncSender<(u8, Turn)>,
        n: u8,
        turn: Option<Turn>,
        seen: Option<u64>,
    ) -> bool {
        let tell = tell.clone();
        line.wait(Box::new(move |turn| drop(tell.send((n, turn)))), turn, seen)
    }

    fn line() -> (Line, SyncSender<(u8, Turn)>, Receiver<(u8, Turn)>) {
        let (tell, hear) = sync_channel(8);
        (Line::default(), tell, hear)
    }

    #[test]
    fn one_is_called_at_a_time_in_order_and_may_go_back_to_the_head() {
        let (line, tell, hear) = line();
        assert!(line.is_empty());
        let seen = line.seen();
        assert!(join(&line, &tell, 1, None, Some(seen)), "the first one asks for a watch");
        assert!(!join(&line, &tell, 2, None, Some(seen)));
        assert!(hear.try_recv().is_err() && !line.is_empty());
        line.call();
        let (n, turn) = hear.try_recv().unwrap();
        assert_eq!(n, 1);
        line.call();
        assert!(hear.try_recv().is_err(), "1 is still trying");
        join(&line, &tell, 1, Some(turn), Some(seen + 1));
        let (n, turn) = hear.try_recv().unwrap();
        assert_eq!(n, 1, "something was freed while it tried");
        drop(turn);
        assert_eq!(hear.try_recv().unwrap().0, 2);
        assert!(line.is_empty());
    }

    #[test]
    fn who_waits_without_a_call_is_called_by_the_clock() {
        let (line, tell, hear) = line();
        let time = ManualClock::new();
        let clock = Timekeeper::start_on(time.clock(), "test").unwrap();
        assert!(join(&line, &tell, 1, None, Some(0)));
        line.look_again_by(&clock);
        time.advance(LOOK_AGAIN - Duration::from_millis(1));
        assert!(hear.try_recv().is_err());
        time.advance(Duration::from_millis(1));
        let (_, turn) = hear.try_recv().unwrap();
        join(&line, &tell, 1, Some(turn), Some(0));
        time.advance(LOOK_AGAIN);
        drop(hear.try_recv().unwrap());
    }

    #[test]
    fn who_did_not_try_is_called_when_those_before_it_are_gone() {
        let (line, tell, hear) = line();
        join(&line, &tell, 1, None, None);
        assert_eq!(hear.try_recv().unwrap().0, 1);
    }

    #[test]
    fn a_closed_line_keeps_nobody() {
        let (line, tell, hear) = line();
        join(&line, &tell, 1, None, Some(0));
        line.close();
        join(&line, &tell, 2, None, Some(0));
        drop(tell);
        assert!(hear.recv().is_err());
    }
}
