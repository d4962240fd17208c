//! How a tier encodes its chunks: the settings `encode`, `decode_keys` and `encode_bytes`.

mod cachegen;
mod encryption_key;
mod key_command;
mod new_key_file;
mod read;

pub use cachegen::CacheGenSpec;
pub use encryption_key::{EncryptionKey, KeySource};
pub use new_key_file::write_new_key_file;

use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Chain, Decoder, ElementType, Keyring, Stage, TierEncoding, stage_by_name,
};
use kvtier_core::{Error, ErrorKind};

/// How a tier encodes the chunks that it saves, and the keys of encrypted ones that it loads.
///
/// ```
/// # use kvtier::config::{Config, TierSpec};
/// let text = r#"{"tiers": [{"type": "file", "path": "/kv", "bytes": "1GiB", "encode": ["bf16-split", "zstd:3"]}]}"#;
/// let config = Config::from_json(text, "kv.json")?;
/// # #[cfg(feature = "file")]
/// assert!(matches!(&config.tiers[0], TierSpec::File(spec) if spec.encoding.open()?.is_on()));
/// # Ok::<(), kvtier::core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EncodingSpec {
    /// The stages that chunks go through when they are saved, in this order; none: they are stored
    /// as they are.
    pub stages: Vec<EncodingStage>,
    /// Keys of encrypted chunks that are loaded, in a tier that does not encrypt itself.
    pub decode_keys: Vec<EncryptionKey>,
    /// The most memory for chunks that are being encoded or decoded; `None`: the tier's default.
    pub bytes: Option<u64>,
}

/// One stage of an encoding.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EncodingStage {
    /// A stage that needs only its name: `lz4`, `zstd` or `zstd:LEVEL`.
    Named(String),
    /// `bf16-split`.
    Bf16Split {
        /// The type of all elements; `None`: as the engine declares it.
        element_type: Option<ElementType>,
    },
    /// `cachegen`, which is lossy.
    CacheGen(CacheGenSpec),
    /// `aes-256-gcm`.
    Aes256Gcm {
        /// The key that encrypts.
        key: EncryptionKey,
        /// Keys of chunks that were encrypted earlier.
        old_keys: Vec<EncryptionKey>,
    },
}

impl EncodingSpec {
    /// Whether nothing is set: chunks are stored as they are, and no key is loaded.
    pub fn is_empty(&self) -> bool {
        *self == EncodingSpec::default()
    }

    /// Reads the keys and makes what a tier takes. Keys are read here and never again.
    ///
    /// # Errors
    /// `Invalid`: a key that cannot be read or is no key, or stages that make no chain.
    pub fn open(&self) -> Result<Arc<TierEncoding>, Error> {
        let keys = Arc::new(Keyring::new());
        for key in self.keys() {
            keys.insert(key.load()?);
        }
        let invalid = |e: kvtier_codec::Error| Error::new(ErrorKind::Invalid, e.to_string());
        let chain = self.chain(&keys).map_err(invalid)?;
        // It decrypts with any key, so that the id does not matter.
        let mut decoder = Decoder::new().with_stage(Arc::new(Aes256Gcm::new(keys, 0)));
        // Lossy chunks load only where their stage is named.
        if let Some(cachegen) = self.cachegen() {
            decoder = decoder.with_stage(Arc::new(cachegen.stage().map_err(invalid)?));
        }
        let encoding = TierEncoding::new(chain, decoder);
        Ok(Arc::new(match self.element_type() {
            Some(element_type) => encoding.with_element_type(element_type),
            None => encoding,
        }))
    }

    /// Whether saved chunks may load as other bytes than were saved.
    pub fn is_lossy(&self) -> bool {
        self.cachegen().is_some()
    }

    /// Whether every chunk is encrypted when it is saved.
    pub fn encrypts(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage, EncodingStage::Aes256Gcm { .. }))
    }

    fn cachegen(&self) -> Option<CacheGenSpec> {
        self.stages.iter().find_map(|stage| match stage {
            EncodingStage::CacheGen(spec) => Some(*spec),
            _ => None,
        })
    }

    /// The memory that is set for encoded chunks.
    ///
    /// # Errors
    /// `Invalid`: more than this machine can address.
    pub(super) fn memory_bytes(&self) -> Result<Option<usize>, Error> {
        let out = |_| Error::new(ErrorKind::Invalid, "encode_bytes is out of range");
        self.bytes.map(|bytes| usize::try_from(bytes).map_err(out)).transpose()
    }

    /// All keys: the one that encrypts first.
    pub fn keys(&self) -> impl Iterator<Item = &EncryptionKey> {
        let encryption = self.stages.iter().filter_map(|stage| match stage {
            EncodingStage::Aes256Gcm { key, old_keys } => {
                Some(std::iter::once(key).chain(old_keys))
            }
            _ => None,
        });
        encryption.flatten().chain(&self.decode_keys)
    }

    /// The chain of its stages.
    fn chain(&self, keys: &Arc<Keyring>) -> Result<Chain, kvtier_codec::Error> {
        let stage = |stage: &EncodingStage| -> Result<Arc<dyn Stage>, kvtier_codec::Error> {
            match stage {
                EncodingStage::Named(name) => stage_by_name(name),
                EncodingStage::Bf16Split { .. } => stage_by_name("bf16-split"),
                EncodingStage::CacheGen(spec) => Ok(Arc::new(spec.stage()?)),
                EncodingStage::Aes256Gcm { key, .. } => {
                    Ok(Arc::new(Aes256Gcm::new(Arc::clone(keys), key.id)))
                }
            }
        };
        Chain::new(self.stages.iter().map(stage).collect::<Result<_, _>>()?)
    }

    /// The names of its stages that are lossy.
    pub(super) fn lossy_stages(&self) -> Vec<String> {
        // Which stages they are shows without the keys.
        let Ok(chain) = self.chain(&Arc::default()) else { return Vec::new() };
        let lossy = chain.stages().map(|stage| stage.id()).filter(|id| id.is_lossy());
        lossy.map(|id| id.to_string()).collect()
    }

    fn element_type(&self) -> Option<ElementType> {
        self.stages.iter().find_map(|stage| match stage {
            EncodingStage::Bf16Split { element_type } => *element_type,
            _ => None,
        })
    }

    /// Facts for people: the stages, and where each key comes from.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let names = self.stages.iter().map(|stage| match stage {
            EncodingStage::Named(name) => name.clone(),
            EncodingStage::Bf16Split { element_type: None } => "bf16-split".to_owned(),
            EncodingStage::Bf16Split { element_type: Some(of) } => format!("bf16-split of {of:?}"),
            EncodingStage::CacheGen(spec) => spec.describe(),
            EncodingStage::Aes256Gcm { key, .. } => format!("aes-256-gcm with key {}", key.id),
        });
        let names: Vec<String> = names.collect();
        let mut facts = Vec::new();
        if !names.is_empty() {
            facts.push(("encode", names.join(", ")));
        }
        facts.extend(self.keys().map(|key| ("key", key.state())));
        facts
    }
}
