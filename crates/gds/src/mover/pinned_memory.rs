use std::io;

use kvtier_mem::cuda::Gpu;
use kvtier_mem::{Arena, ArenaConfig};
use kvtier_uring::Engine;

use crate::GdsConfig;

/// Pinned host memory between files and GPUs.
#[derive(Debug)]
pub struct PinnedMemory {
    /// For loads: slots of one piece each.
    pub buffers: Arena,
    /// For saves: one chunk at a time.
    pub staging: Arena,
}

impl PinnedMemory {
    /// Allocates and pins the memory for all GPUs, and registers it with the I/O engine.
    pub fn new(config: &GdsConfig, gpu: &Gpu, engine: &Engine) -> io::Result<Self> {
        let buffers = ArenaConfig::huge(config.buffer_bytes).with_slots(config.piece_bytes);
        let pin = |config| Arena::pinned(config, gpu).map_err(io::Error::other);
        let memory = PinnedMemory {
            buffers: pin(buffers)?,
            staging: pin(ArenaConfig::huge(config.staging_bytes))?,
        };
        for arena in [&memory.buffers, &memory.staging] {
            // Where the kernel refuses fixed buffers the memory is used all the same, with more
            // work per request.
            let registered = engine.register(arena).map_err(io::Error::other)?;
            tracing::debug!(fixed = registered.fixed, "pinned memory: {}", registered.reason);
        }
        Ok(memory)
    }
}
