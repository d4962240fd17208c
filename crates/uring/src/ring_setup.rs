use io_uring::{IoUring, Probe, opcode};

use crate::config::EngineConfig;
use crate::{Error, ErrorKind};

/// Builds the best ring the kernel allows, on the thread that will use it; says which.
pub fn build(config: &EngineConfig) -> Result<(IoUring, &'static str), Error> {
    // Every piece, a cancel for each, and the wake-up.
    let entries = (config.pieces_inflight as u32 * 2 + 8).next_power_of_two();
    let refused = |e: std::io::Error| {
        let why = match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "forbidden by a seccomp profile or kernel.io_uring_disabled"
            }
            Some(libc::ENOSYS) => "unknown to this kernel or hidden by its sandbox",
            Some(libc::ENOMEM) => "over the limit of locked memory, see ulimit -l",
            _ => "the kernel will not",
        };
        Error::io(format!("cannot set up io_uring ({why})"), e)
    };
    let (ring, how) =
        match IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries) {
            Ok(ring) => (ring, "io_uring, deferred task run"),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (
                IoUring::builder().build(entries).map_err(refused)?,
                "io_uring, without deferred task run (kernel before 6.1)",
            ),
            Err(e) => return Err(refused(e)),
        };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(refused)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::AsyncCancel::CODE];
    if !needed.into_iter().all(|code| probe.is_supported(code))
        || !ring.params().is_feature_nodrop()
    {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this kernel's io_uring is too old (before 5.6)",
        ));
    }
    Ok((ring, how))
}
