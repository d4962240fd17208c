//! Memory that a batch has borrowed: when all of it is home again, and that nobody else has what is being loaded into.
//!
//! At its deadline a tier answers, but what the kernel is still at keeps its memory. In Rust that memory is then missing from the answer; a
//! caller in Python has it before his eyes all the time, and takes it for his own when he is told the end. So the end is told only when every
//! piece is home.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// What one batch has borrowed.
#[derive(Default)]
pub struct Loan(Arc<Mutex<Out>>);

#[derive(Default)]
struct Out {
    pieces: usize,
    waker: Option<Waker>,
}

/// A piece of a loan. It goes when the medium is done with it.
pub struct Piece {
    loan: Arc<Mutex<Out>>,
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
        lock(&self.0).pieces += 1;
        Piece { loan: Arc::clone(&self.0), taken }
    }

    /// Resolves when every piece is home.
    pub async fn home(self) {
        poll_fn(|context| {
            let mut out = lock(&self.0);
            if out.pieces == 0 {
                return Poll::Ready(());
            }
            out.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Free for the next before anybody is told.
        self.taken = None;
        let mut out = lock(&self.loan);
        out.pieces -= 1;
        let waker = if out.pieces == 0 { out.waker.take() } else { None };
        drop(out);
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
