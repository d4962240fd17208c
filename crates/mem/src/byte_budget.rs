use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::sync::{Mutex, lock};
use crate::wait_queue::{Wait, WaitQueue};
use crate::{Error, ErrorKind};

/// A limit on bytes in use, with the use of each named user. Clones share it.
///
/// ```
/// use kvtier_mem::Budget;
///
/// let budget = Budget::new(100);
/// let permit = budget.acquire("loads", 80)?;
/// assert!(budget.acquire("saves", 40).is_err());
/// drop(permit);
/// assert_eq!(budget.stats().used, 0);
/// # Ok::<(), kvtier_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    bytes_max: u64,
    state: Mutex<BudgetState>,
    queue: WaitQueue,
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
    /// The whole budget.
    pub bytes_max: u64,
    /// In use, stranded bytes included.
    pub used: u64,
    /// Released by their users, but still held by the kernel or a driver.
    pub stranded: u64,
    /// In use, per user, without stranded bytes.
    pub by_use: Vec<(&'static str, u64)>,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Budget(Arc::new(Inner { bytes_max, state: Mutex::default(), queue: WaitQueue::default() }))
    }

    /// Takes `bytes` for `user`. Does not overtake tasks that wait.
    ///
    /// # Errors
    ///
    /// `Full` with the free bytes, `Invalid` for more than the whole budget.
    pub fn acquire(&self, user: &'static str, bytes: u64) -> Result<Permit, Error> {
        self.check(bytes)?;
        // Tasks that wait were here first. Without this check, many small requests could keep a
        // large one waiting for ever.
        let attempt = || self.0.queue.is_empty().then(|| self.attempt(user, bytes)).flatten();
        attempt().ok_or_else(|| {
            let used = lock(&self.0.state).used;
            let free = (self.0.bytes_max - used) as usize;
            let what = format!(
                "{bytes} bytes do not fit into a budget of {} with {used} in use",
                self.0.bytes_max
            );
            Error::new(ErrorKind::Full { free, largest: free }, what)
        })
    }

    /// Takes `bytes` for `user` as soon as they are free and all earlier requests are served.
    /// Dropping the future leaves the queue; the caller adds a deadline.
    ///
    /// # Errors
    ///
    /// `Invalid` for more than the whole budget.
    pub async fn acquire_waiting(&self, user: &'static str, bytes: u64) -> Result<Permit, Error> {
        self.check(bytes)?;
        Ok(Wait::new(&self.0.queue, || self.attempt(user, bytes)).await)
    }

    /// The bytes in use, per user.
    pub fn stats(&self) -> BudgetStats {
        let state = lock(&self.0.state);
        let by_use = state
            .by_use
            .iter()
            .filter(|(_, bytes)| **bytes > 0)
            .map(|(user, bytes)| (*user, *bytes))
            .collect();
        BudgetStats {
            bytes_max: self.0.bytes_max,
            used: state.used,
            stranded: state.stranded,
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

    fn attempt(&self, user: &'static str, bytes: u64) -> Option<Permit> {
        let mut state = lock(&self.0.state);
        // Checked and added under one lock, so two requests cannot both take the last bytes.
        let used = state.used.checked_add(bytes).filter(|used| *used <= self.0.bytes_max)?;
        state.used = used;
        *state.by_use.entry(user).or_default() += bytes;
        drop(state);
        Some(Permit { budget: self.clone(), bytes, user: Some(user) })
    }
}

/// Bytes of a budget that are in use until this is dropped.
#[must_use = "dropped, it gives its bytes back"]
pub struct Permit {
    budget: Budget,
    bytes: u64,
    /// `None` once the bytes are stranded.
    user: Option<&'static str>,
}

impl Permit {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits `bytes` (at most all) off.
    pub fn split(&mut self, bytes: u64) -> Permit {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Permit { budget: self.budget.clone(), bytes, user: self.user }
    }

    /// The user is done, but the kernel or a driver still holds the memory: the bytes count as
    /// stranded, and as in use, until this is dropped.
    pub fn strand(&mut self) {
        if let Some(user) = self.user.take() {
            let mut state = lock(&self.budget.0.state);
            // The total does not change: the memory is still in use, only not by this user.
            state.subtract(user, self.bytes);
            state.stranded += self.bytes;
        }
    }
}

impl BudgetState {
    fn subtract(&mut self, user: &'static str, bytes: u64) {
        if let Some(used) = self.by_use.get_mut(user) {
            *used -= bytes;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.budget.0.state);
        state.used -= self.bytes;
        match self.user {
            Some(user) => state.subtract(user, self.bytes),
            None => state.stranded -= self.bytes,
        }
        drop(state);
        self.budget.0.queue.wake();
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes for {})", self.bytes, self.user.unwrap_or("no user: stranded"))
    }
}
