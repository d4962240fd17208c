//! The report of calls and leaks, written at the end of the process.

use std::sync::Once;
use std::time::Duration;

use crate::report_path::REPORT;
use crate::{contexts, cufile_state, events, faults, loaded_kernels, memory, streams};

/// The most checks at the end of the process whether threads still release resources.
/// Checks are counted, since time also passes while the machine stands still.
const CHECKS_MAX: usize = 60_000;
const PAUSE: Duration = Duration::from_millis(1);

/// Set where only device memory is awaited.
pub const ONLY_MEMORY: &str = "FAKEGPU_AWAIT_ONLY_DEVICE_MEMORY";

/// Registers the report to be written at the end of the process.
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
    let leaks = memory::leaks();
    let mut lines = vec![
        format!("leaked contexts {}", contexts::contexts()),
        format!("leaked device_bytes {}", leaks.device_bytes),
        format!("leaked pinned {}", leaks.pinned),
        format!("leaked streams {}", streams::count()),
        format!("leaked events {}", events::count()),
        format!("counted pageable_bytes {}", leaks.pageable_bytes),
    ];
    lines.extend(loaded_kernels::lines());
    lines.extend(cufile_state::lines());
    lines.extend(faults::calls().iter().map(|(symbol, calls)| format!("calls {symbol} {calls}")));
    let _ = std::fs::write(path, lines.join("\n"));
}

/// Waits until everything but streams, which some callers never destroy, was released, or device memory
/// alone where the test asks for that. A user of memory may report it as returned a moment before another
/// thread frees it.
fn settle() {
    let only_memory = std::env::var_os(ONLY_MEMORY).is_some();
    let has_leaks = || {
        let leaks = memory::leaks();
        let others = leaks.pinned + events::count() + contexts::contexts();
        leaks.device_bytes > 0 || (others > 0 && !only_memory)
    };
    for _ in (0..CHECKS_MAX).take_while(|_| has_leaks()) {
        std::thread::sleep(PAUSE);
    }
}
