//! DLPack: a capsule with a struct that describes the memory.

use std::ffi::c_void;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::{DeviceMemory, DeviceOwner, contiguous_bytes, wrong};

/// Device types: GPU memory, and managed memory that migrates between GPU and host.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;
/// The stream that the consumer will use, as passed to the producer, which orders its pending work
/// before it.
const CONSUMER_STREAM: usize = 1;

/// The first fields of `DLManagedTensor` in DLPack's header.
#[repr(C)]
struct ManagedTensor {
    data: *mut c_void,
    _device: [i32; 2],
    axes: i32,
    _code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The memory that the object describes; `None` if it does not support DLPack or has no GPU memory.
pub fn memory(object: &Bound<'_, PyAny>) -> PyResult<Option<DeviceMemory>> {
    let Some(device) = object.getattr_opt("__dlpack_device__")? else { return Ok(None) };
    let (kind, _): (i32, i32) = device.call0()?.extract()?;
    if ![CUDA, CUDA_MANAGED].contains(&kind) {
        return Ok(None);
    }
    let kwargs = PyDict::new(object.py());
    kwargs.set_item("stream", CONSUMER_STREAM)?;
    let exported = object.call_method("__dlpack__", (), Some(&kwargs))?;
    let capsule =
        exported.cast_into::<PyCapsule>().map_err(|_| wrong("its __dlpack__ gives no capsule"))?;
    // A consumer that takes the tensor renames the capsule. The tensor stays in the capsule here,
    // so that the capsule frees it when it is dropped.
    let at = capsule
        .pointer_checked(Some(c"dltensor"))
        .map_err(|_| wrong("its __dlpack__ gives no tensor"))?;
    // SAFETY: a capsule of this name holds such a struct until its tensor is taken, which needs the
    // GIL.
    let tensor = unsafe { at.cast::<ManagedTensor>().as_ref() };
    let bytes = bytes_of(tensor)?;
    let start = tensor.data as usize as u64 + tensor.byte_offset;
    let address = usize::try_from(start).map_err(wrong)?;
    // Stream 0 is the driver's number of the default stream.
    Ok(Some(DeviceMemory {
        address,
        bytes,
        stream: Some(0),
        owner: DeviceOwner::new(capsule.into_any()),
    }))
}

fn bytes_of(tensor: &ManagedTensor) -> PyResult<usize> {
    let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    if bits == 0 || !bits.is_multiple_of(8) {
        return Err(wrong(format!("its elements have {bits} bits")));
    }
    let axes = usize::try_from(tensor.axes).map_err(wrong)?;
    let numbers = |at: *const i64| {
        // SAFETY: unless the pointer is null, DLPack stores a number per axis at it.
        (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, axes) })
    };
    let shape = if axes == 0 { Some(&[][..]) } else { numbers(tensor.shape) };
    let shape = shape.ok_or_else(|| wrong("it has axes and no shape"))?;
    contiguous_bytes(shape, numbers(tensor.strides), bits / 8)
}
