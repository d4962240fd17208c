//! `kvtier config`: what is in force, what is ignored and why, the tiers; no secret in any of it.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvtier(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    for name in [
        "LMCACHE_CONFIG_FILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ] {
        command.env_remove(name);
    }
    command.args(args).envs(env.iter().copied()).output().unwrap()
}

/// The same with a text on standard input.
fn with_input(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    let command = command.args(args).env_remove("LMCACHE_CONFIG_FILE").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path.display().to_string())
}

const BUCKET: &str = "local_cpu: true\nmax_local_cpu_size: 0.5\nenable_async_loading: true\nremote_url: \"s3://your-bucket-name\"\n\
    remote_serde: naive\nblocking_timeout_secs: 10\nchunk_sise: 3\nextra_config:\n  s3_region: us-east-1\n  s3_num_io_threads: 64\n  \
    s3_max_inflight_reqs: 12\n  aws_access_key_id: AKIDVISIBLE\n  aws_secret_access_key: TOPSECRET\n";

#[test]
fn check_prints_values_sources_reasons_and_tiers_but_no_secret() {
    let (_dir, path) = file("lmcache.yaml", BUCKET);
    let out = kvtier(&["config", "check", &path], &[("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.25")]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for part in [
        "form: LMCache's",
        "max_local_cpu_size = 0.25  (LMCACHE_MAX_LOCAL_CPU_SIZE)",
        "enable_async_loading = true",
        "loads never block here",
        "did you mean \"chunk_size\"?",
        "1. host: name host, cap 256 MiB",
        "2. s3: name s3, cap none",
        "layout lmcache",
        "requests at once 12",
        "deadline 10 s",
        "signed by the configuration",
        "aws_secret_access_key = \"***\"",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(!said.contains("TOPSECRET") && !said.contains("AKIDVISIBLE"), "{said}");
}

#[test]
fn check_answers_in_json_and_with_exit_code_2() {
    let (_dir, path) = file("lmcache.yaml", BUCKET);
    let out = kvtier(&["config", "check", &path, "--json"], &[]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&all["form"], &all["tiers"][1]["layout"]), (&"lmcache".into(), &"lmcache".into()));
    assert!(!text(&out.stdout).contains("TOPSECRET"));
    let (_dir, path) = file("bad.yaml", "chunk_size: abc\nlocal_cpu: maybe\n");
    let out = kvtier(&["config", "check", &path, "--json"], &[]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), &all["kind"]), (Some(2), &"invalid".into()));
    let said = all["error"].as_str().unwrap();
    assert!(
        said.contains("chunk_size")
            && said.contains("abc")
            && said.contains("whole number")
            && said.contains("local_cpu"),
        "{said}"
    );
    assert!(
        kvtier(&["config", "check", &path, "--lenient", "--set", "local_cpu=true"], &[])
            .status
            .success()
    );
    let (_dir, path) = file("serde.yaml", "remote_url: s3://b\nremote_serde: cachegen\n");
    let out = kvtier(&["config", "check", &path], &[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("remote_serde = \"cachegen\""), "{}", text(&out.stderr));
}

#[test]
fn check_takes_adapters_and_our_own_forms() {
    let adapter = r#"{"type":"s3","s3_endpoint":"s3://my-bucket","s3_region":"us-east-1","max_capacity_gb":500,"eviction":{"eviction_policy":"LRU","trigger_watermark":0.85}}"#;
    let out = kvtier(
        &[
            "config",
            "check",
            "--l2-adapter",
            adapter,
            "--l2-adapter",
            r#"{"type":"fs","base_path":"/x"}"#,
        ],
        &[],
    );
    let said = text(&out.stdout);
    assert!(
        said.contains("layout lmcache-mp")
            && said.contains("cap 500 GiB")
            && said.contains("down to 0.85"),
        "{said}"
    );
    assert!(said.contains("2. file") && said.contains("path /x"), "{said}");
    let (_dir, path) = file(
        "kv.toml",
        "[[tiers]]\ntype = 's3'\nbucket = 'b'\ns3_region = 'eu-central-1'\nprefix = 'kv'\n",
    );
    let said = text(&kvtier(&["config", "check", &path], &[]).stdout);
    assert!(
        said.contains("form: kvtier's own")
            && said.contains("layout kvtier")
            && said.contains("b.s3.eu-central-1"),
        "{said}"
    );
}

#[test]
fn explain_accepts_old_and_similar_names() {
    let said = text(&kvtier(&["config", "explain", "cufile_buffer_size"], &[]).stdout);
    assert!(said.contains("gds_buffer_size (formerly cufile_buffer_size)"), "{said}");
    let said = text(&kvtier(&["config", "explain", "s3_num_io_threads"], &[]).stdout);
    assert!(said.contains("in extra_config") && said.contains("in tier s3"), "{said}");
    let out = kvtier(&["config", "explain", "cache_polizy", "--json"], &[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("cache_policy"));
}

#[test]
fn a_password_in_a_url_is_in_no_error() {
    let own = "remote_storage_plugins: [kv]\nextra_config:\n  remote_storage_plugin.kv.module_path: kvtier.lmcache\n  \
        remote_storage_plugin.kv.url: redis://me:TOPSECRET@host:1\n";
    for yaml in ["remote_url: redis://me:TOPSECRET@host:1\n", own] {
        let (_dir, path) = file("kv.yaml", yaml);
        let out = kvtier(&["config", "check", &path, "--json"], &[]);
        let said = text(&out.stderr) + &text(&out.stdout);
        assert_eq!(out.status.code(), Some(2));
        assert!(said.contains("redis://***@host:1") && !said.contains("TOPSECRET"), "{said}");
    }
}

#[test]
fn what_a_plugin_uses_is_not_called_idle() {
    let yaml = "remote_storage_plugins: [kv]\nextra_config:\n  remote_storage_plugin.kv.module_path: kvtier.lmcache\n  \
        remote_storage_plugin.kv.url: s3://bucket\n  s3_region: eu-central-1\n";
    let (_dir, path) = file("kv.yaml", yaml);
    let said = text(&kvtier(&["config", "check", &path], &[]).stdout);
    assert!(
        said.contains("extra_config.s3_region")
            && said.contains("b.s3.eu") | said.contains("region eu-central-1"),
        "{said}"
    );
    assert!(!said.contains("without effect"), "{said}");
    let plugin = r#"{"type":"plugin","module_path":"kvtier.lmcache","class_name":"KvtierL2Adapter","adapter_params":{"type":"host","bytes":1}}"#;
    let said = text(&kvtier(&["config", "check", "--l2-adapter", plugin], &[]).stdout);
    assert!(said.contains("LMCache's own: the class") && !said.contains("warnings"), "{said}");
}

#[test]
fn what_stands_beside_the_tiers_is_shown_with_its_source() {
    let (_dir, path) = file(
        "kv.yaml",
        "tiers: [{type: host, bytes: 1MiB}]\ndirty_max: 1GiB\ncomputed_per_s: 2GiB\nprices: {per_1000_writes: 0.005}\n",
    );
    let said = text(&kvtier(&["config", "check", &path], &[]).stdout);
    for part in [
        "dirty_max = \"1GiB\"  (",
        "computed_per_s = \"2GiB\"",
        "prices = {\"per_1000_writes\":0.005}",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    let said = text(&kvtier(&["config", "check", &path, "--all"], &[]).stdout);
    assert!(said.contains("name = \"stack\"  (default)"), "{said}");
}

#[test]
fn what_would_not_open_is_refused_with_its_place_and_cause() {
    for (name, body, parts) in [
        (
            "a.json",
            r#"{"tiers":[{"type":"host","bytes":1,"write":"back"}]}"#,
            &["tiers[0]", "written through"][..],
        ),
        (
            "f.json",
            r#"{"tiers":[{"type":"file","path":"/a","bytes":1},{"type":"file","path":"/b","bytes":1,"write":"spill"}]}"#,
            &["tiers[1]", "write: spill", "through"],
        ),
        ("b.json", r#"{"tiers":[{"type":"host","bytes":-1}]}"#, &["tiers[0]", "-1 is no size"]),
        (
            "c.json",
            r#"[{"type":"s3","s3_endpoint":"https://me:TOPSECRET@h/b","s3_region":"r"}]"#,
            &["s3", "credentials in it"],
        ),
        ("d.toml", "[[tiers]]\ntype = 'host'\nbytes = TOPSECRET\n", &["d.toml", "line 3"]),
        ("e.yaml", "max_local_cpu_size: -3\n", &["e.yaml", "max_local_cpu_size = -3", "above 0"]),
    ] {
        let (_dir, path) = file(name, body);
        let out = kvtier(&["config", "check", &path], &[]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{body}: {said}");
        assert!(
            parts.iter().all(|part| said.contains(part)) && !said.contains("TOPSECRET"),
            "{body}: {said}"
        );
    }
}

#[test]
fn a_dash_is_standard_input() {
    for (input, form) in [
        (r#"{"tiers":[{"type":"host","bytes":"1MiB"}]}"#, "form: kvtier's own"),
        ("tiers:\n- {type: host, bytes: 1MiB}\n", "form: kvtier's own"),
        (r#"[{"type":"fs","base_path":"/kv"}]"#, "form: LMCache's --l2-adapter"),
        (BUCKET, "form: LMCache's"),
    ] {
        let out = with_input(&["config", "check", "-"], input);
        let said = text(&out.stdout);
        assert!(
            out.status.success() && said.lines().next() == Some(form),
            "{input}: {said}{}",
            text(&out.stderr)
        );
    }
    let out = with_input(&["config", "check", "-"], r#"{"tiers":[{"type":"host","bytes":-1}]}"#);
    let said = text(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("standard input"), "{said}");
    let out = with_input(&["config", "explain", "-"], "chunk_size\n\nlocal_disk\n");
    let said = text(&out.stdout);
    assert!(said.contains("chunk_size, in ") && said.contains("local_disk, in "), "{said}");
    let out = with_input(&["config", "explain", "-"], "chunk_sise\n");
    assert!(
        out.status.code() == Some(2) && text(&out.stderr).contains("did you mean \"chunk_size\"")
    );
}

#[test]
fn the_cause_stands_before_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none.yaml").display().to_string();
    for (args, env, next) in [
        (&["config", "check", &none][..], None, "check the path"),
        (
            &["config", "check"],
            Some(("LMCACHE_CONFIG_FILE", none.as_str())),
            "check the path, or LMCACHE_CONFIG_FILE",
        ),
        (&["replay", "--config", &none], None, "check the path"),
    ] {
        let out = kvtier(args, env.as_slice());
        let said = text(&out.stderr);
        let expected = format!(
            "cannot read the configuration {none}: No such file or directory (os error 2); {next}\n"
        );
        assert!(out.status.code() == Some(2) && said.ends_with(&expected), "{args:?}: {said}");
    }
}

#[test]
fn tiers_that_are_no_stack_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let twice = format!(
        r#"{{"tiers":[{{"type":"file","path":"{at}","bytes":1}},{{"type":"file","path":"{at}/.","bytes":1}}]}}"#
    );
    let upside_down =
        r#"{"tiers":[{"type":"file","path":"/a","bytes":1},{"type":"host","bytes":1}]}"#;
    for (body, part) in
        [(twice.as_str(), "two tiers over the directory"), (upside_down, "memory first")]
    {
        let (_dir, path) = file("kv.json", body);
        let out = kvtier(&["config", "check", &path], &[]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{body}: {said}");
        assert!(
            said.contains(part) && said.contains("kv.json") && said.contains("tiers[1]"),
            "{body}: {said}"
        );
    }
}

#[test]
fn an_endpoint_that_does_not_resolve_names_its_setting_and_file() {
    for (name, body, key) in [
        ("a.json", r#"{"type":"s3","s3_endpoint":"ftp://h/b","s3_region":"r"}"#, "s3_endpoint"),
        ("b.yaml", "tiers:\n- {type: s3, bucket: b}\n", "bucket"),
        (
            "c.yaml",
            "remote_url: s3://b_.example.com:0\nextra_config: {s3_region: r}\n",
            "remote_url",
        ),
    ] {
        let (_dir, path) = file(name, body);
        let out = kvtier(&["config", "check", &path], &[]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(
            said.contains(name) && said.contains(key) && said.contains("does not resolve"),
            "{said}"
        );
    }
}

#[test]
fn explain_says_what_is_in_force_where_a_setting_is_not_written() {
    let out = kvtier(&["config", "explain", "s3_prefer_http2", "--json"], &[]);
    let defaults: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        !defaults.is_empty() && defaults.iter().all(|key| key["default"] == "false"),
        "{defaults:?}"
    );
}

#[test]
fn explain_covers_every_section() {
    for (key, part) in [
        ("remote_storage_plugin.kvtier.fast.tiers", "the tiers of a kvtier plugin"),
        ("storage_plugin.kvtier.module_path", "in extra_config"),
        ("tiers", "in the native form, beside `tiers`"),
        ("trigger_watermark", "in the object eviction"),
        ("compat", "in tiers file and gds"),
        ("adapter_params", "in adapter plugin"),
        ("capacity", "bytes, in tiers file and gds"),
    ] {
        let out = kvtier(&["config", "explain", key], &[]);
        let said = text(&out.stdout);
        assert!(out.status.success() && said.contains(part), "{key}: {said}{}", text(&out.stderr));
    }
}

#[test]
fn plugin_settings_of_the_stack_apply_and_unknown_ones_are_reported() {
    let plugin = |params: &str| {
        let object = format!(
            r#"{{"type":"plugin","module_path":"kvtier.lmcache","class_name":"X","adapter_params":{params}}}"#
        );
        let out = kvtier(&["config", "check", "--l2-adapter", &object], &[]);
        text(&out.stdout) + &text(&out.stderr)
    };
    let tiers = r#""tiers":[{"type":"host","bytes":1},{"type":"host","bytes":1,"write":"back"}]"#;
    let said = plugin(&format!(
        r#"{{{tiers},"dirty_max":"1GiB","timeout_seconds":5,"metrics":"127.0.0.1:9464"}}"#
    ));
    assert!(said.contains("write back"), "{said}");
    let said = plugin(&format!(r#"{{{tiers},"dirty_mac":"1GiB"}}"#));
    assert!(said.contains("adapter_params: dirty_mac") && said.contains("dirty_max"), "{said}");
    let said = plugin(r#"{"type":"fs_native","base_path":"/x","max_capacity_gbb":1}"#);
    assert!(
        said.contains("adapter_params: max_capacity_gbb: unknown")
            && said.contains("max_capacity_gb"),
        "{said}"
    );
    let (_dir, path) = file("kv.json", r#"{"tiers":[{"type":"host","bytes":1,"name":"mine"}]}"#);
    let said = plugin(&format!(r#"{{"config":{path:?}}}"#));
    assert!(said.contains("name mine"), "{said}");
    let yaml = "local_cpu: false\nremote_storage_plugins: [kv]\nextra_config:\n  remote_storage_plugin.kv.module_path: kvtier.lmcache\n  \
        remote_storage_plugin.kv.tiers: [{type: host, bytes: 1}, {type: host, bytes: 1, write: spill}]\n";
    let (_dir, path) = file("kv.yaml", yaml);
    let said = text(&kvtier(&["config", "check", &path], &[]).stdout);
    assert!(said.contains("2. host: name host-2") && said.contains("write spill"), "{said}");
}
