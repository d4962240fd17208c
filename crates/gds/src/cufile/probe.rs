use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::file::Target;
use super::{Driver, File};

const LEN: usize = 64 << 10;

/// Writes and reads a file of the directory through cuFile and compares: what it promises is believed only then. The file has no name while
/// it is used.
pub fn probe(driver: Driver, gpu: &Gpu, dir: &Path) -> Result<(), String> {
    let path = dir.join(format!("gds-probe.{}", std::process::id()));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).custom_flags(nix::libc::O_DIRECT).open(&path);
    let file = file.map_err(|e| format!("no file for direct I/O in {}: {e}", dir.display()))?;
    fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let file = File::register(driver, file.into()).map_err(|e| e.to_string())?;
    compare(&file, gpu)
}

fn compare(file: &File, gpu: &Gpu) -> Result<(), String> {
    let said = |e: kvtier_mem::Error| e.to_string();
    let (_entered, stream) = (gpu.enter().map_err(said)?, gpu.stream().map_err(said)?);
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
    if read == wrote { Ok(()) } else { Err("what cuFile wrote it did not read back".into()) }
}
