//! The functions of `libcufile.so.0`, as far as anybody here calls them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::{Fault, code, fault, number};
use crate::memory;
use crate::report::at_exit;

/// The kinds of storage that the driver reaches directly, as bits; the default is NVMe, 0 is
/// compatibility mode.
pub const TARGETS: &str = "FAKEGPU_TARGETS";
/// How many bytes of buffers can be registered together; the default is no limit.
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

/// Flags of a descriptor that the real one refuses.
const REFUSED_FLAGS: c_int = libc::O_NOCTTY
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_NOFOLLOW
    | libc::O_TMPFILE
    | libc::O_DIRECTORY;

/// What most functions answer: a code of cuFile's, and of CUDA's if it was that.
#[repr(C)]
pub struct Answer {
    code: c_int,
    cuda: c_int,
}

pub const OK: Answer = answer(0);

pub const fn answer(code: c_int) -> Answer {
    // As the real one does, with some code of CUDA's.
    Answer { code, cuda: if code == 5011 { 719 } else { 0 } }
}

macro_rules! fails {
    ($symbol:literal) => {
        if let Some(code) = code($symbol) {
            return answer(code);
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

/// What the driver says of itself.
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

/// A registered file.
#[derive(Clone, Copy)]
struct File {
    fd: c_int,
    inode: (u64, u64),
}

#[derive(Default)]
struct State {
    opened: i64,
    next: usize,
    files: BTreeMap<usize, File>,
    buffers: BTreeMap<usize, usize>,
    saw: Saw,
}

#[derive(Default)]
struct Saw {
    read_bytes: u64,
    written_bytes: u64,
    unaligned: u64,
    unregistered: u64,
    /// Uses of a file whose descriptor was closed or is another file by now.
    stale: u64,
}

static STATE: Mutex<State> = Mutex::new(State {
    opened: 0,
    next: 0xf000,
    files: BTreeMap::new(),
    buffers: BTreeMap::new(),
    saw: Saw { read_bytes: 0, written_bytes: 0, unaligned: 0, unregistered: 0, stale: 0 },
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the report says of it.
pub fn lines() -> Vec<String> {
    let state = state();
    let saw = &state.saw;
    vec![
        format!("left handles {}", state.files.len()),
        format!("left buffers {}", state.buffers.len()),
        format!("saw opened {}", state.opened),
        format!("saw read_bytes {}", saw.read_bytes),
        format!("saw written_bytes {}", saw.written_bytes),
        format!("saw unaligned {}", saw.unaligned),
        format!("saw unregistered {}", saw.unregistered),
        format!("saw stale {}", saw.stale),
    ]
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Answer {
    fails!("cuFileGetVersion");
    // SAFETY: as cuFile demands of its caller.
    unsafe { version.write(1200) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Answer {
    at_exit();
    fails!("cuFileDriverOpen");
    state().opened += 1;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Answer {
    fails!("cuFileDriverClose_v2");
    let mut state = state();
    if state.opened == 0 {
        return answer(DRIVER_NOT_INITIALIZED);
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
unsafe extern "C" fn cuFileDriverGetProperties(to: *mut c_void) -> Answer {
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
    // SAFETY: as cuFile demands of its caller.
    unsafe { to.cast::<Properties>().write(properties) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(to: *mut usize, descr: *const Descr) -> Answer {
    fails!("cuFileHandleRegister");
    if to.is_null() || descr.is_null() {
        return answer(INVALID_VALUE);
    }
    // SAFETY: as cuFile demands of its caller, and not null.
    let (fd, kind) = unsafe { ((*descr).file as c_int, (*descr).kind) };
    let inode = match inode(fd) {
        Some(inode) if kind == 1 => inode,
        Some(_) => return answer(INVALID_VALUE),
        None => return answer(INVALID_FILE_TYPE),
    };
    // The real one opens the file once more, by its name.
    if is_deleted(fd) {
        return answer(NEW_FD_FAILED);
    }
    // SAFETY: asks for flags, touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & REFUSED_FLAGS != 0 {
        return answer(OPEN_FLAGS);
    }
    if flags & libc::O_DIRECT == 0 {
        return answer(DIO_NOT_SET);
    }
    if !crate::cuda::has_context() {
        return answer(NO_CONTEXT);
    }
    let mut state = state();
    if state.files.values().any(|file| file.fd == fd) {
        return answer(HANDLE_ALREADY_REGISTERED);
    }
    state.next += 1;
    let handle = state.next;
    state.files.insert(handle, File { fd, inode });
    // SAFETY: as cuFile demands of its caller, and not null.
    unsafe { to.write(handle) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: usize) {
    let _ = fault("cuFileHandleDeregister");
    let mut state = state();
    if let Some(file) = state.files.remove(&handle)
        && inode(file.fd) != Some(file.inode)
    {
        state.saw.stale += 1;
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(at: usize, len: usize, _flags: c_int) -> Answer {
    fails!("cuFileBufRegister");
    if at == 0 || len == 0 {
        return answer(INVALID_VALUE);
    }
    if !crate::cuda::has_context() {
        return answer(NO_CONTEXT);
    }
    let mut state = state();
    if state.buffers.range(..at + len).next_back().is_some_and(|(start, bytes)| start + bytes > at)
    {
        return answer(MEMORY_ALREADY_REGISTERED);
    }
    let used: usize = state.buffers.values().sum();
    if used + len > number(BAR1).unwrap_or(usize::MAX) {
        return answer(GPU_MEMORY_PINNING_FAILED);
    }
    state.buffers.insert(at, len);
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(at: usize) -> Answer {
    fails!("cuFileBufDeregister");
    if state().buffers.remove(&at).is_some() { OK } else { answer(MEMORY_NOT_REGISTERED) }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(handle: usize, base: usize, len: usize, file_at: i64, at: i64) -> isize {
    transfer(fault("cuFileRead"), handle, (base, len, file_at, at), false)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(handle: usize, base: usize, len: usize, file_at: i64, at: i64) -> isize {
    transfer(fault("cuFileWrite"), handle, (base, len, file_at, at), true)
}

fn transfer(
    fault: Option<Fault>,
    handle: usize,
    (base, len, file_at, at): (usize, usize, i64, i64),
    writes: bool,
) -> isize {
    let most = match fault {
        Some(Fault::Code(code)) => return -(code as isize),
        Some(Fault::Errno(errno)) => return fail(errno),
        Some(Fault::Short(most)) => most.min(len),
        None => len,
    };
    let Some(file) = state().files.get(&handle).copied() else { return fail(INVALID_VALUE) };
    if inode(file.fd) != Some(file.inode) {
        state().saw.stale += 1;
        return fail(libc::EBADF);
    }
    if !crate::cuda::has_context() {
        return -(CUDA_CONTEXT_MISMATCH as isize);
    }
    let (Ok(at), Ok(_)) = (usize::try_from(at), usize::try_from(file_at)) else {
        return fail(INVALID_VALUE);
    };
    let Some(reached) = memory::behind(base + at, len) else { return fail(INVALID_VALUE) };
    note((base, base + at, len), file_at);
    let moved = move_bytes(file.fd, (reached as usize, most), file_at, writes);
    if let Ok(bytes) = u64::try_from(moved) {
        let saw = &mut state().saw;
        *(if writes { &mut saw.written_bytes } else { &mut saw.read_bytes }) += bytes;
    }
    moved
}

/// Counts what a driver would do slowly.
fn note((base, start, len): (usize, usize, usize), file_at: i64) {
    let mut state = state();
    let known = state.buffers.get(&base).is_some_and(|bytes| start + len <= base + bytes);
    state.saw.unregistered += u64::from(!known);
    state.saw.unaligned += u64::from(!(file_at as usize | start | len).is_multiple_of(4096));
}

/// Reads or writes through another descriptor of the file, one without rules of alignment.
fn move_bytes(fd: c_int, (at, len): (usize, usize), file_at: i64, writes: bool) -> isize {
    let path = format!("/proc/self/fd/{fd}\0");
    let access = if writes { libc::O_WRONLY } else { libc::O_RDONLY };
    // SAFETY: the path ends in a zero; `at..at + len` is part of a mapping that a device allocation
    // has until it is freed, which a caller that keeps the rules of cuFile does not do
    // meanwhile.
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
    // SAFETY: `meta` has room, and is read only after it was written.
    unsafe { (libc::fstat(fd, meta.as_mut_ptr()) == 0).then(|| meta.assume_init()) }
}

/// Whether a descriptor's file has lost its last name.
fn is_deleted(fd: c_int) -> bool {
    meta(fd).is_some_and(|meta| meta.st_nlink == 0)
}

/// Which file a descriptor is, if a regular one.
fn inode(fd: c_int) -> Option<(u64, u64)> {
    let meta = meta(fd)?;
    (meta.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((meta.st_dev, meta.st_ino))
}
