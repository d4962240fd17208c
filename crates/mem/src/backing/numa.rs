use std::io;
use std::ptr::NonNull;

use libc::{c_int, c_long, c_ulong};

use crate::{Error, ErrorKind};

/// From `linux/mempolicy.h`: pages come from these nodes and no others.
const MPOL_BIND: c_int = 2;
/// The most nodes that a mask has room for.
const NODES_MAX: u32 = 1024;
const WORD: u32 = c_ulong::BITS;

/// Makes the pages of a range come from one NUMA node, as far as they are not there yet.
pub(crate) fn bind(base: NonNull<u8>, len: usize, node: u32) -> Result<(), Error> {
    if node >= NODES_MAX {
        return Err(Error::new(ErrorKind::Invalid, format!("NUMA node {node} is not below {NODES_MAX}")));
    }
    let mut mask = [0 as c_ulong; (NODES_MAX / c_ulong::BITS) as usize];
    mask[(node / WORD) as usize] |= 1 << (node % WORD);
    // The kernel reads one bit less than it is told.
    let bits = c_ulong::from(NODES_MAX) + 1;
    // SAFETY: the mask has as many bits as said and outlives the call; the range is a whole backing, page-aligned; no contents change.
    let done: c_long = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len as c_ulong, MPOL_BIND, mask.as_ptr(), bits, 0 as c_ulong)
    };
    if done == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    let what = format!("cannot bind memory to NUMA node {node}; see /sys/devices/system/node, or leave the node out");
    Err(Error::new(ErrorKind::Unsupported, what).with_source(e))
}
