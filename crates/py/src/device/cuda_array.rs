//! `__cuda_array_interface__`, versions 0 to 3: a dictionary that describes GPU memory.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{DeviceMemory, DeviceOwner, contiguous_bytes, wrong};

/// The driver's number of the default stream. The interface uses 1, because 0 is ambiguous there.
const DEFAULT_STREAM: usize = 0;

/// The memory that the object describes; `None` if it does not have the interface.
pub fn memory(object: &Bound<'_, PyAny>, write: bool) -> PyResult<Option<DeviceMemory>> {
    let Some(interface) = object.getattr_opt("__cuda_array_interface__")? else { return Ok(None) };
    let interface = interface
        .cast_into::<PyDict>()
        .map_err(|_| wrong("its __cuda_array_interface__ is no dictionary"))?;
    let get =
        |name: &str| interface.get_item(name).map(|found| found.filter(|value| !value.is_none()));
    let required = |name: &str| {
        get(name)?.ok_or_else(|| wrong(format!("its __cuda_array_interface__ has no {name}")))
    };
    let (address, read_only): (usize, bool) = required("data")?.extract()?;
    if write && read_only {
        return Err(wrong("it is read-only; load into what can be written"));
    }
    if get("mask")?.is_some() {
        return Err(wrong("it has a mask"));
    }
    let shape: Vec<i64> = required("shape")?.extract()?;
    let kind: String = required("typestr")?.extract()?;
    let element = kind.get(2..).and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0);
    let element: usize =
        element.ok_or_else(|| wrong(format!("its elements are of the type {kind:?}")))?;
    // Strides of the interface count bytes.
    let strides = get("strides")?.map(|strides| strides.extract::<Vec<i64>>()).transpose()?;
    let bytes_each = i64::try_from(element).map_err(wrong)?;
    let whole = |stride: &i64| if stride % bytes_each == 0 { stride / bytes_each } else { -1 };
    let strides: Option<Vec<i64>> = strides.map(|strides| strides.iter().map(whole).collect());
    let bytes = contiguous_bytes(&shape, strides.as_deref(), element)?;
    let version: i64 = get("version")?.map_or(Ok(0), |version| version.extract())?;
    let stream = match get("stream")?.map(|stream| stream.extract::<usize>()).transpose()? {
        Some(0) => {
            return Err(wrong("its stream is 0, which is ambiguous; 1 is the default stream"));
        }
        Some(1) => Some(DEFAULT_STREAM),
        Some(other) => Some(other),
        // Since version 3 this means that no work is pending. Earlier versions have no such field.
        None => (version < 3).then_some(DEFAULT_STREAM),
    };
    Ok(Some(DeviceMemory { address, bytes, stream, owner: DeviceOwner::new(object.clone()) }))
}
