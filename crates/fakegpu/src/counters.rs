//! What `libcufile.so.0` counts of the way that bytes took.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cufile::{Answer, INVALID_VALUE, OK, answer, is_direct};
use crate::faults::code;
use crate::more::uuid;

/// `1`: files go through host memory, whatever the driver reaches.
pub const HOST: &str = "FAKEGPU_THROUGH_HOST";

const EACH_GPU: c_int = 3;
/// Where the counters of the first GPU begin, in words, after those of all together and how many GPUs there are.
const FIRST: usize = 129;
const ALL_WORDS: usize = FIRST + 16 * 32;
/// Where they stand after a GPU's UUID of two words: of reads and of writes, all, by nvidia-fs, through host memory.
const COUNTED: [[usize; 3]; 2] = [[4, 6, 7], [17, 19, 20]];

#[derive(Default)]
struct Counters {
    level: c_int,
    counts: bool,
    /// Of reads and writes.
    direct: [u64; 2],
    host: [u64; 2],
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters { level: 0, counts: false, direct: [0; 2], host: [0; 2] });

fn counters() -> MutexGuard<'static, Counters> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The level that is counted on, for the report.
pub fn level() -> c_int {
    counters().level
}

/// Counts a transfer.
pub fn count(writes: bool) {
    let mut counters = counters();
    if counters.counts {
        let host = std::env::var_os(HOST).is_some() || !is_direct();
        let of = if host { &mut counters.host } else { &mut counters.direct };
        of[usize::from(writes)] += 1;
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetStatsLevel(level: c_int) -> Answer {
    if let Some(code) = code("cuFileSetStatsLevel") {
        return answer(code);
    }
    if !(0..=EACH_GPU).contains(&level) {
        return answer(INVALID_VALUE);
    }
    counters().level = level;
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsLevel(to: *mut c_int) -> Answer {
    // SAFETY: as cuFile demands of its caller.
    unsafe { to.write(level()) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStart() -> Answer {
    counters().counts = true;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStop() -> Answer {
    counters().counts = false;
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsL3(to: *mut c_void) -> Answer {
    if let Some(code) = code("cuFileGetStatsL3") {
        return answer(code);
    }
    let counters = counters();
    if counters.level < EACH_GPU {
        return answer(INVALID_VALUE);
    }
    let mut words = [0_u64; ALL_WORDS];
    words[FIRST - 1] = 1;
    for (half, bytes) in uuid(0).chunks_exact(8).enumerate() {
        words[FIRST + half] = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    for (kind, [all, direct, host]) in COUNTED.into_iter().enumerate() {
        let of_gpu = &mut words[FIRST + 2..];
        (of_gpu[direct], of_gpu[host]) = (counters.direct[kind], counters.host[kind]);
        of_gpu[all] = counters.direct[kind] + counters.host[kind];
    }
    // SAFETY: as cuFile demands of its caller.
    unsafe { to.cast::<[u64; ALL_WORDS]>().write(words) };
    OK
}
