//! Keys of LMCache's in-process mode against what LMCache 0.5.6 itself said.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::sync::Arc;

use common::{cases, check, check_name, hex, is_committed, to_hex};
use kvtier_key::names::{FILE_NAME_BYTES_MAX, NameForm, S3_NAME_BYTES_MAX};
use kvtier_key::{
    CacheEngineKey, ChunkHash, DType, EngineHash, InvalidKey, KeyId, LayerCacheEngineKey,
    MODEL_BYTES_MAX, PyInt,
};
use serde_json::{Map, Value, json};

const TAG: &str = "lmcache.tag.";

/// Python's `str()` of a JSON value.
fn python_str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Null => "None".into(),
        other => other.to_string(),
    }
}

fn tags(configs: &Value) -> Vec<(String, &Value)> {
    let all = configs.as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.strip_prefix(TAG)?.to_owned(), value))).collect()
}

fn engine_key(fields: &Value) -> Result<CacheEngineKey, InvalidKey> {
    let hash = match fields["chunk_hash"].as_str().unwrap() {
        text if text.starts_with("bytes:") => EngineHash::Bytes(ChunkHash::new(&hex(&text[6..]))),
        text => EngineHash::Int(PyInt::from_decimal(text).unwrap()),
    };
    let beyond = || CacheEngineKey::from_text("").unwrap_err();
    let number = |name: &str| fields[name].as_i64().ok_or_else(beyond);
    let dtype = fields["dtype"].as_str().unwrap();
    let dtype = DType::from_name(dtype).or_else(|| DType::from_torch_name(dtype));
    let dtype = dtype.ok_or_else(beyond)?;
    let model = fields["model_name"].as_str().unwrap();
    let key = CacheEngineKey::new(model, number("world_size")?, number("worker_id")?, hash, dtype)?;
    key.with_tags(
        tags(&fields["request_configs"]).iter().map(|(name, value)| (name, python_str(value))),
    )
}

/// A key as the vectors show one that was parsed.
fn parsed_fields(id: KeyId) -> Value {
    let (key, layer) = match id {
        KeyId::Engine(key) => (key, None),
        KeyId::Layer(LayerCacheEngineKey { key, layer }) => (key, Some(layer)),
        other => panic!("{other:?}"),
    };
    let EngineHash::Int(hash) = &key.hash else { panic!("a parsed hash is a number") };
    let tag = |(name, value): &(Arc<str>, Arc<str>)| (format!("{TAG}{name}"), json!(**value));
    let configs: Map<String, Value> = key.tags.iter().map(tag).collect();
    let pairs: Vec<_> = key.tags.iter().map(|(name, value)| json!([**name, **value])).collect();
    let none = key.tags.is_empty();
    let mut fields = json!({
        "model_name": &*key.model, "world_size": key.world_size, "worker_id": key.worker_id,
        "chunk_hash": hash.to_string(), "dtype": key.dtype.name(),
        "request_configs": if none { Value::Null } else { configs.into() },
        "tags": if none { Value::Null } else { pairs.into() },
        "type": if layer.is_some() { "LayerCacheEngineKey" } else { "CacheEngineKey" },
    });
    if let Some(layer) = layer {
        fields["layer_id"] = layer.into();
    }
    fields
}

#[test]
fn keys_get_the_names_that_lmcache_gives_them() {
    for case in cases("keys_cache_engine") {
        println!("{}", case["in"]);
        match (engine_key(&case["in"]), case["out"].get("ok")) {
            (Ok(key), Some(theirs)) => {
                check_texts(&key, theirs, &case["in"]);
                check_names(&key, theirs);
                check_dict(&key, &theirs["to_dict"], &case["in"]);
            }
            (Err(_), None) => assert!(case["out"]["error"].is_string()),
            (Err(_), Some(_)) if beyond_limits(&case["in"]) => {}
            (ours, theirs) => panic!("we say {ours:?}, LMCache says {theirs:?}"),
        }
    }
}

fn check_texts(key: &CacheEngineKey, theirs: &Value, given: &Value) {
    assert_eq!(json!(key.text()), theirs["to_string"]);
    assert_eq!(json!(key.split_layers(1).next().unwrap().text()), theirs["first_layer"]);
    assert_eq!(json!(key.layer(12).text()), theirs["layer12"]);
    assert_eq!(json!(key.clone().with_worker(7).text()), theirs["worker7"]);
    let pairs: Vec<Value> =
        tags(&given["request_configs"]).iter().map(|(name, value)| json!([name, value])).collect();
    assert_eq!(if pairs.is_empty() { Value::Null } else { pairs.into() }, theirs["tags"]);
    check(
        CacheEngineKey::from_text(&key.text()).map(KeyId::Engine),
        &theirs["roundtrip"],
        parsed_fields,
    );
    let layer = key.layer(12).text();
    check(
        LayerCacheEngineKey::from_text(&layer).map(KeyId::Layer),
        &theirs["roundtrip_layer12"],
        parsed_fields,
    );
    // In Python a tag's value may be no text; it reads back as one.
    let only_text = tags(&given["request_configs"]).iter().all(|(_, value)| value.is_string());
    let equal = CacheEngineKey::from_text(&key.text()).map(|back| back == *key && only_text);
    check(equal, &theirs["roundtrip_equal"], Value::Bool);
}

fn check_names(key: &CacheEngineKey, theirs: &Value) {
    let whole = KeyId::Engine(key.clone());
    let layer = KeyId::Layer(key.layer(12));
    let file = |form: NameForm| form.format_lossy(&whole);
    let in_folder = |name: Result<String, InvalidKey>, folder: &str, theirs: &Value| {
        let max = FILE_NAME_BYTES_MAX + folder.len();
        check_name(name.map(|name| format!("{folder}{name}")), theirs, max);
    };
    for (id, theirs) in [(&whole, &theirs["s3_path"]), (&layer, &theirs["s3_path_layer12"])] {
        let ours = NameForm::S3NonMp { prefix: String::new() }.format_lossy(id);
        let too_long = NameForm::Text.format_lossy(id).unwrap().len() > S3_NAME_BYTES_MAX;
        check_name(ours, theirs, if too_long { 0 } else { usize::MAX });
    }
    in_folder(file(NameForm::FsConnector), "/b0/", &theirs["fs_file"]);
    in_folder(whole.fs_connector_temporary_name(), "/b0/", &theirs["fs_tmp"]);
    let base = key.fs_connector_base(3);
    let based = |folder: &str| {
        base.clone()
            .and_then(|base| Ok(format!("/b{base}/{folder}{}", file(NameForm::FsConnector)?)))
    };
    check_name(based(""), &theirs["fs3_file"], FILE_NAME_BYTES_MAX + 4);
    check_name(based("tmp/"), &theirs["fs3_tmp"], FILE_NAME_BYTES_MAX + 8);
    in_folder(file(NameForm::LocalDisk), "/ld/", &theirs["local_disk"]);
    for (weka, theirs) in [(false, &theirs["gds"]), (true, &theirs["gds_weka"])] {
        check_gds(file(NameForm::Gds { weka, sidecar: false }), theirs);
        check_gds_sidecar(&whole, weka);
    }
    let legacy = key.raw_block_identity().map(|identity| (key.text(), identity.to_string()));
    check(
        legacy,
        &theirs["raw_block_legacy"],
        |(encoded, slot_identity)| json!({ "encoded": encoded, "slot_identity": slot_identity }),
    );
}

/// LMCache shows (path, both directories as one, outer, inner).
fn check_gds(ours: Result<String, InvalidKey>, theirs: &Value) {
    let Some([path, both, outer, inner]) =
        theirs["ok"].as_array().map(|list| [0, 1, 2, 3].map(|i| list[i].as_str()))
    else {
        assert!(
            theirs["error"].is_string() && ours.is_err(),
            "we say {ours:?}, LMCache says {theirs}"
        );
        return;
    };
    let leads_out = both.unwrap().contains('/') || inner == Some("..");
    if leads_out || path.unwrap().rsplit('/').next().unwrap().len() > FILE_NAME_BYTES_MAX {
        assert!(ours.is_err(), "LMCache writes there, we never do: {ours:?}");
        return;
    }
    let ours = ours.unwrap();
    assert_eq!(format!("/gds/{ours}"), path.unwrap());
    assert!(path.unwrap().starts_with(&format!("/gds/{}/", outer.unwrap())));
    assert_eq!(format!("{}{}", outer.unwrap(), inner.unwrap()), both.unwrap());
    let dirs = ours.rsplit_once('/').unwrap().0;
    assert_eq!(dirs, format!("{}/{}", outer.unwrap(), inner.unwrap()).trim_end_matches('/'));
}

fn check_gds_sidecar(id: &KeyId, weka: bool) {
    let data = NameForm::Gds { weka, sidecar: false }.format_lossy(id);
    let sidecar = NameForm::Gds { weka, sidecar: true }.format_lossy(id);
    if let Ok(sidecar) = sidecar {
        assert_eq!(sidecar, data.unwrap() + ".metadata");
    }
}

/// What of LMCache's dictionary a key of ours holds: all but the configurations that are no tags.
fn check_dict(key: &CacheEngineKey, theirs: &Value, given: &Value) {
    let hash = match &key.hash {
        EngineHash::Int(hash) => json!(hash.to_string()),
        EngineHash::Bytes(bytes) => {
            assert_eq!(given["chunk_hash"], format!("bytes:{}", to_hex(bytes.as_bytes())));
            theirs["ok"]["chunk_hash"].clone()
        }
    };
    let tags: Vec<Value> =
        key.tags.iter().map(|(name, value)| json!(format!("{TAG}{name}%{value}"))).collect();
    let mut theirs = theirs["ok"].clone();
    let configs = theirs.as_object_mut().unwrap().remove("request_configs").unwrap_or(json!([]));
    let is_tag = |config: &&Value| config.as_str().unwrap().starts_with(TAG);
    assert_eq!(
        tags,
        configs.as_array().unwrap().iter().filter(is_tag).cloned().collect::<Vec<_>>()
    );
    let ours = json!({
        "__type__": "CacheEngineKey", "model_name": &*key.model, "world_size": key.world_size,
        "worker_id": key.worker_id, "chunk_hash": hash, "dtype": key.dtype.name(),
    });
    assert_eq!(ours, theirs);
}

#[test]
fn texts_read_as_lmcache_reads_them() {
    for case in cases("keys_cache_engine_parse") {
        let text = case["in"].as_str().unwrap();
        println!("{text:?}");
        let either = KeyId::from_engine_text(text);
        let engine = CacheEngineKey::from_text(text).map(KeyId::Engine);
        let layer = LayerCacheEngineKey::from_text(text).map(KeyId::Layer);
        check(either.clone(), &within_limits(&case["parse_cache_key"]), parsed_fields);
        check(engine, &within_limits(&case["CacheEngineKey.from_string"]), parsed_fields);
        check(layer, &within_limits(&case["LayerCacheEngineKey.from_string"]), parsed_fields);
        if within_limits(&case["parse_cache_key"]).get("ok").is_some() {
            let again = either.and_then(|id| NameForm::Text.format_lossy(&id));
            check(again, &case["reserialized"], Value::String);
        }
    }
}

fn beyond_limits(fields: &Value) -> bool {
    let long = fields["model_name"].as_str().unwrap().len() > MODEL_BYTES_MAX;
    long || fields["world_size"].as_i64().is_none() || fields["worker_id"].as_i64().is_none()
}

/// LMCache's numbers have no size; those of a key of ours but the hash have 64 bits, and what is
/// beyond is refused.
fn within_limits(theirs: &Value) -> Value {
    let beyond = ["world_size", "worker_id", "layer_id"].iter().any(|name| {
        let number = &theirs["ok"][*name];
        !number.is_null() && number.as_i64().is_none()
    });
    if beyond { json!({ "error": "beyond" }) } else { theirs.clone() }
}

#[test]
fn types_are_spelled_as_lmcache_spells_them() {
    for case in cases("enums") {
        let names = case["STR_DTYPES"].as_object().unwrap();
        assert!(
            !is_committed() || names.len() == DType::all().count(),
            "a type of ours is not among LMCache's"
        );
        for (name, torch) in names {
            let dtype = DType::from_name(name).unwrap();
            assert_eq!(format!("torch.{}", dtype.torch_name()), torch.as_str().unwrap());
            assert_eq!(dtype.name(), name);
        }
    }
}

#[test]
fn gds_headers_name_types_and_sizes_as_we_do() {
    for case in cases("gds_metadata") {
        let Some(dtype) = case["in"]["dtype"].as_str().and_then(DType::from_torch_name) else {
            continue;
        };
        let Some(json) = case["out"]["ok"]["json"].as_str() else {
            // Too long for its header, unless the type is the reason.
            assert!(dtype.gds_name().is_none() || case["in"]["extra"] != json!({}));
            continue;
        };
        let header: Value = serde_json::from_str(json).unwrap();
        assert_eq!(header["kvcache"]["dtype"], json!(dtype.gds_name()));
        let elements: u64 =
            case["in"]["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        assert_eq!(
            header["kvcache"]["data_offsets"][1],
            json!(elements * u64::from(dtype.bytes()))
        );
    }
}
