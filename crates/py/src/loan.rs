//! Memory that a batch has borrowed: when all of it is home again, and that nobody else has what is
//! being loaded into.
//!
//! At its deadline a tier answers, but what the kernel is still at keeps its memory. In Rust that
//! memory is then missing from the answer; a caller in Python has it before his eyes all the time,
//! and takes it for his own when he is told the end. So the end is told only when every
//! piece is home, or when nobody waits for it any more in any case.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use kvtier::core::{Expire, Timekeeper};

/// What one batch has borrowed.
#[derive(Default)]
pub struct Loan(Arc<Out>);

#[derive(Default)]
struct Out(Mutex<State>);

#[derive(Default)]
struct State {
    pieces: usize,
    is_given_up: bool,
    waker: Option<Waker>,
}

/// Ends the wait for memory that does not come home. Its thread starts with the first such wait.
#[derive(Debug, Default)]
pub struct Clock(OnceLock<Option<Timekeeper>>);

/// A piece of a loan. It goes when the medium is done with it.
pub struct Piece {
    loan: Arc<Out>,
    taken: Option<Taken>,
}

/// Memory that the loads of one store write into, by its first address, with the address behind it.
#[derive(Debug, Default)]
pub struct Busy(Mutex<BTreeMap<usize, usize>>);

/// A range that one load has for itself.
struct Taken {
    of: Arc<Busy>,
    start: usize,
}

impl Loan {
    /// One more piece, that is only read.
    pub fn read(&self) -> Piece {
        self.piece(None)
    }

    /// One more piece, that is written into; `None` while another load writes there.
    pub fn write(&self, busy: &Arc<Busy>, start: usize, bytes: usize) -> Option<Piece> {
        let taken = if bytes == 0 { None } else { Some(Busy::take(busy, start, bytes)?) };
        Some(self.piece(taken))
    }

    fn piece(&self, taken: Option<Taken>) -> Piece {
        lock(&self.0.0).pieces += 1;
        Piece { loan: Arc::clone(&self.0), taken }
    }

    /// Resolves when every piece is home, or after so long.
    pub async fn home(self, clock: &Clock, longest: Duration) {
        if lock(&self.0.0).pieces == 0 {
            return;
        }
        let end: Arc<dyn Expire> = self.0.clone();
        if let (Some(when), Some(clock)) = (Instant::now().checked_add(longest), clock.running()) {
            clock.schedule(when, &end);
        }
        poll_fn(|context| {
            let mut state = lock(&self.0.0);
            if state.pieces == 0 || state.is_given_up {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Expire for Out {
    fn expire(&self, _: Instant) -> Option<Instant> {
        let mut state = lock(&self.0);
        state.is_given_up = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }
}

impl Clock {
    /// Without a thread for it nothing ends the wait.
    fn running(&self) -> Option<&Timekeeper> {
        self.0.get_or_init(|| Timekeeper::start("kvtier-py").ok()).as_ref()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Free for the next before anybody is told.
        self.taken = None;
        let mut state = lock(&self.loan.0);
        state.pieces -= 1;
        let waker = if state.pieces == 0 { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Busy {
    /// Whether no load writes there.
    pub fn is_free(&self, start: usize, bytes: usize) -> bool {
        is_free(&lock(&self.0), start, start.saturating_add(bytes))
    }

    /// The range, `None` if a load writes there.
    fn take(busy: &Arc<Self>, start: usize, bytes: usize) -> Option<Taken> {
        let end = start.saturating_add(bytes);
        let mut all = lock(&busy.0);
        if !is_free(&all, start, end) {
            return None;
        }
        all.insert(start, end);
        Some(Taken { of: Arc::clone(busy), start })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.of.0).remove(&self.start);
    }
}

/// The ranges do not overlap: the last that begins before `end` is the one that reaches farthest.
fn is_free(all: &BTreeMap<usize, usize>, start: usize, end: usize) -> bool {
    all.range(..end).next_back().is_none_or(|(_, there)| *there <= start)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
