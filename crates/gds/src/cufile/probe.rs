use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use kvtier_disk::inspect::Scratch;
use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::driver::watched;
use super::file::Target;
use super::{Driver, File};

const LEN: usize = 64 << 10;

/// Writes and reads a file of the directory through cuFile and compares: what it promises is
/// believed only then. The file has a name until the end, because libcufile opens it once more by
/// that; what a killed probe leaves the next one removes. Given up, with a thread, when it takes
/// longer than `wait`.
pub fn probe(driver: Driver, gpu: &Gpu, dir: &Path, wait: Duration) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("no file for direct I/O in {}: {e}", dir.display());
    let scratch = Scratch::new(dir, "probe").map_err(failed)?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).custom_flags(nix::libc::O_DIRECT);
    let file: OwnedFd = options.open(scratch.path().join("file")).map_err(failed)?.into();
    let (gpu, what) =
        (gpu.clone(), format!("cuFile's transfer to a file in {} (see cufile.log)", dir.display()));
    watched(&what, wait, move || compare(driver, &file, &gpu))?
}

fn compare(driver: Driver, file: &OwnedFd, gpu: &Gpu) -> Result<(), String> {
    let said = |e: kvtier_mem::Error| e.to_string();
    let (_entered, stream) = (gpu.enter().map_err(said)?, gpu.stream().map_err(said)?);
    let file = File::register(driver, file).map_err(|e| e.to_string())?;
    let mut memory = Arena::device(gpu, LEN).and_then(|arena| arena.lease(LEN)).map_err(said)?;
    let wrote: Vec<u8> = (0..LEN).map(|n| (n * 31 % 251) as u8).collect();
    let target = Target { base: memory.addr(), offset: 0, len: LEN };
    stream.upload(&wrote, &mut memory, 0, || ()).map_err(said)?;
    // SAFETY: the lease's memory, which is this function's alone; its GPU's context is current.
    unsafe { file.write(0, target) }.map_err(|e| e.to_string())?;
    let mut read = vec![0; LEN];
    stream.upload(&read, &mut memory, 0, || ()).map_err(said)?;
    // SAFETY: as above.
    unsafe { file.read(0, target) }.map_err(|e| e.to_string())?;
    stream.download_lease(&memory, 0, &mut read).map_err(said)?;
    if read != wrote {
        return Err("what cuFile wrote it did not read back".into());
    }
    Ok(())
}
