//! Memory that was let go while work on a GPU may still use it: it goes home when that work is
//! done.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::GpuEvent;
use crate::lease::Owner;

/// How often events are looked at, at first; less often the longer they take.
const LOOK_MIN: Duration = Duration::from_micros(100);
const LOOK_MAX: Duration = Duration::from_millis(50);

/// What waits. As many as there are leases whose work has not ended; those whose work never ends
/// stay, which is better than to hand them on.
#[derive(Default)]
struct DeferredFrees {
    waiting: Vec<(GpuEvent, Owner)>,
    /// Whether a thread looks after them.
    watched: bool,
}

static LATE: Mutex<DeferredFrees> =
    Mutex::new(DeferredFrees { waiting: Vec::new(), watched: false });

/// Keeps `owner` until `event` has passed. Where the driver cannot say, the context is dead, and so
/// is its work.
pub fn keep(event: GpuEvent, owner: Owner) {
    if !is_pending(&event) {
        return;
    }
    let mut late = lock();
    late.waiting.push((event, owner));
    // Where no thread can be had the next who keeps something tries again.
    late.watched =
        late.watched || thread::Builder::new().name("gpu-late".into()).spawn(watch).is_ok();
}

fn watch() {
    let mut pause = LOOK_MIN;
    loop {
        thread::sleep(pause);
        let waiting = std::mem::take(&mut lock().waiting);
        let (pending, over): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(event, _)| is_pending(event));
        pause = if over.is_empty() { (pause * 2).min(LOOK_MAX) } else { LOOK_MIN };
        // Without the lock: what goes home may let other memory go.
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
