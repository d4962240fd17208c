//! From a constructor's keywords to tiers.

use kvtier::config::{Config, Opened};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::work::whole;

/// Opens what the keywords name: `tiers`, a list of specs as the configuration file has them, or `config`, such a file's path.
pub fn open(py: Python<'_>, tiers: Option<&Bound<'_, PyAny>>, config: Option<&str>) -> PyResult<Opened> {
    let (text, source) = match (tiers, config) {
        (Some(tiers), None) => {
            let all = PyDict::new(py);
            all.set_item("tiers", tiers)?;
            (py.import("json")?.call_method1("dumps", (all,))?.extract::<String>()?, "tiers".to_owned())
        }
        (None, Some(path)) => {
            let read = std::fs::read_to_string(path);
            (read.map_err(|e| PyOSError::new_err(format!("cannot read {path}: {e}")))?, path.to_owned())
        }
        _ => return Err(PyValueError::new_err("give either tiers=[...] or config=\"FILE\"")),
    };
    let opened = py.detach(|| Config::from_text(&text, &source).and_then(|config| config.open()));
    opened.map_err(|e| PyValueError::new_err(whole(&e)))
}
