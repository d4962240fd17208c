//! A queue of tasks that wait for room: first come, first served, and nobody is forgotten.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, lock};

/// Who waits, in order. Each waits for as long as it likes: the caller adds a deadline.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// How many wait; read without the lock by those who give room back.
    waiting: AtomicUsize,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    next: u64,
    line: VecDeque<(u64, Waker)>,
}

impl WaitQueue {
    /// Room came back: whoever is first tries again. Cheap when nobody waits.
    pub fn wake(&self) {
        // Against the fence of `stand`: either we see that it waits, or its try sees the room.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let first = lock(&self.tasks).line.front().map(|(_, waker)| waker.clone());
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Whether anybody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Takes a place at the end, or keeps the one it has; answers whether it is the first.
    fn stand(&self, place: &mut Option<u64>, waker: &Waker) -> bool {
        let mut tasks = lock(&self.tasks);
        match place {
            Some(n) => {
                if let Some(mine) = tasks.line.iter_mut().find(|(other, _)| other == n) {
                    mine.1.clone_from(waker);
                }
            }
            None => {
                let n = tasks.next;
                tasks.next += 1;
                tasks.line.push_back((n, waker.clone()));
                *place = Some(n);
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
        }
        let first = tasks.line.front().map(|(n, _)| *n) == *place;
        drop(tasks);
        fence(Ordering::SeqCst);
        first
    }

    /// Gives a place up; whoever is then first tries its luck.
    fn leave(&self, place: u64) {
        let mut tasks = lock(&self.tasks);
        let before = tasks.line.len();
        tasks.line.retain(|(n, _)| *n != place);
        self.waiting.fetch_sub(before - tasks.line.len(), Ordering::Relaxed);
        drop(tasks);
        self.wake();
    }
}

/// Waits in a [`Line`] until `attempt` gives something.
pub(crate) struct Wait<'a, F> {
    line: &'a WaitQueue,
    place: Option<u64>,
    attempt: F,
}

impl<'a, F> Wait<'a, F> {
    pub fn new(line: &'a WaitQueue, attempt: F) -> Self {
        Wait { line, place: None, attempt }
    }
}

impl<T, F: FnMut() -> Option<T> + Unpin> Future for Wait<'_, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if !this.line.stand(&mut this.place, cx.waker()) {
            return Poll::Pending;
        }
        match (this.attempt)() {
            Some(got) => {
                this.place.take().into_iter().for_each(|place| this.line.leave(place));
                Poll::Ready(got)
            }
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Wait<'_, F> {
    /// Whoever gives up makes way for the next.
    fn drop(&mut self) {
        self.place.take().into_iter().for_each(|place| self.line.leave(place));
    }
}
