//! What a configuration must not hold, and what it may: secrets stay out of messages, settings that
//! nothing reads are named, and tiers that LMCache runs beside one another are no stack.
#![cfg(all(feature = "config", feature = "gds", feature = "s3"))]
#![allow(clippy::unwrap_used)]

use kvtier::config::lmcache::Inputs;
use kvtier::config::{Config, ConfigReader, ParsedConfig, ShapeState, TierSpec, Value};

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// LMCache's settings, as `kv.yaml` would have them.
fn lmcache(yaml: &str) -> Result<ParsedConfig, String> {
    ConfigReader::new().lmcache(Inputs::new().with_file("kv.yaml", yaml)).map_err(|e| chain(&e))
}

fn refused(yaml: &str) -> String {
    lmcache(yaml).map_or_else(|e| e, |read| panic!("{yaml} is taken: {:?}", read.config.tiers))
}

/// The native form with one tier `s3`, opened if it can be read.
fn s3_refused(fields: &str) -> String {
    let keys = r#""aws_access_key_id":"KEY","aws_secret_access_key":"HIDDEN""#;
    let text = format!(r#"{{"tiers":[{{"type":"s3",{fields},{keys}}}]}}"#);
    match Config::from_json(&text, "kv.json").and_then(|config| config.open().map(|_| ())) {
        Ok(()) => panic!("{fields} is taken"),
        Err(e) => chain(&e),
    }
}

#[test]
fn credentials_in_an_endpoint_are_in_no_message() {
    for (endpoint, bucket) in [
        ("AKID:SECRET@minio:9000/b", "null"),
        ("https://AKID:ab/SECRET@host/b", "null"),
        ("https://AKID:1234/SECRET@host", "null"),
        ("SECRET@host", "null"),
        ("https://AKID:SECRET@host/{bucket}", "null"),
        ("AKID:SECRET@ftp://host/b", "null"),
        ("https://host", r#""AKID:SECRET@b""#),
    ] {
        let said =
            s3_refused(&format!(r#""s3_endpoint":"{endpoint}","bucket":{bucket},"s3_region":"r""#));
        assert!(
            !said.contains("SECRET") && !said.contains("AKID") && !said.contains("HIDDEN"),
            "{endpoint}: {said}"
        );
        assert!(
            said.contains("kv.json: tiers[0]") && said.contains("s3_endpoint"),
            "{endpoint}: {said}"
        );
    }
    for url in [
        "AKID:SECRET@minio:9000/b",
        "redis://AKID:ab/SECRET@host:1/b",
        "redis://:a@b?c#SECRET@host:1",
    ] {
        let shown = Value::Text(url.into()).to_string();
        assert!(!shown.contains("SECRET") && shown.contains("***@"), "{shown}");
        let said = refused(&format!("remote_url: '{url}'\n"));
        assert!(!said.contains("SECRET") && said.contains("remote_url"), "{said}");
    }
}

#[test]
fn a_ca_bundle_that_cannot_be_used_is_refused_when_the_tier_opens() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.pem");
    let empty = dir.path().join("empty.pem");
    std::fs::write(&text, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    std::fs::write(&empty, "").unwrap();
    for (path, cause) in [
        (dir.path().to_owned(), "cannot be read"),
        (dir.path().join("absent.pem"), "cannot be read"),
        (text, "is not a PEM file of certificates"),
        (empty, "holds no certificate"),
    ] {
        let bundle = path.to_str().unwrap();
        let said = s3_refused(&format!(
            r#""s3_endpoint":"https://host","bucket":"b","s3_region":"r","ca_bundle":{bundle:?}"#
        ));
        for part in ["ca_bundle cannot be used", bundle, cause] {
            assert!(said.contains(part), "{bundle}: {said}");
        }
    }
}

#[test]
fn a_file_whose_settings_name_no_storage_in_effect_is_refused() {
    for harmless in [
        "enable_pd: false",
        "enable_p2p: false",
        "local_disk: null",
        "remote_url: null",
        "remote_url: ''",
        "local_cpu: false",
        "max_local_cpu_size: 5",
        "max_local_disk_size: 5",
        "storage_plugins: []",
    ] {
        for unknown in ["storage_backends: {type: s3}", "remote_ulr: s3://b"] {
            let said = refused(&format!("{harmless}\n{unknown}\n"));
            assert!(
                said.contains("names no other storage") && said.contains("kv.yaml"),
                "{harmless}: {said}"
            );
        }
    }
    for real in ["local_cpu: true", "local_disk: /kv\nmax_local_disk_size: 5"] {
        lmcache(&format!("{real}\nremote_ulr: s3://b\n")).unwrap();
    }
}

/// A file with a plugin of ours in `list`, and these settings of its own.
fn plugin(list: &str, settings: &[&str]) -> String {
    let kind = list.trim_end_matches('s');
    let own: String = settings.iter().map(|setting| format!("  {kind}.kv.{setting}\n")).collect();
    format!(
        "local_cpu: false\n{list}: [kv]\nextra_config:\n  {kind}.kv.module_path: kvtier.lmcache\n  {kind}.kv.class_name: C\n{own}"
    )
}

#[test]
fn settings_of_our_plugins_that_nothing_reads_are_errors() {
    let gds = ["gds_path: /kv", "bytes: 1GiB", "save_from: gpu", "metrics: 127.0.0.1:0"];
    lmcache(&plugin("storage_plugins", &gds)).unwrap();
    lmcache(&plugin("remote_storage_plugins", &["url: fs://h:0/kv", "metrics: 127.0.0.1:0"]))
        .unwrap();
    // Of the plugin `kv.fast`, which this file does not load.
    lmcache(&plugin("remote_storage_plugins", &["url: fs://h:0/kv", "fast.tiers: []"])).unwrap();
    for (list, setting, says) in [
        ("storage_plugins", "byte: 100GiB", "storage_plugin.kv.byte"),
        ("storage_plugins", "byte: 100GiB", "did you mean \"bytes\"?"),
        ("storage_plugins", "base_path: /x", "storage_plugin.kv.base_path"),
        ("remote_storage_plugins", "metric: 127.0.0.1:0", "did you mean \"metrics\"?"),
        ("remote_storage_plugins", "save_from: gpu", "remote_storage_plugin.kv.save_from"),
        ("remote_storage_plugins", "gds_path: /x", "remote_storage_plugin.kv.gds_path"),
    ] {
        let own = if list == "storage_plugins" { "gds_path: /kv" } else { "url: fs://h:0/kv" };
        let said = refused(&plugin(list, &[own, setting]));
        assert!(said.contains(says) && said.contains("kv.yaml: extra_config"), "{setting}: {said}");
    }
    let said = refused(&plugin("storage_plugins", &["url: fs://h:0/kv", "bytes: 1GiB"]));
    assert!(said.contains("storage_plugin.kv.bytes"), "{said}");
    let said = refused("gds_path: /kv\nextra_config: {kvtier.gds_shap: 2x2x256x8}\n");
    assert!(
        said.contains("kvtier.gds_shap:") && said.contains("did you mean \"kvtier.gds_shape\"?"),
        "{said}"
    );
    // What other programs read is theirs.
    lmcache("local_cpu: true\nextra_config: {local_cpu.pinned_align_bytes: 4096, other.plugin.byte: 1}\n").unwrap();
}

#[test]
fn a_storage_class_that_cannot_be_read_is_refused_where_it_is_written() {
    for class in ["GLACIER", "DEEP_ARCHIVE", "A B"] {
        let written = format!("storage_class = {class:?}");
        let text = format!(
            r#"{{"tiers":[{{"type":"s3","s3_endpoint":"s3://b","s3_region":"r","storage_class":"{class}"}}]}}"#
        );
        let said = Config::from_json(&text, "kv.json").unwrap_err().to_string();
        assert!(said.contains("kv.json: tiers[0]") && said.contains(&written), "{said}");
        let yaml = format!(
            "remote_url: s3://b\nextra_config: {{s3_region: r, storage_class: '{class}'}}\n"
        );
        let said = refused(&yaml);
        assert!(said.contains("kv.yaml: extra_config") && said.contains(&written), "{said}");
    }
    lmcache("remote_url: s3://b\nextra_config: {s3_region: r, storage_class: GLACIER_IR}\n")
        .unwrap();
}

#[test]
fn settings_of_a_bucket_warn_where_no_bucket_reads_them() {
    let notes = |yaml: &str| lmcache(yaml).unwrap().notes;
    let quotas = "extra_config:\n  quotas: {alice: 1GiB}\n";
    for idle in ["local_cpu: true\n", "local_cpu: true\nremote_url: fs://h:0/kv\n"] {
        let notes = notes(&format!("{idle}{quotas}"));
        assert!(
            notes
                .iter()
                .any(|note| note.contains("extra_config.quotas") && note.contains("no effect")),
            "{notes:?}"
        );
    }
    let bucket = "extra_config:\n  s3_region: r\n  max_capacity_gb: 5\n  quotas: {alice: 1GiB}\n";
    let read = notes(&format!("remote_url: s3://b\n{bucket}"));
    assert!(!read.iter().any(|note| note.contains("quotas")), "{read:?}");
    let place = "remote_storage_plugin.kv";
    let own = format!(
        "remote_storage_plugins: [kv]\n{bucket}  {place}.module_path: kvtier\n  {place}.url: s3://b\n"
    );
    assert!(!notes(&own).iter().any(|note| note.contains("quotas")), "{own}");
    // Fields of an adapter's object that are not read here.
    let other = notes(
        "remote_url: s3://b\nextra_config: {s3_region: r, eviction: {eviction_policy: LRU}}\n",
    );
    assert!(other.iter().any(|note| note.contains("extra_config.eviction")), "{other:?}");
}

#[test]
fn chunks_that_lmcache_encodes_are_taken_by_our_remote_plugin_alone_and_noted_as_lossy() {
    let file = plugin("remote_storage_plugins", &["url: fs://h:0/kv"]);
    let lossy = |text: &str| {
        let read = lmcache(text).unwrap();
        assert!(read.lossy.iter().all(|note| read.notes.contains(note)));
        read.lossy.iter().any(|note| note.contains("remote_serde: lossy"))
    };
    assert!(lossy(&format!("remote_serde: cachegen\n{file}")));
    assert!(!lossy(&format!("remote_serde: naive\n{file}")));
    // Chunks of LMCache's own connectors: what kvtier stores there itself is not encoded.
    for own in [
        "remote_url: fs://h:0/kv\n",
        "remote_storage_plugins: [fs]\nextra_config: {fs_base_path: /kv}\n",
    ] {
        let said = refused(&format!("remote_serde: cachegen\n{own}"));
        assert!(said.contains("remote_serde") && said.contains("(lossy)"), "{said}");
    }
    let said = refused(&format!("remote_serde: other\n{file}"));
    assert!(said.contains("remote_serde = \"other\""), "{said}");
}

#[test]
fn serde_of_a_plugin_object_is_taken_and_noted_where_lmcache_applies_it() {
    let plugin = |kind: &str, params: &str, serde: &str| {
        format!(
            r#"{{"type":"{kind}","module_path":"kvtier.lmcache","class_name":"C","adapter_params":{params}{serde}}}"#
        )
    };
    let read = |text: String| ConfigReader::new().adapters(&[text]).map_err(|e| e.to_string());
    let fs = r#"{"type":"fs","base_path":"/kv/a"}"#;
    let aesgcm = r#""type":"aesgcm","master_key_path":"/k""#;
    for (serde, says) in [
        (r#""type":"fp8""#.to_owned(), "fp8 is lossy"),
        (r#""type":"fp8","fp8_dtype":"float8_e5m2","max_workers":"2""#.into(), "to float8_e5m2"),
        (aesgcm.into(), "encrypts chunks under one key per cache salt"),
        (format!(r#"{aesgcm},"aes_bits":256,"key_provider":"hkdf""#), "aesgcm"),
    ] {
        for kind in ["plugin", "native_plugin"] {
            let read = read(plugin(kind, fs, &format!(r#","serde":{{{serde}}}"#))).unwrap();
            assert_eq!(read.config.tiers.len(), 1);
            let notes = read.notes.iter().filter(|note| note.contains("serde: ")).count();
            assert_eq!(notes, 1, "{:?}", read.notes);
            assert!(read.notes.iter().any(|note| note.contains(says)), "{:?}", read.notes);
            assert_eq!(read.lossy.len(), usize::from(serde.contains("fp8")), "{:?}", read.lossy);
        }
    }
    assert_eq!(read(plugin("plugin", fs, "")).unwrap().notes, Vec::<String>::new());
    for (serde, says) in [
        (r#""type":"fp8","fp8_dtype":"bfloat16""#, "serde.fp8_dtype"),
        (r#""type":"fp8","fp8_dtype":8"#, "serde.fp8_dtype"),
        (r#""type":"fp8","max_workers":0"#, "serde.max_workers"),
        (r#""type":"aesgcm""#, "serde.master_key_path is missing"),
        (r#""type":"aesgcm","master_key_path":"/k","aes_bits":192"#, "serde.aes_bits = 192"),
        (r#""type":"aesgcm","master_key_path":"/k","key_provider":"keyring""#, "key_provider"),
        (r#""type":"turboquant""#, "fp8 and aesgcm alone"),
        (r#""type":7"#, "fp8 and aesgcm alone"),
    ] {
        let said = read(plugin("plugin", fs, &format!(r#","serde":{{{serde}}}"#))).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    // Where kvtier itself stores the chunks, no process would encode them.
    let encoded = r#"{"type":"fs","base_path":"/kv/a","serde":{"type":"fp8"}}"#;
    let inside = [
        encoded.to_owned(),
        plugin("plugin", encoded, ""),
        plugin("plugin", &format!(r#"{{"tiers":[{encoded}]}}"#), ""),
        plugin(
            "plugin",
            &format!(r#"{{"tiers":[{}]}}"#, plugin("plugin", fs, r#","serde":{"type":"fp8"}"#)),
            "",
        ),
    ];
    for text in inside {
        let said = read(text).unwrap_err();
        assert!(said.contains("beside adapter_params of a plugin"), "{said}");
    }
}

#[test]
fn a_bucket_takes_chunks_of_any_length_if_lmcache_encodes_them() {
    let bucket = |serde: &str| {
        let text = format!(
            "remote_serde: {serde}\n{}  s3_region: r\n  save_chunk_meta: false\n",
            plugin("remote_storage_plugins", &["url: s3://b"])
        );
        match lmcache(&text).unwrap().config.tiers.remove(0) {
            TierSpec::S3(spec) => (spec.layout, spec.whole_chunks),
            other => panic!("{other:?}"),
        }
    };
    let layout = kvtier::s3_tier::Layout::Lmcache;
    assert_eq!(bucket("naive"), (layout, true));
    assert_eq!(bucket("cachegen"), (layout, false));
}

#[test]
fn only_tiers_of_one_list_have_an_order() {
    let tiers = |tiers: &str| plugin("remote_storage_plugins", &[&format!("tiers: [{tiers}]")]);
    let disk = "local_disk: /kv/a\nmax_local_disk_size: 1\n";
    let beside = format!(
        "{disk}{}",
        tiers("{type: host, bytes: 1MiB}, {type: file, path: /kv/b, bytes: 1MiB}")
    );
    assert_eq!(lmcache(&beside).unwrap().config.tiers.len(), 3);
    let said = refused(&format!(
        "{disk}{}",
        tiers("{type: file, path: /kv/b, bytes: 1MiB}, {type: host, bytes: 1MiB}")
    ));
    let place = "extra_config: remote_storage_plugin.kv: tiers";
    assert!(
        said.contains(&format!("kv.yaml: {place}[1] (host) is memory below {place}[0] (file)")),
        "{said}"
    );
    let said =
        refused(&format!("{disk}{}", tiers("{type: file, path: /kv/a/kvtier, bytes: 1MiB}")));
    assert!(
        said.contains(&format!("LMCache's own settings (file) and {place}[0] (file)")),
        "{said}"
    );
    let adapters = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|&text| text.to_owned()).collect();
        ConfigReader::new().adapters(&list).map_err(|e| e.to_string())
    };
    let plugin = |params: &str| {
        format!(
            r#"{{"type":"plugin","module_path":"kvtier","class_name":"C","adapter_params":{params}}}"#
        )
    };
    let fs = r#"{"type":"fs","base_path":"/kv/a"}"#;
    let host = r#"{"type":"host","bytes":1}"#;
    adapters(&[fs, &plugin(host)]).unwrap();
    let twice = adapters(&[fs, &plugin(&format!(r#"{{"tiers":[{host},{fs}]}}"#))]).unwrap_err();
    assert!(twice.starts_with("--l2-adapter") && twice.contains("tiers[1] ("), "{twice}");
}

#[test]
fn two_tiers_over_one_bucket_are_found_in_any_spelling() {
    let check = |one: &str, other: &str| {
        let tier = |url: &str| {
            format!(r#"{{"type":"s3","s3_endpoint":"{url}","s3_region":"eu-west-1","bucket":"b"}}"#)
        };
        let text = format!(r#"{{"tiers":[{},{}]}}"#, tier(one), tier(other));
        Config::from_json(&text, "kv.json").unwrap().check().map_err(|e| e.to_string())
    };
    for (one, other) in [
        ("s3://b", "https://s3.eu-west-1.amazonaws.com/b"),
        ("s3://b", "https://b.s3.dualstack.eu-west-1.amazonaws.com:443"),
        ("https://minio.local:9000/b", "https://b.minio.local:9000"),
        ("http://MINIO.local:80/b", "http://minio.local/b"),
    ] {
        let said = check(one, other).unwrap_err();
        assert!(said.contains("tiers[0] (s3) and tiers[1] (s3)"), "{one} {other}: {said}");
    }
    for (one, other) in [
        ("https://minio.local:9000/b", "https://minio.local:9001/b"),
        ("https://minio.local/b", "https://minio.other/b"),
        ("s3://b", "https://minio.local/b"),
    ] {
        check(one, other).unwrap();
    }
}

#[test]
fn shapes_are_learned_where_saves_state_them_alone() {
    let dir = tempfile::tempdir().unwrap();
    let own = |kind: &str, name: &str| {
        let tier = format!(
            "{{type: gds, path: {}/{name}, bytes: 1MiB, layout: lmcache-gds}}",
            dir.path().display()
        );
        format!("  {kind}.{name}.module_path: kvtier.lmcache\n  {kind}.{name}.tiers: [{tier}]\n")
    };
    let settings = own("storage_plugin", "gpu") + &own("remote_storage_plugin", "remote");
    let lists = "storage_plugins: [gpu]\nremote_storage_plugins: [remote]";
    let read = lmcache(&format!("local_cpu: false\n{lists}\nextra_config:\n{settings}")).unwrap();
    let states: Vec<_> = read.config.tiers.iter().map(TierSpec::shape_state).collect();
    // A remote connector gets bytes alone.
    assert_eq!(states, [Some(ShapeState::Saves), Some(ShapeState::Missing)]);
}

#[test]
fn a_plugins_bucket_is_named_where_it_is_written() {
    let yaml = plugin("remote_storage_plugins", &["url: s3://b"])
        .replace("extra_config:", "remote_url: s3://a\nextra_config:\n  s3_region: r");
    let read = lmcache(&yaml).unwrap();
    let places = read.config.tiers.iter().filter_map(|tier| match tier {
        TierSpec::S3(spec) => Some(spec.place.as_str()),
        _ => None,
    });
    assert_eq!(
        places.collect::<Vec<_>>(),
        ["kv.yaml: remote_url", "kv.yaml: extra_config: remote_storage_plugin.kv.url"]
    );
}
