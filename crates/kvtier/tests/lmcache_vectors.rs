//! LMCache's own readings of configurations, recorded from LMCache 0.5.6, beside ours.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use kvtier::config::lmcache::{EffectiveSetting, Inputs, LmcacheConfig};
use kvtier::config::{Adapter, Field, settings};
use serde_json::{Map, Value as Json, json};

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

use load::{cases, is_committed};

fn inputs(case: &Json, lenient: bool) -> Inputs {
    let mut inputs = Inputs::new().with_lenient(lenient);
    if let Some(yaml) = case["in"]["yaml"].as_str() {
        inputs = inputs.with_file("<path>", yaml);
    }
    for (name, value) in case["in"]["env"].as_object().unwrap() {
        inputs = inputs.with_variable(name, value.as_str().unwrap());
    }
    for (name, value) in case["in"]["overrides"].as_object().unwrap_or(&Map::new()) {
        inputs = inputs.with_override(name, value.clone());
    }
    inputs
}

/// Python holds 5 and 5.0, 1 and True equal.
fn same(a: &Json, b: &Json) -> bool {
    let number = |v: &Json| {
        v.as_f64()
            .or_else(|| v.as_bool().map(f64::from))
            .or_else(|| v.as_str().and_then(|t| t.parse().ok()))
    };
    match (a, b) {
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => {
            a == b
                || (number(a).is_some()
                    && number(a) == number(b)
                    && (a.is_string() == b.is_string()))
        }
    }
}

fn default_of(setting: &EffectiveSetting) -> Json {
    let fresh = LmcacheConfig::read(&Inputs::new()).unwrap();
    fresh.setting(setting.definition.name).unwrap().value.to_json()
}

fn changed(config: &LmcacheConfig) -> Json {
    let all = config
        .settings()
        .iter()
        .filter(|setting| !same(&setting.value.to_json(), &default_of(setting)));
    Json::Object(
        all.map(|setting| (setting.definition.name.to_owned(), setting.value.to_json())).collect(),
    )
}

/// The setting that a warning of LMCache's is about.
fn subject(warning: &str) -> &str {
    let tail = [
        "Unknown configuration key: ",
        "Unknown config key: ",
        "Failed to convert value for ",
        "Failed to parse ",
        "Automatically setting ",
    ]
    .iter()
    .find_map(|head| warning.strip_prefix(head))
    .unwrap_or(warning);
    tail.split([' ', '=', ',']).next().unwrap()
}

#[test]
fn defaults_names_and_types_are_lmcaches() {
    for case in cases("engine_config_defaults.json") {
        let config = LmcacheConfig::read(&Inputs::new()).unwrap();
        let defaults = case["defaults"].as_object().unwrap();
        let ours: HashSet<&str> =
            config.settings().iter().map(|setting| setting.definition.name).collect();
        let theirs: HashSet<&str> = defaults.keys().map(String::as_str).collect();
        assert!(theirs.is_subset(&ours), "unknown to us: {:?}", theirs.difference(&ours));
        assert!(
            !is_committed() || ours == theirs,
            "unknown to LMCache: {:?}",
            ours.difference(&theirs)
        );
        for (name, theirs) in defaults
            .iter()
            .filter(|(_, value)| !value.as_str().is_some_and(|text| text.starts_with("<generated")))
        {
            let own = config.value(name).to_json();
            assert!(same(&own, theirs), "{name}: {own} instead of {theirs}");
        }
        for (old, new) in case["aliases"].as_object().unwrap() {
            let deprecated = case["deprecated"].get(old).is_some();
            assert!(!deprecated || settings::old_name(old) == new.as_str(), "{old}");
        }
    }
}

#[test]
fn a_lenient_reading_is_lmcaches_own() {
    for case in cases("engine_config.json") {
        let shown = &case["in"];
        let read = LmcacheConfig::read(&inputs(&case, true));
        let Some(ok) = case["out"].get("ok") else {
            assert!(read.is_err(), "LMCache does not start with {shown}");
            continue;
        };
        let config = read.unwrap_or_else(|e| panic!("{shown}: {e}"));
        assert!(
            same(&changed(&config), &ok["changed_from_defaults"]),
            "{shown}: {}",
            changed(&config)
        );
        assert_eq!(json!(config.user_set()), ok["user_set"], "{shown}");
        for warning in case["out"]["warnings"].as_array().unwrap() {
            let warning = warning.as_str().unwrap();
            let about = subject(warning).trim_start_matches("LMCACHE_").to_lowercase();
            assert!(
                config.notes().iter().any(|note| note.name == about),
                "{shown}: no note for {warning:?}: {:?}",
                config.notes()
            );
        }
    }
}

#[test]
fn a_strict_reading_is_the_same_or_says_what_is_wrong() {
    let mut refused = 0;
    for case in cases("engine_config.json") {
        let shown = &case["in"];
        let Some(ok) = case["out"].get("ok") else {
            assert!(LmcacheConfig::read(&inputs(&case, false)).is_err(), "{shown}");
            continue;
        };
        match LmcacheConfig::read(&inputs(&case, false)) {
            Ok(config) => {
                let mut ours = changed(&config);
                let theirs = &ok["changed_from_defaults"];
                // KeyListing of earlier versions are read here, which LMCache drops.
                let old = config.notes().iter().filter(|note| {
                    note.text.starts_with("an old name") && settings::old_name(&note.name).is_some()
                });
                for note in old {
                    let new = settings::old_name(&note.name).unwrap();
                    if theirs.get(new).is_none() {
                        ours.as_object_mut().unwrap().remove(new);
                    }
                }
                assert!(same(&ours, theirs), "{shown}: {ours}");
            }
            Err(e) => {
                refused += 1;
                let e = e.to_string();
                let named = settings::all()
                    .any(|key| key.section == settings::Section::Engine && e.contains(key.name));
                assert!(
                    named
                        && (e.contains("<path>")
                            || e.contains("LMCACHE_")
                            || e.contains("override")),
                    "{e}"
                );
            }
        }
    }
    assert!(refused > 0 || !is_committed(), "values that LMCache drops in silence are errors");
}

fn plain(fields: &[Field]) -> Map<String, Json> {
    fields.iter().map(|field| (field.definition.name.to_owned(), field.value.to_json())).collect()
}

/// What we read, in the shape in which LMCache keeps it. Fields of ours are left out.
fn as_lmcache(adapter: &Adapter, theirs: &Json) -> Json {
    let mut fields = plain(adapter.fields());
    let mut eviction = adapter.eviction().map_or(Json::Null, |fields| Json::Object(plain(fields)));
    eviction.as_object_mut().map(|eviction| eviction.remove("compat"));
    let serde = match fields.get("serde") {
        Some(Json::Object(map)) => {
            let mut kwargs = map.clone();
            json!({"type": kwargs.remove("type"), "kwargs": kwargs})
        }
        _ => Json::Null,
    };
    fields.insert("eviction_config".into(), eviction);
    fields.insert("serde_config".into(), serde);
    fields.insert("persist_config".into(), json!({"persist_enabled": fields["persist_enabled"]}));
    fields.insert("__type__".into(), adapter.kind().into());
    if adapter.kind() == "raw_block" {
        let engine = theirs["io_engine"].as_str().unwrap_or_default();
        assert!(
            engine == fields["io_engine"].as_str().unwrap().to_lowercase() || engine == "io_uring"
        );
        fields.insert("io_engine".into(), engine.into());
    }
    fields.retain(|name, _| theirs.get(name).is_some());
    Json::Object(fields)
}

#[test]
fn adapters_are_read_as_lmcache_reads_them() {
    for case in cases("l2_adapter_config.json") {
        let arguments: Vec<String> = case["in"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect();
        let read = Adapter::list(&arguments, true);
        match (case["out"]["ok"].as_array(), read) {
            (Some(theirs), Ok(ours)) => {
                assert_eq!(theirs.len(), ours.len());
                for (theirs, ours) in theirs.iter().zip(&ours) {
                    let ours = as_lmcache(ours, theirs);
                    assert!(same(&ours, theirs), "{ours}\ninstead of\n{theirs}");
                }
            }
            // A store that is LMCache's alone.
            (Some(_), Err(e)) => assert_eq!(e.kind(), kvtier::core::ErrorKind::Unsupported, "{e}"),
            (None, Ok(_)) => panic!("LMCache refuses {arguments:?}"),
            (None, Err(e)) => {
                let theirs = case["out"]["message"].as_str().unwrap();
                let ours = e.to_string();
                let place = theirs.find("--l2-adapter #").unwrap();
                assert!(ours.contains(&theirs[place..place + 15]), "{ours}\ninstead of\n{theirs}");
                let field = settings::all()
                    .map(|key| key.name)
                    .find(|name| theirs.contains(&format!(": {name} ")));
                assert!(
                    field.is_none_or(|field| ours.contains(field)),
                    "{ours}\ninstead of\n{theirs}"
                );
            }
        }
    }
}

#[test]
fn an_adapter_without_a_codec_or_a_tier_says_so() {
    let read = |text: &str| Adapter::list(&[text], false).and_then(|list| list[0].tiers());
    for (text, says) in [
        (r#"{"type":"fs","base_path":"/x","serde":{"type":"fp8"}}"#, "serde"),
        (
            r#"{"type":"raw_block","device_path":"/dev/nvme0n1","slot_bytes":1048576}"#,
            "device_path",
        ),
        (r#"{"type":"plugin","module_path":"a.b","class_name":"C"}"#, "module_path"),
        (r#"{"type":"valkey"}"#, "valkey"),
    ] {
        let e = read(text).unwrap_err();
        assert_eq!(e.kind(), kvtier::core::ErrorKind::Unsupported);
        assert!(e.to_string().contains(says), "{e}");
    }
    let ours = r#"{"type":"native_plugin","module_path":"kvtier.lmcache","class_name":"C","adapter_params":{"tiers":[{"type":"host","bytes":"1MiB"}]}}"#;
    assert_eq!(read(ours).unwrap().len(), 1);
    let strict = Adapter::list(
        &[
            r#"{"type":"fs","base_path":"/x","eviction":{"eviction_policy":"LRU","eviction_ratio":5}}"#,
        ],
        false,
    );
    assert!(strict.unwrap_err().to_string().contains("eviction_ratio"));
}

#[test]
fn a_cache_policy_is_the_tiers_own() {
    let read = |yaml: &str| {
        LmcacheConfig::read(&Inputs::new().with_file("x.yaml", yaml)).unwrap().stack(0)
    };
    let said =
        read("cache_policy: LFU\nmax_local_cpu_size: 0.1\n").unwrap().config.tiers[0].facts();
    assert!(said.contains(&("policy", "lfu".to_owned())), "{said:?}");
    assert!(read("cache_policy: ARC\n").unwrap_err().to_string().contains("LRU, LFU, FIFO or MRU"));
    let disks = "local_cpu: false\nlocal_disk: /a/,file:///b/\nmax_local_disk_size: 1\n";
    let config = LmcacheConfig::read(&Inputs::new().with_file("x.yaml", disks)).unwrap();
    let path = |device| {
        config.stack(device).unwrap().config.tiers[0]
            .facts()
            .iter()
            .find(|(name, _)| *name == "path")
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(
        (path(0), path(1), path(2)),
        ("/a/kvtier".into(), "/b/kvtier".into(), "/a/kvtier".into())
    );
}
