use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use kvtier_key::Key;

use crate::gate::Woken;
use crate::sync::{Mutex, lock};
use crate::timekeeper::Expire;
use crate::{Clock, Completer, Done, Error, ErrorKind, Op, Pass, Ticket, ticket};

/// One answer an op, in order.
type Answers<O, T> = Vec<Done<O, T>>;

/// The answers of a batch as they come in. Each op gets a [`Slot`]; the ticket resolves when every
/// slot is finished, or when the batch [expires](Expire::expire): then with `Timeout` for the rest,
/// whose memory comes home as their slots finish.
pub struct Batch<O: Op, T: Send + 'static>(Arc<Inner<O, T>>);

struct Inner<O: Op, T: Send + 'static> {
    clock: Clock,
    deadline: Instant,
    state: Mutex<State<O, T>>,
}

struct State<O: Op, T: Send + 'static> {
    done: Vec<Option<Done<O, T>>>,
    keys: Vec<Key>,
    passes: Vec<Option<Pass>>,
    left: usize,
    completer: Option<Completer<Answers<O, T>>>,
}

/// The duty to finish one op of a batch, and its share of the tier's gate. Dropped unfinished, the
/// op ends `Closed`.
pub struct Slot<O: Op, T: Send + 'static> {
    batch: Arc<Inner<O, T>>,
    index: usize,
    finished: bool,
}

impl<O: Op, T: Send + 'static> Batch<O, T> {
    /// A batch for ops of these keys, on the machine's clock: one slot a key, in order, and the
    /// ticket for all of them.
    pub fn new(
        deadline: Instant,
        keys: Vec<Key>,
    ) -> (Self, Vec<Slot<O, T>>, Ticket<Answers<O, T>>) {
        Batch::new_on(&Clock::real(), deadline, keys)
    }

    /// The same on this clock.
    pub fn new_on(
        clock: &Clock,
        deadline: Instant,
        keys: Vec<Key>,
    ) -> (Self, Vec<Slot<O, T>>, Ticket<Answers<O, T>>) {
        let (completer, ticket) = ticket();
        let n = keys.len();
        let state = State {
            done: (0..n).map(|_| None).collect(),
            passes: (0..n).map(|_| None).collect(),
            keys,
            left: n,
            completer: Some(completer),
        };
        let inner = Arc::new(Inner { clock: clock.clone(), deadline, state: Mutex::new(state) });
        if n == 0 {
            inner.answer(&mut lock(&inner.state)).complete();
        }
        let slots = (0..n)
            .map(|index| Slot { batch: Arc::clone(&inner), index, finished: false })
            .collect();
        (Batch(inner), slots, ticket)
    }

    /// What to register with a [`Timekeeper`](crate::Timekeeper) so that the deadline is kept.
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.0.clone()
    }
}

/// An answer taken out from under the lock, to be given after it.
struct Completion<O: Op, T: Send + 'static>(Option<(Completer<Answers<O, T>>, Answers<O, T>)>);

impl<O: Op, T: Send + 'static> Completion<O, T> {
    fn complete(self) {
        if let Some((completer, answer)) = self.0 {
            completer.complete(answer);
        }
    }
}

impl<O: Op, T: Send + 'static> Inner<O, T> {
    /// Takes the answer if it is due: everything finished, or nobody waits for the rest any more.
    fn answer(&self, state: &mut State<O, T>) -> Completion<O, T> {
        let Some(completer) = state.completer.take() else { return Completion(None) };
        let keys = std::mem::take(&mut state.keys);
        let done = std::mem::take(&mut state.done).into_iter().zip(keys).map(|(done, key)| {
            done.unwrap_or_else(|| {
                let error =
                    Error::new(ErrorKind::Timeout, "the deadline passed").with_key(*key.digest());
                Done { op: O::bare(key), result: Err(error) }
            })
        });
        Completion(Some((completer, done.collect())))
    }

    fn finish(&self, index: usize, done: Option<Done<O, T>>) {
        let mut state = lock(&self.state);
        let mut pass = state.passes[index].take();
        state.left -= 1;
        let mut late = None;
        if state.completer.is_some() {
            let key = state.keys[index].clone();
            state.done[index] = Some(done.unwrap_or_else(|| {
                let error =
                    Error::new(ErrorKind::Closed, "the tier's worker ended without an answer");
                Done { result: Err(error.with_key(*key.digest())), op: O::bare(key) }
            }));
        } else {
            late = done;
        }
        let answer = if state.left == 0 { self.answer(&mut state) } else { Completion(None) };
        drop(state);
        // Outside the lock and in this order: late memory home, room free, the waiter woken. Only
        // then is the op over for `close`, which promises that an answer nobody waits for
        // is gone too, with the memory in it.
        drop(late);
        if let Some(pass) = &mut pass {
            pass.release();
        }
        answer.complete();
        drop(pass);
    }
}

impl<O: Op, T: Send + 'static> Expire for Inner<O, T> {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        state.completer.as_ref()?;
        if now < self.deadline {
            return Some(self.deadline);
        }
        let woken: Vec<_> = state.passes.iter_mut().flatten().map(Pass::mark_stranded).collect();
        let answer = self.answer(&mut state);
        drop(state);
        woken.into_iter().for_each(Woken::notify);
        answer.complete();
        None
    }
}

impl<O: Op, T: Send + 'static> Slot<O, T> {
    /// Hands the op back with its result. After the deadline nobody hears it, and the op's memory
    /// goes home here.
    pub fn finish(mut self, op: O, result: Result<T, Error>) {
        self.finished = true;
        self.batch.finish(self.index, Some(Done { op, result }));
    }

    /// Ties the op's share of the gate to it: given back when it finishes, counted as stranded
    /// after the deadline.
    pub fn attach(&self, mut pass: Pass) {
        let mut state = lock(&self.batch.state);
        let woken = state.completer.is_none().then(|| pass.mark_stranded());
        let before = state.passes[self.index].replace(pass);
        drop(state);
        drop(before);
        woken.into_iter().for_each(Woken::notify);
    }

    /// When the answer stops being of use.
    pub fn deadline(&self) -> Instant {
        self.batch.deadline
    }

    /// Why an op that has not begun need not begin: canceled, or past its deadline.
    pub fn is_over(&self) -> Option<ErrorKind> {
        match &lock(&self.batch.state).completer {
            None => Some(ErrorKind::Timeout),
            Some(completer) if completer.is_canceled() => Some(ErrorKind::Canceled),
            Some(_) if self.batch.clock.now() >= self.batch.deadline => Some(ErrorKind::Timeout),
            Some(_) => None,
        }
    }
}

impl<O: Op, T: Send + 'static> Drop for Slot<O, T> {
    fn drop(&mut self) {
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
