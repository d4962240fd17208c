use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::wait_queue::{Wait, WaitQueue};
use crate::{Error, ErrorKind};

/// So many bytes that may be in use at a time, and who uses them. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    bytes_max: u64,
    books: Mutex<BudgetState>,
    line: WaitQueue,
}

#[derive(Default)]
struct BudgetState {
    used: u64,
    stranded: u64,
    by_use: BTreeMap<&'static str, u64>,
}

/// How much of a budget is in use, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// All of it.
    pub bytes_max: u64,
    /// In use, stranded bytes included.
    pub used: u64,
    /// Given up by their users but not come home.
    pub stranded: u64,
    /// In use by whom, stranded bytes not included.
    pub by_use: Vec<(&'static str, u64)>,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Budget(Arc::new(Inner { bytes_max, books: Mutex::default(), line: WaitQueue::default() }))
    }

    /// Takes `bytes` for `who`, or answers `Full` with what is free. Does not overtake those who
    /// wait.
    pub fn acquire(&self, who: &'static str, bytes: u64) -> Result<Permit, Error> {
        self.check(bytes)?;
        let attempt = || self.0.line.is_empty().then(|| self.attempt(who, bytes)).flatten();
        attempt().ok_or_else(|| {
            let used = lock(&self.0.books).used;
            let free = (self.0.bytes_max - used) as usize;
            let what = format!(
                "{bytes} bytes do not fit into a budget of {} with {used} in use",
                self.0.bytes_max
            );
            Error::new(ErrorKind::Full { free, largest: free }, what)
        })
    }

    /// Takes `bytes` for `who` as soon as they are free and all who asked before are served.
    /// Dropping the future gives up the place; the caller adds a deadline. `Invalid` for more
    /// than there will ever be.
    pub async fn acquire_waiting(&self, who: &'static str, bytes: u64) -> Result<Permit, Error> {
        self.check(bytes)?;
        Ok(Wait::new(&self.0.line, || self.attempt(who, bytes)).await)
    }

    /// How much is in use, and by whom.
    pub fn stats(&self) -> BudgetStats {
        let books = lock(&self.0.books);
        let by_use = books
            .by_use
            .iter()
            .filter(|(_, bytes)| **bytes > 0)
            .map(|(who, bytes)| (*who, *bytes))
            .collect();
        BudgetStats {
            bytes_max: self.0.bytes_max,
            used: books.used,
            stranded: books.stranded,
            by_use,
        }
    }

    fn check(&self, bytes: u64) -> Result<(), Error> {
        if bytes <= self.0.bytes_max {
            return Ok(());
        }
        let what = format!(
            "{bytes} bytes are more than the whole budget of {}; raise it or ask for less",
            self.0.bytes_max
        );
        Err(Error::new(ErrorKind::Invalid, what))
    }

    fn attempt(&self, who: &'static str, bytes: u64) -> Option<Permit> {
        let mut books = lock(&self.0.books);
        let used = books.used.checked_add(bytes).filter(|used| *used <= self.0.bytes_max)?;
        books.used = used;
        *books.by_use.entry(who).or_default() += bytes;
        drop(books);
        Some(Permit { budget: self.clone(), bytes, who: Some(who) })
    }
}

/// Bytes of a budget that are in use until this is dropped.
#[must_use = "dropped, it gives its bytes back"]
pub struct Permit {
    budget: Budget,
    bytes: u64,
    /// `None` once it is stranded.
    who: Option<&'static str>,
}

impl Permit {
    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts `bytes` (at most all) off.
    pub fn split(&mut self, bytes: u64) -> Permit {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Permit { budget: self.budget.clone(), bytes, who: self.who }
    }

    /// The user has given up, but the memory is still with the kernel or a driver: the bytes count
    /// as stranded, and as in use, until this is dropped.
    pub fn strand(&mut self) {
        if let Some(who) = self.who.take() {
            let mut books = lock(&self.budget.0.books);
            books.leave(who, self.bytes);
            books.stranded += self.bytes;
        }
    }
}

impl BudgetState {
    fn leave(&mut self, who: &'static str, bytes: u64) {
        if let Some(used) = self.by_use.get_mut(who) {
            *used -= bytes;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut books = lock(&self.budget.0.books);
        books.used -= self.bytes;
        match self.who {
            Some(who) => books.leave(who, self.bytes),
            None => books.stranded -= self.bytes,
        }
        drop(books);
        self.budget.0.line.wake();
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes for {})", self.bytes, self.who.unwrap_or("nobody any more"))
    }
}
