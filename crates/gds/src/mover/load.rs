//! Loads into GPU memory: while one piece is copied, the next ones are read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_core::{Error, Ticket, ticket};
use kvtier_disk::{Part, Sums, Watch};
use kvtier_mem::Lease;
use kvtier_uring::{Engine, Finished, Job};

use super::Inner;
use super::counts::add;
use super::direct::{self, Rest};
use super::duty::Duty;
use super::engine::{self, io_error};
use super::lane::Lane;
use super::pinned::PinnedMemory;

/// As direct I/O wants it.
pub const PAGE: u64 = 4096;

/// A range of one part that is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub part: usize,
    /// In the file.
    pub at: u64,
    /// In the part.
    pub offset: usize,
    pub len: usize,
}

/// A piece under way from the file.
struct Reading {
    piece: Piece,
    /// Where it begins in what is read, which is whole pages.
    skip: usize,
    read: Ticket<Result<Finished, Error>>,
}

/// Who is told what arrived: the bytes, or their sums.
pub struct Told {
    pub watch: Option<Watch>,
    pub sums: Option<Sums>,
}

/// Moves a transfer that reads into GPU memory, and what of it is for the host.
pub async fn load(inner: Arc<Inner>, lane: Arc<Lane>, mut duty: Duty) {
    let result = run(&inner, &lane, &mut duty).await;
    let unseen = matches!(result, Ok((_, true)));
    duty.finish(result.map(|(moved, _)| moved), unseen);
}

async fn run(inner: &Inner, lane: &Lane, duty: &mut Duty) -> io::Result<(u64, bool)> {
    let transfer = duty.transfer();
    let mut told = Told { watch: transfer.watch.take(), sums: transfer.sums.take() };
    let file = Arc::clone(&transfer.file);
    let mut parts: Vec<Option<Part>> =
        std::mem::take(&mut transfer.parts).into_iter().map(Some).collect();
    let near = engine::near(&mut parts);
    let near = engine::start(&inner.engine, &file, near);
    let far = far(inner, lane, &file, (&mut parts, &mut told)).await;
    let near = near.finish(&mut parts).await;
    duty.transfer().parts = parts.into_iter().flatten().collect();
    let ((far, unseen), near) = (far?, near?);
    Ok((far + near, unseen))
}

/// Bytes moved, and whether any of them were not seen.
async fn far(
    inner: &Inner,
    lane: &Lane,
    file: &Arc<OwnedFd>,
    (parts, told): (&mut Vec<Option<Part>>, &mut Told),
) -> io::Result<(u64, bool)> {
    for event in parts.iter().flatten().filter_map(after) {
        add(&inner.counts.event_waits, usize::from(!event.has_passed().unwrap_or(false)));
        lane.passed(&event).await?;
    }
    let pieces = pieces(parts, inner.config.piece_bytes as u64);
    let rest = match inner.direct(lane.gpu()) {
        Some(direct) => direct::read((inner, lane, &direct), file, parts, told, pieces).await?,
        None => Rest { pieces, moved: 0, unseen: false },
    };
    let copied = if rest.pieces.is_empty() {
        0
    } else {
        copy(inner, lane, file, (parts, &mut told.watch), rest.pieces).await?
    };
    fill(parts);
    Ok((rest.moved + copied, rest.unseen))
}

/// All of it has arrived.
fn fill(parts: &mut [Option<Part>]) {
    for part in parts.iter_mut().flatten() {
        if let Part::Read { into, len, .. } = part {
            into.assume_filled(*len);
        }
    }
}

/// Loads pieces through pinned memory.
async fn copy(
    inner: &Inner,
    lane: &Lane,
    file: &Arc<OwnedFd>,
    (parts, watch): (&mut [Option<Part>], &mut Option<Watch>),
    pieces: Vec<Piece>,
) -> io::Result<u64> {
    let memory = inner.pinned(lane.gpu())?;
    let (mut left, mut reading) = (pieces.into_iter(), VecDeque::new());
    let mut moved = 0;
    loop {
        ahead(inner, &memory, file, (&mut left, &mut reading)).await?;
        let Some(Reading { piece, skip, read }) = reading.pop_front() else { break };
        let mut finished = read.await.map_err(io::Error::other)?;
        finished.result.map_err(io_error)?;
        let Some(kvtier_uring::Part::Read { into: buffer, .. }) = finished.job.parts.pop() else {
            return Err(io::Error::other("the engine lost a piece"));
        };
        let bytes = buffer.as_host().and_then(|bytes| bytes.get(skip..skip + piece.len));
        let bytes = bytes.ok_or_else(|| io::Error::other("a piece came back short"))?;
        let Some(Some(Part::Read { into, .. })) = parts.get_mut(piece.part) else { continue };
        lane.with_stream(|stream| {
            stream.upload(bytes, into, piece.offset, || {
                if let Some(watch) = watch {
                    watch(piece.part, piece.offset as u64, bytes);
                }
            })
        })?;
        moved += piece.len as u64;
        add(&inner.counts.uploaded_bytes, piece.len);
    }
    Ok(moved)
}

/// Starts reads as far ahead as there may be: one waits for memory if it has to, more only take
/// what is free.
async fn ahead(
    inner: &Inner,
    memory: &PinnedMemory,
    file: &Arc<OwnedFd>,
    (left, reading): (&mut std::vec::IntoIter<Piece>, &mut VecDeque<Reading>),
) -> io::Result<()> {
    while reading.len() < inner.config.read_ahead_pieces && !left.as_slice().is_empty() {
        let slot = inner.config.piece_bytes;
        let buffer = if reading.is_empty() {
            memory.buffers.lease_waiting(slot).await.map_err(io::Error::other)?
        } else if let Ok(buffer) = memory.buffers.lease(slot) {
            buffer
        } else {
            break;
        };
        let Some(piece) = left.next() else { break };
        reading.push_back(read(&inner.engine, file, piece, buffer));
    }
    Ok(())
}

/// Starts to read the pages that a piece lies in.
fn read(engine: &Engine, file: &Arc<OwnedFd>, piece: Piece, into: Lease) -> Reading {
    let start = piece.at - piece.at % PAGE;
    let skip = (piece.at - start) as usize;
    let len = (skip + piece.len).next_multiple_of(PAGE as usize);
    let job =
        Job::read(Arc::clone(file)).with_part(kvtier_uring::Part::Read { at: start, into, len });
    Reading { piece, skip, read: submit(engine, job) }
}

/// Gives the engine a job; the ticket answers when it ended.
pub fn submit(engine: &Engine, job: Job) -> Ticket<Result<Finished, Error>> {
    let (completer, ticket) = ticket();
    // Refused, the job and its memory go, and the ticket answers that nobody will.
    let _ = engine.submit(job, move |finished| completer.complete(Ok(finished)));
    ticket
}

/// What must pass before a part's memory is touched.
fn after(part: &Part) -> Option<kvtier_mem::cuda::GpuEvent> {
    match part {
        Part::Read { into, .. } => into.after().cloned(),
        Part::Write { from, .. } => from.after().cloned(),
    }
}

/// The parts that are left (those out of the CPU's reach), cut at multiples of `piece_bytes` of the
/// file, in order.
fn pieces(parts: &[Option<Part>], piece_bytes: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let Some(Part::Read { at, len, .. }) = part else { continue };
        let (mut at, mut offset, mut left) = (*at, 0, *len);
        while left > 0 {
            let len = left.min((piece_bytes - at % piece_bytes) as usize);
            pieces.push(Piece { part: n, at, offset, len });
            (at, offset, left) = (at + len as u64, offset + len, left - len);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use kvtier_mem::{Arena, ArenaConfig};

    use super::*;

    #[test]
    fn pieces_lie_within_what_one_buffer_holds() {
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let part = |at, len| Some(Part::Read { at, into: arena.lease(len).unwrap(), len });
        let parts = [part(0, 5000), part(5000, 20_000), None, part(25_000, 0), part(25_000, 8000)];
        let pieces = pieces(&parts, 8192);
        assert_eq!(pieces[0], Piece { part: 0, at: 0, offset: 0, len: 5000 });
        assert_eq!(pieces[1], Piece { part: 1, at: 5000, offset: 0, len: 3192 });
        let mut at = 0;
        for piece in &pieces {
            assert_eq!(piece.at, at, "no gap");
            at += piece.len as u64;
            let (start, end) = (piece.at - piece.at % PAGE, at.next_multiple_of(PAGE));
            assert!(end - start <= 8192, "{piece:?}");
        }
        assert_eq!(at, 33_000);
    }
}
