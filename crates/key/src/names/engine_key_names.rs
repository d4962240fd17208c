//! Names of [`CacheEngineKey`] and [`LayerCacheEngineKey`], the keys of LMCache's in-process mode.
//! Every one of them is the text form in some disguise.

use super::{SEP, checked_file_name, checked_length, checked_s3_name};
use crate::python_text::{int_i64, is_decimal, push_hex, push_quoted, strip};
use crate::{CacheEngineKey, DType, EngineHash, InvalidKey, KeyId, LayerCacheEngineKey, PyInt};

/// A key of the in-process mode, of a whole chunk or of one layer: what their names have in common.
pub(crate) trait EngineName {
    /// The chunk's key, and the layer if it is one layer's.
    fn parts(&self) -> (&CacheEngineKey, Option<i64>);

    /// `model@world@worker@hash@dtype[@layer][@tag%value]...`, nothing escaped.
    fn text(&self) -> String {
        let (key, layer) = self.parts();
        let tag_bytes: usize =
            // Two separators for each tag, and below 80 bytes for all other fields of a usual key.
            key.tags.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        let mut out = String::with_capacity(key.model.len() + tag_bytes + 80);
        out.push_str(&key.model);
        for number in [key.world_size, key.worker_id] {
            out.push('@');
            push_decimal(&mut out, number);
        }
        out.push('@');
        match &key.hash {
            EngineHash::Int(hash) => hash.push_hex(&mut out),
            EngineHash::Bytes(hash) => push_hex(&mut out, hash.as_bytes()),
        }
        out.push('@');
        out.push_str(key.dtype.name());
        if let Some(layer) = layer {
            out.push('@');
            push_decimal(&mut out, layer);
        }
        for (name, value) in key.tags.iter() {
            out.extend(["@", name, "%", value]);
        }
        out
    }

    /// The S3 object's name: the text with `/` as `_`.
    fn s3_name(&self) -> Result<String, InvalidKey> {
        // Replaced in all fields, as LMCache's connector does: tags may have a `/` too.
        checked_s3_name(self.text().replace('/', "_"))
    }

    /// The FSConnector's file name.
    fn fs_connector_name(&self, suffix: &str) -> Result<String, InvalidKey> {
        checked_file_name(self.text().replace('/', SEP) + suffix)
    }

    /// The LocalDiskBackend's file name.
    fn local_disk_name(&self) -> Result<String, InvalidKey> {
        checked_file_name(self.text().replace('/', "-") + ".pt")
    }

    /// The GdsBackend's path under its base directory: two directories after the characters of the
    /// decimal hash (the first two and the next two; none for a hash without), then the file.
    fn gds_name(&self, suffix: &str) -> Result<String, InvalidKey> {
        let head: Vec<char> = match &self.parts().0.hash {
            EngineHash::Int(hash) => hash.to_string().chars().take(4).collect(),
            EngineHash::Bytes(hash) => bytes_repr_head(hash.as_bytes()),
        };
        let dirs = head.chunks(2).map(String::from_iter).collect::<Vec<_>>();
        // A hash of bytes can spell `/` or `..` in its first characters. Such a name would leave
        // the base directory, so it is refused.
        if dirs.iter().any(|dir| dir.contains('/') || dir == "." || dir == "..") {
            return Err(InvalidKey::new(
                "the hash would lead LMCache's GDS backend out of its directory",
            ));
        }
        let mut file = String::new();
        // Without `/` as a safe character, since a model's `/` must not make a directory.
        push_quoted(&mut file, &self.text(), false);
        let file = checked_file_name(file + suffix)?;
        Ok(dirs.join("/") + "/" + &file)
    }
}

impl EngineName for CacheEngineKey {
    fn parts(&self) -> (&CacheEngineKey, Option<i64>) {
        (self, None)
    }
}

impl EngineName for LayerCacheEngineKey {
    fn parts(&self) -> (&CacheEngineKey, Option<i64>) {
        (&self.key, Some(self.layer))
    }
}

impl CacheEngineKey {
    /// LMCache's text form: `model@world@worker@hash@dtype[@tag%value]...`, nothing escaped.
    pub fn text(&self) -> String {
        EngineName::text(self)
    }

    /// Reads the text form as LMCache does: a hash reads as a number, even where bytes were
    /// written.
    pub fn from_text(text: &str) -> Result<Self, InvalidKey> {
        checked_length(text)?;
        // Nothing is escaped, so a model with `@` shifts all fields and is refused below, or reads
        // as another key, as in LMCache.
        let mut parts = text.split('@');
        let key = chunk_of(text, &mut parts)?;
        with_tags(text, key, parts)
    }

    /// The number in a raw-block slot's header: the hash's lowest 64 bits. Errors: a hash of bytes.
    pub fn raw_block_identity(&self) -> Result<u64, InvalidKey> {
        self.int_hash().map(PyInt::low_u64)
    }

    /// Which of `bases` base directories the FSConnector uses. Errors: a hash of bytes; no base.
    pub fn fs_connector_base(&self, bases: usize) -> Result<usize, InvalidKey> {
        let base = self
            .int_hash()?
            .abs_mod(bases as u64)
            .ok_or_else(|| InvalidKey::new("no base directory"))?;
        Ok(base as usize)
    }

    fn int_hash(&self) -> Result<&PyInt, InvalidKey> {
        match &self.hash {
            EngineHash::Int(hash) => Ok(hash),
            EngineHash::Bytes(_) => {
                Err(InvalidKey::new("a hash of bytes has no number, which this store needs"))
            }
        }
    }
}

impl LayerCacheEngineKey {
    /// LMCache's text form: `model@world@worker@hash@dtype@layer[@tag%value]...`, nothing escaped.
    pub fn text(&self) -> String {
        EngineName::text(self)
    }

    /// Reads the text form as LMCache does.
    pub fn from_text(text: &str) -> Result<Self, InvalidKey> {
        checked_length(text)?;
        let mut parts = text.split('@');
        let key = chunk_of(text, &mut parts)?;
        // The layer stands between type and tags.
        let layer = parts.next().and_then(|layer| int_i64(layer, 10));
        let layer = layer.ok_or_else(|| refused(text, "its layer is no number of 64 bits"))?;
        Ok(LayerCacheEngineKey { key: with_tags(text, key, parts)?, layer })
    }
}

impl KeyId {
    /// The name under which the FSConnector writes a file before it has its own, in the same
    /// directory. Errors: a key of the multi-process mode; a name too long.
    pub fn fs_connector_temporary_name(&self) -> Result<String, InvalidKey> {
        match self {
            KeyId::Engine(key) => key.fs_connector_name(".tmp"),
            KeyId::Layer(key) => key.fs_connector_name(".tmp"),
            KeyId::Object(_) => {
                Err(InvalidKey::new("the FSConnector is of LMCache's in-process mode"))
            }
        }
    }

    /// Reads the text form of either kind as LMCache's dispatcher does: a sixth field of digits is
    /// a layer.
    pub fn from_engine_text(text: &str) -> Result<Self, InvalidKey> {
        // A sixth field is a layer or a tag. A tag has a `%`, so it is never all digits.
        match strip(text).split('@').nth(5) {
            Some(layer) if is_decimal(layer) => {
                LayerCacheEngineKey::from_text(text).map(KeyId::Layer)
            }
            _ => CacheEngineKey::from_text(text).map(KeyId::Engine),
        }
    }
}

/// Reads the five fields that both kinds begin with.
fn chunk_of<'a>(
    text: &str,
    parts: &mut impl Iterator<Item = &'a str>,
) -> Result<CacheEngineKey, InvalidKey> {
    let (Some(model), Some(world), Some(worker), Some(hash), Some(dtype)) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(refused(text, "it has too few fields between '@'"));
    };
    let number = |text| int_i64(text, 10);
    let world =
        number(world).ok_or_else(|| refused(text, "its world size is no number of 64 bits"))?;
    let worker =
        number(worker).ok_or_else(|| refused(text, "its worker is no number of 64 bits"))?;
    let hash =
        // Always a number: the text does not say whether the engine had a number or bytes.
        PyInt::from_hex(hash).ok_or_else(|| refused(text, "its hash is no hexadecimal number"))?;
    let dtype =
        DType::from_name(dtype).ok_or_else(|| refused(text, "its element type is unknown"))?;
    CacheEngineKey::new(model, world, worker, EngineHash::Int(hash), dtype)
}

fn with_tags<'a>(
    text: &str,
    key: CacheEngineKey,
    parts: impl Iterator<Item = &'a str>,
) -> Result<CacheEngineKey, InvalidKey> {
    let tags = parts.map(|part| part.split_once('%')).collect::<Option<Vec<_>>>();
    // Only the first `%` separates: a value may have more of them.
    let tags = tags.ok_or_else(|| refused(text, "a tag has no '%'"))?;
    if tags.is_empty() { Ok(key) } else { key.with_tags(tags) }
}

fn refused(text: &str, why: &str) -> InvalidKey {
    InvalidKey::new(format!("{text:?} is no key of LMCache's in-process mode: {why}"))
}

fn push_decimal(out: &mut String, number: i64) {
    // A number of 64 bits has at most 20 digits. `to_string` would allocate for each number.
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    while rest != 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if number < 0 {
        out.push('-');
    }
    digits[at..].iter().for_each(|digit| out.push(*digit as char));
}

/// The first four characters of Python's `repr` of `bytes`: LMCache names GDS directories after
/// them when a hash is bytes.
fn bytes_repr_head(bytes: &[u8]) -> Vec<char> {
    // CPython's rule: double quotes only if there are single ones and no double ones.
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut out = String::from_iter(['b', quote]);
    // Each byte gives at least one character, so two of them behind `b'` are enough.
    for byte in bytes.iter().take(2) {
        match *byte {
            b'\\' => out.push_str("\\\\"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b' '..=b'~' if *byte as char == quote => out.extend(['\\', quote]),
            b' '..=b'~' => out.push(*byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push(quote);
    out.chars().take(4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_as_python_writes_them() {
        let heads = [
            (&b""[..], "b''"),
            (b"a", "b'a'"),
            (b"ab", "b'ab"),
            (b" ~", "b' ~"),
            (b"\\a", r"b'\\"),
            (b"\ta", r"b'\t"),
            (b"\na", r"b'\n"),
            (b"\ra", r"b'\r"),
            (b"\x1f", r"b'\x"),
            (b"a\x7f", r"b'a\"),
            (b"'a", "b\"'a"),
            (b"a\"", "b'a\""),
            (b"'\"", r"b'\'"),
            (b"a\"'", "b'a\""),
        ];
        for (bytes, head) in heads {
            assert_eq!(String::from_iter(bytes_repr_head(bytes)), head, "{bytes:?}");
        }
    }
}
