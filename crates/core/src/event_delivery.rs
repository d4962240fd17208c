use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Event, Listener};

/// The most events that wait for the listeners. Later ones are dropped and counted in one
/// [`Event::Missed`].
const WAITING_MAX: usize = 1 << 16;

/// The listeners of a tier, and the events on their way to them.
///
/// Events reach the listeners in the order of the changes, although many threads change keys at
/// once and listeners run without any lock of the tier. Two steps make that so. A tier
/// [pushes](Listeners::push) an event under the same lock that orders the change itself, so the
/// queue has the order of the changes. It then calls [`notify`](Listeners::notify) when it holds no
/// lock. Only one thread at a time delivers; another thread that calls `notify` meanwhile returns
/// at once, because the delivering thread looks at the queue again before it stops. A listener may
/// therefore call its tier, which may push further events, without a deadlock.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use kvtier_core::{Digest, Event, Listener, Listeners};
///
/// #[derive(Debug, Default)]
/// struct Log(Mutex<Vec<Event>>);
///
/// impl Listener for Log {
///     fn on_events(&self, events: &[Event]) {
///         self.0.lock().unwrap().extend_from_slice(events);
///     }
/// }
///
/// let log = Arc::new(Log::default());
/// let listeners = Listeners::default();
/// listeners.add(log.clone());
/// // A tier pushes under the lock that orders its changes, and notifies after it.
/// listeners.push(Event::Stored { key: Digest::derive("example", b"chunk"), len: 4096 });
/// listeners.notify();
/// assert_eq!(log.0.lock().unwrap().len(), 1);
/// ```
#[derive(Default)]
pub struct Listeners {
    state: Mutex<ListenerQueue>,
    /// Whether there are any listeners. If not, `push` does nothing.
    any: AtomicBool,
}

#[derive(Default)]
struct ListenerQueue {
    all: Arc<[Arc<dyn Listener>]>,
    waiting: Vec<Event>,
    /// Events dropped since the ones in `waiting`.
    missed: u64,
    /// A thread is delivering events. It also delivers what is pushed meanwhile.
    busy: bool,
}

impl Listeners {
    /// Adds a listener, which receives the events pushed from now on.
    pub fn add(&self, listener: Arc<dyn Listener>) {
        let mut state = self.state();
        // A new list, so that a delivery in progress keeps the one it began with and needs no lock.
        state.all = state.all.iter().cloned().chain([listener]).collect();
        // Last: a thread that sees the flag finds the listener under the lock.
        self.any.store(true, Ordering::Release);
    }

    /// Queues an event for a change that has just been made. Fast, and calls no listener: a tier
    /// calls it under its own locks.
    pub fn push(&self, event: Event) {
        // Most tiers have no listener. They pay one atomic read for each change.
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state();
            // Once one event is dropped, drop all until the queue is delivered: what listeners
            // receive is then a prefix of what happened, followed by `Missed`.
            if state.missed > 0 || state.waiting.len() >= WAITING_MAX {
                state.missed += 1;
            } else {
                state.waiting.push(event);
            }
        }
    }

    /// Delivers the queued events, unless another thread is delivering, which then does it.
    pub fn notify(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // Until the queue is empty: threads that pushed meanwhile have left it to this one.
        while let Some((all, events)) = self.begin_delivery() {
            // Ends `busy` before the next look at the queue, also when a listener panics.
            let _busy = Busy(self);
            all.iter().for_each(|listener| listener.on_events(&events));
        }
    }

    /// The events to deliver, for the one thread that may.
    fn begin_delivery(&self) -> Option<(Arc<[Arc<dyn Listener>]>, Vec<Event>)> {
        let mut state = self.state();
        // The flag, the queue and their check are under one lock. So a thread that pushes either
        // finds `busy`, and is served, or delivers itself.
        if state.busy || state.waiting.is_empty() {
            return None;
        }
        state.busy = true;
        let mut events = std::mem::take(&mut state.waiting);
        // At the end of the batch: the lost events came after the ones in it.
        let missed = std::mem::take(&mut state.missed);
        events.extend((missed > 0).then_some(Event::Missed { events: missed }));
        Some((Arc::clone(&state.all), events))
    }

    fn state(&self) -> MutexGuard<'_, ListenerQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held by the delivering thread. A listener that panics must not stop later deliveries.
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

    /// Whether each key is present according to its events; panics on two equal events in a row.
    #[derive(Debug, Default)]
    struct Recorder(Mutex<(HashMap<Digest, bool>, usize)>);

    impl Listener for Recorder {
        fn on_events(&self, events: &[Event]) {
            let mut recorder = self.0.lock().unwrap();
            for event in events {
                let (key, there) = match event {
                    Event::Stored { key, .. } => (*key, true),
                    Event::Gone { key, .. } => (*key, false),
                    _ => continue,
                };
                assert_ne!(recorder.0.insert(key, there), Some(there), "out of order");
                recorder.1 += 1;
            }
        }
    }

    fn key(n: u8) -> Digest {
        Digest([n; 32])
    }

    #[test]
    fn events_of_a_key_arrive_in_order_whichever_thread_delivers() {
        let listeners = Listeners::default();
        let recorder = Arc::new(Recorder::default());
        listeners.add(recorder.clone());
        let there = Mutex::new([false; 3]);
        let flip = |n: usize| {
            let mut there = there.lock().unwrap();
            there[n] = !there[n];
            let key = key(n as u8);
            let len = 1;
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
        let recorder = recorder.0.lock().unwrap();
        assert_eq!(recorder.1, 4 * 5000, "all of it");
        (0..3).for_each(|n| assert_eq!(recorder.0[&key(n as u8)], there.lock().unwrap()[n]));
    }

    /// Calls its tier, which pushes further events.
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
    fn a_listener_that_calls_its_tier_receives_the_new_events_afterwards() {
        let listeners = Arc::new(Listeners::default());
        let caller = Arc::new(Caller::default());
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

    /// Does not return from its first call until the test unlocks it.
    #[derive(Debug, Default)]
    struct Hangs(Mutex<()>, Mutex<Vec<Event>>);

    impl Listener for Hangs {
        fn on_events(&self, events: &[Event]) {
            drop(self.0.lock());
            self.1.lock().unwrap().extend_from_slice(events);
        }
    }

    #[test]
    fn events_beyond_the_limit_are_counted_as_missed() {
        let listeners = Arc::new(Listeners::default());
        let hangs = Arc::new(Hangs::default());
        listeners.add(hangs.clone());
        let hanging = hangs.0.lock().unwrap();
        let push = |n: usize| (0..n).for_each(|_| listeners.push(Event::Touched { key: key(1) }));
        push(1);
        thread::scope(|scope| {
            scope.spawn(|| listeners.notify());
            while !listeners.state().waiting.is_empty() {
                thread::yield_now();
            }
            push(WAITING_MAX + 1000);
            assert_eq!(listeners.state().waiting.len(), WAITING_MAX);
            drop(hanging);
        });
        push(1);
        listeners.notify();
        let recorder = hangs.1.lock().unwrap();
        assert_eq!(recorder.len(), 1 + WAITING_MAX + 1 + 1);
        assert_eq!(recorder[1 + WAITING_MAX], Event::Missed { events: 1000 });
    }

    #[derive(Debug)]
    struct Panics;

    impl Listener for Panics {
        fn on_events(&self, _: &[Event]) {
            panic!("expected by the test");
        }
    }

    #[test]
    fn a_listener_that_panics_does_not_stop_later_deliveries() {
        let listeners = Listeners::default();
        let recorder = Arc::new(Recorder::default());
        listeners.add(recorder.clone());
        listeners.add(Arc::new(Panics));
        for n in 0..2 {
            listeners.push(Event::Stored { key: key(n), len: 1 });
            let delivered =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listeners.notify()));
            assert!(delivered.is_err());
        }
        assert_eq!(recorder.0.lock().unwrap().1, 2);
    }
}
