//! Keys of LMCache's multi-process mode against what LMCache 0.5.6 itself said.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use common::{cases, check, check_name, hex, object_fields, object_key};
use kvtier_key::names::{FILE_NAME_BYTES_MAX, NameForm, S3_NAME_BYTES_MAX};
use kvtier_key::{ChunkHash, InvalidKey, IpcKey, KeyId, KvRank, MODEL_BYTES_MAX, ObjectKey};
use serde_json::{Value, json};

#[test]
fn keys_get_the_names_that_lmcache_gives_them() {
    for case in cases("object_keys") {
        println!("{}", case["in"]);
        match (object_key(&case["in"]), case["out"].get("ok")) {
            (Ok(key), Some(theirs)) => check_names(&key, theirs),
            (Err(_), None) => assert!(case["out"]["error"].is_string()),
            (Err(_), Some(_)) if beyond_limits(&case["in"]) => {}
            (ours, theirs) => panic!("we say {ours:?}, LMCache says {theirs:?}"),
        }
    }
}

fn beyond_limits(fields: &Value) -> bool {
    let long = fields["model_name"].as_str().unwrap().len() > MODEL_BYTES_MAX;
    long || fields["kv_rank"].as_i64().is_none()
        || fields["object_group_id"].as_u64() > Some(u32::MAX.into())
}

fn check_names(key: &ObjectKey, theirs: &Value) {
    let same = |ours: Result<String, InvalidKey>, theirs: &Value, max| {
        check_name(ours, &json!({ "ok": theirs }), max)
    };
    let format = |form: NameForm| form.format_lossy(&KeyId::Object(key.clone()));
    same(key.native_name(), &theirs["s3_object_name"], S3_NAME_BYTES_MAX);
    same(key.native_name(), &theirs["native_key"], S3_NAME_BYTES_MAX);
    if theirs["s3_object_name"].as_str().unwrap().len() <= S3_NAME_BYTES_MAX {
        check_name(
            format(NameForm::S3Mp { prefix: String::new() }),
            &theirs["s3_http_path"],
            usize::MAX,
        );
        check(
            ObjectKey::from_native_name(&key.native_name().unwrap()),
            &theirs["s3_parse_back"],
            object_fields,
        );
    }
    same(key.fs_name(), &theirs["fs_filename"], FILE_NAME_BYTES_MAX);
    if let Ok(name) = key.fs_name() {
        let back = ObjectKey::from_fs_name(&name);
        let equal = back.as_ref() == Ok(key);
        assert_eq!(theirs["fs_parse_back_equal"], json!(equal));
        assert_eq!(
            format(NameForm::Fs).is_ok() && equal,
            NameForm::Fs.format(&KeyId::Object(key.clone())).is_ok()
        );
        assert_eq!(back.map_or(Value::Null, object_fields), theirs["fs_parse_back"]);
    }
    let native = &theirs["fs_native"]["ok"];
    if native["ok"] == json!(true) {
        same(key.fs_native_name(), &native["files"][0], FILE_NAME_BYTES_MAX);
    }
    assert_eq!(json!(key.raw_block_name()), theirs["raw_block"]["encoded"]);
    assert_eq!(json!(key.raw_block_identity().to_string()), theirs["raw_block"]["slot_identity"]);
    let back = ObjectKey::from_raw_block_name(&key.raw_block_name());
    check(back.map(|back| back == *key), &theirs["raw_block_back_equal"], Value::Bool);
    assert_eq!(object_fields(key.clone()), theirs["encoded"]);
    check(
        object_key(&theirs["encoded"]).map(|back| back == *key),
        &theirs["encoded_back_equal"],
        Value::Bool,
    );
}

#[test]
fn listed_s3_names_read_as_lmcache_reads_them() {
    for case in cases("object_keys_s3_parse") {
        println!("{}", case["in"]);
        check(
            ObjectKey::from_native_name(case["in"].as_str().unwrap()),
            &within_limits(&case["out"]),
            object_fields,
        );
    }
}

#[test]
fn listed_files_read_as_lmcache_reads_them() {
    for case in cases("object_keys_fs_parse") {
        println!("{}", case["in"]);
        let ours = ObjectKey::from_fs_name(case["in"].as_str().unwrap());
        let theirs = within_limits(&case["out"]);
        assert_eq!(
            ours.map_or(Value::Null, object_fields),
            *theirs.get("ok").unwrap_or(&Value::Null)
        );
    }
}

/// LMCache's numbers have no size; a key of ours has a rank of 64 bits and a group of 32, and what
/// is beyond is refused.
fn within_limits(theirs: &Value) -> Value {
    match theirs.get("ok") {
        Some(fields) if !fields.is_null() && object_key(fields).is_err() => {
            json!({ "error": "beyond" })
        }
        _ => theirs.clone(),
    }
}

#[test]
fn ranks_pack_as_lmcache_packs_them() {
    for case in cases("kv_rank") {
        let [world, rank, local_world, local_rank] =
            [0, 1, 2, 3].map(|i| case["in"][i].as_i64().unwrap() as i32);
        let packed = KvRank::pack(world, rank, local_world, local_rank);
        assert_eq!(json!(packed.0), case["kv_rank"]);
        assert_eq!(json!(packed.world_size()), case["world_size_back"]);
        let key = ObjectKey::new("m", packed, 0, ChunkHash::new(&[]), "").unwrap();
        assert_eq!(json!(key.native_name().unwrap().split('@').nth(1)), case["hex08"]);
    }
}

#[test]
fn requests_expand_in_lmcaches_order() {
    for case in cases("ipc_key_expand") {
        let list = |name: &str| case["in"][name].as_array().unwrap().clone();
        let request = IpcKey {
            model: case["in"]["model_name"].as_str().unwrap().into(),
            world_size: case["in"]["world_size"].as_i64().unwrap() as i32,
            worker_id: case["in"]["worker_id"].as_i64().map(|worker| worker as i32),
            hashes: list("chunk_hashes")
                .iter()
                .map(|hash| ChunkHash::new(&hex(hash.as_str().unwrap())))
                .collect(),
            groups: list("object_group_ids")
                .iter()
                .map(|group| group.as_u64().unwrap() as u32)
                .collect(),
            salt: case["in"]["cache_salt"].as_str().unwrap().into(),
        };
        let theirs =
            if case["out"].is_array() { json!({ "ok": case["out"] }) } else { case["out"].clone() };
        let show = |groups: Vec<Vec<ObjectKey>>| {
            groups
                .into_iter()
                .map(|keys| keys.into_iter().map(object_fields).collect::<Value>())
                .collect()
        };
        check(request.expand(), &theirs, show);
    }
}

#[test]
fn raw_block_slots_carry_the_keys_they_say() {
    for case in cases("raw_block_layout") {
        let lens = case["in"]["payload_lens"].as_array().cloned().unwrap_or_default();
        for (name, slot) in case["out"]["slots"].as_object().into_iter().flatten() {
            let key = ObjectKey::from_raw_block_name(name).unwrap();
            assert_eq!(&key.raw_block_name(), name);
            assert_eq!(slot["offset"], case["out"]["offsets"][name], "{name}");
            let header = hex(slot["header24_hex"].as_str().unwrap());
            assert_eq!(
                (&header[..8], &header[8..16]),
                (&b"LMCBLK01"[..], &key.raw_block_identity().to_le_bytes()[..])
            );
            let len = json!(u64::from_le_bytes(header[16..24].try_into().unwrap()));
            assert!(lens.contains(&len), "{name}: no payload of {len} bytes");
        }
    }
}
