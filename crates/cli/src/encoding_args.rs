//! Options for encodings: keys of encrypted chunks, and the stages that copies go through.

use std::sync::Arc;

use anyhow::Result;
use kvtier::codec::{ElementType, TierEncoding, Undecoded, UndecodedCause};
use kvtier::config::{EncodingSpec, EncodingStage, EncryptionKey, KeySource};
use kvtier::key::DType;

use crate::BadInput;

/// Keys of encrypted chunks.
#[derive(clap::Args, Default, PartialEq, Eq)]
pub struct KeyArgs {
    /// A key of encrypted chunks: its id and its file, such as 1=/etc/kvtier/key-1; several are
    /// allowed. New chunks are encrypted with the first one.
    #[arg(long, value_name = "ID=PATH")]
    key_file: Vec<String>,
}

impl KeyArgs {
    fn keys(&self) -> Result<Vec<EncryptionKey>, BadInput> {
        let key = |text: &String| {
            let parts = text.split_once('=').filter(|(_, path)| !path.is_empty());
            let id = parts.and_then(|(id, _)| id.parse().ok()).filter(|id| *id > 0);
            match (id, parts) {
                (Some(id), Some((_, path))) => {
                    Ok(EncryptionKey::new(id, KeySource::File(path.into())))
                }
                _ => Err(BadInput(format!(
                    "--key-file {text:?}: write ID=PATH, such as 1=/etc/kvtier/key-1"
                ))),
            }
        };
        self.key_file.iter().map(key).collect()
    }

    /// What decodes chunks that were saved in any way, with these keys.
    pub fn decoding(&self) -> Result<Arc<TierEncoding>> {
        let mut spec = EncodingSpec::default();
        spec.decode_keys = self.keys()?;
        Ok(spec.open()?)
    }

    /// What encodes copies through these stages.
    pub fn encoding(&self, args: &EncodeArgs) -> Result<Arc<TierEncoding>> {
        let mut keys = self.keys()?.into_iter();
        let mut spec = EncodingSpec::default();
        for name in &args.encode {
            spec.stages.push(match name.as_str() {
                "aes-256-gcm" => EncodingStage::Aes256Gcm {
                    key: keys.next().ok_or_else(|| {
                        BadInput("--encode aes-256-gcm needs a key: add --key-file ID=PATH".into())
                    })?,
                    old_keys: keys.by_ref().collect(),
                },
                "bf16-split" => EncodingStage::Bf16Split { element_type: args.element_type()? },
                name => EncodingStage::Named(name.to_owned()),
            });
        }
        Ok(spec.open()?)
    }
}

/// Why a chunk cannot be decoded here, and what to do.
pub fn next_step(why: &Undecoded) -> String {
    let id = why.key_id;
    match why.cause {
        UndecodedCause::KeyMissing => {
            format!("it is encrypted with key {id}: add --key-file {id}=PATH")
        }
        UndecodedCause::WrongKey => format!(
            "the file that --key-file {id}=PATH names has another key than encrypted it: name the right file"
        ),
        _ => why.reason.clone(),
    }
}

/// How copies are encoded.
#[derive(clap::Args, Default, PartialEq, Eq)]
pub struct EncodeArgs {
    /// Encode the copies, in layout kvtier: stages such as bf16-split,aes-256-gcm. Without it they
    /// are stored as they are.
    #[arg(long, value_name = "STAGES", value_delimiter = ',')]
    pub encode: Vec<String>,
    /// The type of all elements, for bf16-split, such as bfloat16.
    #[arg(long, requires = "encode")]
    dtype: Option<String>,
}

impl EncodeArgs {
    fn element_type(&self) -> Result<Option<ElementType>, BadInput> {
        let element_type = |name: &String| {
            let dtype = DType::from_torch_name(name).or_else(|| DType::from_name(name));
            dtype.and_then(ElementType::from_dtype).ok_or_else(|| {
                BadInput(format!("--dtype {name:?}: bf16-split takes bfloat16, float16, float8_e4m3fn or float8_e5m2"))
            })
        };
        self.dtype.as_ref().map(element_type).transpose()
    }
}
