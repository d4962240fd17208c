use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::VllmRunConfig;
use kvtier_core::{Clock, Namespace};
use kvtier_disk::{
    ChunkShape, DiskConfig, Durability, Layout, LmcacheEviction, PolicyKind, Quotas, TierEncoding,
    Verify,
};
use kvtier_uring::EngineKind;

/// How to open a file tier.
///
/// ```
/// use kvtier_file::{Durability, FileConfig, FileTier};
/// # use kvtier_core::Tier;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path();
/// let config = FileConfig::new(path, 100 << 30) // 100 GiB
///     .with_durability(Durability::None) // a cache may lose its last chunks in a power cut
///     .with_name("nvme0");
/// let tier = FileTier::open(config)?;
/// assert_eq!(&*tier.caps().name, "nvme0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileConfig {
    pub(crate) disk: DiskConfig,
    pub(crate) engine: EngineKind,
}

impl FileConfig {
    /// A tier in the directory `path` (made if it is not there) of at most `capacity_bytes`,
    /// padding and footers included.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        FileConfig { disk: DiskConfig::new(path, capacity_bytes), engine: EngineKind::Auto }
    }

    /// Chooses what moves the bytes; the default asks the machine.
    pub fn with_engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// Sets the clock that deadlines, holds, hints and the tier's own rounds go by, for tests.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.disk.clock = clock;
        self
    }

    /// Sets the cap as a share of the file system's bytes, above 0 and at most 1, instead of bytes.
    pub fn with_capacity_share(mut self, share: f64) -> Self {
        self.disk.capacity_share = Some(share);
        self
    }

    /// Allows chunks to be deleted when the directory holds more than the cap, and the cap it was
    /// opened with last is larger.
    pub fn with_shrink(mut self, allow: bool) -> Self {
        self.disk.shrink = allow;
        self
    }

    /// Sets the tenant and the geometry of the chunks. A directory that was opened with another
    /// geometry for the tenant is refused. Files of a foreign layout do not name a tenant;
    /// without this setting the first key names it.
    pub fn with_namespace(mut self, namespace: Arc<Namespace>) -> Self {
        self.disk.namespace = Some(namespace);
        self
    }

    /// Chooses when a save is answered.
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.disk.durability = durability;
        self
    }

    /// Sets how often the journal of use is written (10 s): what a process that is killed forgets.
    pub fn with_flush_every(mut self, interval: Duration) -> Self {
        self.disk.flush_every = interval;
        self
    }

    /// Sets how many bytes of the file system stay free, whatever the cap says; the default is one
    /// hundredth of it, at most 1 GiB.
    pub fn with_free_min(mut self, bytes: u64) -> Self {
        self.disk.free_min_bytes = Some(bytes);
        self
    }

    /// Chooses whose files the directory holds: ours by default, or LMCache's, byte for byte.
    pub fn with_layout(mut self, layout: Layout) -> Self {
        self.disk.layout = layout;
        self
    }

    /// Chooses what becomes of chunks in a foreign layout that nothing proves.
    pub fn with_verify(mut self, verify: Verify) -> Self {
        self.disk.verify = verify;
        self
    }

    /// Sets the tensor of a full chunk, for layouts whose files state it (`lmcache-gds`). Without
    /// it, existing files supply the shape.
    pub fn with_chunk_shape(mut self, shape: ChunkShape) -> Self {
        self.disk.chunk_shape = Some(shape);
        self
    }

    /// For layout `vllm-fs`: sets the configuration of the vLLM engine whose chunks these are, which
    /// is written beside them as vLLM does. A directory with another one is refused.
    pub fn with_vllm_run_config(mut self, config: Arc<VllmRunConfig>) -> Self {
        self.disk.vllm_run_config = Some(config);
        self
    }

    /// Sets how often the files of a foreign layout are counted (60 s).
    pub fn with_sweep_every(mut self, interval: Duration) -> Self {
        self.disk.sweep_every = interval;
        self
    }

    /// Sets the most chunks a second that go in the background so that those bytes stay free
    /// (1000).
    pub fn with_deletes_per_second_max(mut self, chunks: u32) -> Self {
        self.disk.deletes_per_second_max = chunks;
        self
    }

    /// Names the tier in errors and reports; the default is `file`.
    pub fn with_name(mut self, name: &str) -> Self {
        self.disk.name = name.into();
        self
    }

    /// Sets the most ops and bytes in flight.
    pub fn with_inflight(mut self, ops_max: u32, bytes_max: u64) -> Self {
        self.disk.ops_max = ops_max;
        // Both bounds count: many small chunks reach the first, a few large ones the second.
        self.disk.inflight_bytes_max = bytes_max;
        self
    }

    /// Chooses which chunks go first; the default is [`PolicyKind::Default`].
    pub fn with_policy(mut self, policy: PolicyKind) -> Self {
        self.disk.policy = policy;
        self
    }

    /// Limits how much each tenant (cache salt) may have.
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.disk.quotas = quotas;
        self
    }

    /// Evicts to the letter as LMCache does, on top.
    pub fn with_compat(mut self, compat: LmcacheEviction) -> Self {
        self.disk.compat = Some(compat);
        self
    }

    /// Sets how chunks are encoded when they are saved, and decoded when they are loaded. By default
    /// they are saved as they are, and those that other processes encoded without a key are decoded.
    pub fn with_encoding(mut self, encoding: Arc<TierEncoding>) -> Self {
        self.disk.encoding = encoding;
        self
    }

    /// Sets the most memory for encoded chunks on their way (256 MiB): half of it for saves, half
    /// for loads. A chunk that does not fit into its half is refused.
    pub fn with_encode_bytes(mut self, bytes: usize) -> Self {
        self.disk.encode_bytes = bytes;
        self
    }

    /// For tests: how long a save waits for space (1 s).
    #[doc(hidden)]
    pub fn with_space_wait(mut self, longest: Duration) -> Self {
        self.disk.space_wait_max = longest;
        self
    }

    /// What of it is the directory's, for another tier over the same kind of directory.
    pub fn into_disk(self) -> DiskConfig {
        self.disk
    }

    /// Sets the memory, in bytes, through which chunks in unaligned memory are copied; 0 refuses
    /// such chunks as `Invalid`.
    pub fn with_bounce(mut self, bytes: usize) -> Self {
        self.disk.bounce_bytes = bytes;
        self
    }
}
