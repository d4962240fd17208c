use kvtier_core::{Error, ErrorKind};
use kvtier_disk::Disk;
use kvtier_mem::Arena;
use kvtier_uring::{Engine, EngineConfig, EngineKind, Registered};

use crate::FileConfig;
use crate::engine_mover::EngineMover;

/// A tier of files in a directory.
#[derive(Debug)]
pub struct FileTier(Disk<EngineMover>);

impl FileTier {
    /// Opens the directory and starts the engine. Errors name the path, the cause and what to do.
    pub fn open(config: FileConfig) -> Result<Self, Error> {
        // The engine first: where it cannot start, the directory is not touched.
        let mut engine = EngineConfig::default();
        engine.kind = config.engine;
        let engine = Engine::new(engine).map_err(|e| {
            Error::new(ErrorKind::Unsupported, "cannot start the I/O engine")
                .with_cause(e, "try another engine or `auto`")
        })?;
        Ok(FileTier(Disk::open(config.disk, EngineMover(engine))?))
    }

    /// Registers an arena's memory with the engine, so that its leases move with less work.
    /// Without, everything works as well. Says what came of it.
    ///
    /// ```
    /// use kvtier_core::mem::{Arena, ArenaConfig};
    /// use kvtier_file::{FileConfig, FileTier};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let tier = FileTier::open(FileConfig::new(dir.path(), 64 << 20))?;
    /// let arena = Arena::new(ArenaConfig::huge(8 << 20))?;
    /// let registered = tier.register(&arena)?;
    /// println!("{}", registered.reason); // whether io_uring pinned the memory, and if not, why
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let failed =
            |e| Error::new(ErrorKind::Io, "cannot register memory with the engine").with_source(e);
        self.0.mover().0.register(arena).map_err(failed)
    }

    /// Which engine moves the bytes.
    pub fn engine(&self) -> EngineKind {
        self.0.mover().0.kind()
    }
}

kvtier_disk::tier_of_disk!(FileTier);
