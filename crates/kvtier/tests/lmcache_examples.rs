//! The configurations that LMCache's pages print, each as it stands there, each run whole against a
//! server of ours that is reached under the bucket's production host name, or over a directory.
//! Only TLS is left out: that server has no certificate for those names. Braces are the pages' own
//! placeholders: they are refused, and filled in. The pages lie in `pages` of the folder
//! `KVTIER_VECTORS`, or of the copy here.
#![cfg(all(feature = "config", feature = "file", feature = "s3"))]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{arena, ctx};
use kvtier::LmcacheEviction;
use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{
    Adapter, Capacity, ConfigFormat, ConfigReader, ParsedConfig, S3Spec, TierSpec,
};
use kvtier::evict::PolicyKind;
use kvtier::key::{CacheEngineKey, DType, EngineHash};
use kvtier::prelude::*;
use kvtier::s3::{Credentials, Http2, StaticResolver};
use kvtier::s3_tier::{Layout, S3Tier};
use kvtier_testkit::s3::{Server, Setup};

const LEN: usize = 192 << 10;

/// A page's name and text.
struct Page {
    name: String,
    text: String,
}

/// Every page of the folder.
fn pages() -> Vec<Page> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/vectors");
    let folder = std::env::var_os("KVTIER_VECTORS")
        .map_or_else(|| committed.into(), PathBuf::from)
        .join("pages");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        assert!(std::env::var_os("KVTIER_VECTORS").is_some(), "pages are committed");
        return Vec::new();
    };
    let paths = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end != "md"));
    let mut pages: Vec<Page> = paths
        .map(|path| Page {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
        })
        .collect();
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!pages.is_empty(), "{} has no pages", folder.display());
    pages
}

impl Page {
    /// The same with its placeholders filled in.
    fn filled(&self) -> Page {
        let values =
            [("BUCKET_NAME", "kv--use1-az4--x-s3"), ("AZ_ID", "use1-az4"), ("REGION", "us-east-1")];
        let values = values.into_iter().chain([("FILE_PREFIX", "team-a/kv")]);
        let fill =
            |text: String, (name, value): (&str, &str)| text.replace(&format!("{{{name}}}"), value);
        Page { name: self.name.clone(), text: values.fold(self.text.clone(), fill) }
    }

    fn has_placeholders(&self) -> bool {
        self.filled().text != self.text
    }

    /// A line for the environment and no file.
    fn is_variable(&self) -> bool {
        self.text.starts_with("LMCACHE_")
    }

    /// What it writes for a setting, wherever that stands.
    fn field(&self, name: &str) -> Option<String> {
        let lines =
            self.text.lines().filter_map(|line| line.split(" #").next()?.trim().split_once(':'));
        let mut found = lines.filter(|(key, _)| key.trim_matches('"') == name);
        found
            .next()
            .map(|(_, value)| value.trim().trim_end_matches(',').trim_matches('"').to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Reads it from a file of its own name.
    fn read(&self) -> Result<ParsedConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(&self.name);
        std::fs::write(&path, &self.text).unwrap();
        ConfigReader::new().file(&path).map_err(|e| e.to_string())
    }
}

fn only<T>(mut all: Vec<T>) -> T {
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn bucket(tiers: Vec<TierSpec>) -> S3Spec {
    let buckets = tiers
        .into_iter()
        .filter_map(|tier| if let TierSpec::S3(spec) = tier { Some(*spec) } else { None });
    only(buckets.collect())
}

fn chunk(layout: Layout, n: u64) -> Key {
    let ns = Arc::new(Namespace::new("tests", Digest::derive("layout", b"tests")));
    let hash = ChunkHash::new(Digest::derive("chunk", &n.to_le_bytes()).as_bytes());
    let id = match layout {
        Layout::Lmcache => {
            let hash = EngineHash::Int((0x1234_5678_9abc_i64 + n.cast_signed()).into());
            KeyId::Engine(CacheEngineKey::new("meta/llama", 1, 0, hash, DType::BFloat16).unwrap())
        }
        _ => KeyId::Object(ObjectKey::new("meta/llama", KvRank(0), 0, hash, "").unwrap()),
    };
    Key::new(ns, id)
}

/// Where a bucket is and what the objects in it are called.
struct Expected {
    bucket: String,
    region: String,
    host: String,
    names_begin: String,
}

/// Opens the tier with requests to the bucket's own host answered by a server of ours.
fn open(spec: &S3Spec, server: &Server) -> S3Tier {
    let mut spec = spec.clone();
    spec.tls = false;
    spec.credentials.get_or_insert(Credentials::new("AKIDTEST", "secret/test+key"));
    let mut client = spec.client().unwrap();
    client.resolver = Box::new(StaticResolver(server.address()));
    S3Tier::open(spec.tier(client).unwrap()).unwrap()
}

/// A server with the bucket, which takes the credentials of the spec.
fn serve(spec: &S3Spec, bucket: &str, region: &str) -> Server {
    let mut setup = Setup::default();
    bucket.clone_into(&mut setup.bucket);
    region.clone_into(&mut setup.region);
    if let Some(own) = &spec.credentials {
        setup.access_key = own.access_key().into();
        setup.secret_key = "your-secret-access-key".into();
    }
    Server::start(setup).unwrap()
}

fn save(tier: &S3Tier, key: &Key, len: usize) -> Result<Saved, kvtier::core::Error> {
    let arena = arena();
    let op = Save { key: key.clone(), from: vec![common::view(&arena, 1, len)] };
    tier.save(&ctx(), vec![op]).wait().remove(0).result
}

/// Saves, looks up, loads, starts again and loads, removes.
fn live(spec: &S3Spec, expected: &Expected) {
    let server = serve(spec, &expected.bucket, &expected.region);
    let tier = open(spec, &server);
    let arena = arena();
    let key = chunk(spec.layout, 1);
    assert_eq!(save(&tier, &key, LEN).unwrap(), Saved::Stored);
    let is_there = || server.keys("").iter().any(|name| name.starts_with(&expected.names_begin));
    assert!(is_there(), "{:?}", server.keys(""));
    let look = |tier: &S3Tier| {
        let found =
            tier.lookup(&ctx(), Arc::from([key.clone()]), Mode::Each, Hold::None).wait().unwrap();
        found.found[0]
    };
    assert_eq!(look(&tier), Presence::Hit { len: LEN as u64 });
    for tier in [&tier, &open(spec, &server)] {
        let load = Load { key: key.clone(), into: vec![arena.lease(LEN).unwrap()] };
        let done = tier.load(&ctx(), vec![load]).wait().remove(0);
        assert_eq!(done.result.unwrap(), common::hit(LEN));
        assert!(done.op.into[0].as_host().unwrap() == common::bytes(1, LEN));
    }
    if spec.layout == Layout::Lmcache {
        let short = save(&tier, &chunk(spec.layout, 2), LEN / 2).unwrap_err();
        assert!(short.to_string().contains("save_unfull_chunk"), "{short}");
    }
    tier.remove(&ctx(), Arc::from([key.clone()])).wait().unwrap();
    let begun = Instant::now();
    while is_there() {
        assert!(begun.elapsed() < Duration::from_secs(600), "still there: {:?}", server.keys(""));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(look(&tier), Presence::Miss);
    let seen = server.seen();
    let unsigned =
        seen.iter().filter(|request| request.header("host") != Some(&expected.host)).count();
    assert_eq!((unsigned, seen.iter().filter(|request| request.status == 403).count()), (0, 0));
}

/// Where a page's bucket is, by its own text.
fn expected(page: &Page, layout: Layout) -> Expected {
    let region = page.field("s3_region").or_else(|| page.field("region")).unwrap();
    let url = page.field("remote_url").or_else(|| page.field("s3_endpoint"));
    let url = url.or_else(|| page.field("bucket")).unwrap();
    let name = url.trim_start_matches("s3://");
    let host = if name.contains('.') {
        name.to_owned()
    } else {
        format!("{name}.s3.{region}.amazonaws.com")
    };
    let prefix = page.field("s3_file_prefix").or_else(|| page.field("prefix")).unwrap_or_default();
    let prefix = prefix.trim_end_matches('/');
    let own = match layout {
        Layout::Lmcache => "meta_llama@1@0@".to_owned(),
        Layout::LmcacheMp => "meta/llama@00000000@0@".to_owned(),
        _ => {
            let digest = chunk(layout, 1).digest().to_hex();
            format!("{}/{digest}", &digest[..2])
        }
    };
    let names_begin = if prefix.is_empty() { own } else { format!("{prefix}/{own}") };
    Expected { bucket: name.split('.').next().unwrap().to_owned(), region, host, names_begin }
}

#[test]
fn every_page_of_a_bucket_is_read_and_serves() {
    for page in
        pages().iter().filter(|page| !page.is_variable() && page.field("gds_path").is_none())
    {
        let name = &page.name;
        if page.has_placeholders() {
            let read = page.read().unwrap();
            let error = bucket(read.config.tiers).resolve().unwrap_err().to_string();
            assert!(
                error.contains("placeholder")
                    && error.contains("remote_url")
                    && error.contains(name),
                "{error}"
            );
        }
        let page = page.filled();
        let read = page.read().unwrap_or_else(|e| panic!("{name}: {e}"));
        let spec = bucket(read.config.tiers.clone());
        let encoded = page.field("remote_serde").is_some_and(|serde| serde != "naive");
        let is_object = page.field("s3_endpoint").is_some();
        let layout = match (is_object, encoded) {
            (true, _) => Layout::LmcacheMp,
            (false, true) => Layout::Kvtier,
            (false, false) => Layout::Lmcache,
        };
        assert_eq!(spec.layout, layout, "{name}");
        assert_eq!(
            read.form,
            if is_object { ConfigFormat::Adapters } else { ConfigFormat::Lmcache },
            "{name}"
        );
        let limits = ["s3_num_io_threads", "s3_max_io_concurrency", "s3_max_inflight_reqs"];
        let least = limits.iter().filter_map(|limit| page.number(limit)).min().unwrap_or(64);
        assert_eq!(spec.requests_max as u64, least, "{name}");
        let deadline =
            page.number("blocking_timeout_secs").unwrap_or(if is_object { 30 } else { 10 });
        assert_eq!(spec.deadline.as_secs(), deadline, "{name}");
        let is_on =
            |field: &str| page.field(field).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        assert_eq!(
            spec.http2,
            if is_on("s3_prefer_http2") { Http2::Auto } else { Http2::Off },
            "{name}"
        );
        assert_eq!(spec.tls, !is_on("disable_tls"), "{name}");
        assert_eq!(
            spec.provider == Some(kvtier::s3::Provider::Express),
            is_on("s3_enable_s3express"),
            "{name}"
        );
        assert_eq!(
            spec.capacity_bytes,
            page.number("max_capacity_gb").map(|gib| gib << 30),
            "{name}"
        );
        assert_eq!(spec.credentials.is_some(), page.field("aws_access_key_id").is_some(), "{name}");
        if encoded {
            let serde = page.field("remote_serde").unwrap();
            let says = |note: &String| {
                note.contains(&serde) && note.contains("stored as they are, exactly")
            };
            assert!(read.notes.iter().any(says), "{name}: {:?}", read.notes);
        } else {
            assert!(read.notes.is_empty(), "{name}: {:?}", read.notes);
        }
        live(&spec, &expected(&page, layout));
    }
}

#[cfg(feature = "gds")]
#[test]
fn every_page_of_a_gds_directory_is_read_and_serves_once_the_shape_is_stated() {
    use kvtier::config::ShapeState;
    for page in pages().iter().filter(|page| page.field("gds_path").is_some()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache").display().to_string();
        let text = page.text.replace(&page.field("gds_path").unwrap(), &path);
        let page = Page { name: page.name.clone(), text };
        let read = || page.read().unwrap_or_else(|e| panic!("{}: {e}", page.name));
        let config = read().config;
        assert_eq!(config.tiers.len(), 1, "{}", page.name);
        assert_eq!(config.tiers[0].shape_state(), Some(ShapeState::Missing));
        assert!(config.facts(0).contains(&("shape", "missing".into())), "{:?}", config.facts(0));
        let refused = config.check_shapes().unwrap_err().to_string();
        assert!(
            refused.contains("shape")
                && refused.contains("kvtier.gds_shape")
                && refused.contains(&path),
            "{refused}"
        );
        // Two layers, 16 tokens, 512 elements of two bytes: the caller of the save states it.
        let len = 2 * 2 * 16 * 512 * 2;
        let arena = arena();
        let key = chunk(Layout::Lmcache, 1);
        let save = |tier: &dyn Tier, key: &Key, ctx: &Ctx| {
            let op = Save { key: key.clone(), from: vec![common::view(&arena, 1, len)] };
            tier.save(ctx, vec![op]).wait().remove(0).result
        };
        let opened = config.open().unwrap();
        assert!(opened.top.status().reasons.iter().any(|reason| reason.contains("shape missing")));
        let shape: kvtier::key::ChunkShape = "2x2x16x512".parse().unwrap();
        assert_eq!(
            save(&*opened.top, &key, &ctx().with_shape(shape.into())).unwrap(),
            Saved::Stored
        );
        assert!(opened.top.status().reasons.iter().any(|reason| reason.contains("shape learned")));
        assert_eq!(save(&*opened.top, &chunk(Layout::Lmcache, 2), &ctx()).unwrap(), Saved::Stored);
        drop(opened);
        // From now on the files state it.
        let again = read().config;
        again.check_shapes().unwrap();
        let learned = again.tiers[0].shape_state().unwrap().to_string();
        assert!(learned.starts_with("learned") && learned.contains("2x2x16x512"), "{learned}");
        let opened = again.open().unwrap();
        let load = Load { key, into: vec![arena.lease(len).unwrap()] };
        let done = opened.top.load(&ctx(), vec![load]).wait().remove(0);
        assert_eq!(done.result.unwrap(), common::hit(len));
        assert!(done.op.into[0].as_host().unwrap() == common::bytes(1, len));
    }
}

#[test]
fn a_page_that_is_a_line_of_the_environment_is_read_as_one_and_refused_as_a_file() {
    for page in pages().iter().filter(|page| page.is_variable()) {
        let refused = page.read().unwrap_err();
        assert!(refused.contains(&page.name) && refused.contains("environment"), "{refused}");
        let (name, value) = page.text.trim().split_once('=').unwrap();
        let config = LmcacheConfig::read(&Inputs::new().with_variable(name, value)).unwrap();
        assert!(
            config.notes().is_empty() && config.value("extra_config").as_map().is_some(),
            "{:?}",
            config.notes()
        );
    }
}

/// The tiers of LMCache's settings, and of an object.
fn engine(yaml: &str) -> Result<S3Spec, kvtier::core::Error> {
    let config = LmcacheConfig::read(&Inputs::new().with_file("lmcache.yaml", yaml))?;
    config.stack(0).map(|planned| bucket(planned.config.tiers))
}

const BASIC: &str = "local_cpu: false\nremote_url: s3://your-bucket-name\nblocking_timeout_secs: 10\nchunk_size: 256\n";
const REGION: &str = "extra_config: {s3_region: us-east-1}\n";
const MP: &str = r#"{"type": "s3", "s3_endpoint": "s3://my-bucket", "s3_region": "us-east-1", "max_capacity_gb": 500,
    "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.85, "eviction_ratio": 0.2}}"#;

#[test]
fn short_chunks_do_not_get_under_lmcaches_names_in_a_bucket() {
    let refused =
        engine(&format!("{BASIC}{REGION}save_unfull_chunk: true\n")).unwrap_err().to_string();
    assert!(
        refused.contains("lmcache.yaml: save_unfull_chunk = true") && refused.contains("full"),
        "{refused}"
    );
    let forced =
        engine(&format!("{BASIC}{REGION}enable_blending: true\n")).unwrap_err().to_string();
    assert!(forced.contains("save_unfull_chunk") && forced.contains("enable_blending"), "{forced}");
    let own = "extra_config: {s3_region: us-east-1, layout: kvtier}\n";
    let own = engine(&format!("{BASIC}{own}save_unfull_chunk: true\n")).unwrap();
    assert_eq!((own.layout, own.whole_chunks), (Layout::Kvtier, false));
    // Where the configuration states the length, even the first save has to have it.
    let sized = format!("extra_config: {{s3_region: us-east-1, chunk_bytes: {LEN}}}\n");
    let spec = engine(&format!("{BASIC}{sized}")).unwrap();
    let server = serve(&spec, "your-bucket-name", "us-east-1");
    let tier = open(&spec, &server);
    for len in [LEN / 2, 2 * LEN] {
        let refused = save(&tier, &chunk(spec.layout, 1), len).unwrap_err().to_string();
        assert!(
            refused.contains(&LEN.to_string()) && refused.contains(&len.to_string()),
            "{refused}"
        );
    }
    assert!(
        !server.keys("").iter().any(|name| name.starts_with("meta_llama")),
        "{:?}",
        server.keys("")
    );
    assert_eq!(save(&tier, &chunk(spec.layout, 1), LEN).unwrap(), Saved::Stored);
    let wrong =
        engine(&format!("{BASIC}extra_config: {{s3_region: us-east-1, chunk_bytes: lots}}\n"))
            .unwrap_err();
    assert!(
        wrong.to_string().contains("chunk_bytes") && wrong.to_string().contains("lots"),
        "{wrong}"
    );
}

#[test]
fn http2_and_storage_class_reach_the_client_and_the_bucket() {
    let of = |more: &str| {
        let signed = r#""aws_access_key_id": "your-access-key-id", "aws_secret_access_key": "your-secret-access-key""#;
        let text = MP.replacen('{', &format!("{{{more}, {signed}, "), 1);
        Adapter::list(&[&text], false).and_then(|list| list[0].tiers()).map(bucket)
    };
    assert_eq!(of(r#""http2": "auto""#).unwrap().http2, Http2::Auto);
    assert_eq!(of(r#""s3_prefer_http2": true, "http2": "off""#).unwrap().http2, Http2::Off);
    let h2c = of(r#""http2": "prior-knowledge""#).unwrap();
    assert_eq!(
        (h2c.http2, h2c.client().unwrap().http2),
        (Http2::PriorKnowledge, Http2::PriorKnowledge)
    );
    let wrong = of(r#""http2": "h3""#).unwrap_err().to_string();
    assert!(wrong.contains("http2 \"h3\"") && wrong.contains("prior-knowledge"), "{wrong}");
    let native = r#"{"tiers":[{"type":"s3","s3_endpoint":"s3://b","s3_region":"r","http2":"prior-knowledge","storage_class":"STANDARD_IA"}]}"#;
    let native = bucket(kvtier::config::Config::from_json(native, "x.json").unwrap().tiers);
    assert_eq!(
        (native.http2, native.storage_class.as_deref()),
        (Http2::PriorKnowledge, Some("STANDARD_IA"))
    );

    let spec = of(r#""storage_class": "INTELLIGENT_TIERING""#).unwrap();
    let server = serve(&spec, "my-bucket", "us-east-1");
    let tier = open(&spec, &server);
    assert_eq!(save(&tier, &chunk(spec.layout, 1), LEN).unwrap(), Saved::Stored);
    drop(tier);
    let puts = server.seen().into_iter().filter(|seen| seen.method == "PUT");
    let classes: Vec<(bool, bool)> = puts
        .map(|seen| {
            (
                seen.target.contains(".kvtier"),
                seen.header("x-amz-storage-class") == Some("INTELLIGENT_TIERING"),
            )
        })
        .collect();
    assert!(classes.contains(&(false, true)), "{classes:?}");
    assert!(classes.iter().all(|(is_own, classed)| is_own != classed), "chunks only: {classes:?}");
    let refused = of(r#""storage_class": "DEEP_ARCHIVE""#).unwrap_err().to_string();
    assert!(refused.contains("storage_class"), "{refused}");
}

#[test]
fn defect_7_of_lmcaches_an_invalid_value_is_an_error_that_names_it_and_never_none() {
    let read = |yaml: &str| LmcacheConfig::read(&Inputs::new().with_file("lmcache.yaml", yaml));
    let error = read(&BASIC.replace("blocking_timeout_secs: 10", "blocking_timeout_secs: soon"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("blocking_timeout_secs") && error.contains("lmcache.yaml"), "{error}");
    let error =
        read(&BASIC.replace("chunk_size: 256", "chunk_size: many")).unwrap_err().to_string();
    assert!(error.contains("chunk_size"), "{error}");
}

#[test]
fn a_bucket_evicts_by_the_policy_and_the_quotas_that_are_written() {
    let spec = |more: &str| {
        let text = format!(
            r#"{{"type": "s3", "s3_endpoint": "s3://b", "s3_region": "eu-west-1", "max_capacity_gb": 1{more}}}"#
        );
        Adapter::list(&[&text], false).unwrap()[0].tiers().map(|mut tiers| match tiers.remove(0) {
            TierSpec::S3(spec) => spec,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(spec("").unwrap().policy, PolicyKind::Default);
    assert_eq!(spec(r#", "policy": "s3-fifo""#).unwrap().policy, PolicyKind::S3Fifo);
    let theirs = r#", "eviction": {"eviction_policy": "ARC"}"#;
    assert_eq!(spec(theirs).unwrap().policy, PolicyKind::Arc);
    let both = spec(&format!(r#", "policy": "lru"{theirs}"#)).unwrap_err().to_string();
    assert!(both.contains("policy") && both.contains("eviction_policy"), "{both}");
    let limited =
        spec(r#", "policy": "isolated-lru", "quotas": {"team-a": "1GiB", "*": 5}"#).unwrap().quotas;
    assert_eq!(
        (limited.by_tenant["team-a"], limited.others, limited.fair),
        (1 << 30, Some(5), false)
    );
    assert!(spec(r#", "quotas": {"team-a": "1GiB"}, "fair": true"#).unwrap().quotas.fair);
    assert!(spec(r#", "quotas": {"a": "lots"}"#).unwrap_err().to_string().contains("lots"));
    assert!(spec(r#", "policy": "best""#).unwrap_err().to_string().contains("best"));
}

#[test]
fn compat_takes_lmcaches_watermark_and_ratio_to_the_letter() {
    let spec = |eviction: &str| {
        let text =
            MP.replace("\"eviction_ratio\": 0.2", &format!("\"eviction_ratio\": 0.2{eviction}"));
        bucket(Adapter::list(&[&text], false).unwrap()[0].tiers().unwrap())
    };
    assert_eq!(spec("").compat, None);
    let compat = spec(", \"compat\": true").compat.unwrap();
    assert_eq!((compat.watermark, compat.ratio), (0.85, 0.2));
    let file = |compat: bool| {
        let eviction = format!(
            r#"{{"eviction_policy": "LRU", "trigger_watermark": 0.5, "compat": {compat}}}"#
        );
        let text = format!(
            r#"{{"type": "fs_native", "base_path": "/nowhere", "max_capacity_gb": 1, "eviction": {eviction}}}"#
        );
        match Adapter::list(&[&text], false).unwrap()[0].tiers().unwrap().remove(0) {
            TierSpec::File(spec) => (spec.bytes, spec.compat),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(file(false), (Capacity::Bytes(1 << 29), None), "the watermark is the cap");
    assert_eq!(file(true), (Capacity::Bytes(1 << 30), Some(LmcacheEviction::new().with(0.5, 0.2))));
}
