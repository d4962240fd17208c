use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU seconds of this process, in user space and in the kernel.
pub fn cpu_s() -> (f64, f64) {
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or((0.0, 0.0), |usage| (seconds(usage.user_time()), seconds(usage.system_time())))
}

/// The largest resident size so far, in MiB.
pub fn rss_mib() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| usage.max_rss() as f64 / 1024.0)
}
