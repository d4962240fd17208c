//! Moves chunks between files and memory of the host or a GPU.

mod completion_guards;
mod counters;
mod cufile_load;
mod executor;
mod host_part_reads;
mod load;
mod load_parts;
mod pinned_memory;
mod save_staging;
mod transfer_to_job;
mod upload;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kvtier_core::{Error, ErrorKind};
use kvtier_disk::{Fetched, Finish, Moved, Mover, Part, Refused, Transfer, Uploaded};
use kvtier_mem::cuda::Gpu;
use kvtier_mem::{Arena, Lease, Place, View};
use kvtier_uring::{Engine, Finished, RefusalReason};

use self::completion_guards::{
    FetchCompletion, TransferCompletion, UploadCompletion, closed_error,
};
use self::counters::GdsCounters;
use self::cufile_load::CufileLoader;
use self::executor::GpuExecutor;
use self::pinned_memory::PinnedMemory;
use self::save_staging::StagedSave;
use self::transfer_to_job::{io_error, to_job, to_transfer};
use crate::config::{CufileMode, GdsConfig};

/// The mover of the GPU tier.
#[derive(Debug)]
pub struct GdsMover(Arc<MoverInner>);

/// The state that the mover shares with its tasks.
#[derive(Debug)]
pub struct MoverInner {
    engine: Engine,
    config: GdsConfig,
    /// Why this machine has no usable GPU; `None` if it has one.
    no_gpu: Option<String>,
    /// cuFile, or why it is not used; unset until the first use of a GPU.
    cufile: OnceLock<Result<Arc<CufileLoader>, String>>,
    pinned: Mutex<Option<Arc<PinnedMemory>>>,
    executors: Mutex<Executors>,
    counters: GdsCounters,
}

/// One executor per GPU that was used.
#[derive(Debug, Default)]
struct Executors {
    all: Vec<Arc<GpuExecutor>>,
    is_closed: bool,
}

impl GdsMover {
    pub fn new(engine: Engine, config: GdsConfig) -> Self {
        // Asked once, without creating a context: a process that only holds host memory must not
        // take memory of a GPU.
        let no_gpu = match Gpu::count() {
            Ok(0) => Some("the NVIDIA driver sees no GPU".into()),
            Ok(_) => None,
            Err(e) => Some(e.to_string()),
        };
        GdsMover(Arc::new(MoverInner {
            engine,
            config,
            no_gpu,
            cufile: OnceLock::new(),
            pinned: Mutex::default(),
            executors: Mutex::default(),
            counters: GdsCounters::default(),
        }))
    }

    /// Decides whether cuFile is used, if the configuration names a GPU for that or requires cuFile.
    ///
    /// # Errors
    /// `Unsupported`, with the reason, if the required cuFile or the named GPU cannot be used.
    pub fn decide_cufile(&self) -> Result<(), Error> {
        let MoverInner { config, .. } = &*self.0;
        if config.cufile == CufileMode::Off {
            // Without a call of a GPU library.
            let _ = self.0.cufile.set(Err("cuFile is switched off by the configuration".into()));
            return Ok(());
        }
        let required = config.cufile == CufileMode::Require;
        // Without a named GPU the decision waits for the first transfer, which names one.
        let Some(ordinal) = config.gpu.or(required.then_some(0)) else { return Ok(()) };
        let gpu = match Gpu::open(ordinal) {
            Ok(gpu) => gpu,
            // A configuration with a GPU also opens on a machine that has none: the tier then
            // serves host memory.
            Err(_) if !required && self.0.no_gpu.is_some() => return Ok(()),
            Err(e) => {
                return Err(Error::new(ErrorKind::Unsupported, "cannot use the GPU").with_source(e));
            }
        };
        // In mode `Auto` the reason is kept for the status, and pinned memory is used.
        match self.0.cufile_or_reason(&gpu) {
            Err(why) if required => {
                let what = format!(
                    "cuFile is required, and cannot be used: {why}; or choose the mode auto"
                );
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            _ => Ok(()),
        }
    }

    /// Registers GPU memory with cuFile. Returns the number of bytes, and how or why not all.
    pub fn register_gpu(&self, arena: &Arena) -> (usize, String) {
        let Some(gpu) = arena.gpu() else { return (0, "not GPU memory".into()) };
        match self.0.cufile_or_reason(gpu) {
            Ok(cufile) => match cufile.register(arena) {
                (bytes, None) => (bytes, "registered with cuFile".into()),
                (bytes, Some(why)) => (bytes, why),
            },
            Err(why) => (0, why.clone()),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    fn submit_to_engine(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let finish = move |Finished { job, result, .. }: Finished| {
            done(Moved {
                transfer: to_transfer(job),
                result: result.map_err(io_error),
                unseen: false,
            });
        };
        self.0.engine.submit(to_job(transfer), finish).map_err(|refused| Refused {
            closed: matches!(refused.why, RefusalReason::Closed),
            transfer: to_transfer(refused.job),
        })
    }
}

impl MoverInner {
    /// cuFile, or why it is not used; decided with `gpu` on the first call.
    fn cufile_or_reason(&self, gpu: &Gpu) -> &Result<Arc<CufileLoader>, String> {
        // Later callers block here until the first has decided. `open_timeout` bounds the calls of NVIDIA's library.
        self.cufile.get_or_init(|| {
            let decided = CufileLoader::new(&self.config, gpu).map(Arc::new);
            let dir = self.config.disk.path.display();
            match &decided {
                Ok(cufile) => {
                    tracing::info!("{dir}: loads into GPU memory by {}", cufile.describe())
                }
                Err(why) => tracing::info!(
                    "{dir}: loads into GPU memory through pinned memory, not by cuFile: {why}"
                ),
            }
            decided
        })
    }

    /// cuFile, if it is used.
    fn cufile(&self, gpu: &Gpu) -> Option<Arc<CufileLoader>> {
        let cufile = self.cufile_or_reason(gpu).as_ref().ok()?;
        // Disabled after a permanent error: the caller then takes the way through pinned memory.
        cufile.disabled_reason().is_none().then(|| Arc::clone(cufile))
    }

    /// The data path to a GPU, and the reason for it.
    fn describe_data_path(&self) -> String {
        let pinned =
            format!("GPU memory through pinned pieces of {} bytes", self.config.piece_bytes);
        match (&self.no_gpu, self.cufile.get()) {
            (Some(why), _) => format!("host memory only: {why}"),
            (None, None) => {
                format!("{pinned}, unless cuFile works (mode {:?})", self.config.cufile)
            }
            (None, Some(Err(why))) => format!("{pinned}, not by cuFile: {why}"),
            (None, Some(Ok(cufile))) => match cufile.disabled_reason() {
                None => {
                    format!("GPU memory by {}, proof {:?}", cufile.describe(), self.config.proof)
                }
                Some(why) => format!("{pinned}, by cuFile no more: {why}"),
            },
        }
    }

    /// The pinned memory, allocated on the first call. After a failure the next call tries again.
    fn pinned(&self, gpu: &Gpu) -> io::Result<Arc<PinnedMemory>> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = &*pinned {
            return Ok(Arc::clone(memory));
        }
        // Under the lock: two first transfers would otherwise both pin the memory, which takes long
        // and counts against the limit of locked memory.
        let memory = Arc::new(PinnedMemory::new(&self.config, gpu, &self.engine)?);
        *pinned = Some(Arc::clone(&memory));
        Ok(memory)
    }

    fn executors(&self) -> MutexGuard<'_, Executors> {
        self.executors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The executor of a GPU, started on the first use of that GPU.
    fn executor(&self, gpu: Option<&Gpu>) -> io::Result<Arc<GpuExecutor>> {
        let gpu = gpu.ok_or_else(|| {
            let what = "GPU memory without a GPU; use Arena::device or Lease::from_device";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let mut executors = self.executors();
        // `close` has taken the executors; one that is started now would never be closed.
        if executors.is_closed {
            return Err(closed_error());
        }
        if let Some(executor) = executors.all.iter().find(|executor| executor.gpu() == gpu) {
            return Ok(Arc::clone(executor));
        }
        let executor = GpuExecutor::start(gpu, self.config.threads, self.config.open_timeout)?;
        executors.all.push(Arc::clone(&executor));
        Ok(executor)
    }
}

/// The GPU of the first part outside host memory; `None` if all parts are in host memory.
fn gpu_of(parts: &[Part]) -> Option<Option<&Gpu>> {
    parts.iter().find_map(|part| match part {
        Part::Read { into, .. } => (!into.place().is_host()).then(|| into.gpu()),
        Part::Write { from, .. } => (!from.place().is_host()).then(|| from.gpu()),
    })
}

impl Mover for GdsMover {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        // Transfers between a file and host memory need no GPU, and cost no more than in the file
        // tier.
        let Some(gpu) = gpu_of(&transfer.parts) else {
            return self.submit_to_engine(transfer, done);
        };
        match self.0.executor(gpu) {
            Ok(executor) => {
                let completion = TransferCompletion::new(transfer, done);
                let inner = Arc::clone(&self.0);
                executor.spawn(load::load(inner, Arc::clone(&executor), completion));
            }
            // An error is reported through `done`, which returns the memory; `Refused` is for the
            // engine alone.
            Err(e) => TransferCompletion::new(transfer, done).finish(Err(e), false),
        }
        Ok(())
    }

    fn fetch(&self, from: Vec<View>, done: Fetched) {
        // A save may evict other chunks: close their files, so that their space becomes free.
        // An open descriptor keeps the blocks of a deleted file.
        if let Some(Ok(cufile)) = self.0.cufile.get() {
            cufile.close_deleted_files();
        }
        let gpu = from.iter().find(|view| !view.place().is_host()).and_then(View::gpu);
        let executor = self.0.executor(gpu);
        let completion = FetchCompletion::new(done);
        match executor {
            Ok(executor) => {
                let inner = Arc::clone(&self.0);
                let save = StagedSave { from, completion };
                executor.spawn(save_staging::stage(inner, Arc::clone(&executor), save));
            }
            Err(e) => completion.finish(Err(e)),
        }
    }

    fn upload(&self, from: View, into: Vec<Lease>, done: Uploaded) {
        let gpu = into.iter().find(|lease| !lease.place().is_host()).and_then(Lease::gpu);
        let executor = self.0.executor(gpu);
        let completion = UploadCompletion::new(from, into, done);
        match executor {
            Ok(executor) => {
                let inner = Arc::clone(&self.0);
                executor.spawn(upload::upload(inner, Arc::clone(&executor), completion));
            }
            Err(e) => completion.finish(Err(e)),
        }
    }

    fn put(&self, into: &mut Lease, at: usize, bytes: &[u8]) -> io::Result<()> {
        let executor = self.0.executor(into.gpu())?;
        executor.with_stream(|stream| stream.upload(bytes, into, at, || ()))?;
        // `upload` returns after the copy has ended.
        into.assume_filled(at + bytes.len());
        Ok(())
    }

    fn reaches(&self, place: Place) -> bool {
        place.is_host() || self.0.no_gpu.is_none()
    }

    fn fetch_bytes_max(&self) -> u64 {
        self.0.config.staging_bytes as u64
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters.all()
    }

    fn close(&self) {
        let executors = {
            let mut executors = self.0.executors();
            // Set under the lock that starts executors, so that none is started behind this.
            executors.is_closed = true;
            std::mem::take(&mut executors.all)
        };
        // The engine first: its reads complete, and the tasks that wait for them can finish.
        self.0.engine.close();
        let closed = executors.iter().filter(|executor| executor.close()).count();
        // A thread stuck in cuFile may still read into registered memory.
        if let Some(Ok(cufile)) = self.0.cufile.get()
            && closed == executors.len()
        {
            cufile.close();
        }
    }

    fn describe(&self) -> String {
        let engine = &self.0.engine;
        format!("engine {:?}: {}; {}", engine.kind(), engine.reason(), self.0.describe_data_path())
    }
}
