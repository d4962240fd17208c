use std::alloc::System;
use std::fs;
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The resident size when all memory for objects was there, in MiB.
static MARK: OnceLock<f64> = OnceLock::new();

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

/// From here on memory is the client's own.
pub fn mark() {
    MARK.get_or_init(|| status("VmRSS:").map_or(0.0, |kib| kib as f64 / 1024.0));
}

/// By how much the resident size grew at most since the [`mark`], in MiB.
pub fn grown_mib() -> Option<f64> {
    MARK.get().map(|mark| (rss_mib() - mark).max(0.0))
}

/// Threads of this process.
pub fn threads() -> Option<u64> {
    status("Threads:")
}

/// Allocations so far, those that grew counted again.
pub fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
