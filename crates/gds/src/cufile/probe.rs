use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use kvtier_disk::inspect::Scratch;
use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::driver::with_timeout;
use super::file::GpuRange;
use super::{Driver, RegisteredFile};

const LEN: usize = 64 << 10;

/// Probes a directory: writes a file through cuFile, reads it back and compares.
///
/// The file keeps its name until the end, because libcufile opens it again by name. The next probe
/// removes the file of a probe that was killed.
///
/// # Errors
/// The failed step; after `timeout` the probe is abandoned with its thread.
pub fn probe(driver: Driver, gpu: &Gpu, dir: &Path, timeout: Duration) -> Result<(), String> {
    let failed = |e: std::io::Error| {
        format!("cannot create a file for direct I/O in {}: {e}", dir.display())
    };
    let scratch = Scratch::new(dir, "probe").map_err(failed)?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).custom_flags(nix::libc::O_DIRECT);
    let file: OwnedFd = options.open(scratch.path().join("file")).map_err(failed)?.into();
    let gpu = gpu.clone();
    let what = format!("cuFile's transfer to a file in {} (see cufile.log)", dir.display());
    with_timeout(&what, timeout, move || compare(driver, &file, &gpu))?
}

fn compare(driver: Driver, file: &OwnedFd, gpu: &Gpu) -> Result<(), String> {
    let text = |e: kvtier_mem::Error| e.to_string();
    let _entered = gpu.enter().map_err(text)?;
    // Step by step what a load does: register, write from the GPU, clear its memory, read back,
    // compare.
    let stream = gpu.stream().map_err(text)?;
    let file = RegisteredFile::register(driver, file).map_err(|e| e.to_string())?;
    let mut memory = Arena::device(gpu, LEN).and_then(|arena| arena.lease(LEN)).map_err(text)?;
    // A pattern whose period does not divide a page: pages that changed places show.
    let written: Vec<u8> = (0..LEN).map(|n| (n * 31 % 251) as u8).collect();
    let target = GpuRange { base: memory.addr(), offset: 0, len: LEN };
    stream.upload(&written, &mut memory, 0, || ()).map_err(text)?;
    // SAFETY: memory of a lease that only this function uses; the context of its GPU is current.
    unsafe { file.write(0, target) }.map_err(|e| e.to_string())?;
    let mut read = vec![0; LEN];
    // Zeros over it, or a read that does nothing would seem right.
    stream.upload(&read, &mut memory, 0, || ()).map_err(text)?;
    // SAFETY: as above.
    unsafe { file.read(0, target) }.map_err(|e| e.to_string())?;
    stream.download_lease(&memory, 0, &mut read).map_err(text)?;
    if read != written {
        return Err("cuFile read back other bytes than it had written".into());
    }
    Ok(())
}
