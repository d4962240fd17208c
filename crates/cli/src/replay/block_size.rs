//! How large a block is, and how large it would be in a real model.

use kvtier::core::key::presets;

use crate::BadInput;

const CHUNK_DEFAULT: usize = 256 << 10;
const CHUNK_MAX: usize = 1 << 30;
/// What the report compares with when no model is named.
const MODEL_DEFAULT: &str = "llama-3.1-8b";

/// The sizes of a replay.
#[derive(Clone, Debug)]
pub struct BlockSize {
    /// Bytes of a block in this replay.
    pub chunk: usize,
    /// The model that is compared with.
    pub model: String,
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
    /// Bytes of such a block in that model, on one rank.
    pub true_bytes: u64,
}

impl BlockSize {
    /// The block size that was asked for, else the model's own, else a small one.
    pub fn choose(
        chunk: Option<&str>,
        model: Option<&str>,
        block_tokens: u32,
    ) -> Result<Self, BadInput> {
        let name = model.unwrap_or(MODEL_DEFAULT);
        let geometry = presets::geometry(name).map_err(|e| BadInput(format!("--model: {e}")))?;
        let true_bytes = geometry.with_chunk_tokens(block_tokens).chunk_bytes();
        let true_bytes = true_bytes.map_err(|e| {
            BadInput(format!(
                "--model {name} with the trace's blocks of {block_tokens} tokens: {e}"
            ))
        })?;
        // A replay tests the tiers, not the disk's patience: without a wish blocks are smaller than
        // real ones.
        let bytes = match (chunk, model) {
            (Some(text), _) => super::size("--chunk-bytes", text)?,
            (None, Some(_)) => true_bytes,
            (None, None) => CHUNK_DEFAULT as u64,
        };
        let chunk = usize::try_from(bytes).ok().filter(|n| (1..=CHUNK_MAX).contains(n));
        let chunk = chunk.ok_or_else(|| {
            BadInput(format!(
                "a block of {bytes} bytes is out of range; give --chunk-bytes of 1 to 1 GiB"
            ))
        })?;
        Ok(BlockSize { chunk, model: name.into(), block_tokens, true_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_asked_for_goes_before_the_models() {
        let size =
            |chunk, model| BlockSize::choose(chunk, model, 512).map(|s| (s.chunk, s.true_bytes));
        assert_eq!(size(None, None).unwrap(), (256 << 10, 64 << 20));
        assert_eq!(size(None, Some("llama-3.1-8b")).unwrap(), (64 << 20, 64 << 20));
        assert_eq!(size(Some("1MiB"), Some("llama-3.1-70b")).unwrap(), (1 << 20, 160 << 20));
        for (chunk, model, says) in [
            (Some("0"), None, "out of range"),
            (Some("2GiB"), None, "1 GiB"),
            (None, Some("lama"), "nearest"),
        ] {
            assert!(size(chunk, model).unwrap_err().to_string().contains(says));
        }
        assert!(BlockSize::choose(None, None, 0).unwrap_err().to_string().contains("tokens"));
    }
}
