use std::fmt;
use std::sync::Arc;

use kvtier_mem::Arena;

use crate::config::{EngineConfig, EngineKind};
use crate::reactor::Reactor;
use crate::registered_memory::Registered;
use crate::scheduler::Scheduler;
use crate::shared_schedule::Shared;
use crate::stats::EngineCounts;
use crate::threads::Threads;
use crate::{Error, ErrorKind, Finished, Job, RefusedJob, Stats};

/// Moves jobs. A clone is the same engine. It ends when the last clone is dropped, or at
/// [`close`](Engine::close).
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    counts: Arc<EngineCounts>,
    backend: Backend,
    reason: String,
}

enum Backend {
    Uring(Reactor),
    Threads(Threads),
}

impl Engine {
    /// Starts an engine. `Auto` tries io_uring first; [`reason`](Engine::reason) says why it
    /// failed.
    ///
    /// # Errors
    ///
    /// `Invalid` for a number out of range, `Unsupported` or `Io` where the machine refuses the
    /// chosen kind.
    pub fn new(config: EngineConfig) -> Result<Self, Error> {
        config.check()?;
        match config.kind {
            EngineKind::Threads => Self::threads(&config, "chosen".into()),
            EngineKind::Uring => Self::uring(&config),
            EngineKind::Auto => Self::uring(&config).or_else(|e| {
                let reason = format!("no io_uring here: {}", reason_of(&e));
                tracing::info!("{reason}; blocking threads instead");
                Self::threads(&config, reason)
            }),
        }
    }

    fn uring(config: &EngineConfig) -> Result<Self, Error> {
        let (shared, counts) = shared(config, config.pieces_inflight, config.piece_bytes);
        let (reactor, reason) = Reactor::start(config, &shared, &counts)?;
        Ok(Engine(Arc::new(Inner { shared, counts, backend: Backend::Uring(reactor), reason })))
    }

    fn threads(config: &EngineConfig, reason: String) -> Result<Self, Error> {
        let (shared, counts) =
            shared(config, config.threads, config.write_bytes.max(config.piece_bytes));
        let threads = Threads::start(&shared, &counts, config.threads);
        let threads = threads.map_err(|e| Error::io("cannot start an I/O thread", e))?;
        Ok(Engine(Arc::new(Inner { shared, counts, backend: Backend::Threads(threads), reason })))
    }

    /// The engine in use: `Uring` or `Threads`.
    pub fn kind(&self) -> EngineKind {
        match self.0.backend {
            Backend::Uring(_) => EngineKind::Uring,
            Backend::Threads(_) => EngineKind::Threads,
        }
    }

    /// Why this engine is used.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Registers an arena's memory with the kernel for the lifetime of the engine, which keeps the
    /// memory mapped as long. Leases of the arena then move with less work. If the kernel refuses
    /// (limit of locked memory), the arena works unregistered, and the result says so.
    ///
    /// ```
    /// # use std::sync::{Arc, mpsc};
    /// use kvtier_mem::{Arena, ArenaConfig};
    /// use kvtier_uring::{Engine, EngineConfig, Job, Part};
    ///
    /// let arena = Arena::new(ArenaConfig::heap(1 << 20))?;
    /// let engine = Engine::new(EngineConfig::default())?;
    /// let registered = engine.register(&arena)?; // reads into the arena need no page pinning
    /// # let path = std::env::temp_dir().join(format!("kvtier-register-{}", std::process::id()));
    /// # std::fs::write(&path, [7; 4096])?;
    /// # let file = Arc::new(std::fs::File::open(&path)?.into());
    /// let (done, finished) = mpsc::channel();
    /// let into = arena.lease(4096)?;
    /// let job = Job::read(file).with_part(Part::Read { at: 0, into, len: 4096 });
    /// let submitted = engine.submit(job, move |job| drop(done.send(job.result)));
    /// assert!(submitted.is_ok());
    /// assert_eq!(finished.recv()??, 4096);
    /// drop(registered);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed`; `Invalid` from a callback of the engine, which would wait for itself.
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        match &self.0.backend {
            _ if self.0.on_own_thread() => Err(Error::new(
                ErrorKind::Invalid,
                "memory cannot be registered from a callback of the engine",
            )),
            _ if self.0.shared.lock().is_closed() => Err(Error::closed()),
            Backend::Uring(reactor) => reactor.register(arena),
            Backend::Threads(_) => Ok(Registered {
                fixed: false,
                bytes: 0,
                reason: "blocking threads need no registration".into(),
            }),
        }
    }

    /// Submits a job. Never blocks. `done` is called exactly once for an accepted job, on a thread
    /// of the engine: return fast (move longer work to another thread). It may submit more jobs. A
    /// job that can never be done ends as `Invalid` or `Unsupported`.
    ///
    /// # Errors
    ///
    /// Returns the job if the queue is full or the engine is closed.
    pub fn submit(
        &self,
        job: Job,
        done: impl FnOnce(Finished) + Send + 'static,
    ) -> Result<(), RefusedJob> {
        // The lock is free again before the wake-up, so the woken thread does not wait for this
        // one.
        self.0.shared.lock().push(job, Box::new(done))?;
        match &self.0.backend {
            Backend::Uring(reactor) => reactor.wake(),
            Backend::Threads(_) => self.0.shared.notify_one(),
        }
        Ok(())
    }

    /// What the engine has done so far.
    pub fn stats(&self) -> Stats {
        let queued = self.0.shared.lock().queued();
        self.0.counts.stats(queued)
    }

    /// Accepts no more jobs and cancels those in flight. Waits until the kernel has released their
    /// memory (disks ignore a cancel) and every `done` was called. What was not moved in time ends
    /// as `Closed`. From a callback it does not wait.
    pub fn close(&self) {
        self.0.close();
    }
}

fn shared(
    config: &EngineConfig,
    pieces_max: usize,
    unit_bytes: usize,
) -> (Arc<Shared>, Arc<EngineCounts>) {
    let counts = Arc::<EngineCounts>::default();
    (
        Arc::new(Shared::new(Scheduler::new(config, pieces_max, unit_bytes, Arc::clone(&counts)))),
        counts,
    )
}

fn reason_of(e: &Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |source| format!("{e}: {source}"))
}

impl Inner {
    fn on_own_thread(&self) -> bool {
        match &self.backend {
            Backend::Uring(reactor) => reactor.is_current(),
            Backend::Threads(threads) => threads.has_current(),
        }
    }

    fn close(&self) {
        // First the schedule refuses new jobs, then the threads are waited for. In the other order
        // a caller could push a job that no thread serves.
        self.shared.close();
        match &self.backend {
            // A callback that drops the last engine runs on the thread to be joined. It would wait
            // for itself; the thread ends when the callback has returned.
            Backend::Uring(reactor) if self.on_own_thread() => reactor.wake(),
            Backend::Uring(reactor) => reactor.join(),
            Backend::Threads(threads) if !self.on_own_thread() => threads.join(),
            Backend::Threads(_) => {}
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use kvtier_mem::ArenaConfig;

    use super::*;
    use crate::reactor::ReactorCommand;
    use crate::{Part, RefusalReason};

    #[test]
    fn a_reactor_that_dies_answers_everyone() {
        let engine = Engine::new(
            EngineConfig::default().with_kind(EngineKind::Uring).with_pieces_inflight(1),
        )
        .unwrap();
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = Arc::new(reader.into());
        let (send, answers) = sync_channel(3);
        // The first waits at the kernel for bytes that never come, the others in the queue.
        for _ in 0..3 {
            let part = Part::Read { at: 0, into: arena.lease(4096).unwrap(), len: 4096 };
            let send = send.clone();
            engine
                .submit(Job::read(Arc::clone(&file)).with_part(part), move |f| {
                    send.send(f).unwrap()
                })
                .unwrap();
        }
        let Backend::Uring(reactor) = &engine.0.backend else { panic!("asked for io_uring") };
        while engine.stats().unfixed == 0 {
            std::thread::yield_now();
        }
        reactor.command(ReactorCommand::Panic).unwrap();
        let mut parts = Vec::new();
        for _ in 0..3 {
            let finished = answers.recv_timeout(Duration::from_secs(600)).unwrap();
            assert_eq!(finished.result.unwrap_err().kind(), ErrorKind::Closed);
            parts.push(finished.job.parts.len());
        }
        parts.sort();
        assert_eq!(
            parts,
            [0, 1, 1],
            "only the memory that the kernel may still write to is given up"
        );
        let refused = engine.submit(Job::read(file), |_| {}).unwrap_err();
        assert_eq!(refused.why, RefusalReason::Closed);
        assert_eq!(engine.register(&arena).unwrap_err().kind(), ErrorKind::Closed);
        engine.close();
    }
}
