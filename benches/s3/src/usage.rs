use std::alloc::System;
use std::fs;
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The resident size after all memory for objects was allocated, in MiB.
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

/// Marks the resident size: further growth is the client's.
pub fn mark() {
    MARK.get_or_init(|| status("VmRSS:").map_or(0.0, |kib| kib as f64 / 1024.0));
}

/// The largest growth of the resident size since [`mark`], in MiB.
pub fn grown_mib() -> Option<f64> {
    MARK.get().map(|mark| (rss_mib() - mark).max(0.0))
}

/// Threads of this process.
pub fn threads() -> Option<u64> {
    status("Threads:")
}

/// Allocations and reallocations so far.
pub fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
