use std::sync::Arc;

use kvtier_core::{
    Caps, Ctx, Cursor, Done, Error, ErrorKind, Hold, HoldId, Key, KeyPage, Listener, Load, Loaded, LookedUp, Mode,
    Observe, Removed, Save, Saved, Status, Ticket, Tier, Usage,
};
use kvtier_disk::Disk;
use kvtier_mem::Arena;
use kvtier_uring::{Engine, EngineConfig, Registered};

use crate::GdsConfig;
use crate::mover::GdsMover;

/// What came of registering GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuRegistered {
    /// How many bytes were registered.
    pub bytes: usize,
    /// Why not all, or with what.
    pub reason: String,
}

/// A tier of files in a directory, for memory of GPUs and of the host.
#[derive(Debug)]
pub struct GdsTier(Disk<GdsMover>);

impl GdsTier {
    /// Opens the directory and starts the engine. Errors name the path, the cause and what to do. Without a GPU it is a file tier.
    pub fn open(config: GdsConfig) -> Result<Self, Error> {
        config.check()?;
        let engine = Engine::new(EngineConfig::default().with_kind(config.engine)).map_err(|e| {
            Error::new(ErrorKind::Unsupported, "cannot start the I/O engine; try another engine or `auto`")
                .with_source(e)
        })?;
        let disk = config.disk.clone();
        let disk = Disk::open(disk, GdsMover::new(engine, config))?;
        disk.mover().decide()?;
        Ok(GdsTier(disk))
    }

    /// Registers an arena on a GPU with cuFile, in regions of at most 16 MiB, until the tier is dropped. Without, and where cuFile is not
    /// used, everything works as well. Says what came of it.
    pub fn register_gpu(&self, arena: &Arena) -> GpuRegistered {
        let (bytes, reason) = self.0.mover().register_gpu(arena);
        GpuRegistered { bytes, reason }
    }

    /// Registers an arena of host memory with the engine, so that its leases move with less work. Without, everything works as well. Says
    /// what came of it.
    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let failed = |e| Error::new(ErrorKind::Io, "cannot register memory with the engine").with_source(e);
        self.0.mover().engine().register(arena).map_err(failed)
    }
}

impl Tier for GdsTier {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn lookup(&self, ctx: &Ctx, keys: Arc<[Key]>, mode: Mode, hold: Hold) -> Ticket<Result<LookedUp, Error>> {
        self.0.lookup(ctx, keys, mode, hold)
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.0.load(ctx, ops)
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.0.save(ctx, ops)
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        self.0.remove(ctx, keys)
    }

    fn release(&self, hold: HoldId) {
        self.0.release(hold);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        self.0.ready(ctx)
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.0.close()
    }
}

impl Observe for GdsTier {
    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        self.0.keys(from, max)
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.0.listen(listener);
    }

    fn status(&self) -> Status {
        self.0.status()
    }
}
