//! Names and configurations of vLLM's `fs` tier, against what vLLM's own code made of them.
#![allow(clippy::unwrap_used)]

use kvtier_key::names::{NameForm, detect, is_vllm_fs_dir};
use kvtier_key::{ChunkHash, KeyId, KvRank, ObjectKey, VllmRunConfig};
use serde_json::Value;

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

fn unhex(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn names_and_configurations_are_those_of_vllm() {
    let cases = load::cases("vllm_fs.json");
    for case in &cases {
        let given = &case["in"]["run_config"];
        let out = &case["out"];
        let config = match VllmRunConfig::from_json(&given.to_string()) {
            Ok(config) => config,
            Err(e) => panic!("{given}: {e}"),
        };
        assert_eq!(config.base(), out["base"], "{given}");
        assert_eq!(config.path(), out["config_path"], "{given}");
        assert_eq!(config.text(), out["config"], "{given}");
        assert_eq!(VllmRunConfig::from_json(config.text()).unwrap(), config, "{given}");
        assert_eq!(config.model(), given["model_name"]);
        for name in out["names"].as_array().unwrap() {
            let rank = KvRank(out["rank"].as_i64().unwrap());
            let group = u32::try_from(name["group"].as_u64().unwrap()).unwrap();
            let hash = ChunkHash::new(&unhex(&name["hash"]));
            let id = KeyId::from(ObjectKey::new(config.base(), rank, group, hash, "").unwrap());
            let text = name["name"].as_str().unwrap();
            assert_eq!(NameForm::VllmFs.format(&id).unwrap(), text);
            let parsed = NameForm::VllmFs.parse(text).unwrap();
            assert_eq!((parsed.loss(), parsed.key()), (None, &id));
            let found = detect(&format!("/mnt/nvme/kv/{text}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((&found[0].0, found[0].1.key()), (&NameForm::VllmFs, &id));
            let dirs: Vec<&str> = text.split('/').collect();
            assert!((0..3).all(|depth| is_vllm_fs_dir(depth, dirs[depth])), "{text}");
        }
    }
    assert!(!load::is_committed() || cases.len() == 8);
}

#[test]
fn each_field_of_the_configuration_gives_another_name() {
    let Some(case) = load::cases("vllm_fs.json").into_iter().next() else { return };
    let given = &case["in"]["run_config"];
    let base = VllmRunConfig::from_json(&given.to_string()).unwrap().base().to_owned();
    let fields = given.as_object().unwrap();
    assert!(fields.len() > 10);
    for name in fields.keys() {
        let mut other = fields.clone();
        other[name] = match &fields[name] {
            Value::Number(n) => (n.as_i64().unwrap() + 1).into(),
            Value::Bool(truth) => (!truth).into(),
            Value::Array(_) => Value::Array(Vec::new()),
            text => format!("{}x", text.as_str().unwrap()).into(),
        };
        let other = VllmRunConfig::from_json(&Value::from(other).to_string()).unwrap();
        assert_ne!(other.base(), base, "{name}");
    }
}

#[test]
fn no_other_path_is_a_name() {
    let base = "org_m_0123456789ab";
    let name = format!("{base}_r0/000/10_g0/0001020304.bin");
    assert!(NameForm::VllmFs.parse(&name).unwrap().loss().is_none());
    for other in [
        name.replace("_r0", ""),
        name.replace("_r0", "_r00"),
        name.replace("_r0", "_r+0"),
        name.replace("_r0", "_r-1"),
        name.replace("_g0", "_g"),
        name.replace("_g0", "_g4294967296"),
        name.replace("/000/", "/001/"),
        name.replace("0001020304.bin", "000102030.bin"),
        name.replace("0001020304.bin", "0001020304.bin_77.tmp"),
        name.replace("0001020304", "000102030A"),
        name.replace("89ab", "89aB"),
        name.replace("89ab", "89a"),
        format!("x/{name}"),
        format!("{base}/config.json"),
        name.rsplit_once('/').unwrap().1.to_owned(),
        String::new(),
    ] {
        let parsed = NameForm::VllmFs.parse(&other);
        assert!(
            !parsed.as_ref().is_ok_and(|parsed| parsed.loss().is_none()),
            "{other}: {parsed:?}"
        );
    }
    for (depth, dir) in [
        (0, base),
        (0, "org_m_r0"),
        (0, ".kvtier"),
        (1, "0001"),
        (1, "0"),
        (1, "00G"),
        (2, "00"),
        (2, "000_g0"),
        (2, "00_g01"),
        (3, "000"),
    ] {
        assert!(!is_vllm_fs_dir(depth, dir), "{depth} {dir}");
    }
}

#[test]
fn keys_and_configurations_without_such_a_name_are_refused() {
    let key = |model: &str, rank: i64, hash: &[u8], salt: &str| {
        let id = ObjectKey::new(model, KvRank(rank), 0, ChunkHash::new(hash), salt).unwrap();
        NameForm::VllmFs.format(&id.into())
    };
    let base = "org_m_0123456789ab";
    assert!(key(base, 0, &[1; 32], "").is_ok());
    for refused in [
        key("org/m_0123456789ab", 0, &[1; 32], ""),
        key("org_m", 0, &[1; 32], ""),
        key(base, -1, &[1; 32], ""),
        key(base, 0, &[], ""),
        key(base, 0, &[1; 126], ""),
        key(base, 0, &[1; 32], "salt"),
        key(&format!("{}_0123456789ab", "m".repeat(250)), 0, &[1; 32], ""),
    ] {
        assert!(refused.is_err(), "{refused:?}");
    }
    assert!(NameForm::VllmFs.format(&KeyId::from_engine_text("m@1@0@5@half").unwrap()).is_err());
    for text in [
        "",
        "[]",
        "{}",
        r#"{"model_name": 7}"#,
        r#"{"model_name": "m", "x": 1.5}"#,
        r#"{"model_name": "m", "x": NaN}"#,
        r#"{"model_name": "a@b"}"#,
        "{\"model_name\": \"a\\u0000b\"}",
    ] {
        assert!(VllmRunConfig::from_json(text).is_err(), "{text}");
    }
    let long = format!(r#"{{"model_name": "{}"}}"#, "m".repeat(250));
    assert!(VllmRunConfig::from_json(&long).is_err());
    // Any spelling and order of the same fields.
    let one = VllmRunConfig::from_json(r#"{"model_name":"m","a":[true,null,{},-1]}"#).unwrap();
    let same = "{ \"a\" : [true, null, {}, -1],\n\"model_name\": \"\\u006d\" }";
    assert_eq!(VllmRunConfig::from_json(same).unwrap(), one);
}

#[test]
fn a_name_has_a_rank_and_a_hash_of_whole_lower_case_bytes() {
    let base = "m_0123456789ab";
    let format = |rank, hash: &[u8]| {
        let key = ObjectKey::new(base, KvRank(rank), 0, ChunkHash::new(hash), "").unwrap();
        NameForm::VllmFs.format(&KeyId::from(key))
    };
    let name = format(0, &[0x1a; 8]).unwrap();
    assert!(NameForm::VllmFs.parse(&name).is_ok(), "{name}");
    assert!(format(-1, &[0x1a; 8]).is_err());
    assert!(format(0, &[]).is_err());
    for wrong in ["1A", "+a", "1"] {
        let other = name.replace("1a1a1a1a1a1a1a1a", &format!("1a1a1a1a1a1a1a{wrong}"));
        assert_ne!(other, name);
        assert!(NameForm::VllmFs.parse(&other).is_err(), "{other}");
    }
}
