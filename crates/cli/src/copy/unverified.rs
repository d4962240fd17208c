//! Whether chunks without facts are copied, whose bytes nothing proves.

use std::sync::Arc;

use kvtier::core::{Digest, Namespace};

use super::CopyArgs;
use crate::BadInput;

/// Whether chunks without facts are copied, and their namespace.
pub struct UnverifiedChoice {
    any: bool,
    chunk_bytes: Option<u64>,
    partial: bool,
    pub namespace: Arc<Namespace>,
    pub models: Vec<String>,
}

impl UnverifiedChoice {
    pub fn of(args: &CopyArgs) -> Result<Self, BadInput> {
        let chunk_bytes = args
            .source
            .chunk_bytes
            .as_deref()
            .map(|text| crate::replay::size("--chunk-bytes", text))
            .transpose()?;
        if chunk_bytes == Some(0) {
            return Err(BadInput("--chunk-bytes must be more than 0".into()));
        }
        let digest = args.source.layout_id.as_deref().map(|text| {
            Digest::from_hex(text)
                .ok_or_else(|| BadInput(format!("--layout-id {text}: not 64 hexadecimal digits")))
        });
        let namespace = Arc::new(Namespace::new(
            args.source.tenant.as_deref().unwrap_or_default(),
            digest.transpose()?.unwrap_or_default(),
        ));
        Ok(UnverifiedChoice {
            any: args.source.unverified,
            chunk_bytes,
            partial: args.source.partial,
            namespace,
            models: args.source.model.clone(),
        })
    }

    /// The payload's length of a chunk whose file or object has `len` bytes; `None` for one that
    /// stays behind.
    pub fn payload(&self, len: u64) -> Option<u64> {
        match self.chunk_bytes {
            _ if !self.any => None,
            None => Some(len),
            // A file that is padded to a page: the payload is a full chunk.
            Some(whole) if len == whole.next_multiple_of(4096) => Some(whole),
            Some(whole) => (len == whole || (self.partial && len < whole)).then_some(len),
        }
    }
}
