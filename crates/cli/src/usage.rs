//! What this process has used.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU seconds of this process, user and system together.
pub fn cpu_s() -> f64 {
    let seconds = |t: nix::sys::time::TimeVal| t.num_microseconds() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |u| seconds(u.user_time()) + seconds(u.system_time()))
}

/// Largest resident size of this process so far, in MiB.
pub fn rss_mib() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |u| u.max_rss() as f64 / 1024.0)
}

/// The `p`-th percentile of `values` (0 to 1), 0 when there are none. Sorts them.
pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * p).round() as usize).copied().unwrap_or(0.0)
}
