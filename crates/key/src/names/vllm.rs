//! Names of vLLM's `fs` tier: `<base>_r<rank>/<hhh>/<hh>_g<group>/<hash>.bin` below its root, as
//! `v1/kv_offload/file_mapper.py` of vLLM 0.33.0 makes them.
//!
//! The base is the model's name with `/` as `_`, `_`, and 12 digits of a digest of the engine's
//! configuration; see [`VllmRunConfig`](crate::VllmRunConfig). It is the model of the key: names
//! do not state the model otherwise, and chunks of two configurations never have one name.

use super::checked_file_name;
use crate::{ChunkHash, InvalidKey, KvRank, ObjectKey};

/// How many digits of the configuration's digest a base ends with.
pub const BASE_DIGITS: usize = 12;
/// How many digits of a hash name the first directory, and how many the second.
const DIGITS: [usize; 2] = [3, 2];
const SUFFIX: &str = ".bin";

impl ObjectKey {
    /// The name of the key's file, relative to the tier's root.
    ///
    /// # Errors
    /// The model is not a base; the key has a salt, a negative rank or no hash; a part is too long
    /// for a file name.
    pub(crate) fn vllm_fs_name(&self) -> Result<String, InvalidKey> {
        let ObjectKey { model, rank, group, hash, salt } = self;
        if !is_base(model) {
            let what = format!(
                "{model:?} is no base of vLLM's names: the model's name with '/' as '_', '_', and {BASE_DIGITS} digits of the digest of \
                 its configuration"
            );
            return Err(InvalidKey::new(what));
        }
        if !salt.is_empty() {
            return Err(InvalidKey::new("vLLM's names have no cache salt"));
        }
        // vLLM writes neither, and `_r-1` would not read back: a rank is digits only.
        if rank.0 < 0 || hash.as_bytes().is_empty() {
            return Err(InvalidKey::new("vLLM's names have a hash, and no negative rank"));
        }
        let hex: String = hash.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = checked_file_name(format!("{model}_r{}", rank.0))?;
        // Python slices stop at the end of a short text, so a short hash has shorter directories.
        let (first, rest) = hex.split_at(DIGITS[0].min(hex.len()));
        let second = &rest[..DIGITS[1].min(rest.len())];
        let file = checked_file_name(format!("{hex}{SUFFIX}"))?;
        Ok(format!("{dir}/{first}/{second}_g{group}/{file}"))
    }

    /// Reads the last four parts of a path as such a name. The spelling is not checked.
    pub(crate) fn from_vllm_fs_name(name: &str) -> Result<Self, InvalidKey> {
        let no_name = || InvalidKey::new(format!("{name:?} is no name of vLLM's fs tier"));
        // From the end: the root before these four parts may have any depth.
        let mut parts = name.rsplit('/');
        let mut part = || parts.next().ok_or_else(no_name);
        let (file, second, _, dir) = (part()?, part()?, part()?, part()?);
        // The last `_r`, since a model's name may contain one too.
        let (model, rank) = dir.rsplit_once("_r").ok_or_else(no_name)?;
        let group = second.rsplit_once("_g").ok_or_else(no_name)?.1;
        let hash = file.strip_suffix(SUFFIX).and_then(unhex).ok_or_else(no_name)?;
        let rank = decimal(rank).ok_or_else(no_name)?;
        let group = decimal(group).ok_or_else(no_name)?;
        ObjectKey::new(model, KvRank(rank), group, ChunkHash::new(&hash), "")
    }
}

/// Whether a directory `depth` levels below the root may have files of the tier, by its name.
pub fn is_vllm_fs_dir(depth: usize, name: &str) -> bool {
    match depth {
        0 => name.rsplit_once("_r").is_some_and(|(base, rank)| {
            // Below the root other programs may keep directories. Only names that vLLM could have
            // made are entered, so a scan stays short.
            is_base(base) && decimal::<i64>(rank).is_some_and(|rank| rank >= 0)
        }),
        1 => is_hex(name) && (2..=DIGITS[0]).contains(&name.len()),
        2 => name.rsplit_once("_g").is_some_and(|(digits, group)| {
            (digits.is_empty() || is_hex(digits))
                && digits.len() <= DIGITS[1]
                && decimal::<u32>(group).is_some()
        }),
        _ => false,
    }
}

/// Whether a name ends as a base does.
fn is_base(name: &str) -> bool {
    let digits = name.rsplit_once('_').map(|(_, digits)| digits);
    digits.is_some_and(|digits| digits.len() == BASE_DIGITS && is_hex(digits))
        && !name.contains(['/', '\0'])
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A number as Python writes it.
fn decimal<T: std::str::FromStr>(text: &str) -> Option<T> {
    // `parse` alone takes signs and leading zeros, which Python does not write.
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !is_hex(text) || !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}
