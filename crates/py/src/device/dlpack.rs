//! DLPack: a capsule with a struct that says where the memory is.

use std::ffi::c_void;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::{Kept, Memory, contiguous_bytes, wrong};

/// Device types: memory of a GPU's, and memory that moves between GPU and host by itself.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;
/// What we say we shall work on: the producer makes its work so far come before work on the default
/// stream.
const DEFAULT_STREAM: usize = 1;

/// The beginning of `DLManagedTensor`, as DLPack's header has it.
#[repr(C)]
struct Managed {
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

/// What the object says; `None` if it does not speak DLPack, or has no memory of a GPU's.
pub fn memory(object: &Bound<'_, PyAny>) -> PyResult<Option<Memory>> {
    let Some(device) = object.getattr_opt("__dlpack_device__")? else { return Ok(None) };
    let (kind, _): (i32, i32) = device.call0()?.extract()?;
    if ![CUDA, CUDA_MANAGED].contains(&kind) {
        return Ok(None);
    }
    let asked = PyDict::new(object.py());
    asked.set_item("stream", DEFAULT_STREAM)?;
    let told = object.call_method("__dlpack__", (), Some(&asked))?;
    let capsule =
        told.cast_into::<PyCapsule>().map_err(|_| wrong("its __dlpack__ gives no capsule"))?;
    // Whoever takes the tensor out renames the capsule. We leave it in, and so the capsule lets it
    // go when it goes itself.
    let at = capsule
        .pointer_checked(Some(c"dltensor"))
        .map_err(|_| wrong("its __dlpack__ gives no tensor"))?;
    // SAFETY: a capsule of this name holds such a struct, until its tensor is taken out, which
    // needs the interpreter's lock.
    let tensor = unsafe { at.cast::<Managed>().as_ref() };
    let bytes = bytes_of(tensor)?;
    let start = tensor.data as usize as u64 + tensor.byte_offset;
    let address = usize::try_from(start).map_err(wrong)?;
    // The default stream, as the driver numbers it.
    Ok(Some(Memory { address, bytes, stream: Some(0), owner: Kept::new(capsule.into_any()) }))
}

fn bytes_of(tensor: &Managed) -> PyResult<usize> {
    let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    if bits == 0 || !bits.is_multiple_of(8) {
        return Err(wrong(format!("its elements have {bits} bits")));
    }
    let axes = usize::try_from(tensor.axes).map_err(wrong)?;
    let numbers = |at: *const i64| {
        // SAFETY: where the pointer is not null, DLPack has a number there for each axis.
        (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, axes) })
    };
    let shape = if axes == 0 { Some(&[][..]) } else { numbers(tensor.shape) };
    let shape = shape.ok_or_else(|| wrong("it has axes and no shape"))?;
    contiguous_bytes(shape, numbers(tensor.strides), bits / 8)
}
