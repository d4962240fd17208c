//! How the directory of one run is configured: what all its processes use.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fastrand::Rng;
use kvtier_codec::{Aes256Gcm, Chain, Decoder, Keyring, MasterKey, TierEncoding, stage_by_name};
use kvtier_core::{Clock, Ctx, Key};
use kvtier_disk::{DiskConfig, Durability, Layout, Verify};
use kvtier_key::{
    CacheEngineKey, ChunkHash, ChunkShape, DType, Digest, EngineHash, GDS_HEADER_BYTES, KeyId,
    KvRank, ObjectKey, VllmRunConfig,
};

use super::CAP_BYTES;
use super::medium::{Journal, Medium};
use crate::Scope;
use crate::fleet::model;

/// The vLLM engine whose chunks layout `vllm-fs` has.
static VLLM: LazyLock<VllmRunConfig> = LazyLock::new(|| {
    let fields = r#"{"model_name": "org/model", "tp_size": 1}"#;
    VllmRunConfig::from_json(fields).expect("a valid configuration")
});
/// The chain of stages that encode chunks.
const ENCODINGS: [&[&str]; 5] = [&[], &["lz4"], &["zstd:1"], &["aes"], &["lz4", "aes"]];

/// The time between two listings of a foreign layout.
pub const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The configuration of a run.
#[derive(Debug)]
pub struct Setup {
    pub scope: Scope,
    layout: Layout,
    stages: &'static [&'static str],
    durability: Durability,
    verify: Verify,
    /// The namespace is configured. Else the first key decides, and names are listed only then.
    is_declared: bool,
    /// Layout `vllm-fs` has the chunks of one configuration.
    run_config: Option<Arc<VllmRunConfig>>,
    /// Layouts with headers know the shape of chunks by the configuration. Else saves state it.
    has_shape: bool,
}

impl Setup {
    /// That of scope `directory`: files of kvtier, as they are.
    pub fn directory(rng: &mut Rng) -> Self {
        let durability = if rng.bool() { Durability::Fdatasync } else { Durability::None };
        Setup {
            scope: Scope::Directory,
            layout: Layout::Kvtier,
            stages: &[],
            durability,
            verify: Verify::Lenient,
            is_declared: false,
            run_config: None,
            has_shape: false,
        }
    }

    /// One of scope `layouts`.
    pub fn layouts(rng: &mut Rng, journal: Journal) -> Self {
        let durabilities = [Durability::None, Durability::Fdatasync, Durability::Syncfs];
        let layout = Layout::ALL[rng.usize(..Layout::ALL.len())];
        let stages = ENCODINGS[rng.usize(..ENCODINGS.len())];
        let durability = durabilities[rng.usize(..3)];
        let is_lenient = rng.bool() && !loses_facts(journal, durability);
        let has_one_config = layout == Layout::VllmFs && rng.bool();
        Setup {
            scope: Scope::Layouts,
            layout,
            stages: if layout.is_foreign() { &[] } else { stages },
            durability,
            verify: if is_lenient { Verify::Lenient } else { Verify::Strict },
            is_declared: rng.bool(),
            run_config: has_one_config.then(|| Arc::new(VLLM.clone())),
            has_shape: rng.bool(),
        }
    }

    /// The key of a number, in the form that the layout has names for.
    pub fn key_id(&self, n: u64) -> KeyId {
        let digest = Digest::derive("kvtier faultsim chunk", &n.to_le_bytes());
        let hash = ChunkHash::new(digest.as_bytes());
        let model = if self.layout == Layout::VllmFs { VLLM.base() } else { "model" };
        match self.layout {
            Layout::Lmcache | Layout::LmcacheGds | Layout::LmcacheGdsWeka => {
                // As LMCache's own: a number, which may be negative.
                let number = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).cast_signed();
                let hash = EngineHash::Int(number.into());
                let id = CacheEngineKey::new(model, 1, 0, hash, DType::Half).expect("a valid key");
                id.into()
            }
            _ => ObjectKey::new(model, KvRank(0), 0, hash, "").expect("a valid key").into(),
        }
    }

    /// The file of a chunk, below the root.
    pub fn chunk_path(&self, n: u64) -> PathBuf {
        if self.layout.is_foreign() {
            return self.layout.file_name(&self.key_id(n)).expect("a name for the key").into();
        }
        let key = Key::new(model::namespace(), self.key_id(n));
        let (digest, len) = (key.digest(), model::len(n));
        format!("{:02x}/{}-{len:x}", digest.as_bytes()[0], digest.to_hex()).into()
    }

    /// Whether a crash of the machine must keep a chunk whose save was answered.
    pub fn is_durable(&self) -> bool {
        self.durability != Durability::None
    }

    /// The bytes of a chunk. Where chunks are encoded, those of odd numbers become smaller.
    pub fn bytes(&self, n: u64) -> Vec<u8> {
        let mut bytes = model::bytes(n);
        if !self.stages.is_empty() && n % 2 == 1 {
            let pattern = bytes[..64].to_vec();
            bytes.chunks_mut(64).for_each(|part| part.copy_from_slice(&pattern[..part.len()]));
        }
        bytes
    }

    /// The bytes of a chunk's second file.
    pub fn sidecar_bytes(&self) -> u64 {
        if self.layout.has_headers() { GDS_HEADER_BYTES as u64 } else { 0 }
    }

    /// Whether another program defines the files.
    pub fn is_foreign(&self) -> bool {
        self.layout.is_foreign()
    }

    /// Whether the bytes of all files are known only some time after a start.
    pub fn is_counted_late(&self) -> bool {
        self.layout.is_foreign()
    }

    /// What a save says of its chunks.
    pub fn describe_chunks(&self, ctx: Ctx) -> Ctx {
        if self.layout.has_headers() && !self.has_shape {
            ctx.with_shape(Arc::new(shape()))
        } else {
            ctx
        }
    }

    /// The configuration of a process.
    pub fn config(&self, medium: &Medium, clock: Clock) -> DiskConfig {
        let mut config = DiskConfig::new(medium.root(), CAP_BYTES);
        config.clock = clock;
        config.bounce_bytes = 128 << 10;
        config.ops_max = 16;
        config.free_min_bytes = Some(1 << 20);
        config.flush_every = Duration::from_secs(2);
        config.durability = self.durability;
        config.layout = self.layout;
        config.verify = self.verify;
        config.sweep_every = SWEEP_EVERY;
        config.namespace = self.is_declared.then(model::namespace);
        config.vllm_run_config.clone_from(&self.run_config);
        config.chunk_shape = (self.layout.has_headers() && self.has_shape).then(shape);
        config.encoding = Arc::new(self.encoding());
        config.encode_bytes = 128 << 10;
        config
    }

    fn encoding(&self) -> TierEncoding {
        if self.stages.is_empty() {
            return TierEncoding::default();
        }
        let keys = Arc::new(Keyring::new());
        keys.insert(MasterKey::new(1, &[7; 32]).expect("a valid key"));
        let stages = self.stages.iter().map(|name| match *name {
            "aes" => {
                Arc::new(Aes256Gcm::new(Arc::clone(&keys), 1).with_simulated_nonces(nonce)) as _
            }
            name => stage_by_name(name).expect("a stage of this build"),
        });
        let stages: Vec<_> = stages.collect();
        let decoder = stages.iter().cloned().fold(Decoder::new(), Decoder::with_stage);
        TierEncoding::new(Chain::new(stages).expect("a valid chain"), decoder)
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scope == Scope::Directory {
            return write!(f, "durable {}", self.durability == Durability::Fdatasync);
        }
        let Setup { layout, stages, durability, verify, is_declared, has_shape, .. } = self;
        let has_one_config = self.run_config.is_some();
        write!(
            f,
            "layout {layout}, stages {stages:?}, durability {durability:?}, verify {verify:?}, namespace declared {is_declared}, one \
             configuration of vLLM {has_one_config}, shape configured {has_shape}"
        )
    }
}

/// Whether a crash may keep the name of a file and its length, and neither its bytes nor its facts.
/// `verify: lenient` cannot know that.
fn loses_facts(journal: Journal, durability: Durability) -> bool {
    journal == Journal::None && durability != Durability::Fdatasync
}

/// Of the random numbers of the process that encodes.
fn nonce() -> [u8; 12] {
    std::array::from_fn(|_| fastrand::u8(..))
}

/// Each token of a chunk has four bytes, which divide the length of every chunk.
fn shape() -> ChunkShape {
    ChunkShape::from([2, 1, model::LONGEST_BYTES / 4, 1])
}
