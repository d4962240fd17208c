//! Frees memory that was released while GPU work may still use it: when that work is done.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::GpuEvent;
use crate::owner::Owner;

/// How often events are polled, at first; less often the longer they take.
const POLL_MIN: Duration = Duration::from_micros(100);
const POLL_MAX: Duration = Duration::from_millis(50);

/// The memory that waits: one entry per lease whose work has not ended. Memory whose work never
/// ends stays here for good, which is safer than to reuse it.
#[derive(Default)]
struct DeferredFrees {
    waiting: Vec<(GpuEvent, Owner)>,
    /// Whether a thread polls the events.
    watched: bool,
}

static LATE: Mutex<DeferredFrees> =
    Mutex::new(DeferredFrees { waiting: Vec::new(), watched: false });

/// Keeps `owner` until `event` has passed. If the driver cannot say, the context is dead, and so is
/// its work.
pub fn keep(event: GpuEvent, owner: Owner) {
    if !is_pending(&event) {
        return;
    }
    let mut late = lock();
    late.waiting.push((event, owner));
    // If no thread can be started, the next call tries again.
    late.watched =
        late.watched || thread::Builder::new().name("gpu-late".into()).spawn(watch).is_ok();
}

fn watch() {
    let mut pause = POLL_MIN;
    loop {
        thread::sleep(pause);
        let waiting = std::mem::take(&mut lock().waiting);
        let (pending, over): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(event, _)| is_pending(event));
        pause = if over.is_empty() { (pause * 2).min(POLL_MAX) } else { POLL_MIN };
        // Without the lock: dropping an owner may release other memory.
        drop(over);
        let mut late = lock();
        late.waiting.extend(pending);
        if late.waiting.is_empty() {
            late.watched = false;
            return;
        }
    }
}

fn is_pending(event: &GpuEvent) -> bool {
    matches!(event.has_passed(), Ok(false))
}

fn lock() -> MutexGuard<'static, DeferredFrees> {
    LATE.lock().unwrap_or_else(PoisonError::into_inner)
}
