//! Geometries of well-known models, from their published configurations, so that an operator can
//! name a model instead.

use std::fmt;

use crate::{Geometry, Mla};

const DEEPSEEK: Mla = Mla { latent: 512, rope: 64 };

/// (name, geometry), by family. Variants of the same base (instruct, chat, base) share one entry.
const PRESETS: &[(&str, Geometry)] = &[
    ("llama-2-7b", Geometry::heads(32, 32, 128)),
    ("llama-2-13b", Geometry::heads(40, 40, 128)),
    ("llama-2-70b", Geometry::heads(80, 8, 128)),
    ("llama-3-8b", Geometry::heads(32, 8, 128)),
    ("llama-3-70b", Geometry::heads(80, 8, 128)),
    ("llama-3.1-8b", Geometry::heads(32, 8, 128)),
    ("llama-3.1-70b", Geometry::heads(80, 8, 128)),
    ("llama-3.1-405b", Geometry::heads(126, 8, 128)),
    ("llama-3.2-1b", Geometry::heads(16, 8, 64)),
    ("llama-3.2-3b", Geometry::heads(28, 8, 128)),
    ("llama-3.3-70b", Geometry::heads(80, 8, 128)),
    ("qwen2.5-0.5b", Geometry::heads(24, 2, 64)),
    ("qwen2.5-1.5b", Geometry::heads(28, 2, 128)),
    ("qwen2.5-3b", Geometry::heads(36, 2, 128)),
    ("qwen2.5-7b", Geometry::heads(28, 4, 128)),
    ("qwen2.5-14b", Geometry::heads(48, 8, 128)),
    ("qwen2.5-32b", Geometry::heads(64, 8, 128)),
    ("qwen2.5-72b", Geometry::heads(80, 8, 128)),
    ("qwen3-0.6b", Geometry::heads(28, 8, 128)),
    ("qwen3-1.7b", Geometry::heads(28, 8, 128)),
    ("qwen3-4b", Geometry::heads(36, 8, 128)),
    ("qwen3-8b", Geometry::heads(36, 8, 128)),
    ("qwen3-14b", Geometry::heads(40, 8, 128)),
    ("qwen3-32b", Geometry::heads(64, 8, 128)),
    ("qwen3-30b-a3b", Geometry::heads(48, 4, 128)),
    ("qwen3-235b-a22b", Geometry::heads(94, 4, 128)),
    ("mistral-7b", Geometry::heads(32, 8, 128)),
    ("mistral-nemo", Geometry::heads(40, 8, 128)),
    ("mistral-small-24b", Geometry::heads(40, 8, 128)),
    ("mistral-large", Geometry::heads(88, 8, 128)),
    ("mixtral-8x7b", Geometry::heads(32, 8, 128)),
    ("mixtral-8x22b", Geometry::heads(56, 8, 128)),
    ("deepseek-v2-lite", Geometry::latent(27, DEEPSEEK)),
    ("deepseek-v2", Geometry::latent(60, DEEPSEEK)),
    ("deepseek-v3", Geometry::latent(61, DEEPSEEK)),
    ("deepseek-r1", Geometry::latent(61, DEEPSEEK)),
    ("kimi-k2", Geometry::latent(61, DEEPSEEK)),
    ("gpt-oss-20b", Geometry::heads(24, 8, 64)),
    ("gpt-oss-120b", Geometry::heads(36, 8, 64)),
    ("gemma-2-2b", Geometry::heads(26, 4, 256)),
    ("gemma-2-9b", Geometry::heads(42, 8, 256)),
    ("gemma-2-27b", Geometry::heads(46, 16, 128)),
    ("gemma-3-1b", Geometry::heads(26, 1, 256)),
    ("gemma-3-4b", Geometry::heads(34, 4, 256)),
    ("gemma-3-12b", Geometry::heads(48, 8, 256)),
    ("gemma-3-27b", Geometry::heads(62, 16, 128)),
    ("phi-3-mini", Geometry::heads(32, 32, 96)),
    ("phi-4", Geometry::heads(40, 10, 128)),
];

/// Endings that name a variant of the same geometry.
const VARIANTS: [&str; 4] = ["-instruct", "-chat", "-it", "-base"];
const NEAR_MAX: usize = 5;

/// No preset has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPreset {
    /// The requested name.
    pub name: String,
    /// The nearest names there are, nearest first.
    pub near: Vec<&'static str>,
}

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no model preset {:?}; the nearest are {}", self.name, self.near.join(", "))
    }
}

impl std::error::Error for UnknownPreset {}

/// The names of all presets, by family.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The geometry of the model `name`: bfloat16, chunks of 256 tokens, one rank. Case, an
/// organisation before a `/` and an ending like `-instruct` make no difference.
///
/// ```
/// let geometry = kvtier_key::presets::geometry("llama-3-8b")?;
/// assert_eq!(geometry.token_bytes()?, 128 << 10);
/// assert!(kvtier_key::presets::names().any(|name| name == "llama-3-8b"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn geometry(name: &str) -> Result<Geometry, UnknownPreset> {
    let plain = plain(name);
    // Exact: a model with a similar name may have another shape.
    let found = PRESETS.iter().find(|(known, _)| *known == plain);
    found
        .map(|(_, geometry)| *geometry)
        .ok_or_else(|| UnknownPreset { name: name.to_owned(), near: near(&plain) })
}

fn plain(name: &str) -> String {
    // The organisation says who published the weights, not their shape.
    let lower = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let bare = VARIANTS.iter().find_map(|variant| lower.strip_suffix(variant));
    bare.map_or_else(|| lower.clone(), str::to_owned)
}

fn near(name: &str) -> Vec<&'static str> {
    // Names are short; of a long one only the beginning can be near.
    let name: Vec<char> = name.chars().take(64).collect();
    let mut by_distance: Vec<(usize, &'static str)> =
        names().map(|known| (distance(&name, known), known)).collect();
    by_distance.sort_by_key(|(distance, _)| *distance);
    by_distance.into_iter().take(NEAR_MAX).map(|(_, known)| known).collect()
}

/// Levenshtein's distance.
fn distance(a: &[char], b: &str) -> usize {
    // One row of the usual table: `row[j]` is the distance of `a[..j]` and the part of `b` so far.
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (i, c) in b.chars().enumerate() {
        // The value above and left of the next cell, which the loop overwrites.
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, d) in a.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *d);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[a.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_as_operators_write_it() {
        for name in ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"] {
            assert_eq!(geometry(name).unwrap().chunk_bytes(), Ok(32 << 20), "{name}");
        }
        assert_eq!(geometry("deepseek-ai/DeepSeek-V3").unwrap().token_bytes(), Ok(61 * 576 * 2));
        assert_eq!(
            geometry("meta-llama/Llama-3.1-405B").unwrap().with_tp(8).token_bytes(),
            Ok(126 * 128 * 2 * 2)
        );
    }

    #[test]
    fn every_preset_is_sound_and_named_once() {
        let mut all: Vec<&str> = names().collect();
        assert!(all.iter().all(|name| geometry(name).unwrap().chunk_bytes().is_ok()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PRESETS.len());
    }

    #[test]
    fn an_unknown_name_lists_the_presets() {
        let unknown = geometry("llama3.1-8b").unwrap_err();
        assert_eq!(unknown.near[0], "llama-3.1-8b");
        assert_eq!(unknown.near.len(), NEAR_MAX);
        assert!(geometry(&"x".repeat(1 << 20)).is_err());
        assert_eq!(distance(&['k', 'i', 't', 't', 'e', 'n'], "sitting"), 3);
    }
}
