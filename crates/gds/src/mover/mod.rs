//! Moves chunks between files and memory, the host's or a GPU's.

mod counts;
mod direct;
mod duty;
mod engine;
mod fetch;
mod lane;
mod load;
mod pinned;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kvtier_core::{Error, ErrorKind};
use kvtier_disk::{Fetched, Finish, Moved, Mover, Part, Refused, Transfer};
use kvtier_mem::cuda::Gpu;
use kvtier_mem::{Arena, Lease, Place, View};
use kvtier_uring::{Engine, Finished, RefusedWhy};

use self::counts::Counts;
use self::direct::Direct;
use self::duty::{Duty, FetchDuty, closed};
use self::engine::{io_error, job_of, transfer_of};
use self::lane::Lane;
use self::pinned::PinnedMemory;
use crate::config::{CufileMode, GdsConfig};

/// The mover of the GPU tier.
#[derive(Debug)]
pub struct GdsMover(Arc<Inner>);

/// What its tasks share.
#[derive(Debug)]
pub struct Inner {
    engine: Engine,
    config: GdsConfig,
    /// Why there is no GPU here, if there is none.
    no_gpu: Option<String>,
    /// cuFile, or why it is not used; unset before anybody asked.
    direct: OnceLock<Result<Arc<Direct>, String>>,
    pinned: Mutex<Option<Arc<PinnedMemory>>>,
    lanes: Mutex<Lanes>,
    counts: Counts,
}

/// One for each GPU that memory came from so far.
#[derive(Debug, Default)]
struct Lanes {
    all: Vec<Arc<Lane>>,
    closed: bool,
}

impl GdsMover {
    pub fn new(engine: Engine, config: GdsConfig) -> Self {
        let no_gpu = match Gpu::count() {
            Ok(0) => Some("the NVIDIA driver sees no GPU".into()),
            Ok(_) => None,
            Err(e) => Some(e.to_string()),
        };
        let (direct, pinned, lanes) = (OnceLock::new(), Mutex::default(), Mutex::default());
        GdsMover(Arc::new(Inner {
            engine,
            config,
            no_gpu,
            direct,
            pinned,
            lanes,
            counts: Counts::default(),
        }))
    }

    /// Decides about cuFile now if the configuration says so. `Unsupported`, with the reason, where
    /// it requires what there is not.
    pub fn decide(&self) -> Result<(), Error> {
        let Inner { config, .. } = &*self.0;
        if config.cufile == CufileMode::Off {
            // Not a GPU is touched for it.
            let _ = self.0.direct.set(Err("cuFile is switched off by the configuration".into()));
            return Ok(());
        }
        let required = config.cufile == CufileMode::Require;
        let Some(ordinal) = config.gpu.or(required.then_some(0)) else { return Ok(()) };
        let gpu = match Gpu::open(ordinal) {
            Ok(gpu) => gpu,
            Err(_) if !required && self.0.no_gpu.is_some() => return Ok(()),
            Err(e) => {
                return Err(Error::new(ErrorKind::Unsupported, "cannot use the GPU").with_source(e));
            }
        };
        match self.0.decision(&gpu) {
            Err(why) if required => {
                let what = format!(
                    "cuFile is required, and cannot be used: {why}; or choose the mode auto"
                );
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            _ => Ok(()),
        }
    }

    /// Registers GPU memory with cuFile: how many bytes, and why not all.
    pub fn register_gpu(&self, arena: &Arena) -> (usize, String) {
        let Some(gpu) = arena.gpu() else { return (0, "not memory of a GPU's".into()) };
        match self.0.decision(gpu) {
            Ok(direct) => match direct.register(arena) {
                (bytes, None) => (bytes, "registered with cuFile".into()),
                (bytes, Some(why)) => (bytes, why),
            },
            Err(why) => (0, why.clone()),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    fn submit_near(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let finish = move |Finished { job, result, .. }: Finished| {
            done(Moved {
                transfer: transfer_of(job),
                result: result.map_err(io_error),
                unseen: false,
            });
        };
        self.0.engine.submit(job_of(transfer), finish).map_err(|refused| Refused {
            closed: matches!(refused.why, RefusedWhy::Closed),
            transfer: transfer_of(refused.job),
        })
    }
}

impl Inner {
    /// Whether cuFile is used, found out with `gpu` if nobody asked before.
    fn decision(&self, gpu: &Gpu) -> &Result<Arc<Direct>, String> {
        self.direct.get_or_init(|| {
            let decided = Direct::new(&self.config, gpu).map(Arc::new);
            let dir = self.config.disk.path.display();
            match &decided {
                Ok(direct) => {
                    tracing::info!("{dir}: loads into GPU memory by {}", direct.describe())
                }
                Err(why) => tracing::info!(
                    "{dir}: loads into GPU memory through pinned memory, not by cuFile: {why}"
                ),
            }
            decided
        })
    }

    /// cuFile, while it is used.
    fn direct(&self, gpu: &Gpu) -> Option<Arc<Direct>> {
        let direct = self.decision(gpu).as_ref().ok()?;
        direct.off().is_none().then(|| Arc::clone(direct))
    }

    /// Which way bytes go to a GPU, and why.
    fn way(&self) -> String {
        let pinned =
            format!("GPU memory through pinned pieces of {} bytes", self.config.piece_bytes);
        match (&self.no_gpu, self.direct.get()) {
            (Some(why), _) => format!("host memory only: {why}"),
            (None, None) => {
                format!("{pinned}, unless cuFile works (mode {:?})", self.config.cufile)
            }
            (None, Some(Err(why))) => format!("{pinned}, not by cuFile: {why}"),
            (None, Some(Ok(direct))) => match direct.off() {
                None => {
                    format!("GPU memory by {}, proof {:?}", direct.describe(), self.config.proof)
                }
                Some(why) => format!("{pinned}, by cuFile no more: {why}"),
            },
        }
    }

    /// The pinned memory, taken now if nobody needed it so far. A failure is tried again by the
    /// next who needs it.
    fn pinned(&self, gpu: &Gpu) -> io::Result<Arc<PinnedMemory>> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = &*pinned {
            return Ok(Arc::clone(there));
        }
        let made = Arc::new(PinnedMemory::new(&self.config, gpu, &self.engine)?);
        *pinned = Some(Arc::clone(&made));
        Ok(made)
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads of a GPU, started now if nothing of it came by so far.
    fn lane(&self, gpu: Option<&Gpu>) -> io::Result<Arc<Lane>> {
        let gpu = gpu.ok_or_else(|| {
            let what =
                "GPU memory that no GPU was named for; use Arena::device or Lease::from_device";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let mut lanes = self.lanes();
        if lanes.closed {
            return Err(closed());
        }
        if let Some(lane) = lanes.all.iter().find(|lane| lane.gpu() == gpu) {
            return Ok(Arc::clone(lane));
        }
        let lane = Lane::start(gpu, self.config.threads, self.config.open_timeout)?;
        lanes.all.push(Arc::clone(&lane));
        Ok(lane)
    }
}

/// The GPU of the first part that the CPU does not reach; `None` for a transfer of the host's.
fn far_gpu(parts: &[Part]) -> Option<Option<&Gpu>> {
    parts.iter().find_map(|part| match part {
        Part::Read { into, .. } => (!into.place().is_host()).then(|| into.gpu()),
        Part::Write { from, .. } => (!from.place().is_host()).then(|| from.gpu()),
    })
}

impl Mover for GdsMover {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let Some(gpu) = far_gpu(&transfer.parts) else { return self.submit_near(transfer, done) };
        match self.0.lane(gpu) {
            Ok(lane) => {
                let (inner, duty) = (Arc::clone(&self.0), Duty::new(transfer, done));
                lane.spawn(load::load(inner, Arc::clone(&lane), duty));
            }
            Err(e) => Duty::new(transfer, done).finish(Err(e), false),
        }
        Ok(())
    }

    fn fetch(&self, from: Vec<View>, done: Fetched) {
        // Saves are what makes other files go.
        if let Some(Ok(direct)) = self.0.direct.get() {
            direct.forget_deleted();
        }
        let gpu = from.iter().find(|view| !view.place().is_host()).and_then(View::gpu);
        let lane = self.0.lane(gpu);
        let duty = FetchDuty::new(done);
        match lane {
            Ok(lane) => {
                lane.spawn(fetch::fetch(Arc::clone(&self.0), Arc::clone(&lane), (from, duty)))
            }
            Err(e) => duty.finish(Err(e)),
        }
    }

    fn put(&self, into: &mut Lease, at: usize, bytes: &[u8]) -> io::Result<()> {
        let lane = self.0.lane(into.gpu())?;
        lane.with_stream(|stream| stream.upload(bytes, into, at, || ()))?;
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
        self.0.counts.all()
    }

    fn close(&self) {
        let lanes = {
            let mut lanes = self.0.lanes();
            lanes.closed = true;
            std::mem::take(&mut lanes.all)
        };
        // Reads end first, so that who waits for one goes on to its end.
        self.0.engine.close();
        let ended = lanes.iter().filter(|lane| lane.close()).count();
        // What is still read into stays registered.
        if let Some(Ok(direct)) = self.0.direct.get()
            && ended == lanes.len()
        {
            direct.close();
        }
    }

    fn describe(&self) -> String {
        let engine = &self.0.engine;
        format!("engine {:?}: {}; {}", engine.kind(), engine.reason(), self.0.way())
    }
}
