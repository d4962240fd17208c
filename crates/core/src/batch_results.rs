//! Collects the results of a batch.
//!
//! Each op of a batch has a [`Slot`]; a worker owns the slot and the op's memory until the medium
//! is done. The ticket resolves once: when the last slot finishes, or at the deadline. Both take
//! the completer out of the shared state under its mutex, so exactly one of them sends.
//!
//! At the deadline the unfinished ops are answered `Timeout` without their memory. Their slots stay
//! alive, and their passes move to the gate's stranded budget. When such a slot finishes, its
//! memory is dropped, and so returns to its arena, before the pass is released.
//!
//! Code of others runs only after the mutex is released: the drop of late memory, the wakers of the
//! gate, the ticket's waker.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use kvtier_key::Key;

use crate::error::DEADLINE_PASSED;
use crate::inflight_limits::WokenWaiters;
use crate::sync::{Mutex, lock};
use crate::timers::Expire;
use crate::{Clock, Completer, Done, Error, ErrorKind, Op, Pass, Ticket, ticket};

/// One result per op, in order.
type DoneOps<O, T> = Vec<Done<O, T>>;

/// A batch in flight. Each op gets a [`Slot`]. The ticket resolves when every slot is finished, or
/// when the batch [expires](Expire::expire): then the unfinished ops get `Timeout`, and their
/// memory returns when their slots finish.
///
/// ```
/// use std::time::{Duration, Instant};
/// use kvtier_core::{Batch, Key, Load, Loaded, MissReason, Namespace};
///
/// let key = Key::from_name(&Namespace::from_name("model"), "chunk 0");
/// let op = Load { key: key.clone(), into: vec![] };
/// let (_batch, slots, ticket) =
///     Batch::new(Instant::now() + Duration::from_secs(1), vec![key]);
/// for slot in slots {
///     slot.finish(Load { key: op.key.clone(), into: vec![] }, Ok(Loaded::Miss(MissReason::Absent)));
/// }
/// assert_eq!(ticket.wait().len(), 1);
/// ```
pub struct Batch<O: Op, T: Send + 'static>(Arc<SharedBatch<O, T>>);

struct SharedBatch<O: Op, T: Send + 'static> {
    clock: Clock,
    deadline: Instant,
    state: Mutex<BatchState<O, T>>,
}

struct BatchState<O: Op, T: Send + 'static> {
    done: Vec<Option<Done<O, T>>>,
    keys: Vec<Key>,
    passes: Vec<Option<Pass>>,
    // Slots that are not finished, stranded ones too: it may reach 0 after the batch was answered.
    left: usize,
    completer: Option<Completer<DoneOps<O, T>>>,
}

/// One op of a batch in flight: a worker finishes it once. It may own the op's share of the tier's
/// gate. If it is dropped unfinished, the op ends `Closed`.
pub struct Slot<O: Op, T: Send + 'static> {
    batch: Arc<SharedBatch<O, T>>,
    index: usize,
    finished: bool,
}

impl<O: Op, T: Send + 'static> Batch<O, T> {
    /// A batch of ops on these keys, on the machine's clock: one slot per key, in order, and the
    /// ticket for all of them.
    pub fn new(
        deadline: Instant,
        keys: Vec<Key>,
    ) -> (Self, Vec<Slot<O, T>>, Ticket<DoneOps<O, T>>) {
        Batch::new_on(&Clock::real(), deadline, keys)
    }

    /// Like [`new`](Batch::new), on this clock.
    pub fn new_on(
        clock: &Clock,
        deadline: Instant,
        keys: Vec<Key>,
    ) -> (Self, Vec<Slot<O, T>>, Ticket<DoneOps<O, T>>) {
        let (completer, ticket) = ticket();
        let n = keys.len();
        let state = BatchState {
            done: (0..n).map(|_| None).collect(),
            passes: (0..n).map(|_| None).collect(),
            keys,
            left: n,
            completer: Some(completer),
        };
        let inner =
            Arc::new(SharedBatch { clock: clock.clone(), deadline, state: Mutex::new(state) });
        // No slot will ever finish, so nothing else would resolve the ticket.
        if n == 0 {
            inner.answer(&mut lock(&inner.state)).complete();
        }
        let slots = (0..n)
            .map(|index| Slot { batch: Arc::clone(&inner), index, finished: false })
            .collect();
        (Batch(inner), slots, ticket)
    }

    /// Register this with a [`Timekeeper`](crate::Timekeeper) for the deadline.
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.0.clone()
    }
}

/// Results taken out under the lock, to be sent after it is released.
struct BatchResults<O: Op, T: Send + 'static>(Option<(Completer<DoneOps<O, T>>, DoneOps<O, T>)>);

impl<O: Op, T: Send + 'static> BatchResults<O, T> {
    fn complete(self) {
        if let Some((completer, answer)) = self.0 {
            completer.complete(answer);
        }
    }
}

impl<O: Op, T: Send + 'static> SharedBatch<O, T> {
    /// Takes the results out: every slot is finished, or the deadline passed.
    fn answer(&self, state: &mut BatchState<O, T>) -> BatchResults<O, T> {
        // The one place that takes the completer, under the lock. Of a last slot and a deadline
        // that come at the same time, one gets it.
        let Some(completer) = state.completer.take() else { return BatchResults(None) };
        // Taken and not cloned: `finish` checks the completer before it uses keys or results, so
        // without the completer neither is read again.
        let keys = std::mem::take(&mut state.keys);
        let done = std::mem::take(&mut state.done).into_iter().zip(keys).map(|(done, key)| {
            done.unwrap_or_else(|| {
                let error = Error::new(ErrorKind::Timeout, DEADLINE_PASSED).with_key(*key.digest());
                // Without its memory, which the medium may still write to or read from.
                Done { op: O::bare(key), result: Err(error) }
            })
        });
        BatchResults(Some((completer, done.collect())))
    }

    fn finish(&self, index: usize, done: Option<Done<O, T>>) {
        let mut state = lock(&self.state);
        // Taken under the lock that `expire` needs: from here on the deadline cannot strand it.
        let mut pass = state.passes[index].take();
        state.left -= 1;
        let mut late = None;
        if state.completer.is_some() {
            let key = state.keys[index].clone();
            state.done[index] = Some(done.unwrap_or_else(|| {
                // The slot was dropped: its thread panicked, or its executor was shut down.
                let error =
                    Error::new(ErrorKind::Closed, "the tier's worker ended without an answer");
                Done { result: Err(error.with_key(*key.digest())), op: O::bare(key) }
            }));
        } else {
            // The batch was answered at its deadline. This op still owns its memory, which is
            // dropped below, outside the lock.
            late = done;
        }
        let answer = if state.left == 0 { self.answer(&mut state) } else { BatchResults(None) };
        drop(state);
        // Outside the lock, in this order: return late memory, release the gate's capacity, wake
        // the waiter. Only then drop the pass: `close` promises that results that are not awaited,
        // and the memory in them, are gone when it resolves.
        drop(late);
        if let Some(pass) = &mut pass {
            pass.release();
        }
        answer.complete();
        drop(pass);
    }
}

impl<O: Op, T: Send + 'static> Expire for SharedBatch<O, T> {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        // Answered already: no further timer is needed for this batch.
        state.completer.as_ref()?;
        // A timer may fire early, when its thread wakes for another one.
        if now < self.deadline {
            return Some(self.deadline);
        }
        // Before the answer: a caller that sees the timeout and submits again must find the
        // capacity of these ops free.
        let woken: Vec<_> = state.passes.iter_mut().flatten().map(Pass::mark_stranded).collect();
        let answer = self.answer(&mut state);
        drop(state);
        woken.into_iter().for_each(WokenWaiters::notify);
        answer.complete();
        None
    }
}

impl<O: Op, T: Send + 'static> Slot<O, T> {
    /// Hands the op back with its result. After the deadline the result is discarded, and the op's
    /// memory is released here.
    pub fn finish(mut self, op: O, result: Result<T, Error>) {
        self.finished = true;
        self.batch.finish(self.index, Some(Done { op, result }));
    }

    /// Ties the op's share of the gate to this slot: it is released when the op finishes, and
    /// counts as stranded after the deadline.
    pub fn attach(&self, mut pass: Pass) {
        let mut state = lock(&self.batch.state);
        // The deadline passed before the pass was attached, so `expire` could not strand it.
        let woken = state.completer.is_none().then(|| pass.mark_stranded());
        // Usually none. Dropped after the lock, because its drop takes the gate's lock and wakes
        // callers.
        let before = state.passes[self.index].replace(pass);
        drop(state);
        drop(before);
        woken.into_iter().for_each(WokenWaiters::notify);
    }

    /// When the result stops being of use.
    pub fn deadline(&self) -> Instant {
        self.batch.deadline
    }

    /// Why an op that has not begun need not begin: `Canceled`, or `Timeout` past its deadline.
    pub fn is_over(&self) -> Option<ErrorKind> {
        match &lock(&self.batch.state).completer {
            // A slot that asks is not finished, so only the deadline can have taken the completer.
            None => Some(ErrorKind::Timeout),
            Some(completer) if completer.is_canceled() => Some(ErrorKind::Canceled),
            Some(_) if self.batch.clock.now() >= self.batch.deadline => Some(ErrorKind::Timeout),
            Some(_) => None,
        }
    }
}

impl<O: Op, T: Send + 'static> Drop for Slot<O, T> {
    fn drop(&mut self) {
        // Also while a panic unwinds: the caller gets an answer whatever happens to a worker.
        if !self.finished {
            self.batch.finish(self.index, None);
        }
    }
}

impl<O: Op, T: Send + 'static> fmt::Debug for Batch<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} left)", lock(&self.0.state).left)
    }
}

impl<O: Op, T: Send + 'static> fmt::Debug for Slot<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.index)
    }
}
