//! The GPU tier.

use kvtier_core::{Error, ErrorKind};
use kvtier_disk::Disk;
use kvtier_mem::Arena;
use kvtier_uring::{Engine, EngineConfig, Registered};

use crate::GdsConfig;
use crate::mover::GdsMover;

/// The outcome of registering GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuRegistration {
    /// The number of registered bytes.
    pub bytes: usize,
    /// The library used, or the reason why not all bytes were registered.
    pub reason: String,
}

/// A tier of files in a directory, for GPU and host memory.
#[derive(Debug)]
pub struct GdsTier(Disk<GdsMover>);

impl GdsTier {
    /// Opens the directory and starts the I/O engine. Without a GPU it works as a file tier.
    ///
    /// # Errors
    /// `Invalid` for a wrong configuration, `Unsupported` if the engine or a required cuFile cannot
    /// be used, and the errors of [`Disk::open`]. They name the path, the cause and the remedy.
    pub fn open(config: GdsConfig) -> Result<Self, Error> {
        config.check()?;
        let engine =
            Engine::new(EngineConfig::default().with_kind(config.engine)).map_err(|e| {
                Error::new(ErrorKind::Unsupported, "cannot start the I/O engine")
                    .with_cause(e, "try another engine or `auto`")
            })?;
        let disk = config.disk.clone();
        let disk = Disk::open(disk, GdsMover::new(engine, config))?;
        // After the directory was opened: the probe writes into its `.kvtier`.
        disk.mover().decide_cufile()?;
        Ok(GdsTier(disk))
    }

    /// Registers a GPU arena with cuFile, in regions of at most 16 MiB, until the tier is dropped.
    /// This is optional and only saves time; without cuFile it has no effect.
    pub fn register_gpu(&self, arena: &Arena) -> GpuRegistration {
        let (bytes, reason) = self.0.mover().register_gpu(arena);
        GpuRegistration { bytes, reason }
    }

    /// Registers an arena of host memory with the I/O engine, which then transfers its leases with
    /// less work. This is optional.
    ///
    /// # Errors
    /// `Io` if the kernel refuses the registration.
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let failed =
            |e| Error::new(ErrorKind::Io, "cannot register memory with the engine").with_source(e);
        self.0.mover().engine().register(arena).map_err(failed)
    }
}

kvtier_disk::tier_of_disk!(GdsTier);
