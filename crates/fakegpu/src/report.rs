//! What is told when the process ends.

use std::sync::Once;
use std::time::{Duration, Instant};

use crate::{cuda, cufile, events, faults, kernels, memory, streams};

/// The file that it is written to.
pub const REPORT: &str = "FAKEGPU_REPORT";

/// A thread that was just giving something back when the process came to its end has so long to do
/// it.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Makes the report be written at the end.
pub fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded, without arguments.
        unsafe { libc::atexit(write) };
    });
}

extern "C" fn write() {
    let Some(path) = std::env::var_os(REPORT) else { return };
    settle();
    let left = memory::left();
    let mut lines = vec![
        format!("left contexts {}", cuda::contexts()),
        format!("left device_bytes {}", left.device_bytes),
        format!("left pinned {}", left.pinned),
        format!("left streams {}", streams::count()),
        format!("left events {}", events::count()),
        format!("saw pageable_bytes {}", left.pageable_bytes),
    ];
    lines.extend(kernels::lines());
    lines.extend(cufile::lines());
    lines.extend(faults::calls().iter().map(|(symbol, calls)| format!("calls {symbol} {calls}")));
    let _ = std::fs::write(path, lines.join("\n"));
}

/// Waits until all but streams, which some callers never destroy, was given back, or for so long.
/// Memory is home when its last user says so; what it lay in goes a moment later, on whatever
/// thread that was.
fn settle() {
    let end = Instant::now() + SETTLE_MAX;
    let is_left = || {
        let left = memory::left();
        left.device_bytes + left.pinned + events::count() + cuda::contexts() > 0
    };
    while is_left() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}
