//! Streams: a queue and a thread each.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::events::Event;
use crate::faults::number;
use crate::ptx_interpreter::Kernel;
use crate::{held_streams, loaded_kernels};

/// Microseconds that each step of a stream takes.
pub const DELAY_US: &str = "FAKEGPU_DELAY_US";

/// One operation of a stream.
pub enum Step {
    /// Copies `len` bytes between host addresses.
    Copy { to: usize, from: usize, len: usize },
    /// Sets `len` bytes.
    Set { to: usize, len: usize, byte: u8 },
    /// Runs a kernel in blocks of threads.
    Run { kernel: Arc<Kernel>, shape: (u32, u32), params: Vec<u64> },
    /// Passes an event's record.
    Pass(Arc<Event>, u64),
    /// Waits for an event's record.
    Wait(Arc<Event>, u64),
}

/// A stream.
#[derive(Default)]
pub struct Stream {
    queue: Mutex<StepQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct StepQueue {
    steps: VecDeque<Step>,
    busy: bool,
    is_ending: bool,
}

impl Stream {
    fn queue(&self) -> MutexGuard<'_, StepQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, step: Step) {
        self.queue().steps.push_back(step);
        self.changed.notify_all();
    }

    pub fn is_idle(&self) -> bool {
        let queue = self.queue();
        queue.steps.is_empty() && !queue.busy
    }

    /// Waits until all steps have finished.
    pub fn wait(&self) {
        let mut queue = self.queue();
        while !queue.steps.is_empty() || queue.busy {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        let delay = Duration::from_micros(number(DELAY_US).unwrap_or(0));
        loop {
            let mut queue = self.queue();
            while queue.steps.is_empty() && !queue.is_ending {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(step) = queue.steps.pop_front() else { return };
            queue.busy = true;
            drop(queue);
            // Without the lock, so that callers can ask whether the stream is idle meanwhile.
            if !delay.is_zero() {
                std::thread::sleep(delay);
            }
            // Tests stop a stream at a `Set`, which the tiers never submit themselves.
            if matches!(step, Step::Set { .. }) {
                held_streams::wait_while_held();
            }
            step.run();
            // Only after the step, or `wait` would return while its bytes still move.
            self.queue().busy = false;
            self.changed.notify_all();
        }
    }
}

impl Step {
    fn run(self) {
        match self {
            // SAFETY: both ranges were checked when the copy was submitted; as with a GPU, the caller
            // keeps them allocated.
            Step::Copy { to, from, len } => unsafe {
                std::ptr::copy(from as *const u8, to as *mut u8, len)
            },
            // SAFETY: as above.
            Step::Set { to, len, byte } => unsafe {
                std::ptr::write_bytes(to as *mut u8, byte, len)
            },
            Step::Run { kernel, shape, params } => loaded_kernels::run(&kernel, shape, &params),
            Step::Pass(event, time) => event.pass(time),
            Step::Wait(event, time) => event.wait(time),
        }
    }
}

static ALL: Mutex<(usize, BTreeMap<usize, Arc<Stream>>)> = Mutex::new((0x5000, BTreeMap::new()));

fn all() -> MutexGuard<'static, (usize, BTreeMap<usize, Arc<Stream>>)> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream and its thread.
fn start() -> Option<Arc<Stream>> {
    let stream = Arc::<Stream>::default();
    let own = Arc::clone(&stream);
    std::thread::Builder::new().name("fakegpu".into()).spawn(move || own.run()).ok()?;
    Some(stream)
}

/// A new stream's handle.
pub fn create() -> Option<usize> {
    let stream = start()?;
    let mut all = all();
    all.0 += 1;
    let handle = all.0;
    all.1.insert(handle, stream);
    Some(handle)
}

/// The handles of the default stream: null, legacy and per-thread.
const DEFAULT: std::ops::RangeInclusive<usize> = 0..=2;

/// The default stream, which exists for the life of the process.
fn default() -> Option<Arc<Stream>> {
    static STREAM: OnceLock<Option<Arc<Stream>>> = OnceLock::new();
    STREAM.get_or_init(start).clone()
}

pub fn get(handle: usize) -> Option<Arc<Stream>> {
    if DEFAULT.contains(&handle) { default() } else { all().1.get(&handle).cloned() }
}

pub fn wait_for_all() {
    // A copy of the list: a stream may be created or destroyed while this waits.
    let streams: Vec<_> = all().1.values().cloned().collect();
    streams.into_iter().chain(default()).for_each(|stream| stream.wait());
}

/// Ends a stream after its pending steps.
pub fn destroy(handle: usize) -> bool {
    let Some(stream) = all().1.remove(&handle) else { return false };
    stream.queue().is_ending = true;
    stream.changed.notify_all();
    true
}

pub fn count() -> usize {
    all().1.len()
}
