use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtier_mem::Arena;

use crate::queue::Queue;
use crate::reactor::Reactor;
use crate::threads::Threads;
use crate::{Error, ErrorKind, Finished, Job, Refused};

/// What moves the bytes.
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
            _ => Err(Error::new(ErrorKind::Invalid, format!("no engine {text:?}; choose auto, uring or threads"))),
        }
    }
}

/// How to start an engine. Every number is a maximum.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Which engine.
    pub kind: EngineKind,
    /// Bytes in one request to the kernel.
    pub piece_bytes: usize,
    /// Requests at the kernel at once (io_uring).
    pub pieces_inflight: usize,
    /// Jobs waiting to begin.
    pub queue_max: usize,
    /// Threads of the blocking engine.
    pub threads: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig { kind: EngineKind::Auto, piece_bytes: 4 << 20, pieces_inflight: 16, queue_max: 1024, threads: 4 }
    }
}

impl EngineConfig {
    /// Chooses the engine.
    pub fn with_kind(mut self, kind: EngineKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the bytes in one request to the kernel (1 to 1 GiB).
    pub fn with_piece_bytes(mut self, bytes: usize) -> Self {
        self.piece_bytes = bytes;
        self
    }

    /// Sets how many requests are at the kernel at once (io_uring; 1 to 4096).
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

/// What an engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pieces moved.
    pub pieces: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests that the kernel did in part and that were continued.
    pub short_ios: u64,
    /// Requests repeated after an interruption.
    pub retries: u64,
    /// Pieces that used registered memory.
    pub fixed: u64,
}

/// How an arena was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Whether the engine uses the registration; otherwise its memory moves like any other.
    pub fixed: bool,
    /// Why not, or what was registered.
    pub reason: String,
}

/// Moves jobs. A clone is the same engine; it ends when the last clone is dropped, or at [`close`](Engine::close).
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    backend: Backend,
    reason: String,
}

enum Backend {
    Uring(Reactor),
    Threads(Threads),
}

impl Engine {
    /// Starts an engine. `Auto` tries io_uring first and says in [`reason`](Engine::reason) why it could not be.
    pub fn new(config: EngineConfig) -> Result<Self, Error> {
        if config.piece_bytes == 0 || config.pieces_inflight == 0 || config.queue_max == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "piece_bytes, pieces_inflight and queue_max must be at least 1",
            ));
        }
        let (queue, counts) = (Arc::new(Queue::new(config.queue_max)), Arc::<Counts>::default());
        let threads = |reason: String| {
            let threads = Threads::start(&queue, &counts, config.threads, config.piece_bytes);
            threads.map(|t| (Backend::Threads(t), reason)).map_err(|e| Error::io("cannot start an I/O thread", e))
        };
        let uring = || Reactor::start(&config, &queue, &counts).map(|(r, how)| (Backend::Uring(r), how));
        let (backend, reason) = match config.kind {
            EngineKind::Threads => threads("chosen".into())?,
            EngineKind::Uring => uring()?,
            EngineKind::Auto => uring().or_else(|e| threads(format!("no io_uring here: {}", reason_of(&e))))?,
        };
        Ok(Engine(Arc::new(Inner { queue, counts, backend, reason })))
    }

    /// Which engine it became.
    pub fn kind(&self) -> EngineKind {
        match self.0.backend {
            Backend::Uring(_) => EngineKind::Uring,
            Backend::Threads(_) => EngineKind::Threads,
        }
    }

    /// Why that one.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Registers an arena's memory with the kernel for as long as the engine lives. Where that is refused (locked-memory limit), the
    /// arena works all the same; the answer says so.
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        match &self.0.backend {
            Backend::Uring(reactor) => reactor.register(arena),
            Backend::Threads(_) => {
                Ok(Registered { fixed: false, reason: "blocking threads need no registration".into() })
            }
        }
    }

    /// Takes a job, or hands it back. Never blocks. `done` runs on a thread of the engine and must be quick.
    pub fn submit(&self, job: Job, done: impl FnOnce(Finished) + Send + 'static) -> Result<(), Refused> {
        self.0.queue.push(job, Box::new(done))?;
        if let Backend::Uring(reactor) = &self.0.backend {
            reactor.wake();
        }
        Ok(())
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.0.counts.stats()
    }

    /// Takes no more jobs, ends those under way, calls every `done`, joins its threads. Not to be called from `done`.
    pub fn close(&self) {
        self.0.close();
    }
}

fn reason_of(e: &Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |source| format!("{e}: {source}"))
}

impl Inner {
    fn close(&self) {
        self.queue.close();
        match &self.backend {
            Backend::Uring(reactor) => reactor.join(),
            Backend::Threads(threads) => threads.join(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?}, {:?})", self.kind(), self.stats())
    }
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub struct Counts {
    pieces: AtomicU64,
    bytes: AtomicU64,
    short_ios: AtomicU64,
    retries: AtomicU64,
    fixed: AtomicU64,
}

impl Counts {
    pub fn piece(&self, bytes: usize, fixed: bool) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.fixed.fetch_add(fixed.into(), Ordering::Relaxed);
    }

    pub fn short(&self) {
        self.short_ios.fetch_add(1, Ordering::Relaxed);
    }

    pub fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    fn stats(&self) -> Stats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Stats {
            pieces: get(&self.pieces),
            bytes: get(&self.bytes),
            short_ios: get(&self.short_ios),
            retries: get(&self.retries),
            fixed: get(&self.fixed),
        }
    }
}
