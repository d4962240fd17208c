//! Loads by cuFile, straight into GPU memory, and their verification.
//!
//! cuFile is used once a probe of the directory has succeeded. A read that fails leaves its piece to
//! the path through pinned memory, so a failure costs time only. An error that every other file will
//! meet too disables cuFile for the life of the tier.
//!
//! The parts of the transfer are shared with the tasks that read them. Each task drops its share
//! before it completes its ticket, so that after the last ticket the parts have one owner again.
//!
//! The CPU does not see the bytes that cuFile loads. Depending on [`Proof`], the GPU computes their
//! checksums, or they are copied back and verified in host memory, or they stay unverified and are
//! counted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind, Ticket, ticket};
use kvtier_disk::Part;
use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

use super::counters::add;
use super::executor::GpuExecutor;
use super::load_parts::{CopyPiece, GpuLoad, PAGE};
use crate::checksum::{ChecksumRange, Crc32cKernel, Crc32cKernels, RANGE_BYTES_MAX, UNIT_BYTES};
use crate::config::{GdsConfig, Proof};
use crate::cufile::{
    BufferRegistry, CufileError, Driver, FileCache, RegisteredFile, check_direct,
    check_prerequisites, probe, storage_of,
};

/// cuFile, for a directory in which it works.
#[derive(Debug)]
pub struct CufileLoader {
    driver: Driver,
    files: FileCache,
    buffers: BufferRegistry,
    kernels: Crc32cKernels,
    /// Why it is not used any more.
    disabled: Mutex<Option<String>>,
    loads: AtomicU64,
}

/// Parts of a transfer, shared with the tasks that read them.
type SharedParts = Arc<Vec<Option<Part>>>;

/// What cuFile has loaded, and what it has left.
pub struct CufileProgress {
    pub remaining: Vec<CopyPiece>,
    pub moved: u64,
    /// Some pieces were not verified, as configured.
    pub unverified: bool,
}

impl CufileProgress {
    /// Nothing was loaded.
    pub fn none(remaining: Vec<CopyPiece>) -> Self {
        CufileProgress { remaining, moved: 0, unverified: false }
    }
}

impl CufileLoader {
    /// Checks whether cuFile works in the tier's directory.
    ///
    /// # Errors
    /// The reason why it does not, with the remedy.
    pub fn new(config: &GdsConfig, gpu: &Gpu) -> Result<Self, String> {
        // The order matters: each step is safe only if those before it succeeded. Opening the
        // driver on a machine that lacks its files hangs or closes foreign descriptors.
        check_prerequisites(&config.system_root, &config.disk.path)?;
        let driver = Driver::open(config.cufile_library.as_deref(), gpu, config.open_timeout)?;
        let named = |why: &str| format!("{}: {why}", driver.describe());
        check_direct(driver, config.compat).map_err(named)?;
        let storage = storage_of(&config.system_root, &config.disk.path, driver.targets());
        storage.judge(config.compat).map_err(|why| named(&why))?;
        // What the driver claims is not enough: only a file that was written and read back shows
        // that it works in this directory.
        probe(driver, gpu, &config.disk.path.join(".kvtier"), config.open_timeout)?;
        let kernels = Crc32cKernels::new(config.threads, config.open_timeout);
        // Loaded now, so that the first load does not wait for the compilation of the kernel.
        if config.proof != Proof::Off {
            kernels.get(gpu);
        }
        Ok(CufileLoader {
            driver,
            files: FileCache::default(),
            buffers: BufferRegistry::new(driver),
            kernels,
            disabled: Mutex::default(),
            loads: AtomicU64::new(0),
        })
    }

    /// Why it is not used any more; `None` while it is.
    pub fn disabled_reason(&self) -> Option<String> {
        self.disabled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn describe(&self) -> String {
        let driver = self.driver.describe();
        self.kernels.describe().map_or(driver.clone(), |how| format!("{driver}, {how}"))
    }

    /// Registers GPU memory; returns the number of bytes, and the reason if it is not all.
    pub fn register(&self, arena: &Arena) -> (usize, Option<String>) {
        self.buffers.register(arena)
    }

    /// Closes deleted files, which frees their space on the medium.
    pub fn close_deleted_files(&self) {
        self.files.close_deleted();
    }

    /// Deregisters all files and memory. The caller has ended all transfers.
    pub fn close(&self) {
        self.files.clear();
        self.buffers.clear();
        self.kernels.clear();
    }

    /// Records a failed call. A permanent error disables cuFile.
    fn record_failure(&self, e: &io::Error) {
        let error = e.get_ref().and_then(|inner| inner.downcast_ref::<CufileError>());
        // One file or one moment: the next load tries cuFile again.
        if !error.is_some_and(CufileError::is_permanent) {
            tracing::debug!("cuFile failed, pinned memory instead: {e}");
            return;
        }
        let mut disabled = self.disabled.lock().unwrap_or_else(PoisonError::into_inner);
        if disabled.is_none() {
            tracing::warn!("cuFile is not used any more, pinned memory instead: {e}");
            *disabled = Some(e.to_string());
        }
    }

    /// Whether to verify the next load.
    fn verifies_next(&self, proof: Proof) -> bool {
        // Counts loads and not time, so a sample is the same share under any load.
        let nth = self.loads.fetch_add(1, Ordering::Relaxed);
        match proof {
            Proof::Always => true,
            Proof::Sample(every) => nth.is_multiple_of(every.max(1).into()),
            Proof::Off => false,
        }
    }
}

impl GpuLoad<'_> {
    /// Loads the pieces with suitable alignment, in parallel on the executor's threads. Pieces that
    /// are unsuitable or fail remain.
    pub async fn read_by_cufile(
        &mut self,
        cufile: &Arc<CufileLoader>,
        pieces: Vec<CopyPiece>,
    ) -> io::Result<CufileProgress> {
        let gpu = self.executor.gpu();
        // cuFile moves unaligned ranges through a buffer of its own, like our pinned memory.
        let is_aligned = |piece: &CopyPiece| {
            let addr = gpu_address(&self.parts, piece, gpu);
            addr.is_some_and(|addr| (addr | piece.at | piece.len as u64).is_multiple_of(PAGE))
        };
        let (aligned, mut remaining): (Vec<CopyPiece>, Vec<CopyPiece>) =
            pieces.into_iter().partition(is_aligned);
        if aligned.is_empty() {
            return Ok(CufileProgress::none(remaining));
        }
        let counters = &self.inner.counters;
        let entered = gpu.enter().map_err(io::Error::other);
        // A file that cannot be registered costs nothing but this attempt: all pieces take the
        // other way.
        let file = match entered.and_then(|_entered| cufile.files.get(cufile.driver, self.file)) {
            Ok(file) => file,
            Err(e) => {
                add(&counters.direct_failed, 1);
                cufile.record_failure(&e);
                remaining.extend(aligned);
                // In the order of the file, in which the read-ahead is fastest.
                remaining.sort_unstable_by_key(|piece| piece.at);
                return Ok(CufileProgress::none(remaining));
            }
        };
        // The tasks own a share of the parts. If this future is dropped now, the memory stays
        // allocated until the last read has ended.
        let parts: SharedParts = Arc::new(std::mem::take(&mut self.parts));
        let reads: Vec<_> = aligned
            .into_iter()
            .map(|piece| PieceRead {
                gpu: gpu.clone(),
                cufile: Arc::clone(cufile),
                file: Arc::clone(&file),
                parts: Arc::clone(&parts),
                piece,
            })
            .map(|read| (read.piece, read.spawn(self.executor)))
            .collect();
        let mut arrived = Vec::new();
        // All of them are awaited, also after an error: the parts are needed back in one piece.
        for (piece, read) in reads {
            match read.await {
                Ok(()) => arrived.push(piece),
                Err(e) => {
                    let e = io::Error::other(e);
                    add(&counters.direct_failed, 1);
                    cufile.record_failure(e.get_ref().and_then(io_source).unwrap_or(&e));
                    remaining.push(piece);
                }
            }
        }
        // Every task has dropped its share before it completed its ticket.
        // Cannot fail unless that order is broken; then an error is better than a wait without end.
        self.parts = Arc::into_inner(parts)
            .ok_or_else(|| io::Error::other("a direct read has not ended"))?;
        remaining.sort_unstable_by_key(|piece| piece.at);
        let moved: usize = arrived.iter().map(|piece| piece.len).sum();
        add(&counters.direct_bytes, moved);
        let unverified = self.verify(cufile, arrived).await?;
        Ok(CufileProgress { remaining, moved: moved as u64, unverified })
    }

    /// Verifies the pieces as configured; returns whether they stay unverified.
    async fn verify(&mut self, cufile: &CufileLoader, arrived: Vec<CopyPiece>) -> io::Result<bool> {
        if self.verifiers.bytes.is_none() || arrived.is_empty() {
            return Ok(false);
        }
        // `Sample` and `Off` trade proof for speed; the result says so to the disk tier.
        if !cufile.verifies_next(self.inner.config.proof) {
            add(&self.inner.counters.unverified_loads, 1);
            return Ok(true);
        }
        let kernel = match self.verifiers.checksums {
            // Chunks without stored checksums by unit can be verified by their bytes only.
            Some(_) => cufile.kernels.get(self.executor.gpu()),
            None => None,
        };
        // What the GPU could not checksum is copied back. No byte is left out because a kernel
        // failed.
        let rest = match kernel {
            Some(kernel) => self.verify_on_gpu(&kernel, &arrived),
            None => arrived,
        };
        self.verify_in_host_memory(&rest).await?;
        Ok(false)
    }

    /// Computes the checksums of the pieces on the GPU. Returns the pieces for which that failed.
    fn verify_on_gpu(&mut self, kernel: &Crc32cKernel, pieces: &[CopyPiece]) -> Vec<CopyPiece> {
        let mut failed = Vec::new();
        let Some(verify) = &mut self.verifiers.checksums else { return pieces.to_vec() };
        for joined in join_adjacent(pieces) {
            let Some(Some(Part::Read { into, .. })) = self.parts.get(joined.part) else { continue };
            let range = ChecksumRange { start: joined.offset, len: joined.len };
            match self.executor.with_stream(|stream| kernel.checksum(stream, into, range)) {
                Ok(crcs) => {
                    verify(joined.part, joined.offset as u64, UNIT_BYTES as u64, &crcs);
                    add(&self.inner.counters.verified_gpu_bytes, joined.len);
                }
                Err(e) => {
                    tracing::debug!(
                        "cannot checksum {} bytes on the GPU, copying them back instead: {e}",
                        joined.len
                    );
                    // The joined range as the pieces that it was made of.
                    let within = |piece: &&CopyPiece| {
                        piece.part == joined.part
                            && (joined.offset..joined.offset + joined.len).contains(&piece.offset)
                    };
                    failed.extend(pieces.iter().filter(within).copied());
                }
            }
        }
        failed
    }

    /// Copies the pieces back to pinned memory and verifies them there.
    async fn verify_in_host_memory(&mut self, pieces: &[CopyPiece]) -> io::Result<()> {
        let Some(verify) = &mut self.verifiers.bytes else { return Ok(()) };
        if pieces.is_empty() {
            return Ok(());
        }
        let memory = self.inner.pinned(self.executor.gpu())?;
        // One buffer, reused for each piece: this is the slow way, and loads through pinned memory
        // need the others.
        let buffer = memory.buffers.lease_waiting(self.inner.config.piece_bytes).await;
        let mut buffer = buffer.map_err(io::Error::other)?;
        let bytes =
            buffer.as_host_mut().ok_or_else(|| io::Error::other("pinned memory is host memory"))?;
        for piece in pieces {
            let Some(Some(Part::Read { into, .. })) = self.parts.get(piece.part) else { continue };
            let bytes = &mut bytes[..piece.len];
            self.executor.with_stream(|stream| stream.download_lease(into, piece.offset, bytes))?;
            verify(piece.part, piece.offset as u64, bytes);
            add(&self.inner.counters.verified_host_bytes, piece.len);
        }
        Ok(())
    }
}

/// The I/O error that caused one of the tier's errors.
fn io_source<'a>(e: &'a (dyn std::error::Error + Send + Sync + 'static)) -> Option<&'a io::Error> {
    e.source()?.downcast_ref()
}

/// The address of a piece; `None` if it is not on this GPU.
fn gpu_address(parts: &[Option<Part>], piece: &CopyPiece, gpu: &Gpu) -> Option<u64> {
    match parts.get(piece.part) {
        Some(Some(Part::Read { into, .. })) if into.gpu() == Some(gpu) => {
            Some((into.addr() + piece.offset) as u64)
        }
        _ => None,
    }
}

/// The read of one piece.
struct PieceRead {
    gpu: Gpu,
    cufile: Arc<CufileLoader>,
    file: Arc<RegisteredFile>,
    parts: SharedParts,
    piece: CopyPiece,
}

impl PieceRead {
    /// Runs the read on a thread of the executor.
    fn spawn(self, executor: &GpuExecutor) -> Ticket<Result<(), Error>> {
        let (completer, ticket) = ticket();
        executor.spawn(async move {
            let read = self.run();
            // Before the ticket: its owner takes the parts back.
            // The memory and the file, before the owner of the parts goes on.
            drop(self);
            completer.complete(
                read.map_err(|e| Error::new(ErrorKind::Io, "a direct read failed").with_source(e)),
            );
        });
        ticket
    }

    fn run(&self) -> io::Result<()> {
        let PieceRead { gpu, cufile, file, parts, piece } = self;
        let _entered = gpu.enter().map_err(io::Error::other)?;
        let addr = gpu_address(parts, piece, gpu)
            .ok_or_else(|| io::Error::other("no memory for a piece"))? as usize;
        let mut done = 0;
        while done < piece.len {
            // A transfer must not cross the end of a registered region: cuFile checks it against
            // one registration.
            let to = cufile.buffers.range_at(addr + done, piece.len - done);
            // SAFETY: the piece is within a lease for reading, on this GPU, which the parts keep.
            // Pieces do not overlap, and the owner of the parts waits for the ticket.
            unsafe { file.read(piece.at + done as u64, to) }?;
            done += to.len;
        }
        Ok(())
    }
}

/// Joins adjacent pieces, up to the longest range that a GPU checksums at once, so that all of its
/// processors have work.
fn join_adjacent(pieces: &[CopyPiece]) -> Vec<CopyPiece> {
    let mut ranges: Vec<CopyPiece> = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pieces_are_checksummed_as_one_range() {
        let piece = |part, offset, len| CopyPiece { part, at: 7, offset, len };
        let pieces = [
            piece(0, 0, 100),
            piece(0, 100, 50),
            piece(0, 200, 5),
            piece(1, 0, 9),
            piece(1, 9, RANGE_BYTES_MAX),
            piece(2, 9, 1),
        ];
        let found: Vec<_> = join_adjacent(&pieces)
            .iter()
            .map(|range| (range.part, range.offset, range.len))
            .collect();
        assert_eq!(
            found,
            [(0, 0, 150), (0, 200, 5), (1, 0, 9), (1, 9, RANGE_BYTES_MAX), (2, 9, 1)]
        );
        assert_eq!(join_adjacent(&[]), []);
    }
}
