//! Writes to Python's logger `kvtier`, which the package's Python half configures.

use pyo3::prelude::*;

/// Writes a line. `level` is the name of the logger's method. A logger that raises costs only the
/// line.
pub fn write(py: Python<'_>, level: &str, text: &str) {
    let written = || -> PyResult<()> {
        let logger = PyModule::import(py, "logging")?.call_method1("getLogger", ("kvtier",))?;
        logger.call_method1(level, ("%s", text)).map(drop)
    };
    written().unwrap_or_else(|e| e.write_unraisable(py, None));
}
