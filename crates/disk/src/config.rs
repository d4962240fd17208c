use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use kvtier_codec::TierEncoding;
use kvtier_core::{Clock, Error, ErrorKind, Namespace};
use kvtier_evict::PolicyKind;
use kvtier_index::{LmcacheEviction, Quotas};
use kvtier_key::{ChunkShape, VllmRunConfig};

use crate::layout::{Layout, Verify};

/// When a save is answered. With each of them a load never returns a wrong byte: a file that a crash
/// tore is a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// When the chunk is written and named. A crash of the machine may lose it; a crash of the
    /// process does not.
    #[default]
    None,
    /// When the chunk and its name are on the device, each by itself.
    Fdatasync,
    /// When the chunk and its name are on the device, together with all that was saved meanwhile.
    Syncfs,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Durability::None),
            "fdatasync" => Ok(Durability::Fdatasync),
            "syncfs" => Ok(Durability::Syncfs),
            _ => {
                let what =
                    format!("no durability is called {text:?}; choose none, fdatasync or syncfs");
                Err(Error::new(ErrorKind::Invalid, what))
            }
        }
    }
}

/// How to open a directory tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directory; created if it is missing.
    pub path: PathBuf,
    /// The cap in bytes of files, padding and footers included.
    pub capacity_bytes: u64,
    /// The cap as a share of the file system's bytes, above 0 and at most 1; then `capacity_bytes`
    /// means nothing.
    pub capacity_share: Option<f64>,
    /// Whether a directory that holds more than the cap, and whose noted cap is larger, or that
    /// others have open with another cap, may be opened all the same: chunks are deleted.
    pub shrink: bool,
    /// The chunks' namespace. If set, the directory is opened only if it was never opened with other
    /// chunk sizes or another rule for partial chunks, for the same tenant and layout. Files of a
    /// foreign layout do not state their namespace: there a tenant has one layout, and with `None`
    /// the first key decides. A namespace with salts as tenants stands for those of all salts.
    pub namespace: Option<Arc<Namespace>>,
    /// The tier's name in errors and reports.
    pub name: String,
    /// The most ops in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// Memory for chunks whose own memory is not aligned, in bytes; they are copied once through
    /// it.
    pub bounce_bytes: usize,
    /// Which chunks go first.
    pub policy: PolicyKind,
    /// How much each tenant (cache salt) may have. Each process keeps to it by itself.
    pub quotas: Quotas,
    /// Eviction to the letter as LMCache does it, on top. Each process does it by itself.
    pub compat: Option<LmcacheEviction>,
    /// What a save that was answered is worth after a crash of the machine.
    pub durability: Durability,
    /// When the file system has less free than this many bytes, chunks go although the cap would
    /// let them stay. `None`: one hundredth of the file system, at most 1 GiB. As much as the
    /// file system has, or more, is `Invalid`.
    pub free_min_bytes: Option<u64>,
    /// The most chunks a second that go in the background for `free_min_bytes`, so that their
    /// deletes do not hold up saves and loads.
    pub deletes_per_second_max: u32,
    /// How often the journal of use is written; what happened since is forgotten by a process that
    /// is killed.
    pub flush_every: Duration,
    /// Threads for open, allocate, rename and unlink.
    pub threads: usize,
    /// The layout of the directory's files.
    pub layout: Layout,
    /// How loads treat chunks without facts; only foreign layouts have such.
    pub verify: Verify,
    /// The tensor of a full chunk, for layouts whose files state it. Without it, the shape in stored
    /// files is used for others of the same model and worker.
    pub chunk_shape: Option<ChunkShape>,
    /// For layout `vllm-fs`: the configuration of the vLLM engine whose chunks these are. It is
    /// written beside them as vLLM does; a directory with another one under its name is refused, and
    /// so are keys of another one. Without it chunks of any are served, and none is written.
    pub vllm_run_config: Option<Arc<VllmRunConfig>>,
    /// How often the files of a foreign layout, which others write and delete, are counted.
    pub sweep_every: Duration,
    /// How long a save waits for space that others free before it is shed. Tests set it longer than a
    /// machine may stand still.
    #[doc(hidden)]
    pub space_wait_max: Duration,
    /// How chunks are encoded when they are saved, and decoded when they are loaded.
    pub encoding: Arc<TierEncoding>,
    /// The most memory for encoded chunks on their way, in bytes: half of it for saves, half for
    /// loads. It is allocated when the first encoded chunk comes.
    pub encode_bytes: usize,
    /// The clock that deadlines, holds, hints and the tier's own rounds go by.
    pub clock: Clock,
}

impl DiskConfig {
    /// A tier in `path` of at most `capacity_bytes`, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        DiskConfig {
            path: path.into(),
            capacity_bytes,
            capacity_share: None,
            shrink: false,
            namespace: None,
            name: "file".into(),
            ops_max: 256,
            inflight_bytes_max: 1 << 30,
            bounce_bytes: 64 << 20,
            policy: PolicyKind::Default,
            quotas: Quotas::new(),
            compat: None,
            durability: Durability::None,
            free_min_bytes: None,
            deletes_per_second_max: 1000,
            flush_every: Duration::from_secs(10),
            threads: 4,
            layout: Layout::Kvtier,
            verify: Verify::Lenient,
            chunk_shape: None,
            vllm_run_config: None,
            sweep_every: Duration::from_secs(60),
            space_wait_max: Duration::from_secs(1),
            encoding: Arc::default(),
            encode_bytes: 256 << 20,
            clock: Clock::real(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if let Some(share) = self.capacity_share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return bad(format!(
                "a capacity of {share} of the file system cannot be; give a share above 0 and at most 1"
            ));
        }
        if self.capacity_bytes < 8192 && self.capacity_share.is_none() {
            return bad(format!(
                "a capacity of {} bytes holds no chunk; give at least 8192",
                self.capacity_bytes
            ));
        }
        if self.ops_max == 0 || self.threads == 0 || self.inflight_bytes_max == 0 {
            return bad("ops_max, threads and inflight_bytes_max must be at least 1".into());
        }
        if let Some(Err(e)) = self.compat.map(|compat| compat.check()) {
            return Err(Error::new(ErrorKind::Invalid, "these shares cannot be").with_source(e));
        }
        if self.chunk_shape.is_some() && !self.layout.has_headers() {
            return bad(format!(
                "files of layout {} do not say what shape a chunk has: leave `shape` out, or choose layout lmcache-gds",
                self.layout
            ));
        }
        if self.vllm_run_config.is_some() && self.layout != Layout::VllmFs {
            return bad(format!(
                "files of layout {} have no configuration of vLLM beside them: leave `vllm_run_config` out, or choose layout vllm-fs",
                self.layout
            ));
        }
        if self.encoding.is_on() && self.layout.is_foreign() {
            return bad(format!(
                "files of layout {} hold chunks as they are: leave `encode` out, or choose layout kvtier",
                self.layout
            ));
        }
        if self.sweep_every.is_zero() {
            return bad("sweep_every must be more than 0; the files are counted that often".into());
        }
        if self.deletes_per_second_max == 0 {
            return bad("deletes_per_second_max must be at least 1; without deletes a full medium stays full".into());
        }
        if self.flush_every.is_zero() {
            return bad("flush_every must be more than 0; the journal is written that often".into());
        }
        Ok(())
    }
}
