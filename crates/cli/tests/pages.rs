//! The configurations that LMCache's pages print, to the letter, as an operator checks, explains
//! and replays them. They lie in `pages` of the folder `KVTIER_VECTORS`, or of the copy here.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kvtier::config::Value;
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value as Json;

fn pages() -> Vec<PathBuf> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/vectors");
    let folder = std::env::var_os("KVTIER_VECTORS")
        .map_or_else(|| committed.into(), PathBuf::from)
        .join("pages");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        assert!(std::env::var_os("KVTIER_VECTORS").is_some(), "pages are committed");
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let pages: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end != "md")).collect();
    assert!(!pages.is_empty(), "{} has no pages", folder.display());
    pages
}

fn kvtier(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.env_clear().args(args).envs(env.iter().copied()).output().unwrap()
}

/// What a check printed, and its exit code.
fn check(path: &Path, env: &[(&str, &str)]) -> (String, Option<i32>) {
    let out = kvtier(&["config", "check", path.to_str().unwrap()], env);
    let said =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (said, out.status.code())
}

/// A page's text with this in place of what it says, in a file of its name.
fn changed(page: &Path, change: impl Fn(String) -> String) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(page.file_name().unwrap());
    std::fs::write(&path, change(std::fs::read_to_string(page).unwrap())).unwrap();
    (dir, path)
}

fn filled(text: String) -> String {
    let values = [
        ("BUCKET_NAME", "kv--use1-az4--x-s3"),
        ("AZ_ID", "use1-az4"),
        ("REGION", "us-east-1"),
        ("FILE_PREFIX", "kv"),
    ];
    values.iter().fold(text, |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

#[test]
fn every_page_is_checked() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.file_name().unwrap().to_str().unwrap();
        let (said, code) = check(&page, &[]);
        if text.starts_with("LMCACHE_") {
            assert!(
                code == Some(2) && said.contains("environment") && said.contains(name),
                "{name}: {said}"
            );
            continue;
        }
        if text.contains("gds_path") {
            let (_dir, fresh) =
                changed(&page, |text| text.replace("/mnt/gds/cache", "/nonexistent/kvtier/pages"));
            let (said, code) = check(&fresh, &[]);
            assert_eq!(code, Some(2), "{name}: nothing could be saved: {said}");
            assert!(
                said.contains("shape of chunks") && said.contains("kvtier.gds_shape"),
                "{name}: {said}"
            );
            let shape = [(
                "LMCACHE_EXTRA_CONFIG",
                r#"'{"kvtier.gds_shape": "2x32x256x1024", "use_cufile": false}'"#,
            )];
            let (said, code) = check(&fresh, &shape);
            assert!(
                code == Some(0) && said.contains("shape known: 2x32x256x1024"),
                "{name}: {said}"
            );
            assert!(
                said.contains("gds_buffer_size") && said.contains("layout lmcache-gds"),
                "{name}: {said}"
            );
            continue;
        }
        if filled(text.clone()) != text {
            assert!(
                code == Some(2) && said.contains("placeholder") && said.contains("remote_url"),
                "{name}: {said}"
            );
        }
        let (_dir, path) = changed(&page, filled);
        let (said, code) = check(&path, &[]);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert!(said.contains("s3: name s3"), "{said}");
        let form = if name.ends_with(".json") {
            "form: LMCache's --l2-adapter"
        } else {
            "form: LMCache's\n"
        };
        assert!(said.contains(form), "{name}: {said}");
        if text.contains("storage_backend") {
            for part in [
                "your-lmcache-bucket.s3.us-west-2.amazonaws.com",
                "region us-west-2",
                "prefix kv-cache/",
                "\"cachegen\" has no effect here",
                "storage_backend: a form of earlier versions",
                "1. host",
                "layout kvtier",
            ] {
                assert!(said.contains(part), "{name}: no {part:?} in\n{said}");
            }
        }
    }
}

/// Every name of a setting in a page, with those inside mappings.
fn names(value: &Value, above: &str, all: &mut Vec<String>) {
    for (name, value) in value.as_map().unwrap_or_default() {
        let whole = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        names(value, &whole, all);
        all.push(whole);
    }
}

#[test]
fn every_setting_of_every_page_is_explained() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let out = kvtier(&["config", "explain", "chunk_size"], &[]);
        assert!(out.status.success());
        let mut all = Vec::new();
        match text.strip_prefix("LMCACHE_EXTRA_CONFIG='") {
            Some(json) => {
                let json: Json = serde_json::from_str(json.trim().trim_end_matches('\'')).unwrap();
                names(&json.into(), "", &mut all);
            }
            // Settings stand at the beginning of lines, those of `extra_config` below it.
            None => {
                let mut above: Vec<(usize, String)> = Vec::new();
                for line in
                    text.lines().filter(|line| !line.trim_start().starts_with(['#', '{', '}']))
                {
                    let Some((name, _)) = line.split_once(':') else { continue };
                    let indent = line.len() - line.trim_start().len();
                    above.retain(|(outer, _)| *outer < indent);
                    above.push((indent, name.trim().trim_matches('"').to_owned()));
                    all.push(
                        above.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join("."),
                    );
                }
            }
        }
        assert!(!all.is_empty(), "{}", page.display());
        for name in all {
            let name = name.trim_start_matches("eviction.");
            // The object's own type is no setting.
            if name == "type" {
                continue;
            }
            let out = kvtier(&["config", "explain", name], &[]);
            let said = String::from_utf8_lossy(&out.stderr).into_owned()
                + &String::from_utf8_lossy(&out.stdout);
            assert!(
                out.status.success() && said.contains("meaning"),
                "{}: {name}: {said}",
                page.display()
            );
        }
    }
}

#[test]
fn a_file_whose_storage_is_unknown_is_refused_by_name() {
    for (text, parts) in [
        (
            "chunk_size: 256\nstorage_backnd: {type: remote}\n",
            &["storage_backnd", "remote_url"][..],
        ),
        ("local_device_path: /mnt/kv\n", &["local_device_path"]),
        (
            "remote_ulr: s3://b\nmax_local_cpu_siez: 5\n",
            &["remote_ulr", "did you mean \"remote_url\"", "max_local_cpu_siez"],
        ),
        ("tier: [{type: host, bytes: 1MiB}]\n", &["did you mean \"tiers\""]),
        ("s3_num_io_threads: 64\n", &["s3_num_io_threads", "extra_config: {s3_num_io_threads"]),
        ("storage_backend: {type: local}\n", &["storage_backend.type", "remote"]),
        (
            "storage_backend: {type: remote, connector: {type: redis}}\n",
            &["connector.type", "redis", "s3"],
        ),
        (
            "storage_backend: {type: remote, connector: {type: s3, bucket: b, region: r, prefx: x}}\n",
            &["connector.prefx", "did you mean \"prefix\""],
        ),
        (
            "storage_backend: {type: remote, connector: {type: s3, region: r}}\n",
            &["connector.bucket is missing"],
        ),
        (
            "storage_backend: {type: remote, connector: {type: s3, bucket: b}}\n",
            &["region", "AWS_DEFAULT_REGION"],
        ),
        ("local_device: cuda\n", &["local_device = \"cuda\"", "cpu"]),
        ("local_device: cpu\nlocal_cpu: false\n", &["local_device and local_cpu"]),
    ] {
        let (_dir, path) = changed(&pages()[0], |_| text.to_owned());
        let (said, code) = check(&path, &[]);
        assert_eq!(code, Some(2), "{text}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
    }
    // Named beside storage that is known, an unknown setting is a warning that says where it
    // belongs.
    let (_dir, path) =
        changed(&pages()[0], |_| "local_cpu: true\ns3_num_io_threads: 64\n".to_owned());
    let (said, code) = check(&path, &[]);
    assert!(code == Some(0) && said.contains("it belongs under extra_config"), "{said}");
    let bucket = "storage_backend: {type: remote, connector: {type: s3, bucket: b}}\n";
    let (_dir, path) = changed(&pages()[0], |_| bucket.to_owned());
    let (said, code) = check(&path, &[("AWS_DEFAULT_REGION", "eu-west-1")]);
    assert!(
        code == Some(0) && said.contains("b.s3.eu-west-1") && said.contains("layout lmcache"),
        "{said}"
    );
}

/// A page's value of a setting, wherever that stands.
fn field(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split(" #").next()?.trim().split_once(':'));
    let mut found = lines.filter(|(key, _)| key.trim_matches('"') == name);
    found.next().map(|(_, value)| value.trim().trim_end_matches(',').trim_matches('"').to_owned())
}

/// The server of a page's bucket, with the page's region and credentials.
fn serve(text: &str) -> Server {
    let url = field(text, "remote_url")
        .or_else(|| field(text, "s3_endpoint"))
        .or_else(|| field(text, "bucket"))
        .unwrap();
    let name = url.trim_start_matches("s3://").split('.').next().unwrap().to_owned();
    let mut setup = Setup::default();
    setup.bucket = name;
    setup.region = field(text, "s3_region").or_else(|| field(text, "region")).unwrap();
    if let Some(key) = field(text, "aws_access_key_id") {
        setup.access_key = key;
        setup.secret_key = field(text, "aws_secret_access_key").unwrap();
    }
    Server::start(setup).unwrap()
}

/// A page whose bucket has a host of its own, at the server: no other program answers under that
/// name here.
fn moved(text: &str, server: &Server) -> String {
    let Some(url) = field(text, "remote_url").filter(|url| url.contains('.')) else {
        return text.to_owned();
    };
    let bucket = url.trim_start_matches("s3://").split('.').next().unwrap();
    let text = text.replace(&url, &format!("s3://{}/{bucket}", server.address()));
    if text.contains("disable_tls") {
        text
    } else {
        text.replace("extra_config:\n", "extra_config:\n  disable_tls: True\n")
    }
}

#[test]
fn every_page_is_replayed_without_a_wrong_byte() {
    for page in pages() {
        let text = filled(std::fs::read_to_string(&page).unwrap());
        if text.starts_with("LMCACHE_") {
            continue;
        }
        let name = page.display().to_string();
        let cache = tempfile::tempdir().unwrap();
        let server = (!text.contains("gds_path")).then(|| serve(&text));
        let text = match &server {
            Some(server) => moved(&text, server),
            None => text.replace("/mnt/gds/cache", &cache.path().join("kv").display().to_string()),
        };
        let (_dir, path) = changed(&page, |_| text.clone());
        let url = server.as_ref().map(Server::url).unwrap_or_default();
        let env = [
            ("AWS_ACCESS_KEY_ID", "AKIDTEST"),
            ("AWS_SECRET_ACCESS_KEY", "secret/test+key"),
            ("AWS_ENDPOINT_URL_S3", url.as_str()),
        ];
        let args = [
            "replay",
            "--requests",
            "20",
            "--chunk-bytes",
            "64KiB",
            "--json",
            "--config",
            path.to_str().unwrap(),
        ];
        let out = kvtier(&args, &env);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let report: Json = serde_json::from_slice(&out.stdout).unwrap();
        let sums = (report["wrong_bytes"].as_u64(), report["failures"].as_u64());
        assert!(
            sums == (Some(0), Some(0)) && report["blocks"].as_u64() > Some(20),
            "{name}: {report}"
        );
        match &server {
            Some(server) => {
                let chunks =
                    server.keys("").into_iter().filter(|name| !name.contains(".kvtier/")).count();
                assert!(chunks > 20, "{name}: {chunks} chunks in the bucket");
                assert!(
                    server.seen().iter().all(|seen| seen.status != 403),
                    "{name}: a request was refused"
                );
            }
            None => assert!(
                cache.path().join("kv/.kvtier").exists(),
                "{name}: nothing in the directory"
            ),
        }
    }
}
