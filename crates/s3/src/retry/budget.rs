use std::sync::atomic::{AtomicU32, Ordering};

use super::RequestKind;

/// What all operations on one endpoint may spend on retries together, so that a storm of failures
/// cannot become a storm of retries. Half of it is for loads alone.
#[derive(Debug)]
pub struct RetryBudget(AtomicU32);

impl RetryBudget {
    /// What there is at first and at most.
    const TOKENS_MAX: u32 = 500;
    /// What a retry costs.
    const RETRY: u32 = 5;
    /// What a retry after a time-out costs.
    const TIMEOUT: u32 = 10;

    /// What others must leave for loads.
    const FOR_LOADS: u32 = 250;

    /// A full one.
    pub fn new() -> Self {
        RetryBudget(AtomicU32::new(RetryBudget::TOKENS_MAX))
    }

    /// Takes what a retry costs, if it is there.
    pub fn spend(&self, kind: RequestKind, timed_out: bool) -> bool {
        let cost = if timed_out { RetryBudget::TIMEOUT } else { RetryBudget::RETRY };
        // A failed load costs the engine a recomputation, a failed save only a chunk. So half of
        // the budget is out of reach for everything but loads.
        let floor = if kind.serves_loads() { 0 } else { RetryBudget::FOR_LOADS };
        let take = |left: u32| left.checked_sub(cost).filter(|left| *left >= floor);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives a little back for a success, and what a retry cost if it helped.
    pub fn earn(&self, helped: bool) {
        let gain = if helped { RetryBudget::RETRY } else { 1 };
        // The budget is full nearly always. The check saves a write to a shared cache line with
        // each success.
        if helped || self.0.load(Ordering::Relaxed) < RetryBudget::TOKENS_MAX {
            let add = |left: u32| Some((left + gain).min(RetryBudget::TOKENS_MAX));
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_dry_and_fills_up_again() {
        let budget = RetryBudget::new();
        let kind = RequestKind::Read;
        assert_eq!((0..1000).filter(|_| budget.spend(kind, false)).count(), 100);
        assert!(!budget.spend(kind, true));
        (0..10).for_each(|_| budget.earn(false));
        assert!(budget.spend(kind, true));
        assert!(!budget.spend(kind, false));
        (0..1000).for_each(|_| budget.earn(true));
        assert_eq!((0..1000).filter(|_| budget.spend(kind, true)).count(), 50);
    }

    #[test]
    fn others_leave_half_for_loads() {
        let budget = RetryBudget::new();
        for kind in [RequestKind::Delete, RequestKind::Write, RequestKind::Control] {
            assert!((0..1000).filter(|_| budget.spend(kind, false)).count() <= 50);
            assert!(!budget.spend(kind, false));
        }
        assert!(budget.spend(RequestKind::Session, true));
        assert_eq!((0..1000).filter(|_| budget.spend(RequestKind::Read, false)).count(), 48);
    }
}
