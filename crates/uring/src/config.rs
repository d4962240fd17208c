//! The settings of an engine, and their limits.

use std::str::FromStr;

use crate::{Error, ErrorKind};

/// The most bytes in one request; the kernel moves a little less than 2 GiB at once.
const PIECE_BYTES_MAX: usize = 1 << 30;
const PIECES_INFLIGHT_MAX: usize = 4096;
const THREADS_MAX: usize = 256;
/// How often one piece is requested again after an interruption.
pub const RETRIES_MAX: u32 = 16;

/// The engine that moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineKind {
    /// io_uring where the machine allows it, else threads.
    Auto,
    /// An io_uring reactor thread.
    Uring,
    /// Blocking threads.
    Threads,
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(EngineKind::Auto),
            "uring" => Ok(EngineKind::Uring),
            "threads" => Ok(EngineKind::Threads),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("no engine {text:?}; choose auto, uring or threads"),
            )),
        }
    }
}

/// The settings of an engine. Every number is a maximum.
///
/// ```
/// use kvtier_uring::{Engine, EngineConfig, EngineKind};
///
/// // `Auto` takes io_uring where the machine allows it; `reason` says why not.
/// let engine = Engine::new(EngineConfig::default().with_pieces_inflight(32).with_threads(2))?;
/// match engine.kind() {
///     EngineKind::Uring => println!("io_uring"),
///     other => println!("{other:?}: {}", engine.reason()),
/// }
/// # Ok::<(), kvtier_uring::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The engine.
    pub kind: EngineKind,
    /// Bytes in one request to the kernel.
    pub piece_bytes: usize,
    /// Bytes in one write, where that is more. Each write costs the file system one change of the
    /// file's extents, whatever its length. Reads stay shorter, so that a watch sees each piece
    /// while it is in the cache. In io_uring a long write counts as several pieces.
    pub write_bytes: usize,
    /// Requests in flight in the kernel (io_uring).
    pub pieces_inflight: usize,
    /// Jobs waiting to begin.
    pub queue_max: usize,
    /// Threads of the blocking engine.
    pub threads: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            kind: EngineKind::Auto,
            piece_bytes: 4 << 20,
            write_bytes: 16 << 20,
            pieces_inflight: 16,
            queue_max: 1024,
            threads: 4,
        }
    }
}

impl EngineConfig {
    /// Chooses the engine.
    pub fn with_kind(mut self, kind: EngineKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the bytes in one request to the kernel (1 to 1 GiB), writes too.
    pub fn with_piece_bytes(mut self, bytes: usize) -> Self {
        (self.piece_bytes, self.write_bytes) = (bytes, bytes);
        self
    }

    /// Sets the bytes in one write (1 to 1 GiB).
    pub fn with_write_bytes(mut self, bytes: usize) -> Self {
        self.write_bytes = bytes;
        self
    }

    /// Sets how many requests are in flight in the kernel (io_uring; 1 to 4096).
    pub fn with_pieces_inflight(mut self, pieces: usize) -> Self {
        self.pieces_inflight = pieces;
        self
    }

    /// Sets how many jobs may wait to begin.
    pub fn with_queue_max(mut self, jobs: usize) -> Self {
        self.queue_max = jobs;
        self
    }

    /// Sets the number of blocking threads (1 to 256).
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}

impl EngineConfig {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let numbers = [
            ("piece_bytes", self.piece_bytes, PIECE_BYTES_MAX),
            ("write_bytes", self.write_bytes, PIECE_BYTES_MAX),
            ("pieces_inflight", self.pieces_inflight, PIECES_INFLIGHT_MAX),
            ("queue_max", self.queue_max, usize::MAX),
            ("threads", self.threads, THREADS_MAX),
        ];
        let wrong = numbers.into_iter().find(|(_, n, max)| *n == 0 || n > max);
        wrong.map_or(Ok(()), |(name, n, max)| {
            Err(Error::new(ErrorKind::Invalid, format!("{name} is {n}; choose 1 to {max}")))
        })
    }
}
