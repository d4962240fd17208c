use std::io;
use std::ptr::NonNull;

use libc::{c_int, c_long, c_ulong};

use crate::{Error, ErrorKind};

/// From `linux/mempolicy.h`: pages come from these nodes and no others.
const MPOL_BIND: c_int = 2;
/// The number of nodes in a mask.
const NODES_MAX: u32 = 1024;
const WORD: u32 = c_ulong::BITS;

/// Takes the pages of an untouched mapping from one NUMA node, if one is given.
///
/// # Safety
/// `base..base + len` is a mapping of ours.
pub(crate) unsafe fn bind(base: NonNull<u8>, len: usize, node: Option<u32>) -> Result<(), Error> {
    let Some(node) = node else { return Ok(()) };
    if node >= NODES_MAX {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("NUMA node {node} is not below {NODES_MAX}"),
        ));
    }
    let mut mask = [0 as c_ulong; (NODES_MAX / WORD) as usize];
    mask[(node / WORD) as usize] |= 1 << (node % WORD);
    // The kernel reads one bit less than `maxnode` says.
    let bits = c_ulong::from(NODES_MAX) + 1;
    let len = len as c_ulong;
    let flags = 0 as c_ulong;
    // SAFETY: the mask has as many bits as are read and outlives the call; the range is a
    // mapping, as the caller promises; no contents change.
    let done: c_long = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len, MPOL_BIND, mask.as_ptr(), bits, flags)
    };
    if done == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    let error =
        Error::new(ErrorKind::Unsupported, format!("cannot bind memory to NUMA node {node}"));
    Err(error.with_cause(e, "see /sys/devices/system/node, or leave the node out"))
}
