use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::driver::watched;
use super::file::Target;
use super::{Driver, File};

const LEN: usize = 64 << 10;

/// Writes and reads a file of the directory through cuFile and compares: what it promises is believed only then. The file has no name while
/// it is used. Given up, with a thread, when it takes longer than `wait`.
pub fn probe(driver: Driver, gpu: &Gpu, dir: &Path, wait: Duration) -> Result<(), String> {
    let file = nameless(dir).map_err(|e| format!("no file for direct I/O in {}: {e}", dir.display()))?;
    let (gpu, what) = (gpu.clone(), format!("cuFile's transfer to a file in {}", dir.display()));
    watched(&what, wait, move || compare(driver, &file, &gpu))?
}

/// A file without a name. Where the file system makes none, one whose name is gone at once, and was nobody's before.
fn nameless(dir: &Path) -> std::io::Result<OwnedFd> {
    let options = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(nix::libc::O_DIRECT | flags);
        options
    };
    if let Ok(file) = options(nix::libc::O_TMPFILE).open(dir) {
        return Ok(file.into());
    }
    let path = dir.join(format!("gds-probe.{:016x}", RandomState::new().hash_one(std::process::id())));
    let file = options(0).create_new(true).open(&path)?;
    fs::remove_file(&path).map(|()| file.into())
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
    if read == wrote { Ok(()) } else { Err("what cuFile wrote it did not read back".into()) }
}
