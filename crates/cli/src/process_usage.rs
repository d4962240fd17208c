//! What this process has used.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU seconds of this process, user and system together.
pub fn cpu_s() -> f64 {
    let seconds = |t: nix::sys::time::TimeVal| t.num_microseconds() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |u| seconds(u.user_time()) + seconds(u.system_time()))
}

/// CPU seconds of the calling thread.
pub fn thread_cpu_s() -> f64 {
    let seconds = |t: nix::sys::time::TimeVal| t.num_microseconds() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_THREAD)
        .map_or(0.0, |u| seconds(u.user_time()) + seconds(u.system_time()))
}

/// CPU seconds of this process's threads that live and whose names begin with one of `prefixes`; 0
/// where `/proc` cannot be read.
pub fn threads_cpu_s(prefixes: &[&str]) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            // The kernel cuts names of threads at 15 bytes, so beginnings are compared.
            prefixes.iter().any(|prefix| name.starts_with(prefix)).then_some(())?;
            // Its first number is the time on a CPU in nanoseconds.
            let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<f64>().ok()
        })
        .sum::<f64>()
        / 1e9
}

/// CPU seconds of this process in the kernel.
pub fn system_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |u| u.system_time().num_microseconds() as f64 / 1e6)
}

/// Largest resident size of this process so far, in MiB.
pub fn rss_mib() -> f64 {
    // Linux reports KiB here, and the highest value so far.
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |u| u.max_rss() as f64 / 1024.0)
}

/// The `p`-th percentile of `values` (0 to 1), 0 when there are none. Sorts them.
pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * p).round() as usize).copied().unwrap_or(0.0)
}
