//! What a process opened and registered with cuFile.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A registered file.
#[derive(Clone, Copy)]
pub struct File {
    pub fd: c_int,
    pub inode: (u64, u64),
}

#[derive(Default)]
pub struct State {
    pub opened: i64,
    pub next: usize,
    pub files: BTreeMap<usize, File>,
    pub buffers: BTreeMap<usize, usize>,
    pub counts: Counts,
}

#[derive(Default)]
pub struct Counts {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub unaligned: u64,
    pub unregistered: u64,
    /// Uses of a file after its descriptor was closed or reused.
    pub stale: u64,
}

static STATE: Mutex<State> = Mutex::new(State {
    opened: 0,
    next: 0xf000,
    files: BTreeMap::new(),
    buffers: BTreeMap::new(),
    counts: Counts { read_bytes: 0, written_bytes: 0, unaligned: 0, unregistered: 0, stale: 0 },
});

/// What is opened and registered now.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lines of the report about cuFile.
pub fn lines() -> Vec<String> {
    let state = state();
    let counts = &state.counts;
    vec![
        format!("leaked handles {}", state.files.len()),
        format!("leaked buffers {}", state.buffers.len()),
        format!("counted opened {}", state.opened),
        format!("counted read_bytes {}", counts.read_bytes),
        format!("counted written_bytes {}", counts.written_bytes),
        format!("counted unaligned {}", counts.unaligned),
        format!("counted unregistered {}", counts.unregistered),
        format!("counted stale {}", counts.stale),
    ]
}
