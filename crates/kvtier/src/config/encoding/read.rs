//! Reads the settings of an encoding. Errors name the setting and never show a value that may be a
//! key.

use kvtier_codec::{ElementType, Keyring, stage_by_name};
use kvtier_key::DType;

use super::{CacheGenSpec, EncodingSpec, EncodingStage, EncryptionKey, KeySource};
use crate::config::common_values::size;
use crate::config::suggest;
use crate::config::value::Value;

/// The settings of a tier that are its encoding.
const NAMES: [&str; 3] = ["encode", "decode_keys", "encode_bytes"];

/// Every stage, for hints.
const STAGES: [&str; 5] = ["lz4", "zstd", "bf16-split", "cachegen", "aes-256-gcm"];

const ENCODE_FORM: &str = "encode takes a list of encodings, such as [\"bf16-split\", \"zstd:3\"]";

const AES_FORM: &str =
    "aes-256-gcm needs a key: {\"name\": \"aes-256-gcm\", \"key_file\": PATH, \"key_id\": 1}";

const CACHEGEN_FORM: &str = "cachegen is lossy and needs the shape of chunks: {\"name\": \"cachegen\", \"layers\": 32, \"kv_width\": 1024}";

const KEY_FORM: &str = "{\"key_file\": PATH, \"key_id\": 1}";

impl EncodingSpec {
    /// Splits a tier's settings: its encoding, and the tier without it.
    pub(in crate::config) fn take(tier: &Value) -> Result<(Self, Value), String> {
        let value = |name| tier.field(name).unwrap_or(&Value::Null);
        let [encode, decode_keys, bytes] = NAMES.map(value);
        let spec = EncodingSpec::read(encode, decode_keys, bytes)?;
        let map = tier.as_map().unwrap_or_default();
        let rest = map.iter().filter(|(name, _)| !NAMES.contains(&name.as_str())).cloned();
        Ok((spec, Value::Map(rest.collect())))
    }

    /// Reads the three settings; null is one that is not set.
    pub(in crate::config) fn read(
        encode: &Value,
        decode_keys: &Value,
        bytes: &Value,
    ) -> Result<Self, String> {
        let mut spec = EncodingSpec::default();
        if !encode.is_null() {
            let list = encode.as_list().ok_or(ENCODE_FORM)?;
            spec.stages = list.iter().map(stage).collect::<Result<_, _>>()?;
        }
        spec.decode_keys = keys(decode_keys, "decode_keys")?;
        if !bytes.is_null() {
            let wrong =
                || format!("encode_bytes takes a size above 0, such as \"256MiB\", not {bytes}");
            spec.bytes = Some(size(bytes).filter(|bytes| *bytes > 0).ok_or_else(wrong)?);
        }
        check(&spec).map(|()| spec)
    }
}

/// What the settings must be together.
fn check(spec: &EncodingSpec) -> Result<(), String> {
    spec.chain(&Keyring::new().into()).map_err(|e| format!("encode: {e}"))?;
    if spec.encrypts() && !spec.decode_keys.is_empty() {
        return Err("decode_keys is for a tier that does not encrypt: write these keys as `old_keys` of aes-256-gcm".into());
    }
    let ids: Vec<u32> = spec.keys().map(|key| key.id).collect();
    let repeated = ids.iter().enumerate().find(|(at, id)| ids[..*at].contains(id));
    repeated.map_or(Ok(()), |(_, id)| {
        Err(format!("key_id {id} is there twice: give each key an id of its own"))
    })
}

fn stage(value: &Value) -> Result<EncodingStage, String> {
    if let Some(name) = value.as_text() {
        return named(name);
    }
    let name = value.field("name").and_then(Value::as_text);
    let name =
        name.ok_or_else(|| format!("{ENCODE_FORM}; a {} has no `name`", value.type_name()))?;
    match name {
        "bf16-split" => {
            only(value, name, &["name", "dtype"])?;
            let dtype = value.field("dtype").filter(|dtype| !dtype.is_null());
            Ok(EncodingStage::Bf16Split { element_type: dtype.map(element_type).transpose()? })
        }
        "cachegen" => cachegen(value).map(EncodingStage::CacheGen),
        "aes-256-gcm" => {
            let old_keys = value.field("old_keys").unwrap_or(&Value::Null);
            Ok(EncodingStage::Aes256Gcm {
                key: key(value, name, &["name", "old_keys"])?,
                old_keys: keys(old_keys, "old_keys")?,
            })
        }
        _ => {
            only(value, name, &["name"])?;
            named(name)
        }
    }
}

fn named(name: &str) -> Result<EncodingStage, String> {
    match name {
        "bf16-split" => Ok(EncodingStage::Bf16Split { element_type: None }),
        "aes-256-gcm" => Err(format!("encode: {AES_FORM}")),
        "cachegen" => Err(format!("encode: {CACHEGEN_FORM}")),
        _ => match stage_by_name(name) {
            Ok(_) => Ok(EncodingStage::Named(name.to_owned())),
            Err(e) => Err(format!("encode: {e}{}", suggest::hint(name, STAGES))),
        },
    }
}

fn cachegen(value: &Value) -> Result<CacheGenSpec, String> {
    let fields = ["name", "layers", "kv_width", "chunk_tokens"];
    only(value, "cachegen", &fields)?;
    let extent = |name: &str| {
        let Some(given) = value.field(name).filter(|given| !given.is_null()) else {
            return Ok(None);
        };
        let extent = given.as_int().and_then(|extent| u32::try_from(extent).ok());
        let wrong = || format!("cachegen: {name} takes a whole number from 1 on, not {given}");
        extent.filter(|extent| *extent > 0).map(Some).ok_or_else(wrong)
    };
    let missing = || format!("encode: {CACHEGEN_FORM}");
    let layers = extent("layers")?.ok_or_else(missing)?;
    let mut spec = CacheGenSpec::new(layers, extent("kv_width")?.ok_or_else(missing)?);
    spec.chunk_tokens = extent("chunk_tokens")?.unwrap_or(spec.chunk_tokens);
    Ok(spec)
}

/// The type that a name means, of those that `bf16-split` takes apart.
fn element_type(dtype: &Value) -> Result<ElementType, String> {
    let name = dtype.as_text().unwrap_or_default();
    let dtype_of = DType::from_torch_name(name).or_else(|| DType::from_name(name));
    dtype_of.and_then(ElementType::from_dtype).ok_or_else(|| {
        format!(
            "bf16-split: dtype takes bfloat16, float16, float8_e4m3fn or float8_e5m2, not {dtype}"
        )
    })
}

fn keys(value: &Value, setting: &str) -> Result<Vec<EncryptionKey>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let list = value.as_list().ok_or_else(|| format!("{setting} takes a list of {KEY_FORM}"))?;
    list.iter().map(|value| key(value, setting, &[])).collect()
}

/// The key of an object, which may also have the fields `beside`.
fn key(value: &Value, of: &str, beside: &[&str]) -> Result<EncryptionKey, String> {
    if value.as_map().is_none() {
        return Err(format!("{of} takes {KEY_FORM}, not a {}", value.type_name()));
    }
    let fields = ["key_id", "key_file", "key_command"];
    only(value, of, &[&fields, beside].concat())?;
    let [id, file, command] = fields.map(|name| value.field(name).filter(|value| !value.is_null()));
    let id = id.and_then(Value::as_int).and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0);
    let id = id.ok_or_else(|| {
        format!("{of}: key_id takes a whole number from 1 to {}; chunks store it", u32::MAX)
    })?;
    let source = match (file, command) {
        (Some(file), None) => {
            let path = file.as_text().filter(|path| !path.is_empty());
            KeySource::File(path.ok_or_else(|| format!("{of}: key_file takes a path"))?.into())
        }
        (None, Some(command)) => KeySource::Command(words(command).ok_or_else(|| {
            format!("{of}: key_command takes a program and its arguments as a list of texts; no shell reads it")
        })?),
        (Some(_), Some(_)) => {
            return Err(format!("{of}: key_file and key_command are there together; keep one"));
        }
        (None, None) => {
            return Err(format!("{of}: key_file and key_command are missing; write one"));
        }
    };
    Ok(EncryptionKey { id, source })
}

fn words(command: &Value) -> Option<Vec<String>> {
    let words = command.as_list()?.iter().map(|word| word.as_text().map(str::to_owned));
    let words = words.collect::<Option<Vec<_>>>()?;
    words.first().is_some_and(|program| !program.is_empty()).then_some(words)
}

/// Refuses fields that are none of `known`, without their values: they may be keys.
fn only(value: &Value, of: &str, known: &[&str]) -> Result<(), String> {
    let map = value.as_map().unwrap_or_default();
    let unknown = map.iter().find(|(name, _)| !known.contains(&name.as_str()));
    unknown.map_or(Ok(()), |(name, _)| {
        let hint = suggest::hint(name, known.iter().copied());
        Err(format!("{of}: {name}: no setting is called that{hint}; it has {}", known.join(", ")))
    })
}
