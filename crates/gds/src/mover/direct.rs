//! Loads by cuFile, straight into GPU memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind, Ticket, ticket};
use kvtier_disk::{Part, Sums, Watch};
use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::Inner;
use super::counts::add;
use super::lane::Lane;
use super::load::{PAGE, Piece, Told};
use crate::config::{GdsConfig, Proof};
use crate::cufile::{Buffers, Driver, Failure, File, Files, preflight, probe, reach};
use crate::sums::{RANGE_BYTES_MAX, Summer, Summers, UNIT};

/// cuFile, where it was found to work.
#[derive(Debug)]
pub struct Direct {
    driver: Driver,
    files: Files,
    buffers: Buffers,
    summers: Summers,
    /// Why it is not used any more.
    off: Mutex<Option<String>>,
    loads: AtomicU64,
}

/// Parts of a transfer, which all who work on it keep.
type Shared = Arc<Vec<Option<Part>>>;

/// What a direct load left to do.
pub struct Rest {
    pub pieces: Vec<Piece>,
    pub moved: u64,
    /// Pieces arrived that the watch has not seen.
    pub unseen: bool,
}

impl Direct {
    /// Finds out whether cuFile works for the tier's directory, or says why not.
    pub fn new(config: &GdsConfig, gpu: &Gpu) -> Result<Self, String> {
        preflight(&config.system_root, &config.disk.path)?;
        let driver = Driver::open(config.cufile_library.as_deref(), gpu, config.open_timeout)?;
        if !driver.is_direct() && !config.compat {
            let what =
                "it would run in compatibility mode, which is slower than pinned memory of our own";
            return Err(format!(
                "{}: {what}; for direct transfers load nvidia-fs, or enable PCI P2PDMA",
                driver.describe()
            ));
        }
        let reach = reach(&config.system_root, &config.disk.path, driver.targets());
        reach.judge(config.compat).map_err(|why| format!("{}: {why}", driver.describe()))?;
        probe(driver, gpu, &config.disk.path.join(".kvtier"), config.open_timeout)?;
        let (files, buffers) = (Files::default(), Buffers::new(driver));
        let summers = Summers::new(config.threads, config.open_timeout);
        if config.proof != Proof::Off {
            summers.of(gpu);
        }
        Ok(Direct {
            driver,
            files,
            buffers,
            summers,
            off: Mutex::default(),
            loads: AtomicU64::new(0),
        })
    }

    /// Why it is not used any more, if so.
    pub fn off(&self) -> Option<String> {
        self.off.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn describe(&self) -> String {
        let driver = self.driver.describe();
        self.summers.describe().map_or(driver.clone(), |how| format!("{driver}, {how}"))
    }

    /// Registers GPU memory; answers how many bytes, and why not all.
    pub fn register(&self, arena: &Arena) -> (usize, Option<String>) {
        self.buffers.register(arena)
    }

    /// Deleted files go, and the room that they have on the medium.
    pub fn forget_deleted(&self) {
        self.files.forget_deleted();
    }

    /// Lets go of all files and memory; nothing is under way any more.
    pub fn close(&self) {
        self.files.clear();
        self.buffers.clear();
        self.summers.clear();
    }

    /// Notes a failure. One that every other file will meet ends the use of cuFile, once.
    fn failed(&self, e: &io::Error) {
        let failure = e.get_ref().and_then(|inner| inner.downcast_ref::<Failure>());
        if !failure.is_some_and(Failure::is_for_all) {
            tracing::debug!("cuFile failed, pinned memory instead: {e}");
            return;
        }
        let mut off = self.off.lock().unwrap_or_else(PoisonError::into_inner);
        if off.is_none() {
            tracing::warn!("cuFile is not used any more, pinned memory instead: {e}");
            *off = Some(e.to_string());
        }
    }

    /// Whether the bytes of this load are to be compared with their checksums.
    fn proves(&self, proof: Proof) -> bool {
        let nth = self.loads.fetch_add(1, Ordering::Relaxed);
        match proof {
            Proof::Always => true,
            Proof::Sample(every) => nth.is_multiple_of(every.max(1).into()),
            Proof::Off => false,
        }
    }
}

/// Loads what pieces allow it, in parallel on the lane's threads; what cannot or does not arrive is
/// left.
pub async fn read(
    (inner, lane, direct): (&Inner, &Lane, &Arc<Direct>),
    file: &Arc<OwnedFd>,
    parts: &mut Vec<Option<Part>>,
    told: &mut Told,
    pieces: Vec<Piece>,
) -> io::Result<Rest> {
    let fits = |piece: &Piece| {
        let addr = target(parts, piece, lane.gpu());
        addr.is_some_and(|addr| (addr | piece.at | piece.len as u64).is_multiple_of(PAGE))
    };
    let (fit, mut left): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(fits);
    let nothing = |pieces| Ok(Rest { pieces, moved: 0, unseen: false });
    if fit.is_empty() {
        return nothing(left);
    }
    let registered = lane.gpu().enter().map_err(io::Error::other);
    let registered = match registered.and_then(|_entered| direct.files.get(direct.driver, file)) {
        Ok(registered) => registered,
        Err(e) => {
            add(&inner.counts.direct_failed, 1);
            direct.failed(&e);
            left.extend(fit);
            left.sort_unstable_by_key(|piece| piece.at);
            return nothing(left);
        }
    };
    let shared: Shared = Arc::new(std::mem::take(parts));
    let reads: Vec<_> = fit
        .into_iter()
        .map(|piece| (piece, spawn(lane, direct, (&registered, &shared), piece)))
        .collect();
    let mut arrived = Vec::new();
    for (piece, read) in reads {
        match read.await {
            Ok(()) => arrived.push(piece),
            Err(e) => {
                let e = io::Error::other(e);
                add(&inner.counts.direct_failed, 1);
                direct.failed(e.get_ref().and_then(cause).unwrap_or(&e));
                left.push(piece);
            }
        }
    }
    // Every reader has dropped its share before it answered.
    *parts =
        Arc::into_inner(shared).ok_or_else(|| io::Error::other("a direct read has not ended"))?;
    left.sort_unstable_by_key(|piece| piece.at);
    let moved: usize = arrived.iter().map(|piece| piece.len).sum();
    add(&inner.counts.direct_bytes, moved);
    let unseen = told.watch.is_some() && !arrived.is_empty() && !direct.proves(inner.config.proof);
    add(&inner.counts.unverified_loads, usize::from(unseen));
    if !unseen && let Some(watch) = &mut told.watch {
        let summer =
            told.sums.as_mut().and_then(|sums| Some((direct.summers.of(lane.gpu())?, sums)));
        let unsummed =
            summer.map(|(summer, sums)| sum((inner, lane), &summer, parts, sums, &arrived));
        show((inner, lane), parts, watch, &unsummed.unwrap_or(arrived)).await?;
    }
    Ok(Rest { pieces: left, moved: moved as u64, unseen })
}

/// The error under one of ours.
fn cause<'a>(e: &'a (dyn std::error::Error + Send + Sync + 'static)) -> Option<&'a io::Error> {
    e.source()?.downcast_ref()
}

/// Where a piece goes, if to this GPU.
fn target(parts: &[Option<Part>], piece: &Piece, gpu: &Gpu) -> Option<u64> {
    match parts.get(piece.part) {
        Some(Some(Part::Read { into, .. })) if into.gpu() == Some(gpu) => {
            Some((into.addr() + piece.offset) as u64)
        }
        _ => None,
    }
}

/// Reads one piece on a thread of the lane.
fn spawn(
    lane: &Lane,
    direct: &Arc<Direct>,
    (file, parts): (&Arc<File>, &Shared),
    piece: Piece,
) -> Ticket<Result<(), Error>> {
    let (completer, ticket) = ticket();
    let (gpu, direct, file, parts) =
        (lane.gpu().clone(), Arc::clone(direct), Arc::clone(file), Arc::clone(parts));
    lane.spawn(async move {
        let read = read_piece((&gpu, &direct), &file, &parts, piece);
        // Before the answer: who asked takes the parts apart then.
        drop((parts, file));
        completer.complete(
            read.map_err(|e| Error::new(ErrorKind::Io, "a direct read failed").with_source(e)),
        );
    });
    ticket
}

fn read_piece(
    (gpu, direct): (&Gpu, &Direct),
    file: &File,
    parts: &[Option<Part>],
    piece: Piece,
) -> io::Result<()> {
    let _entered = gpu.enter().map_err(io::Error::other)?;
    let addr = target(parts, &piece, gpu)
        .ok_or_else(|| io::Error::other("no memory for a piece"))? as usize;
    let mut done = 0;
    while done < piece.len {
        let to = direct.buffers.target(addr + done, piece.len - done);
        // SAFETY: the piece lies in a lease for reading, of this GPU, which the parts keep; pieces
        // do not overlap, and who wants the parts back waits for the answer.
        unsafe { file.read(piece.at + done as u64, to) }?;
        done += to.len;
    }
    Ok(())
}

/// Has what arrived summed on the GPU; what could not be is left.
fn sum(
    (inner, lane): (&Inner, &Lane),
    summer: &Summer,
    parts: &[Option<Part>],
    sums: &mut Sums,
    pieces: &[Piece],
) -> Vec<Piece> {
    let mut left = Vec::new();
    for range in ranges(pieces) {
        let Some(Some(Part::Read { into, .. })) = parts.get(range.part) else { continue };
        match lane.with_stream(|stream| summer.sum(stream, into, (range.offset, range.len))) {
            Ok(crcs) => {
                sums(range.part, range.offset as u64, UNIT as u64, &crcs);
                add(&inner.counts.verified_gpu_bytes, range.len);
            }
            Err(e) => {
                tracing::debug!(
                    "the GPU did not sum {} bytes, which are copied back instead: {e}",
                    range.len
                );
                let within = |piece: &&Piece| {
                    piece.part == range.part
                        && (range.offset..range.offset + range.len).contains(&piece.offset)
                };
                left.extend(pieces.iter().filter(within).copied());
            }
        }
    }
    left
}

/// Pieces, in order, that lie one behind the other as one, as long as a GPU sums at once: so it has
/// work for all of its processors.
fn ranges(pieces: &[Piece]) -> Vec<Piece> {
    let mut ranges: Vec<Piece> = Vec::new();
    for piece in pieces {
        match ranges.last_mut() {
            Some(last)
                if last.part == piece.part
                    && last.offset + last.len == piece.offset
                    && last.len + piece.len <= RANGE_BYTES_MAX =>
            {
                last.len += piece.len;
            }
            _ => ranges.push(*piece),
        }
    }
    ranges
}

/// Brings what arrived to where the CPU sees it.
async fn show(
    (inner, lane): (&Inner, &Lane),
    parts: &[Option<Part>],
    watch: &mut Watch,
    pieces: &[Piece],
) -> io::Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    let memory = inner.pinned(lane.gpu())?;
    let mut buffer =
        memory.buffers.lease_waiting(inner.config.piece_bytes).await.map_err(io::Error::other)?;
    let bytes =
        buffer.as_host_mut().ok_or_else(|| io::Error::other("pinned memory is host memory"))?;
    for piece in pieces {
        let Some(Some(Part::Read { into, .. })) = parts.get(piece.part) else { continue };
        let bytes = &mut bytes[..piece.len];
        lane.with_stream(|stream| stream.download_lease(into, piece.offset, bytes))?;
        watch(piece.part, piece.offset as u64, bytes);
        add(&inner.counts.verified_host_bytes, piece.len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_side_by_side_are_summed_as_one() {
        let piece = |part, offset, len| Piece { part, at: 7, offset, len };
        let pieces = [
            piece(0, 0, 100),
            piece(0, 100, 50),
            piece(0, 200, 5),
            piece(1, 0, 9),
            piece(1, 9, RANGE_BYTES_MAX),
            piece(2, 9, 1),
        ];
        let found: Vec<_> =
            ranges(&pieces).iter().map(|range| (range.part, range.offset, range.len)).collect();
        assert_eq!(
            found,
            [(0, 0, 150), (0, 200, 5), (1, 0, 9), (1, 9, RANGE_BYTES_MAX), (2, 9, 1)]
        );
        assert_eq!(ranges(&[]), []);
    }
}
