//! The devices and their primary contexts.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::DEVICES_MAX;
use crate::cuda_error::{INVALID_CONTEXT, OK};
use crate::faults::number;

/// The number of devices; the default is 1.
pub const DEVICES: &str = "FAKEGPU_DEVICES";

/// The handle of a context is this plus the number of its device.
pub const CONTEXT: usize = 0xc000;

pub static RETAINED: [AtomicUsize; DEVICES_MAX] = [const { AtomicUsize::new(0) }; DEVICES_MAX];
thread_local!(pub static CURRENT: Cell<usize> = const { Cell::new(0) });

/// The number of retained contexts.
pub fn contexts() -> usize {
    RETAINED.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Whether the calling thread has a context.
pub fn has_context() -> bool {
    CURRENT.get() != 0
}

pub fn devices() -> usize {
    number(DEVICES).unwrap_or(1).min(DEVICES_MAX)
}

/// Whether the context of a device is retained.
pub fn is_retained(device: c_int) -> bool {
    RETAINED.get(device as usize).is_some_and(|count| count.load(Ordering::Relaxed) > 0)
}

/// Releases the context of a device once.
pub fn release(device: c_int) -> c_int {
    let count = RETAINED.get(device as usize);
    let less = |n: usize| n.checked_sub(1);
    match count.map(|count| count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)) {
        Some(Ok(_)) => OK,
        _ => INVALID_CONTEXT,
    }
}
