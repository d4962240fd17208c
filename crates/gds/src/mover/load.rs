//! Loads into GPU memory, by cuFile or through pinned memory.
//!
//! A load is cut into pieces. Pieces that cuFile can read go straight to the GPU (`cufile_load`).
//! The others are read into pinned buffers by the I/O engine, several ahead, and copied to the GPU
//! in order: while one piece is copied, the next ones are read. Parts in host memory are read beside
//! all that.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_core::{Error, Ticket};
use kvtier_disk::Part;
use kvtier_mem::Lease;
use kvtier_uring::{Engine, Finished, Job};

use super::MoverInner;
use super::completion_guards::TransferCompletion;
use super::counters::add;
use super::cufile_load::CufileProgress;
use super::executor::GpuExecutor;
use super::host_part_reads::{HostReads, take_host_parts};
use super::load_parts::{CopyPiece, GpuLoad, PAGE, Verifiers};
use super::pinned_memory::PinnedMemory;
use super::transfer_to_job::{io_error, submit};

/// A piece that is read into a pinned buffer.
struct PieceRead {
    piece: CopyPiece,
    /// Offset of the piece in the buffer, since whole pages are read.
    skip: usize,
    read: Ticket<Result<Finished, Error>>,
}

/// The outcome of a load.
struct LoadedBytes {
    moved: u64,
    /// Some bytes were not verified, as configured.
    unverified: bool,
}

/// Runs a transfer that reads into GPU memory, including its parts in host memory.
pub async fn load(
    inner: Arc<MoverInner>,
    executor: Arc<GpuExecutor>,
    mut completion: TransferCompletion,
) {
    let result = run(&inner, &executor, &mut completion).await;
    let unverified = result.as_ref().is_ok_and(|loaded| loaded.unverified);
    completion.finish(result.map(|loaded| loaded.moved), unverified);
}

async fn run(
    inner: &MoverInner,
    executor: &GpuExecutor,
    completion: &mut TransferCompletion,
) -> io::Result<LoadedBytes> {
    let transfer = completion.transfer();
    let verifiers = Verifiers { bytes: transfer.watch.take(), checksums: transfer.sums.take() };
    let file = Arc::clone(&transfer.file);
    let mut parts: Vec<Option<Part>> =
        std::mem::take(&mut transfer.parts).into_iter().map(Some).collect();
    // The engine reads host parts while this task is busy with those on the GPU.
    let host_reads = HostReads::start(&inner.engine, &file, take_host_parts(&mut parts));
    let mut gpu = GpuLoad { inner, executor, file: &file, parts, verifiers };
    // No early return before the parts are back in the transfer: the caller gets its memory with
    // any result.
    let loaded = gpu.run().await;
    let mut parts = gpu.parts;
    // Also after an error of the GPU parts: the engine must be done with the memory before it is
    // returned.
    let host_bytes = host_reads.finish(&mut parts).await;
    completion.transfer().parts = parts.into_iter().flatten().collect();
    let LoadedBytes { moved, unverified } = loaded?;
    Ok(LoadedBytes { moved: moved + host_bytes?, unverified })
}

impl GpuLoad<'_> {
    async fn run(&mut self) -> io::Result<LoadedBytes> {
        // The caller's stream may still use this memory. Writing before its event has passed would
        // change bytes that the GPU reads.
        for event in self.parts.iter().flatten().filter_map(event_before) {
            let is_pending = !event.has_passed().unwrap_or(false);
            add(&self.inner.counters.event_waits, usize::from(is_pending));
            self.executor.wait_for(&event).await?;
        }
        // cuFile first; what it cannot or does not load goes through pinned memory.
        let pieces = pieces(&self.parts, self.inner.config.piece_bytes as u64);
        let CufileProgress { remaining, mut moved, unverified } =
            match self.inner.cufile(self.executor.gpu()) {
                Some(cufile) => self.read_by_cufile(&cufile, pieces).await?,
                None => CufileProgress::none(pieces),
            };
        if !remaining.is_empty() {
            moved += self.copy_through_pinned(remaining).await?;
        }
        // Only now: a lease that counts as filled before an error would show bytes that never
        // arrived.
        for part in self.parts.iter_mut().flatten() {
            if let Part::Read { into, len, .. } = part {
                into.assume_filled(*len);
            }
        }
        Ok(LoadedBytes { moved, unverified })
    }

    /// Loads pieces through pinned memory. Returns the bytes moved.
    async fn copy_through_pinned(&mut self, pieces: Vec<CopyPiece>) -> io::Result<u64> {
        let memory = self.inner.pinned(self.executor.gpu())?;
        let mut read_ahead = ReadAhead { pieces: pieces.into_iter(), reads: VecDeque::new() };
        let mut moved = 0;
        loop {
            // The next reads start before this one is awaited, so that the device has work during
            // the copy.
            read_ahead.fill(self.inner, &memory, self.file).await?;
            let Some(PieceRead { piece, skip, read }) = read_ahead.reads.pop_front() else { break };
            let mut finished = read.await.map_err(io::Error::other)?;
            finished.result.map_err(io_error)?;
            // The buffer comes back with the job, and is free again when this iteration ends.
            let Some(kvtier_uring::Part::Read { into: buffer, .. }) = finished.job.parts.pop()
            else {
                return Err(io::Error::other("the engine lost a piece"));
            };
            let bytes = buffer.as_host().and_then(|bytes| bytes.get(skip..skip + piece.len));
            let bytes = bytes.ok_or_else(|| io::Error::other("the engine cut a piece short"))?;
            let Some(Some(Part::Read { into, .. })) = self.parts.get_mut(piece.part) else {
                continue;
            };
            // The checksum is computed by the CPU while the GPU copies: `upload` calls the closure
            // between the start of the copy and the wait for it.
            let verify = &mut self.verifiers.bytes;
            self.executor.with_stream(|stream| {
                stream.upload(bytes, into, piece.offset, || {
                    if let Some(verify) = verify {
                        verify(piece.part, piece.offset as u64, bytes);
                    }
                })
            })?;
            moved += piece.len as u64;
            add(&self.inner.counters.uploaded_bytes, piece.len);
        }
        Ok(moved)
    }
}

/// Pieces of a load, read ahead of their copies.
struct ReadAhead {
    pieces: std::vec::IntoIter<CopyPiece>,
    reads: VecDeque<PieceRead>,
}

impl ReadAhead {
    /// Starts reads up to the configured number. The first waits for a buffer if it has to; further
    /// ones use only free buffers, so that concurrent loads cannot deadlock.
    async fn fill(
        &mut self,
        inner: &MoverInner,
        memory: &PinnedMemory,
        file: &Arc<OwnedFd>,
    ) -> io::Result<()> {
        let ahead = inner.config.read_ahead_pieces;
        while self.reads.len() < ahead && !self.pieces.as_slice().is_empty() {
            // All buffers have one size, so the arena cannot fragment.
            let slot = inner.config.piece_bytes;
            // A load that holds buffers never waits for another one: two such loads could wait for
            // each other.
            let buffer = if self.reads.is_empty() {
                memory.buffers.lease_waiting(slot).await.map_err(io::Error::other)?
            } else if let Ok(buffer) = memory.buffers.lease(slot) {
                buffer
            } else {
                break;
            };
            let Some(piece) = self.pieces.next() else { break };
            self.reads.push_back(read(&inner.engine, file, piece, buffer));
        }
        Ok(())
    }
}

/// Starts to read the pages that contain a piece.
fn read(engine: &Engine, file: &Arc<OwnedFd>, piece: CopyPiece, into: Lease) -> PieceRead {
    let start = piece.at - piece.at % PAGE;
    // Direct I/O reads whole pages. A piece that starts or ends within a page is cut out of the
    // buffer.
    let skip = (piece.at - start) as usize;
    let len = (skip + piece.len).next_multiple_of(PAGE as usize);
    let job =
        Job::read(Arc::clone(file)).with_part(kvtier_uring::Part::Read { at: start, into, len });
    PieceRead { piece, skip, read: submit(engine, job) }
}

/// The event that must pass before the memory of a part is accessed.
fn event_before(part: &Part) -> Option<kvtier_mem::cuda::GpuEvent> {
    match part {
        Part::Read { into, .. } => into.after().cloned(),
        Part::Write { from, .. } => from.after().cloned(),
    }
}

/// Cuts the GPU parts at multiples of `piece_bytes` of the file, in order.
fn pieces(parts: &[Option<Part>], piece_bytes: u64) -> Vec<CopyPiece> {
    let mut pieces = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let Some(Part::Read { at, len, .. }) = part else { continue };
        let end = *at + *len as u64;
        let mut position = *at;
        while position < end {
            // Cut at multiples of the file's offset, not of the part's: a piece with the pages
            // around it then fits into one buffer of `piece_bytes`.
            let len = (end - position).min(piece_bytes - position % piece_bytes) as usize;
            pieces.push(CopyPiece { part: n, at: position, offset: (position - at) as usize, len });
            position += len as u64;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use kvtier_mem::{Arena, ArenaConfig};

    use super::*;

    #[test]
    fn pieces_fit_into_one_buffer() {
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let part = |at, len| Some(Part::Read { at, into: arena.lease(len).unwrap(), len });
        let parts = [part(0, 5000), part(5000, 20_000), None, part(25_000, 0), part(25_000, 8000)];
        let pieces = pieces(&parts, 8192);
        assert_eq!(pieces[0], CopyPiece { part: 0, at: 0, offset: 0, len: 5000 });
        assert_eq!(pieces[1], CopyPiece { part: 1, at: 5000, offset: 0, len: 3192 });
        let mut at = 0;
        for piece in &pieces {
            assert_eq!(piece.at, at, "no gap");
            at += piece.len as u64;
            let start = piece.at - piece.at % PAGE;
            let end = at.next_multiple_of(PAGE);
            assert!(end - start <= 8192, "{piece:?}");
        }
        assert_eq!(at, 33_000);
    }
}
