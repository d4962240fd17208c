//! Lines for Python's log, under the name `kvtier`: the package's Python half decides where they
//! go.

use pyo3::prelude::*;

/// Writes a line at a level that is named as the logger's method is. A log that raises costs nobody
/// more than the line.
pub fn write(py: Python<'_>, level: &str, text: &str) {
    let written = || -> PyResult<()> {
        let logger = PyModule::import(py, "logging")?.call_method1("getLogger", ("kvtier",))?;
        logger.call_method1(level, ("%s", text)).map(drop)
    };
    written().unwrap_or_else(|e| e.write_unraisable(py, None));
}
