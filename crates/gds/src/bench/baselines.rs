//! Baselines without a tier: what the GPU, the disk and plain reads reach by themselves.

use std::error::Error;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use kvtier_mem::{Arena, ArenaConfig, Lease};
use kvtier_uring::{Engine, EngineConfig, Finished, Job, Part};

use super::{Bench, Speed, Stopwatch, Throughput};
use crate::checksum::{ChecksumRange, Crc32cKernel, RANGE_BYTES_MAX, UNIT_BYTES};
use crate::incompressible_bytes::fill_random;

/// Requests to the disk in flight.
const INFLIGHT: usize = 16;

impl Bench<'_> {
    /// Copies between pinned host memory and the GPU: the upper bound of every data path through
    /// host memory.
    pub(super) fn copies(&self) -> Result<Throughput, kvtier_mem::Error> {
        let len = self.config.tier.piece_bytes;
        let pinned = len.min(self.config.chunk_bytes);
        let host = Arena::pinned(ArenaConfig::huge(len), &self.gpu)?;
        let mut host = host.lease(pinned)?;
        let mut device = self.memory.lease(pinned)?;
        host.assume_filled(pinned);
        device.assume_filled(pinned);
        let count = self.bytes().div_ceil(pinned);
        let mut copy = || -> Result<(), kvtier_mem::Error> {
            let bytes = host.as_host().unwrap_or_default();
            self.stream.upload(bytes, &mut device, 0, || ())
        };
        // Once outside the measurement: the first copy sets up mappings in the driver.
        copy()?;
        let watch = Stopwatch::start();
        (0..count).try_for_each(|_| copy())?;
        let Speed { bytes_per_s: to_gpu_per_s, cpu_s_per_gb } = watch.stop(count * pinned);
        let watch = Stopwatch::start();
        for _ in 0..count {
            self.stream.download_lease(&device, 0, host.as_host_mut().unwrap_or_default())?;
        }
        let to_file_per_s = watch.stop(count * pinned).bytes_per_s;
        let note = format!("pieces of {pinned} bytes, one at a time");
        Ok(Throughput {
            data_path: "copies from and to pinned memory".into(),
            to_file_per_s,
            to_gpu_per_s,
            cpu_s_per_gb,
            note,
        })
    }

    /// Direct I/O between a file and pinned host memory with many requests in flight: the upper
    /// bound of the disk.
    pub(super) fn disk(&self) -> Result<Throughput, Box<dyn Error>> {
        let piece = self.config.tier.piece_bytes.min(self.config.chunk_bytes);
        let engine = Engine::new(EngineConfig::default().with_kind(self.config.tier.engine))?;
        let memory =
            Arena::pinned(ArenaConfig::huge((INFLIGHT + 1) * piece).with_slots(piece), &self.gpu)?;
        engine.register(&memory)?;
        let path = self.config.tier.disk.path.join("kvtier-bench.bin");
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(nix::libc::O_DIRECT)
            .open(&path)?;
        // Deleted while open, so nothing is left behind if the process is killed.
        std::fs::remove_file(&path)?;
        let file = Arc::new(OwnedFd::from(file));
        let count = self.bytes() / piece;
        let pieces = Pieces { count, bytes: piece };
        let mut filled = memory.lease(piece)?;
        fill_random(filled.as_host_mut().unwrap_or_default());
        filled.assume_filled(piece);
        let from = filled.freeze();
        let write = |at, _| {
            Job::write(Arc::clone(&file)).with_part(Part::Write {
                at,
                from: from.clone(),
                len: piece,
            })
        };
        let watch = Stopwatch::start();
        move_pieces(&engine, pieces, (0..INFLIGHT).map(|_| None).collect(), write)?;
        let to_file_per_s = watch.stop(count * piece).bytes_per_s;
        let read = |at, into| match into {
            Some(into) => {
                Job::read(Arc::clone(&file)).with_part(Part::Read { at, into, len: piece })
            }
            None => Job::read(Arc::clone(&file)),
        };
        let buffers =
            (0..INFLIGHT).map(|_| memory.lease(piece).map(Some)).collect::<Result<_, _>>()?;
        let watch = Stopwatch::start();
        move_pieces(&engine, pieces, buffers, read)?;
        let Speed { bytes_per_s: to_gpu_per_s, cpu_s_per_gb } = watch.stop(count * piece);
        let note = format!(
            "direct I/O, pieces of {piece} bytes, {INFLIGHT} at once, engine {:?}",
            engine.kind()
        );
        Ok(Throughput {
            data_path: "file to pinned memory".into(),
            to_file_per_s,
            to_gpu_per_s,
            cpu_s_per_gb,
            note,
        })
    }

    /// Checksums of GPU memory by the kernel that verifies cuFile's loads. A GPU that computes wrong
    /// checksums is an error.
    pub(super) fn checksums(&self) -> Result<Throughput, Box<dyn Error + Send + Sync>> {
        let kernel = Crc32cKernel::new(&self.gpu, 1)?;
        let len = self.config.chunk_bytes;
        let range = ChecksumRange { start: 0, len: (len - len % UNIT_BYTES).min(RANGE_BYTES_MAX) };
        let chunk = self.memory.lease(len)?;
        let count = self.bytes().div_ceil(range.len.max(1));
        // Once outside the measurement, as above.
        kernel.checksum(&self.stream, &chunk, range)?;
        let watch = Stopwatch::start();
        (0..count).try_for_each(|_| kernel.checksum(&self.stream, &chunk, range).map(drop))?;
        let Speed { bytes_per_s: to_gpu_per_s, cpu_s_per_gb } = watch.stop(count * range.len);
        let note = format!(
            "{} bytes at once, whose checksums on the GPU equal those of the CPU",
            range.len
        );
        Ok(Throughput {
            data_path: "checksums on the GPU".into(),
            to_file_per_s: 0.0,
            to_gpu_per_s,
            cpu_s_per_gb,
            note,
        })
    }

    /// A plain program: reads through the page cache and copies from memory that is not pinned.
    pub(super) fn plain(&self) -> std::io::Result<Throughput> {
        let path = self.config.tier.disk.path.join("kvtier-bench.bin");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let mut bytes = vec![0; self.config.chunk_bytes];
        let mut device = self.memory.lease(bytes.len()).map_err(std::io::Error::other)?;
        let at = |n: usize| (n * self.config.chunk_bytes) as u64;
        let watch = Stopwatch::start();
        for n in 0..self.config.chunks {
            self.stream.download_lease(&device, 0, &mut bytes).map_err(std::io::Error::other)?;
            file.write_all_at(&bytes, at(n))?;
        }
        // Without this the page cache would be measured.
        file.sync_data()?;
        let to_file_per_s = watch.stop(self.bytes()).bytes_per_s;
        // Drops the file from the page cache, or the reads would not reach the device.
        nix::fcntl::posix_fadvise(
            &file,
            0,
            0,
            nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        )?;
        let watch = Stopwatch::start();
        for n in 0..self.config.chunks {
            file.read_exact_at(&mut bytes, at(n))?;
            self.stream.upload(&bytes, &mut device, 0, || ()).map_err(std::io::Error::other)?;
        }
        let Speed { bytes_per_s: to_gpu_per_s, cpu_s_per_gb } = watch.stop(self.bytes());
        let note = "one chunk at a time, through the page cache, not pinned".into();
        Ok(Throughput {
            data_path: "plain read and copy".into(),
            to_file_per_s,
            to_gpu_per_s,
            cpu_s_per_gb,
            note,
        })
    }
}

/// A file as `count` pieces of `bytes` bytes.
#[derive(Clone, Copy)]
struct Pieces {
    count: usize,
    bytes: usize,
}

/// Moves all pieces in order, with one request in flight per buffer.
fn move_pieces(
    engine: &Engine,
    pieces: Pieces,
    buffers: Vec<Option<Lease>>,
    job: impl Fn(u64, Option<Lease>) -> Job,
) -> Result<(), kvtier_uring::Error> {
    let (free, ended) = sync_channel::<Result<Option<Lease>, kvtier_uring::Error>>(buffers.len());
    let at_once = buffers.len();
    buffers.into_iter().for_each(|buffer| _ = free.send(Ok(buffer)));
    for n in 0..pieces.count {
        let Ok(buffer) = ended.recv() else { break };
        let free = free.clone();
        let done = move |Finished { mut job, result, .. }: Finished| {
            let buffer = match job.parts.pop() {
                Some(Part::Read { into, .. }) => Some(into),
                _ => None,
            };
            _ = free.send(result.map(|_| buffer));
        };
        // An engine that failed refuses jobs. No completion follows a refused job: stop here.
        if engine.submit(job((n * pieces.bytes) as u64, buffer?), done).is_err() {
            break;
        }
    }
    drop(free);
    ended.iter().take(at_once).try_for_each(|end| end.map(drop))
}
