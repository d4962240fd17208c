//! What is told when the process ends.

use std::sync::Once;

use crate::{cuda, cufile, events, faults, kernels, memory, streams};

/// The file that it is written to.
pub const REPORT: &str = "FAKEGPU_REPORT";

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
