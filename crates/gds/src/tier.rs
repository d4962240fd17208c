use kvtier_core::{Error, ErrorKind};
use kvtier_disk::Disk;
use kvtier_mem::Arena;
use kvtier_uring::{Engine, EngineConfig, Registered};

use crate::GdsConfig;
use crate::mover::GdsMover;

/// What came of registering GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuRegistration {
    /// How many bytes were registered.
    pub bytes: usize,
    /// Why not all, or with what.
    pub reason: String,
}

/// A tier of files in a directory, for memory of GPUs and of the host.
#[derive(Debug)]
pub struct GdsTier(Disk<GdsMover>);

impl GdsTier {
    /// Opens the directory and starts the engine. Errors name the path, the cause and what to do.
    /// Without a GPU it is a file tier.
    pub fn open(config: GdsConfig) -> Result<Self, Error> {
        config.check()?;
        let engine =
            Engine::new(EngineConfig::default().with_kind(config.engine)).map_err(|e| {
                Error::new(ErrorKind::Unsupported, "cannot start the I/O engine")
                    .with_cause(e, "try another engine or `auto`")
            })?;
        let disk = config.disk.clone();
        let disk = Disk::open(disk, GdsMover::new(engine, config))?;
        disk.mover().decide()?;
        Ok(GdsTier(disk))
    }

    /// Registers an arena on a GPU with cuFile, in regions of at most 16 MiB, until the tier is
    /// dropped. Without, and where cuFile is not used, everything works as well. Says what came
    /// of it.
    pub fn register_gpu(&self, arena: &Arena) -> GpuRegistration {
        let (bytes, reason) = self.0.mover().register_gpu(arena);
        GpuRegistration { bytes, reason }
    }

    /// Registers an arena of host memory with the engine, so that its leases move with less work.
    /// Without, everything works as well. Says what came of it.
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let failed =
            |e| Error::new(ErrorKind::Io, "cannot register memory with the engine").with_source(e);
        self.0.mover().engine().register(arena).map_err(failed)
    }
}

kvtier_disk::tier_of_disk!(GdsTier);
