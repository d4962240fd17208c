//! Stages as configurations name them.

use std::sync::Arc;

use crate::{Bf16Split, Error, Lz4, Stage, Zstd};

/// The stage that configurations call `name`, of those that need nothing but a name: `lz4`, `zstd`,
/// `zstd:N` for a level, and `bf16-split`.
///
/// # Errors
/// `Invalid`: a level that zstd lacks, or `aes-256-gcm`, which needs a key, or `cachegen`,
/// which needs a shape. `Unsupported`: no such
/// stage.
pub fn stage_by_name(name: &str) -> Result<Arc<dyn Stage>, Error> {
    Ok(match name {
        "lz4" => Arc::new(Lz4),
        "zstd" => Arc::new(Zstd::default()),
        "bf16-split" => Arc::new(Bf16Split),
        "aes-256-gcm" => {
            return Err(Error::invalid("encoding aes-256-gcm needs a key: set its key and its id"));
        }
        "cachegen" => {
            let why = "encoding cachegen is lossy and needs the shape of chunks: set its layers and its kv_width";
            return Err(Error::invalid(why));
        }
        _ => match name.strip_prefix("zstd:") {
            Some(level) => Arc::new(Zstd::with_level(parse_level(level)?)?),
            None => {
                let known = "lz4, zstd, zstd:LEVEL, bf16-split, cachegen, aes-256-gcm";
                let why = format!("this build has no encoding {name:?}; it has {known}");
                return Err(Error::unsupported(why));
            }
        },
    })
}

fn parse_level(level: &str) -> Result<i32, Error> {
    level.parse().map_err(|_| Error::invalid(format!("zstd's level {level:?} is no whole number")))
}
