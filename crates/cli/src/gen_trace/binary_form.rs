//! The binary form of a trace, which `kvtier replay` and `kvtier sim` read: little-endian, the
//! number of requests (u32) and the tokens of a block (u32), then for each request its time in
//! seconds (f64), session (u32), flags (u32, 0), number of blocks (u32) and their ids (u32).

use std::io::Write;
use std::path::Path;

use anyhow::Result;

use super::GenTraceArgs;
use super::workload::TraceRequest;
use crate::BadInput;

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON lines.
    Lines,
    /// Binary.
    Binary,
    /// Binary, compressed by zstd.
    Compressed,
}

/// What compressors end names in.
const COMPRESSED: [&str; 6] = [".zst", ".gz", ".xz", ".bz2", ".lz4", ".zip"];

impl Form {
    /// The form that the ending of a file's name says.
    pub fn of(path: Option<&Path>) -> Result<Self, BadInput> {
        let name =
            path.map_or_else(Default::default, |path| path.to_string_lossy().to_ascii_lowercase());
        match name.as_str() {
            name if name.ends_with(".bin.zst") => Ok(Form::Compressed),
            name if name.ends_with(".bin") => Ok(Form::Binary),
            // Plain text under such a name would be refused by whatever reads it.
            name if COMPRESSED.iter().any(|ending| name.ends_with(ending)) => {
                Err(BadInput(format!(
                    "--out {name}: of compressed forms only .bin.zst is written; name such a file, or one without the ending"
                )))
            }
            _ => Ok(Form::Lines),
        }
    }
}

/// What a binary trace begins with.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    requests: u32,
    block_tokens: u32,
}

impl Head {
    pub fn of(args: &GenTraceArgs) -> Result<Self, BadInput> {
        let too_many = |_| {
            BadInput(format!(
                "--requests {}: a binary trace holds at most {}",
                args.requests,
                u32::MAX
            ))
        };
        Ok(Head {
            requests: u32::try_from(args.requests).map_err(too_many)?,
            block_tokens: args.block_tokens,
        })
    }
}

/// Writes a binary trace.
pub fn binary(
    out: &mut impl Write,
    head: Head,
    requests: impl Iterator<Item = TraceRequest>,
) -> Result<()> {
    let mut word = |word: u32| out.write_all(&word.to_le_bytes());
    word(head.requests)?;
    word(head.block_tokens)?;
    for request in requests {
        // The format has the time as a 64-bit float, in two words.
        let seconds = (request.time_ms as f64 / 1000.0).to_bits();
        word(seconds as u32)?;
        word((seconds >> 32) as u32)?;
        word(request.session)?;
        // A field of the format that is not used.
        word(0)?;
        word(u32::try_from(request.blocks.len())?)?;
        for id in &request.blocks {
            let too_large =
                |_| BadInput("more blocks than a binary trace can number; write JSON lines".into());
            word(u32::try_from(*id).map_err(too_large)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_form() {
        let of = |name: &str| Form::of(Some(Path::new(name)));
        assert_eq!(of("a.BIN.zst").unwrap(), Form::Compressed);
        assert_eq!(of("a.bin").unwrap(), Form::Binary);
        assert_eq!(of("a.jsonl").unwrap(), Form::Lines);
        assert_eq!(Form::of(None).unwrap(), Form::Lines);
        assert!(of("a.jsonl.zst").unwrap_err().0.contains(".bin.zst"));
    }
}
