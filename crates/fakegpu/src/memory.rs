//! Device memory and pinned host memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::number;

/// The bytes of a device; the default is 1 GiB.
pub const MEMORY: &str = "FAKEGPU_MEMORY";

/// Allocations are aligned to this, as in CUDA.
const GRAIN: usize = 4096;

/// An allocation on the device. Its address has no access rights; the same pages are mapped with
/// access at `host`.
struct Device {
    len: usize,
    host: usize,
    context: usize,
}

#[derive(Default)]
struct Memory {
    device: BTreeMap<usize, Device>,
    pinned: BTreeMap<usize, usize>,
    /// Bytes copied between the device and host memory that was not pinned.
    pageable_bytes: u64,
}

static MEMORY_OF_ALL: Mutex<Memory> =
    Mutex::new(Memory { device: BTreeMap::new(), pinned: BTreeMap::new(), pageable_bytes: 0 });

fn memory() -> MutexGuard<'static, Memory> {
    MEMORY_OF_ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that is allocated at the end of the process.
pub struct Leaks {
    pub device_bytes: usize,
    pub pinned: usize,
    pub pageable_bytes: u64,
}

pub fn leaks() -> Leaks {
    let memory = memory();
    Leaks {
        device_bytes: memory.device.values().map(|one| one.len).sum(),
        pinned: memory.pinned.len(),
        pageable_bytes: memory.pageable_bytes,
    }
}

/// Total and free bytes of a device.
pub fn sizes() -> (usize, usize) {
    let all = number(MEMORY).unwrap_or(1 << 30);
    (all, all.saturating_sub(leaks().device_bytes))
}

/// Allocates memory on the device of `context`; `None` if it is full.
pub fn allocate(len: usize, context: usize) -> Option<usize> {
    let len = len.max(1).next_multiple_of(GRAIN);
    if len > sizes().1 {
        return None;
    }
    let (at, host) = map_twice(len)?;
    memory().device.insert(at, Device { len, host, context });
    Some(at)
}

pub fn free(at: usize) -> bool {
    let Some(removed) = memory().device.remove(&at) else { return false };
    for base in [at, removed.host] {
        // SAFETY: both mappings were made in `map_twice` with this length, and the map has no
        // entry for them any more.
        unsafe { libc::munmap(base as *mut c_void, removed.len) };
    }
    true
}

/// Pins host memory; `false` if part of it is pinned already.
pub fn pin(at: usize, len: usize) -> bool {
    let mut memory = memory();
    let before = memory.pinned.range(..at + len).next_back();
    if before.is_some_and(|(start, bytes)| start + bytes > at) {
        return false;
    }
    memory.pinned.insert(at, len);
    true
}

pub fn unpin(at: usize) -> bool {
    memory().pinned.remove(&at).is_some()
}

/// The device allocation that contains `at`: start, length and context.
pub fn device_of(at: usize) -> Option<(usize, usize, usize)> {
    let memory = memory();
    let (start, one) = memory.device.range(..=at).next_back()?;
    (at < start + one.len).then_some((*start, one.len, one.context))
}

/// The host address of `at..at + len`, if that is within a device allocation.
pub fn host_address(at: usize, len: usize) -> Option<*mut u8> {
    let memory = memory();
    let (start, one) = memory.device.range(..=at).next_back()?;
    let end = at.checked_add(len)?;
    (end <= start + one.len).then(|| (one.host + (at - start)) as *mut u8)
}

/// Whether the range was pinned by a single call. A range over two calls counts as not pinned.
pub fn is_pinned(at: usize, len: usize) -> bool {
    let memory = memory();
    let before = memory.pinned.range(..=at).next_back();
    before.is_some_and(|(start, bytes)| at + len <= start + bytes)
}

/// Allocates pinned host memory.
pub fn allocate_pinned(len: usize) -> Option<usize> {
    let len = len.max(1).next_multiple_of(GRAIN);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice; nothing in use is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    memory().pinned.insert(at as usize, len);
    Some(at as usize)
}

pub fn free_pinned(at: usize) -> bool {
    let Some(len) = memory().pinned.remove(&at) else { return false };
    // SAFETY: mapped in `allocate_pinned` with this length; as in CUDA, the caller does
    // not use it any more.
    unsafe { libc::munmap(at as *mut c_void, len) };
    true
}

pub fn note_pageable(len: usize) {
    memory().pageable_bytes += len as u64;
}

/// Maps pages twice: without access, and for reading and writing.
fn map_twice(len: usize) -> Option<(usize, usize)> {
    // SAFETY: a new descriptor, sized, mapped twice at addresses of the kernel's choice and closed;
    // nothing in use is touched.
    unsafe {
        let fd = libc::memfd_create(c"fakegpu".as_ptr(), libc::MFD_CLOEXEC);
        let sized = fd >= 0 && libc::ftruncate(fd, len as libc::off_t) == 0;
        let map =
            |access| match libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) {
                libc::MAP_FAILED => None,
                at => Some(at as usize),
            };
        let both = sized
            .then(|| Some((map(libc::PROT_NONE)?, map(libc::PROT_READ | libc::PROT_WRITE)?)))
            .flatten();
        libc::close(fd);
        both
    }
}
