//! The functions of `libcufile.so.0` that this workspace calls.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::MaybeUninit;

use crate::cufile_state::{File, state};
use crate::faults::{Fault, code, fault, number};
use crate::memory;
use crate::report::at_exit;

/// The kinds of storage with direct transfers, as bits; the default is NVMe, 0 is compatibility
/// mode.
pub const TARGETS: &str = "FAKEGPU_TARGETS";
/// The most bytes of registered buffers; the default is no limit.
pub const BAR1: &str = "FAKEGPU_BAR1";

const NVME: c_uint = 1 << 4;

const DRIVER_NOT_INITIALIZED: c_int = 5001;
const CUDA_CONTEXT_MISMATCH: c_int = 5015;
const INVALID_FILE_TYPE: c_int = 5018;
const OPEN_FLAGS: c_int = 5019;
const DIO_NOT_SET: c_int = 5020;
pub const INVALID_VALUE: c_int = 5022;
const MEMORY_ALREADY_REGISTERED: c_int = 5023;
const MEMORY_NOT_REGISTERED: c_int = 5024;
const HANDLE_ALREADY_REGISTERED: c_int = 5028;
const NEW_FD_FAILED: c_int = 5031;
const GPU_MEMORY_PINNING_FAILED: c_int = 5036;
const NO_CONTEXT: c_int = 5047;

/// Flags of a descriptor that cuFile refuses.
const REFUSED_FLAGS: c_int = libc::O_NOCTTY
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_NOFOLLOW
    | libc::O_TMPFILE
    | libc::O_DIRECTORY;

/// `CUfileError_t`: a code of cuFile, and one of CUDA if a CUDA call failed.
#[repr(C)]
pub struct Status {
    code: c_int,
    cuda: c_int,
}

pub const OK: Status = status(0);

pub const fn status(code: c_int) -> Status {
    // 5011 is a failed CUDA call, and has a CUDA code.
    Status { code, cuda: if code == 5011 { 719 } else { 0 } }
}

macro_rules! fails {
    ($symbol:literal) => {
        if let Some(code) = code($symbol) {
            return status(code);
        }
    };
}

#[repr(C)]
struct Descr {
    kind: c_int,
    /// A descriptor in a union with a pointer.
    file: u64,
    ops: *const c_void,
}

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Default)]
struct Properties {
    major: c_uint,
    minor: c_uint,
    poll_threshold_kib: usize,
    direct_io_max_kib: usize,
    targets: c_uint,
    control: c_uint,
    features: c_uint,
    cache_kib: c_uint,
    cache_per_buffer_kib: c_uint,
    pinned_max_kib: c_uint,
    batch_max: c_uint,
    batch_timeout_ms: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    fails!("cuFileGetVersion");
    // SAFETY: as cuFile requires of the caller.
    unsafe { version.write(1200) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Status {
    at_exit();
    fails!("cuFileDriverOpen");
    state().opened += 1;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Status {
    fails!("cuFileDriverClose_v2");
    let mut state = state();
    if state.opened == 0 {
        return status(DRIVER_NOT_INITIALIZED);
    }
    state.opened -= 1;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileUseCount() -> c_long {
    state().opened
}

fn targets() -> c_uint {
    number(TARGETS).unwrap_or(NVME)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileDriverGetProperties(to: *mut c_void) -> Status {
    fails!("cuFileDriverGetProperties");
    let targets = targets();
    let version = if targets == 0 { 0 } else { 2 };
    let properties = Properties {
        major: version,
        poll_threshold_kib: 4,
        direct_io_max_kib: 16_384,
        targets,
        control: 2,
        cache_kib: 131_072,
        cache_per_buffer_kib: 1024,
        pinned_max_kib: 4_294_967_292,
        batch_max: 128,
        ..Properties::default()
    };
    // SAFETY: as cuFile requires of the caller.
    unsafe { to.cast::<Properties>().write(properties) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(to: *mut usize, descr: *const Descr) -> Status {
    fails!("cuFileHandleRegister");
    if to.is_null() || descr.is_null() {
        return status(INVALID_VALUE);
    }
    // SAFETY: as cuFile requires of the caller, and not null.
    // The checks below come in the order in which libcufile reports their errors.
    let (fd, kind) = unsafe { ((*descr).file as c_int, (*descr).kind) };
    let inode = match inode(fd) {
        Some(inode) if kind == 1 => inode,
        Some(_) => return status(INVALID_VALUE),
        None => return status(INVALID_FILE_TYPE),
    };
    // cuFile opens the file again by its name.
    if is_deleted(fd) {
        return status(NEW_FD_FAILED);
    }
    // SAFETY: reads flags, accesses no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & REFUSED_FLAGS != 0 {
        return status(OPEN_FLAGS);
    }
    if flags & libc::O_DIRECT == 0 {
        return status(DIO_NOT_SET);
    }
    if !crate::contexts::has_context() {
        return status(NO_CONTEXT);
    }
    let mut state = state();
    // By descriptor and not by inode, as libcufile does it.
    if state.files.values().any(|file| file.fd == fd) {
        return status(HANDLE_ALREADY_REGISTERED);
    }
    state.next += 1;
    let handle = state.next;
    state.files.insert(handle, File { fd, inode });
    // SAFETY: as cuFile requires of the caller, and not null.
    unsafe { to.write(handle) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: usize) {
    let _ = fault("cuFileHandleDeregister");
    let mut state = state();
    if let Some(file) = state.files.remove(&handle)
        // The descriptor must outlive the handle: closed before, it may belong to another file by
        // now.
        && inode(file.fd) != Some(file.inode)
    {
        state.counts.stale += 1;
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(at: usize, len: usize, _flags: c_int) -> Status {
    fails!("cuFileBufRegister");
    if at == 0 || len == 0 {
        return status(INVALID_VALUE);
    }
    if !crate::contexts::has_context() {
        return status(NO_CONTEXT);
    }
    let mut state = state();
    // Regions do not overlap, so only the last one that starts before the end can reach into it.
    if state.buffers.range(..at + len).next_back().is_some_and(|(start, bytes)| start + bytes > at)
    {
        return status(MEMORY_ALREADY_REGISTERED);
    }
    // A GPU maps registered memory through BAR1, which may be smaller than its memory.
    let used: usize = state.buffers.values().sum();
    if used + len > number(BAR1).unwrap_or(usize::MAX) {
        return status(GPU_MEMORY_PINNING_FAILED);
    }
    state.buffers.insert(at, len);
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(at: usize) -> Status {
    fails!("cuFileBufDeregister");
    if state().buffers.remove(&at).is_some() { OK } else { status(MEMORY_NOT_REGISTERED) }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(handle: usize, base: usize, len: usize, file_at: i64, at: i64) -> isize {
    transfer(fault("cuFileRead"), handle, &Range { base, len, file_at, at }, false)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(handle: usize, base: usize, len: usize, file_at: i64, at: i64) -> isize {
    transfer(fault("cuFileWrite"), handle, &Range { base, len, file_at, at }, true)
}

/// A range of GPU memory, given by a buffer and an offset, and an offset in the file.
struct Range {
    base: usize,
    len: usize,
    file_at: i64,
    at: i64,
}

fn transfer(fault: Option<Fault>, handle: usize, range: &Range, writes: bool) -> isize {
    let Range { base, len, file_at, at } = *range;
    let most = match fault {
        Some(Fault::Code(code)) => return -(code as isize),
        Some(Fault::Errno(errno)) => return fail(errno),
        // A short transfer is no error: callers must go on with the rest.
        Some(Fault::Short(most)) => most.min(len),
        None => len,
    };
    // Copied, so that the lock is not held over the transfer: real transfers run at the same time.
    let Some(file) = state().files.get(&handle).copied() else { return fail(INVALID_VALUE) };
    if inode(file.fd) != Some(file.inode) {
        state().counts.stale += 1;
        return fail(libc::EBADF);
    }
    if !crate::contexts::has_context() {
        return -(CUDA_CONTEXT_MISMATCH as isize);
    }
    let (Ok(at), Ok(_)) = (usize::try_from(at), usize::try_from(file_at)) else {
        return fail(INVALID_VALUE);
    };
    let Some(host) = memory::host_address(base + at, len) else { return fail(INVALID_VALUE) };
    count_slow_path(base, base + at, len, file_at);
    let host = HostRange { at: host as usize, len: most };
    let moved = move_bytes(file.fd, host, file_at, writes);
    if let Ok(bytes) = u64::try_from(moved) {
        let counts = &mut state().counts;
        *(if writes { &mut counts.written_bytes } else { &mut counts.read_bytes }) += bytes;
    }
    moved
}

/// Counts transfers that a driver would do slowly.
fn count_slow_path(base: usize, start: usize, len: usize, file_at: i64) {
    let mut state = state();
    let known = state.buffers.get(&base).is_some_and(|bytes| start + len <= base + bytes);
    // Counted and not refused: a real driver does these too, but slowly, and tests assert that
    // there are none.
    state.counts.unregistered += u64::from(!known);
    state.counts.unaligned += u64::from(!(file_at as usize | start | len).is_multiple_of(4096));
}

/// A range of host memory.
struct HostRange {
    at: usize,
    len: usize,
}

/// Reads or writes through another descriptor of the file, which needs no alignment.
fn move_bytes(fd: c_int, host: HostRange, file_at: i64, writes: bool) -> isize {
    let HostRange { at, len } = host;
    let path = format!("/proc/self/fd/{fd}\0");
    let access = if writes { libc::O_WRONLY } else { libc::O_RDONLY };
    // SAFETY: the path ends in a zero; `at..at + len` is part of the mapping of a device allocation,
    // which the caller does not free during the transfer, as cuFile requires.
    unsafe {
        let own = libc::open(path.as_ptr().cast(), access | libc::O_CLOEXEC);
        if own < 0 {
            return -1;
        }
        let moved = if writes {
            libc::pwrite(own, at as *const c_void, len, file_at)
        } else {
            libc::pread(own, at as *mut c_void, len, file_at)
        };
        libc::close(own);
        moved
    }
}

fn fail(errno: c_int) -> isize {
    // SAFETY: `errno` is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn meta(fd: c_int) -> Option<libc::stat> {
    let mut meta = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `meta` is valid for a write, and read only after it was written.
    unsafe { (libc::fstat(fd, meta.as_mut_ptr()) == 0).then(|| meta.assume_init()) }
}

/// Whether the file of a descriptor was deleted.
fn is_deleted(fd: c_int) -> bool {
    meta(fd).is_some_and(|meta| meta.st_nlink == 0)
}

/// Device and inode of a regular file.
fn inode(fd: c_int) -> Option<(u64, u64)> {
    let meta = meta(fd)?;
    (meta.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((meta.st_dev, meta.st_ino))
}
