use std::time::Duration;

/// Whether a lookup protects its hits from eviction and removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// It does not.
    None,
    /// Until the hold is released, and at most this long.
    For(Duration),
}

/// Identifies a hold until it is released or expires. Unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoldId(pub u64);
