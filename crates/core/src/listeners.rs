use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Event, Listener};

/// The most events that wait for the listeners; what comes beyond is dropped, and counted in one
/// [`Event::Missed`].
const WAITING_MAX: usize = 1 << 16;

/// Who listens to a tier. What happens to a key is [pushed](Listeners::push) when it happens,
/// under the lock that orders what happens to it, and [delivered](Listeners::notify) when the tier holds
/// no lock: in the order in which it was noted, by one thread at a time.
#[derive(Default)]
pub struct Listeners {
    state: Mutex<State>,
    /// Whether there are any: without, nothing is noted.
    any: AtomicBool,
}

#[derive(Default)]
struct State {
    all: Arc<[Arc<dyn Listener>]>,
    waiting: Vec<Event>,
    /// Events dropped since these.
    missed: u64,
    /// Somebody is telling them something; what comes meanwhile the same thread tells afterwards.
    busy: bool,
}

impl Listeners {
    /// One more, which hears of what is noted from now on.
    pub fn add(&self, listener: Arc<dyn Listener>) {
        let mut state = self.state();
        state.all = state.all.iter().cloned().chain([listener]).collect();
        self.any.store(true, Ordering::Release);
    }

    /// Notes what has just happened. Quick, and calls nobody: it may be called under locks of the
    /// tier's own.
    pub fn push(&self, event: Event) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state();
            // Once one is dropped all are until the listeners return: what they hear is a beginning
            // of what happened.
            if state.missed > 0 || state.waiting.len() >= WAITING_MAX {
                state.missed += 1;
            } else {
                state.waiting.push(event);
            }
        }
    }

    /// Tells what was noted, unless another thread is telling: that one does it then. A listener
    /// may call its tier.
    pub fn notify(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        while let Some((all, events)) = self.turn() {
            let _busy = Busy(self);
            all.iter().for_each(|listener| listener.on_events(&events));
        }
    }

    /// What is to be told, by the caller alone.
    fn turn(&self) -> Option<(Arc<[Arc<dyn Listener>]>, Vec<Event>)> {
        let mut state = self.state();
        if state.busy || state.waiting.is_empty() {
            return None;
        }
        state.busy = true;
        let mut events = std::mem::take(&mut state.waiting);
        let missed = std::mem::take(&mut state.missed);
        events.extend((missed > 0).then_some(Event::Missed { events: missed }));
        Some((Arc::clone(&state.all), events))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that tells; a listener that panics does not silence the others for good.
struct Busy<'a>(&'a Listeners);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().busy = false;
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Listeners({}, {} events wait)", state.all.len(), state.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::thread;

    use super::*;
    use crate::Digest;

    /// Whether each key is there, as heard; panics when it hears twice the same.
    #[derive(Debug, Default)]
    struct Heard(Mutex<(HashMap<Digest, bool>, usize)>);

    impl Listener for Heard {
        fn on_events(&self, events: &[Event]) {
            let mut heard = self.0.lock().unwrap();
            for event in events {
                let (key, there) = match event {
                    Event::Stored { key, .. } => (*key, true),
                    Event::Gone { key, .. } => (*key, false),
                    _ => continue,
                };
                assert_ne!(heard.0.insert(key, there), Some(there), "out of order");
                heard.1 += 1;
            }
        }
    }

    fn key(n: u8) -> Digest {
        Digest([n; 32])
    }

    #[test]
    fn what_happens_to_a_key_is_told_in_that_order_whoever_tells() {
        let (listeners, heard) = (Listeners::default(), Arc::new(Heard::default()));
        listeners.add(heard.clone());
        let there = Mutex::new([false; 3]);
        let flip = |n: usize| {
            let mut there = there.lock().unwrap();
            there[n] = !there[n];
            let (key, len) = (key(n as u8), 1);
            listeners.push(if there[n] {
                Event::Stored { key, len }
            } else {
                Event::Gone { key, len }
            });
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..5000).for_each(|n| {
                        flip(n % 3);
                        listeners.notify();
                    });
                });
            }
        });
        let heard = heard.0.lock().unwrap();
        assert_eq!(heard.1, 4 * 5000, "all of it");
        (0..3).for_each(|n| assert_eq!(heard.0[&key(n as u8)], there.lock().unwrap()[n]));
    }

    /// Calls its tier, which tells it more.
    #[derive(Debug, Default)]
    struct Caller(Mutex<Vec<Event>>, std::sync::OnceLock<Arc<Listeners>>);

    impl Listener for Caller {
        fn on_events(&self, events: &[Event]) {
            self.0.lock().unwrap().extend_from_slice(events);
            if let [Event::Touched { key }] = events {
                let listeners = self.1.get().unwrap();
                listeners.push(Event::Gone { key: *key, len: 7 });
                listeners.notify();
            }
        }
    }

    #[test]
    fn a_listener_that_calls_its_tier_hears_the_rest_afterwards() {
        let (listeners, caller) = (Arc::new(Listeners::default()), Arc::new(Caller::default()));
        listeners.push(Event::Touched { key: key(9) });
        caller.1.set(Arc::clone(&listeners)).unwrap();
        listeners.add(caller.clone());
        let touched = Event::Touched { key: key(1) };
        listeners.push(touched);
        listeners.notify();
        assert_eq!(
            *caller.0.lock().unwrap(),
            [touched, Event::Gone { key: key(1), len: 7 }],
            "and nothing of before"
        );
    }

    /// Does not return from its first call before it may.
    #[derive(Debug, Default)]
    struct Hangs(Mutex<()>, Mutex<Vec<Event>>);

    impl Listener for Hangs {
        fn on_events(&self, events: &[Event]) {
            drop(self.0.lock());
            self.1.lock().unwrap().extend_from_slice(events);
        }
    }

    #[test]
    fn under_one_that_hangs_so_many_events_wait_and_it_is_told_of_the_rest() {
        let (listeners, hangs) = (Arc::new(Listeners::default()), Arc::new(Hangs::default()));
        listeners.add(hangs.clone());
        let hanging = hangs.0.lock().unwrap();
        let note = |n: usize| (0..n).for_each(|_| listeners.push(Event::Touched { key: key(1) }));
        note(1);
        thread::scope(|scope| {
            scope.spawn(|| listeners.notify());
            while !listeners.state().waiting.is_empty() {
                thread::yield_now();
            }
            note(WAITING_MAX + 1000);
            assert_eq!(listeners.state().waiting.len(), WAITING_MAX);
            drop(hanging);
        });
        note(1);
        listeners.notify();
        let heard = hangs.1.lock().unwrap();
        assert_eq!(heard.len(), 1 + WAITING_MAX + 1 + 1);
        assert_eq!(heard[1 + WAITING_MAX], Event::Missed { events: 1000 });
    }

    #[derive(Debug)]
    struct Panics;

    impl Listener for Panics {
        fn on_events(&self, _: &[Event]) {
            panic!("as the test wants it");
        }
    }

    #[test]
    fn one_that_panics_does_not_silence_the_tier() {
        let (listeners, heard) = (Listeners::default(), Arc::new(Heard::default()));
        listeners.add(heard.clone());
        listeners.add(Arc::new(Panics));
        for n in 0..2 {
            listeners.push(Event::Stored { key: key(n), len: 1 });
            let told =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listeners.notify()));
            assert!(told.is_err());
        }
        assert_eq!(heard.0.lock().unwrap().1, 2);
    }
}
