//! The configuration of a vLLM engine whose `fs` tier writes files.
//!
//! vLLM names the directories of that tier after a digest of the configuration's fields, and writes
//! the fields into `<base>/config.json`. The fields are kept as they are: a newer vLLM with another
//! field has another digest here, as it has there.

use sha2::{Digest as _, Sha256};

use crate::json::{self, Json};
use crate::names::vllm::BASE_DIGITS;
use crate::{ChunkHash, InvalidKey, KvRank, ObjectKey};

/// The longest configuration that is read, in bytes.
// Other programs write to the directory of this file. A real one has a few kilobytes.
const BYTES_MAX: usize = 16 << 20;

/// The fields of vLLM's `FileMapper`, which decide what the bytes of its files mean.
///
/// ```
/// use kvtier_key::VllmRunConfig;
///
/// let config = VllmRunConfig::from_json(r#"{"model_name": "org/m", "tp_size": 1}"#)?;
/// assert!(config.base().starts_with("org_m_"));
/// assert_eq!(config.text(), "{\n  \"model_name\": \"org/m\",\n  \"tp_size\": 1\n}");
/// # Ok::<(), kvtier_key::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VllmRunConfig {
    model: String,
    base: String,
    text: String,
}

impl VllmRunConfig {
    /// Reads the fields from a JSON object, in any order and spelling.
    ///
    /// # Errors
    /// The text is no JSON object with a text `model_name`, has a value that is no text, whole
    /// number of 64 bits, truth value, null, list or object, or the model has no name as a
    /// directory.
    pub fn from_json(text: &str) -> Result<Self, InvalidKey> {
        let invalid = |why: &str| InvalidKey::new(format!("vLLM's run configuration {why}"));
        if text.len() > BYTES_MAX {
            return Err(invalid("is longer than 16 MiB"));
        }
        let fields = json::parse(text).ok_or_else(|| invalid("is no JSON"))?;
        let Some(Json::Text(model)) = fields.member("model_name") else {
            return Err(invalid("has no text model_name"));
        };
        let form = || {
            invalid("has a value that is no text, whole number, truth value, null, list or object")
        };
        // Sorted and without blanks: the text that vLLM hashes. Its own file is indented, so the
        // text as read cannot be hashed.
        let compact = json::to_python(&fields, None).ok_or_else(form)?;
        let digest = Sha256::digest(compact.as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let base = format!("{}_{}", model.replace('/', "_"), &digits[..BASE_DIGITS]);
        // The base is the model of its keys.
        ObjectKey::new(&*base, KvRank(0), 0, ChunkHash::new(&[0; 32]), "")?.vllm_fs_name()?;
        // The spelling of vLLM's own writer, so that both programs write the same file.
        let text = json::to_python(&fields, Some(2)).ok_or_else(form)?;
        Ok(VllmRunConfig { model: model.clone(), base, text })
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The base of the files' names, which is the model of their keys: the model's name with `/` as
    /// `_`, `_`, and 12 digits of the fields' digest.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The path of the file with the fields, relative to the tier's root.
    pub fn path(&self) -> String {
        format!("{}/config.json", self.base)
    }

    /// The text of that file, as vLLM writes it.
    pub fn text(&self) -> &str {
        &self.text
    }
}
