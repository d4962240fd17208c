//! Without a tier.

use std::error::Error;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use kvtier_mem::{Arena, ArenaConfig, Lease};
use kvtier_uring::{Engine, EngineConfig, Finished, Job, Part};

use super::{Bench, Clock, Rate};
use crate::noise;
use crate::sums::{RANGE_BYTES_MAX, Summer, UNIT};

/// Requests to the disk at once.
const INFLIGHT: usize = 16;

impl Bench<'_> {
    /// Between pinned host memory and the GPU, which is the most that any way through host memory
    /// can give.
    pub(super) fn copies(&self) -> Result<Rate, kvtier_mem::Error> {
        let (len, pinned) = (
            self.config.tier.piece_bytes,
            self.config.tier.piece_bytes.min(self.config.chunk_bytes),
        );
        let host = Arena::pinned(ArenaConfig::huge(len), &self.gpu)?;
        let (mut host, mut device) = (host.lease(pinned)?, self.memory.lease(pinned)?);
        host.assume_filled(pinned);
        device.assume_filled(pinned);
        let count = self.bytes().div_ceil(pinned);
        let mut copy = || -> Result<(), kvtier_mem::Error> {
            let bytes = host.as_host().unwrap_or_default();
            self.stream.upload(bytes, &mut device, 0, || ())
        };
        copy()?;
        let clock = Clock::start();
        (0..count).try_for_each(|_| copy())?;
        let (in_per_s, cpu_s_per_gb) = clock.stop(count * pinned);
        let clock = Clock::start();
        for _ in 0..count {
            self.stream.download_lease(&device, 0, host.as_host_mut().unwrap_or_default())?;
        }
        let (out_per_s, _) = clock.stop(count * pinned);
        let note = format!("pieces of {pinned} bytes, one at a time");
        Ok(Rate {
            way: "copies from and to pinned memory".into(),
            out_per_s,
            in_per_s,
            cpu_s_per_gb,
            note,
        })
    }

    /// Between a file and pinned host memory, by direct I/O with many requests at once: the most
    /// that the disk can give.
    pub(super) fn disk(&self) -> Result<Rate, Box<dyn Error>> {
        let piece = self.config.tier.piece_bytes.min(self.config.chunk_bytes);
        let engine = Engine::new(EngineConfig::default().with_kind(self.config.tier.engine))?;
        let memory =
            Arena::pinned(ArenaConfig::huge((INFLIGHT + 1) * piece).with_slots(piece), &self.gpu)?;
        engine.register(&memory)?;
        let path = self.config.tier.disk.path.join("kvtier-rates.bin");
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(nix::libc::O_DIRECT)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        let (file, count) = (Arc::new(OwnedFd::from(file)), self.bytes() / piece);
        let mut filled = memory.lease(piece)?;
        noise::fill(filled.as_host_mut().unwrap_or_default());
        filled.assume_filled(piece);
        let from = filled.freeze();
        let write = |at, _| {
            Job::write(Arc::clone(&file)).with_part(Part::Write {
                at,
                from: from.clone(),
                len: piece,
            })
        };
        let clock = Clock::start();
        window(&engine, (count, piece), (0..INFLIGHT).map(|_| None).collect(), write)?;
        let (out_per_s, _) = clock.stop(count * piece);
        let read = |at, into| match into {
            Some(into) => {
                Job::read(Arc::clone(&file)).with_part(Part::Read { at, into, len: piece })
            }
            None => Job::read(Arc::clone(&file)),
        };
        let buffers =
            (0..INFLIGHT).map(|_| memory.lease(piece).map(Some)).collect::<Result<_, _>>()?;
        let clock = Clock::start();
        window(&engine, (count, piece), buffers, read)?;
        let (in_per_s, cpu_s_per_gb) = clock.stop(count * piece);
        let note = format!(
            "direct I/O, pieces of {piece} bytes, {INFLIGHT} at once, engine {:?}",
            engine.kind()
        );
        Ok(Rate { way: "file to pinned memory".into(), out_per_s, in_per_s, cpu_s_per_gb, note })
    }

    /// Of memory on the GPU alone, by the kernel that proves what cuFile loads; a GPU that sums
    /// wrongly is an error.
    pub(super) fn sums(&self) -> Result<Rate, Box<dyn Error + Send + Sync>> {
        let (summer, len) = (Summer::new(&self.gpu, 1)?, self.config.chunk_bytes);
        let (range, chunk) =
            ((0, (len - len % UNIT).min(RANGE_BYTES_MAX)), self.memory.lease(len)?);
        let count = self.bytes().div_ceil(range.1.max(1));
        summer.sum(&self.stream, &chunk, range)?;
        let clock = Clock::start();
        (0..count).try_for_each(|_| summer.sum(&self.stream, &chunk, range).map(drop))?;
        let (in_per_s, cpu_s_per_gb) = clock.stop(count * range.1);
        let note = format!("{} bytes at once, which the GPU sums as the CPU does", range.1);
        Ok(Rate {
            way: "checksums on the GPU".into(),
            out_per_s: 0.0,
            in_per_s,
            cpu_s_per_gb,
            note,
        })
    }

    /// What a program without any of this does: reads through the page cache, copies from memory
    /// that is not pinned.
    pub(super) fn plain(&self) -> std::io::Result<Rate> {
        let path = self.config.tier.disk.path.join("kvtier-rates.bin");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let mut bytes = vec![0; self.config.chunk_bytes];
        let mut device = self.memory.lease(bytes.len()).map_err(std::io::Error::other)?;
        let at = |n: usize| (n * self.config.chunk_bytes) as u64;
        let clock = Clock::start();
        for n in 0..self.config.chunks {
            self.stream.download_lease(&device, 0, &mut bytes).map_err(std::io::Error::other)?;
            file.write_all_at(&bytes, at(n))?;
        }
        file.sync_data()?;
        let (out_per_s, _) = clock.stop(self.bytes());
        nix::fcntl::posix_fadvise(
            &file,
            0,
            0,
            nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        )?;
        let clock = Clock::start();
        for n in 0..self.config.chunks {
            file.read_exact_at(&mut bytes, at(n))?;
            self.stream.upload(&bytes, &mut device, 0, || ()).map_err(std::io::Error::other)?;
        }
        let (in_per_s, cpu_s_per_gb) = clock.stop(self.bytes());
        let note = "one chunk at a time, through the page cache, not pinned".into();
        Ok(Rate { way: "plain read and copy".into(), out_per_s, in_per_s, cpu_s_per_gb, note })
    }
}

/// Moves `count` pieces one after the other, as many at once as there are buffers.
fn window(
    engine: &Engine,
    (count, piece): (usize, usize),
    buffers: Vec<Option<Lease>>,
    job: impl Fn(u64, Option<Lease>) -> Job,
) -> Result<(), kvtier_uring::Error> {
    let (free, ended) = sync_channel::<Result<Option<Lease>, kvtier_uring::Error>>(buffers.len());
    let at_once = buffers.len();
    buffers.into_iter().for_each(|buffer| _ = free.send(Ok(buffer)));
    for n in 0..count {
        let Ok(buffer) = ended.recv() else { break };
        let free = free.clone();
        let done = move |Finished { mut job, result, .. }: Finished| {
            let buffer = match job.parts.pop() {
                Some(Part::Read { into, .. }) => Some(into),
                _ => None,
            };
            _ = free.send(result.map(|_| buffer));
        };
        // Refused, as the engine does when it broke down, it ends here: nobody sends any more.
        if engine.submit(job((n * piece) as u64, buffer?), done).is_err() {
            break;
        }
    }
    drop(free);
    ended.iter().take(at_once).try_for_each(|end| end.map(drop))
}
