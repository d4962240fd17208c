//! A queue of tasks that wait for memory, first in, first out.
//!
//! The first task in the queue tries; the others sleep. A thread that returns memory wakes the first task
//! only. To stay cheap without waiters, `wake` reads the counter `waiting` without the lock. No
//! wake-up is lost, because each side writes first and reads second, with a sequentially consistent
//! fence in between. A task enqueues itself, then tries. The other side frees memory, then reads
//! `waiting`. So either the task's attempt sees the memory, or `wake` sees the task.
//!
//! A task that got its memory, or whose future is dropped, dequeues itself and wakes the next one:
//! there may be memory for that one too.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, lock};

/// The waiting tasks, in order. A task waits without a limit; the caller adds a deadline.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// The number of waiting tasks, read without the lock by those that free memory.
    waiting: AtomicUsize,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    next: u64,
    waiters: VecDeque<(u64, Waker)>,
}

impl WaitQueue {
    /// Memory was freed: the first task tries again. Cheap without waiters.
    pub fn wake(&self) {
        // Pairs with the fence in `enqueue`: either we see the task, or its attempt sees the
        // memory.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        // The waker is called without the lock: it is code of an executor, and may poll the task at
        // once on this thread.
        let first = lock(&self.tasks).waiters.front().map(|(_, waker)| waker.clone());
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Appends the task, or updates its waker. Returns whether it is the first.
    fn enqueue(&self, place: &mut Option<u64>, waker: &Waker) -> bool {
        let mut tasks = lock(&self.tasks);
        match place {
            Some(n) => {
                if let Some(mine) = tasks.waiters.iter_mut().find(|(other, _)| other == n) {
                    mine.1.clone_from(waker);
                }
            }
            None => {
                let n = tasks.next;
                tasks.next += 1;
                tasks.waiters.push_back((n, waker.clone()));
                *place = Some(n);
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
        }
        let first = tasks.waiters.front().map(|(n, _)| *n) == *place;
        drop(tasks);
        fence(Ordering::SeqCst);
        first
    }

    /// Removes the task; the next one tries.
    fn dequeue(&self, place: u64) {
        let mut tasks = lock(&self.tasks);
        let before = tasks.waiters.len();
        tasks.waiters.retain(|(n, _)| *n != place);
        self.waiting.fetch_sub(before - tasks.waiters.len(), Ordering::Relaxed);
        drop(tasks);
        self.wake();
    }
}

/// Waits in a [`WaitQueue`] until `attempt` succeeds.
pub(crate) struct Wait<'a, F> {
    queue: &'a WaitQueue,
    place: Option<u64>,
    attempt: F,
}

impl<'a, F> Wait<'a, F> {
    pub fn new(queue: &'a WaitQueue, attempt: F) -> Self {
        Wait { queue, place: None, attempt }
    }
}

impl<T, F: FnMut() -> Option<T> + Unpin> Future for Wait<'_, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        // Not the first: an attempt would overtake. The waker is updated at every poll, because a
        // task may move to another executor thread.
        if !this.queue.enqueue(&mut this.place, cx.waker()) {
            return Poll::Pending;
        }
        match (this.attempt)() {
            Some(got) => {
                this.place.take().into_iter().for_each(|place| this.queue.dequeue(place));
                Poll::Ready(got)
            }
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Wait<'_, F> {
    /// A task that gives up makes way for the next one.
    fn drop(&mut self) {
        self.place.take().into_iter().for_each(|place| self.queue.dequeue(place));
    }
}
