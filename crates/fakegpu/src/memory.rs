//! Memory: the device's, and what of the host's is pinned.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::number;

/// How many bytes a device has; the default is 1 GiB.
pub const MEMORY: &str = "FAKEGPU_MEMORY";

/// As CUDA does it, allocations of some size start at multiples of this.
const GRAIN: usize = 4096;

/// An allocation on the device: at its address nobody can touch it; what is behind it is mapped
/// elsewhere too.
struct Device {
    len: usize,
    behind: usize,
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

/// What is left when the process ends.
pub struct Left {
    pub device_bytes: usize,
    pub pinned: usize,
    pub pageable_bytes: u64,
}

pub fn left() -> Left {
    let memory = memory();
    Left {
        device_bytes: memory.device.values().map(|one| one.len).sum(),
        pinned: memory.pinned.len(),
        pageable_bytes: memory.pageable_bytes,
    }
}

/// All and free bytes of a device.
pub fn sizes() -> (usize, usize) {
    let all = number(MEMORY).unwrap_or(1 << 30);
    (all, all.saturating_sub(left().device_bytes))
}

/// Memory of the device that `context` belongs to; `None` when it is full.
pub fn allocate(len: usize, context: usize) -> Option<usize> {
    let len = len.max(1).next_multiple_of(GRAIN);
    if len > sizes().1 {
        return None;
    }
    let (at, behind) = map_twice(len)?;
    memory().device.insert(at, Device { len, behind, context });
    Some(at)
}

pub fn free(at: usize) -> bool {
    let Some(gone) = memory().device.remove(&at) else { return false };
    for base in [at, gone.behind] {
        // SAFETY: both mappings were made in `map_twice` with this length, and nobody finds them
        // any more.
        unsafe { libc::munmap(base as *mut c_void, gone.len) };
    }
    true
}

/// Pins host memory; `false` when part of it is pinned already.
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

/// The device allocation that `at` lies in: its start, length and context.
pub fn device_of(at: usize) -> Option<(usize, usize, usize)> {
    let memory = memory();
    let (start, one) = memory.device.range(..=at).next_back()?;
    (at < start + one.len).then_some((*start, one.len, one.context))
}

/// Where the bytes `at..at + len` can be reached, if they are the device's and all there.
pub fn behind(at: usize, len: usize) -> Option<*mut u8> {
    let memory = memory();
    let (start, one) = memory.device.range(..=at).next_back()?;
    let end = at.checked_add(len)?;
    (end <= start + one.len).then(|| (one.behind + (at - start)) as *mut u8)
}

/// Whether all of it is host memory that was pinned by one call: what spans two is no better than
/// memory that is not pinned.
pub fn is_pinned(at: usize, len: usize) -> bool {
    let memory = memory();
    let before = memory.pinned.range(..=at).next_back();
    before.is_some_and(|(start, bytes)| at + len <= start + bytes)
}

/// Host memory of its own, pinned.
pub fn allocate_pinned(len: usize) -> Option<usize> {
    let len = len.max(1).next_multiple_of(GRAIN);
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
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
    // SAFETY: mapped in `allocate_pinned` with this length; as with CUDA's own, its user must not
    // touch it any more.
    unsafe { libc::munmap(at as *mut c_void, len) };
    true
}

pub fn note_pageable(len: usize) {
    memory().pageable_bytes += len as u64;
}

/// A mapping without access, and another one of the same pages that can be read and written.
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
