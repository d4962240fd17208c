use std::fmt;

use super::engine_key_names::EngineName;
use super::{SEP, checked_length, checked_s3_name};
use crate::python_text::{push_quoted, unquoted};
use crate::{InvalidKey, KeyId, LayerCacheEngineKey, ObjectKey};

/// A way to name chunks, after the store that names them so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NameForm {
    /// Multi-process: `model@rank@group@hash[@salt]`, the S3 object's name and what native
    /// connectors are given.
    MpNative,
    /// Multi-process: `model@rank@hash`, as in LMCache's public documents.
    Mp3Field,
    /// Multi-process: the path of the S3 request, quoted, under an optional prefix.
    S3Mp {
        /// What stands before the object's name, without `/` at its ends; empty for none.
        prefix: String,
    },
    /// Multi-process: a file of the `fs` adapter.
    Fs,
    /// Multi-process: a file of the `fs_native` adapter; differs from [`NameForm::Fs`] in negative
    /// ranks only.
    FsNative,
    /// Multi-process: an entry of the raw-block adapter.
    RawBlock,
    /// In-process: the text form; also the entry of the in-process raw-block backend.
    Text,
    /// In-process: the path of the S3 request, quoted and with `/` as `_`, under an optional
    /// prefix.
    S3NonMp {
        /// What stands before the object's name, without `/` at its ends; empty for none.
        prefix: String,
    },
    /// In-process: a file of the FSConnector.
    FsConnector,
    /// In-process: a file of the LocalDiskBackend.
    LocalDisk,
    /// In-process: a file of the GdsBackend, with its two directories.
    Gds {
        /// Named as on a Weka file system.
        weka: bool,
        /// The metadata file beside the data file.
        sidecar: bool,
    },
    /// vLLM: a file of the `fs` tier, with its three directories.
    VllmFs,
}

/// What a name was read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// This key, and no other, has this name.
    Lossless(KeyId),
    /// This key, as LMCache reads the name, but another could have been meant.
    Lossy {
        /// The key as LMCache reads the name, or the nearest where it reads none.
        key: KeyId,
        /// The information that the name lacks.
        loss: Loss,
    },
}

impl Parsed {
    /// The key, whether or not another could have been meant.
    pub fn key(&self) -> &KeyId {
        match self {
            Parsed::Lossless(key) | Parsed::Lossy { key, .. } => key,
        }
    }

    /// The key, whether or not another could have been meant.
    pub fn into_key(self) -> KeyId {
        match self {
            Parsed::Lossless(key) | Parsed::Lossy { key, .. } => key,
        }
    }

    /// The information that the name lacks, if any.
    pub fn loss(&self) -> Option<Loss> {
        match self {
            Parsed::Lossless(_) => None,
            Parsed::Lossy { loss, .. } => Some(*loss),
        }
    }
}

/// The information that a name lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Each `_` may have been a `/`.
    SlashAsUnderscore,
    /// Each `-` may have been a `/`.
    SlashAsDash,
    /// `-SEP-` is read as `/`, but may have been meant.
    SlashAsSep,
    /// LMCache reads the name but spells it otherwise itself: a store would not find the key under
    /// it.
    Spelling,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::SlashAsUnderscore => "each '_' may have been a '/'",
            Loss::SlashAsDash => "each '-' may have been a '/'",
            Loss::SlashAsSep => "'-SEP-' is read as '/', but may have been meant",
            Loss::Spelling => "LMCache would spell this key otherwise",
        })
    }
}

impl NameForm {
    /// The name of `id`, which reads back as `id`: no two keys get the same name.
    /// Errors: a key of the other mode; a name too long for its store; a key that would not read
    /// back as itself.
    pub fn format(&self, id: &KeyId) -> Result<String, InvalidKey> {
        let name = self.format_lossy(id)?;
        // Proof by reading back: forms lose different things (`/`, `@`, case of digits), and one
        // check covers all of them.
        match self.read(&name) {
            Ok((back, _)) if back == *id => Ok(name),
            _ => Err(InvalidKey::new("its name would not read back as the same key")),
        }
    }

    /// The name that LMCache gives `id`, even where another key has the same. Errors: as
    /// [`NameForm::format`] otherwise.
    pub fn format_lossy(&self, id: &KeyId) -> Result<String, InvalidKey> {
        match id {
            KeyId::Object(key) => self.format_object(key),
            KeyId::Engine(key) => self.format_engine(key),
            KeyId::Layer(key) => self.format_engine(key),
        }
    }

    /// Reads a name as LMCache does. Errors: no name of this form.
    pub fn parse(&self, name: &str) -> Result<Parsed, InvalidKey> {
        checked_length(name)?;
        let (key, loss) = self.read(name)?;
        // LMCache reads more spellings than it writes (signs, white space, upper case). Under such
        // a name its own lookup would not find the chunk.
        let loss = match self.format_lossy(&key) {
            Ok(spelled) if spelled == name => loss,
            _ => Some(Loss::Spelling),
        };
        Ok(match loss {
            None => Parsed::Lossless(key),
            Some(loss) => Parsed::Lossy { key, loss },
        })
    }

    fn format_object(&self, key: &ObjectKey) -> Result<String, InvalidKey> {
        // The fields are public, so the key may have been put together without the checks of `new`.
        key.validate()?;
        match self {
            NameForm::MpNative => key.native_name(),
            NameForm::Mp3Field => key.three_field_name(),
            NameForm::S3Mp { prefix } => path(prefix, &key.native_name()?),
            NameForm::Fs => key.fs_name(),
            NameForm::FsNative => key.fs_native_name(),
            NameForm::RawBlock => Ok(key.raw_block_name()),
            NameForm::VllmFs => key.vllm_fs_name(),
            _ => Err(InvalidKey::new(
                "a key of LMCache's multi-process mode has no name of this form",
            )),
        }
    }

    fn format_engine(&self, key: &impl EngineName) -> Result<String, InvalidKey> {
        match self {
            NameForm::Text => Ok(key.text()),
            NameForm::S3NonMp { prefix } => path(prefix, &key.s3_name()?),
            NameForm::FsConnector => key.fs_connector_name(".data"),
            NameForm::LocalDisk => key.local_disk_name(),
            NameForm::Gds { weka, sidecar } => key.gds_name(gds_suffix(*weka, *sidecar)),
            _ => {
                Err(InvalidKey::new("a key of LMCache's in-process mode has no name of this form"))
            }
        }
    }

    /// The key as LMCache reads it, and what the form loses.
    fn read(&self, name: &str) -> Result<(KeyId, Option<Loss>), InvalidKey> {
        // `-SEP-` may also be part of the model's own name.
        let sep_loss = || name.contains(SEP).then_some(Loss::SlashAsSep);
        match self {
            NameForm::MpNative => ObjectKey::from_native_name(name).map(plain),
            NameForm::Mp3Field => ObjectKey::from_three_field_name(name).map(plain),
            NameForm::S3Mp { prefix } => {
                ObjectKey::from_native_name(&object_name(prefix, name)?).map(plain)
            }
            NameForm::Fs => ObjectKey::from_fs_name(name).map(|key| (key.into(), sep_loss())),
            // Undoes the one difference of this form, so that one parser serves both.
            NameForm::FsNative => ObjectKey::from_fs_name(&name.replacen("@0x-", "@-0x", 1))
                .map(|key| (key.into(), sep_loss())),
            NameForm::RawBlock => ObjectKey::from_raw_block_name(name).map(plain),
            NameForm::VllmFs => ObjectKey::from_vllm_fs_name(name).map(plain),
            NameForm::Text => KeyId::from_engine_text(name).map(plain),
            NameForm::S3NonMp { prefix } => KeyId::from_engine_text(&object_name(prefix, name)?)
                .map(|key| loses(key, '_', Loss::SlashAsUnderscore)),
            NameForm::FsConnector => {
                let stem = stem(name, ".data")?;
                KeyId::from_engine_text(&stem.replace(SEP, "/")).map(|key| (key, sep_loss()))
            }
            NameForm::LocalDisk => KeyId::from_engine_text(stem(name, ".pt")?)
                .map(|key| loses(key, '-', Loss::SlashAsDash)),
            NameForm::Gds { weka, sidecar } => {
                read_gds(self, name, gds_suffix(*weka, *sidecar)).map(plain)
            }
        }
    }
}

fn plain(key: impl Into<KeyId>) -> (KeyId, Option<Loss>) {
    (key.into(), None)
}

/// Numbers, hash and type of an in-process key never hold a `/`; its model and tags may.
fn loses(key: KeyId, stand_in: char, loss: Loss) -> (KeyId, Option<Loss>) {
    // Looks at the key and not at the name: separators and numbers cannot have been a `/`.
    let lost = match &key {
        KeyId::Engine(key) | KeyId::Layer(LayerCacheEngineKey { key, .. }) => {
            key.model.contains(stand_in)
                || key
                    .tags
                    .iter()
                    .any(|(name, value)| name.contains(stand_in) || value.contains(stand_in))
        }
        KeyId::Object(_) => false,
    };
    (key, lost.then_some(loss))
}

fn stem<'a>(name: &'a str, suffix: &str) -> Result<&'a str, InvalidKey> {
    name.strip_suffix(suffix)
        .ok_or_else(|| InvalidKey::new(format!("{name:?} does not end with {suffix}")))
}

fn path(prefix: &str, name: &str) -> Result<String, InvalidKey> {
    let whole = if prefix.is_empty() {
        name.to_owned()
    } else {
        // The prefix counts too: the limit of S3 is for the whole object name.
        checked_s3_name(format!("{prefix}/{name}"))?
    };
    let mut out = String::with_capacity(whole.len() + 16);
    out.push('/');
    // Quoted as it stands on the wire, with `/` kept.
    push_quoted(&mut out, &whole, true);
    Ok(out)
}

fn object_name(prefix: &str, path: &str) -> Result<String, InvalidKey> {
    let name = path.strip_prefix('/').and_then(unquoted);
    let name =
        name.ok_or_else(|| InvalidKey::new(format!("{path:?} is no quoted path of an S3 object")))?;
    if prefix.is_empty() {
        return Ok(name);
    }
    // The `/` behind the prefix is required, or prefix `a` would match objects of prefix `ab`.
    let inner = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
    inner
        .map(str::to_owned)
        .ok_or_else(|| InvalidKey::new(format!("{path:?} does not begin with /{prefix}/")))
}

fn gds_suffix(weka: bool, sidecar: bool) -> &'static str {
    match (weka, sidecar) {
        (false, false) => ".kvcache.safetensors",
        (false, true) => ".kvcache.safetensors.metadata",
        (true, false) => ".weka1",
        (true, true) => ".weka1.metadata",
    }
}

/// Reads the file name at the end of `name`; directories before it, if any, must be those of its
/// hash.
fn read_gds(form: &NameForm, name: &str, suffix: &str) -> Result<KeyId, InvalidKey> {
    let (dirs, file) =
        name.rsplit_once('/').map_or((None, name), |(dirs, file)| (Some(dirs), file));
    let text = unquoted(stem(file, suffix)?)
        .ok_or_else(|| InvalidKey::new(format!("{file:?} is quoted wrongly")))?;
    let key = KeyId::from_engine_text(&text)?;
    // The directories repeat the hash's first characters. A file elsewhere was not written by
    // LMCache, and it would not look for it there.
    let in_own_dir = form.format_lossy(&key)?;
    let own_dir = in_own_dir.rsplit_once('/').map_or("", |(dirs, _)| dirs);
    match dirs {
        Some(dirs) if dirs != own_dir && !dirs.ends_with(&format!("/{own_dir}")) => Err(
            InvalidKey::new(format!("{name:?} is outside the directory of its hash, {own_dir:?}")),
        ),
        _ => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_in_the_model_or_in_either_half_of_a_tag_may_have_been_a_slash() {
        let lost = |text: &str| {
            let key = KeyId::from_engine_text(text).unwrap();
            loses(key, '_', Loss::SlashAsUnderscore).1.is_some()
        };
        for text in ["a_b@1@0@ab@half", "m@1@0@ab@half@a_b%c", "m@1@0@ab@half@a%b_c"] {
            assert!(lost(text), "{text}");
        }
        assert!(!lost("m@1@0@ab@half@a%b") && !lost("m@1@0@ab@half"));
    }
}
