//! The clocks of this machine: the one by which this crate decides, and the time of day. The
//! estimate of the store's clock is in `store_clock.rs`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The runtime's clock. All that decides by time goes by it, so that tests can pause it and
/// let it jump (`tokio::time::pause`); a deadline of a caller is converted where it comes in.
pub(crate) use tokio::time::Instant;

/// Seconds since 1970 by the local clock.
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
