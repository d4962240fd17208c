//! `kvtier migrate|export|import` with buckets: what comes out is what a tier saved, and what is
//! damaged stays behind.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use kvtier::core::{Ctx, Digest, Key, Load, Loaded, Namespace, Save, Saved, Tier};
use kvtier::file::{FileConfig, FileTier};
use kvtier::key::{BlockSums, ChunkHash, Facts, KeyId, KvRank, ObjectKey};
use kvtier::mem::{Arena, ArenaConfig, View};
use kvtier::s3::{BucketAddress, Client, Config, Credentials};
use kvtier::s3_tier::{Layout, S3Tier, TierConfig, inspect};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;
use support::kvtier_on;

const LEN: usize = 30_000;
const CHUNKS: u8 = 12;
/// The chunk whose key is longer than the metadata of an object may be.
const LONG: u8 = 200;

fn all_said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The exit code and what `--json` says of these fields.
fn tally<const N: usize>(server: &Server, words: &[&str], fields: [&str; N]) -> (i32, [u64; N]) {
    let out = kvtier_on(server, &[words, &["--json"]].concat());
    let json: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", all_said(&out)));
    (out.status.code().unwrap(), fields.map(|field| json[field].as_u64().unwrap()))
}

fn key(n: u8) -> Key {
    let ns = Arc::new(Namespace::new("acme", Digest::derive("layout", b"tests")));
    let salt = if n == 0 { "pepper" } else { "" };
    if n == LONG {
        // Of the in-process mode, with tags of its request.
        let tags: String = (0..3).map(|tag| format!("@tag{tag}%{}", "v".repeat(800))).collect();
        return Key::new(
            ns,
            KeyId::from_engine_text(&format!("org/model@1@0@ab@half{tags}")).unwrap(),
        );
    }
    Key::new(
        ns,
        KeyId::Object(
            ObjectKey::new("org/model", KvRank(0), 0, ChunkHash::new(&[n; 32]), salt).unwrap(),
        ),
    )
}

fn bytes(n: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 251) as u8 ^ n).collect()
}

struct Store {
    tier: S3Tier,
    arena: Arena,
}

impl Store {
    fn open(server: &Server, prefix: &str, layout: Layout) -> Self {
        let endpoint = BucketAddress::new(server.url())
            .bucket("bucket")
            .region("us-east-1")
            .resolve()
            .unwrap();
        let client = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
        let config = TierConfig::new(client).with_prefix(prefix).with_layout(layout);
        Store {
            tier: S3Tier::open(config).unwrap(),
            arena: Arena::new(ArenaConfig::heap(4 << 20)).unwrap(),
        }
    }

    fn save(&self, n: u8) {
        let mut lease = self.arena.lease(LEN).unwrap();
        lease.write_at(0, &bytes(n)).unwrap();
        let op = Save { key: key(n), from: vec![lease.freeze()] };
        let done = self.tier.save(&Ctx::within(Duration::from_secs(600)), vec![op]).wait();
        assert!(matches!(done[0].result, Ok(Saved::Stored)), "{:?}", done[0].result);
    }

    fn has(&self, n: u8) -> bool {
        let op = Load { key: key(n), into: vec![self.arena.lease(LEN).unwrap()] };
        let done =
            self.tier.load(&Ctx::within(Duration::from_secs(600)), vec![op]).wait().remove(0);
        match done.result.unwrap() {
            Loaded::Hit { .. } => {
                assert!(done.op.into[0].as_host().unwrap() == bytes(n), "wrong bytes");
                true
            }
            _ => false,
        }
    }
}

fn server() -> Server {
    Server::start(Setup::default()).unwrap()
}

/// A bucket with chunks that a tier saved.
fn filled(prefix: &str, layout: Layout) -> Server {
    let server = server();
    let store = Store::open(&server, prefix, layout);
    (0..CHUNKS).for_each(|n| store.save(n));
    drop(store);
    server.put_object(&format!("{prefix}/readme.txt"), b"not ours".to_vec());
    server
}

/// A directory with one chunk that a tier saved.
fn directory_of(path: &str, n: u8) {
    let tier = FileTier::open(FileConfig::new(path, 1 << 30)).unwrap();
    let op = Save { key: key(n), from: vec![View::from_owner(bytes(n))] };
    let done = tier.save(&Ctx::within(Duration::from_secs(600)), vec![op]).wait().remove(0);
    assert!(matches!(done.result, Ok(Saved::Stored)), "{:?}", done.result);
    tier.close().wait().unwrap();
}

/// Whether a tier finds a chunk in a directory.
fn directory_has(path: &str, n: u8) -> bool {
    let tier = FileTier::open(FileConfig::new(path, 1 << 30)).unwrap();
    let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
    let op = Load { key: key(n), into: vec![arena.lease(LEN).unwrap()] };
    let done = tier.load(&Ctx::within(Duration::from_secs(600)), vec![op]).wait().remove(0);
    let is_hit = done.result.unwrap() == Loaded::Hit { len: LEN as u64 };
    assert!(!is_hit || done.op.into[0].as_host().unwrap() == bytes(n), "wrong bytes");
    is_hit
}

const COUNTS: [&str; 5] = ["copied", "present", "unverified", "unsupported", "damaged"];

#[test]
fn a_bucket_of_lmcaches_goes_into_one_of_ours_and_through_a_file_into_another() {
    let server = filled("theirs", Layout::LmcacheMp);
    let all = u64::from(CHUNKS);
    let theirs = "s3://bucket/theirs";
    let ours = "s3://bucket/ours";
    let third = "s3://bucket/third";
    assert_eq!(
        tally(&server, &["migrate", theirs, ours, "--dry-run"], COUNTS),
        (0, [all, 0, 0, 0, 0])
    );
    assert!(server.keys("ours/").is_empty());
    assert_eq!(tally(&server, &["migrate", theirs, ours], COUNTS), (0, [all, 0, 0, 0, 0]));
    assert_eq!(tally(&server, &["migrate", theirs, ours], COUNTS), (0, [0, all, 0, 0, 0]));
    let store = Store::open(&server, "ours", Layout::Kvtier);
    assert!((0..CHUNKS).all(|n| store.has(n)));
    // Of a salt only a digest is kept: where names spell it that chunk has no place.
    let spelled = ["migrate", ours, third, "--to-layout", "lmcache-mp", "--dry-run"];
    assert_eq!(tally(&server, &spelled, COUNTS), (1, [all - 1, 0, 0, 1, 0]));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chunks.kvtier").display().to_string();
    assert_eq!(tally(&server, &["export", ours, &file], COUNTS), (0, [all, 0, 0, 0, 0]));
    assert_eq!(
        kvtier_on(&server, &["export", ours, &file]).status.code(),
        Some(2),
        "what is there is not written over"
    );
    let elsewhere = self::server();
    let there = elsewhere.url();
    let into = ["import", &file, third, "--to-endpoint", &there];
    assert_eq!(tally(&server, &into, COUNTS), (0, [all, 0, 0, 0, 0]));
    let store = Store::open(&elsewhere, "third", Layout::Kvtier);
    assert!((0..CHUNKS).all(|n| store.has(n)));
    assert!(server.keys("third/").is_empty());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn chunks_go_between_buckets_and_directories() {
    let server = filled("theirs", Layout::LmcacheMp);
    let all = u64::from(CHUNKS);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let ours = path("ours");
    let mp = path("mp");
    let file = path("file");
    assert_eq!(
        tally(&server, &["migrate", "s3://bucket/theirs", &ours, "--bytes", "1GiB"], COUNTS),
        (0, [all, 0, 0, 0, 0])
    );
    assert!(kvtier_on(&server, &["verify", &ours]).status.success());
    // The salt of one is kept as a digest only; in a bucket of ours that is enough.
    let flat = ["migrate", &ours, &mp, "--to-layout", "lmcache-mp"];
    assert_eq!(tally(&server, &flat, COUNTS), (1, [all - 1, 0, 0, 1, 0]));
    assert_eq!(
        tally(&server, &["migrate", &ours, "s3://bucket/back"], COUNTS),
        (0, [all, 0, 0, 0, 0])
    );
    let store = Store::open(&server, "back", Layout::Kvtier);
    assert!((0..CHUNKS).all(|n| store.has(n)));
    assert_eq!(tally(&server, &["export", &mp, &file], COUNTS), (0, [all - 1, 0, 0, 0, 0]));
    let into = ["import", &file, "s3://bucket/again", "--to-layout", "lmcache-mp"];
    assert_eq!(tally(&server, &into, COUNTS), (0, [all - 1, 0, 0, 0, 0]));
    let names = |prefix: &str| -> Vec<String> {
        let chunks = server
            .keys(prefix)
            .into_iter()
            .filter(|name| name.contains('@') && !name.ends_with("@pepper"));
        chunks.map(|name| name.split_once('/').unwrap().1.to_owned()).collect()
    };
    assert_eq!(names("again/"), names("theirs/"));
    let store = Store::open(&server, "again", Layout::LmcacheMp);
    assert!((1..CHUNKS).all(|n| store.has(n)) && !store.has(0));
}

#[test]
fn a_bucket_of_ours_goes_through_a_file_into_a_directory() {
    let server = filled("ours", Layout::Kvtier);
    let all = u64::from(CHUNKS);
    // One that a build without the header wrote.
    let endpoint =
        BucketAddress::new(server.url()).bucket("bucket").region("us-east-1").resolve().unwrap();
    let client =
        Client::new(Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key")));
    let old = key(CHUNKS);
    let payload = bytes(CHUNKS);
    let facts =
        Facts::plain(*old.digest(), old.namespace().digest(), BlockSums::from_bytes(&payload));
    let how = inspect::put_of(&facts, None, client.endpoint().provider());
    let name = format!("ours/{}", inspect::name_of(Layout::Kvtier, old.digest(), None).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(client.put(&name, &View::from_owner(payload), &how)).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let file = path("file");
    let into = path("into");
    let exported = tally(
        &server,
        &["export", "s3://bucket/ours", &file],
        ["copied", "unsupported", "without_key"],
    );
    assert_eq!(exported, (0, [all + 1, 0, 2]), "one is old, one has a salt");
    let archive = fs::read(&file).unwrap();
    assert!(!archive.windows(6).any(|some| some == b"pepper"), "no salt in plain text");
    let seen = server.seen();
    assert!(seen.iter().all(|request| !format!("{request:?}").contains("pepper")));
    let imported = tally(&server, &["import", &file, &into, "--bytes", "1GiB"], COUNTS);
    assert_eq!(imported, (0, [all + 1, 0, 0, 0, 0]), "also without a key: names there are digests");
    assert!(kvtier_on(&server, &["verify", &into]).status.success());
    let tier = FileTier::open(FileConfig::new(&into, 1 << 30)).unwrap();
    let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
    for n in 0..=CHUNKS {
        let op = Load { key: key(n), into: vec![arena.lease(LEN).unwrap()] };
        let done = tier.load(&Ctx::within(Duration::from_secs(600)), vec![op]).wait().remove(0);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 }, "chunk {n}");
        assert!(done.op.into[0].as_host().unwrap() == bytes(n), "wrong bytes");
    }
    drop(tier);
    // All of them go back into a bucket of ours, with what is known of their keys.
    assert_eq!(
        tally(&server, &["import", &file, "s3://bucket/back"], COUNTS),
        (0, [all + 1, 0, 0, 0, 0])
    );
    assert_eq!(
        tally(&server, &["migrate", "s3://bucket/back", &into], COUNTS),
        (0, [0, all + 1, 0, 0, 0])
    );
    // From there they go on, into a bucket and another directory.
    let other = path("other");
    assert_eq!(
        tally(&server, &["migrate", &into, &other, "--bytes", "1GiB"], COUNTS),
        (0, [all + 1, 0, 0, 0, 0])
    );
    let out = kvtier_on(&server, &["export", "s3://bucket/back", &path("again")]);
    assert!(
        all_said(&out).contains(
            "2 of them can be imported into buckets and directories of layout kvtier only"
        ),
        "{}",
        all_said(&out)
    );
}

/// A footer has space for the key, the metadata of an object has not: from a bucket only its digest
/// comes.
#[test]
fn a_key_of_more_than_two_kilobytes_goes_through_a_file_between_directories_and_buckets() {
    assert!(key(LONG).canonical().len() > 2048);
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    Store::open(&server, "from", Layout::Kvtier).save(LONG);
    directory_of(&path("from"), LONG);
    for (number, (from, without_key)) in
        [("s3://bucket/from", 1), (path("from").as_str(), 0)].into_iter().enumerate()
    {
        let file = path(&format!("file-{number}"));
        let into = path(&format!("into-{number}"));
        let exported =
            tally(&server, &["export", from, &file], ["copied", "unsupported", "without_key"]);
        assert_eq!(exported, (0, [1, 0, without_key]), "{from}");
        assert_eq!(
            tally(&server, &["import", &file, &into, "--bytes", "1GiB"], COUNTS),
            (0, [1, 0, 0, 0, 0])
        );
        assert!(directory_has(&into, LONG), "{from}");
        let again =
            tally(&server, &["export", &into, &path(&format!("again-{number}"))], ["without_key"]);
        assert_eq!(again, (0, [without_key]), "{from}: a file has the key if the archive had it");
        let bucket = format!("into-{number}");
        assert_eq!(
            tally(&server, &["import", &file, &format!("s3://bucket/{bucket}")], COUNTS).1,
            [1, 0, 0, 0, 0]
        );
        assert!(Store::open(&server, &bucket, Layout::Kvtier).has(LONG), "{from}");
        assert!(kvtier_on(&server, &["verify", &format!("s3://bucket/{bucket}")]).status.success());
    }
}

#[test]
fn a_chunk_that_a_file_holds_twice_is_copied_once_and_present_once() {
    let server = filled("ours", Layout::Kvtier);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let file = path("file");
    let twice = path("twice");
    let into = path("into");
    let salted = key(0).digest().to_hex();
    assert_eq!(
        tally(&server, &["export", "s3://bucket/ours", &file, "--include", &salted], COUNTS).1[0],
        1
    );
    let archive = fs::read(&file).unwrap();
    let record = &archive[8..archive.len() - 20];
    let end = &archive[archive.len() - 20..];
    let count = 2_u64.to_le_bytes();
    let sum = BlockSums::from_bytes(&count).whole().to_le_bytes();
    fs::write(&twice, [&archive[..8], record, record, &end[..8], &count, &sum].concat()).unwrap();
    // Only the digest of its key is known.
    assert_eq!(
        tally(&server, &["import", &twice, &into, "--bytes", "1GiB"], COUNTS),
        (0, [1, 1, 0, 0, 0])
    );
}

#[test]
fn what_is_damaged_or_unproven_stays_behind() {
    let server = filled("theirs", Layout::LmcacheMp);
    let names: Vec<String> =
        server.keys("theirs/").into_iter().filter(|name| name.contains('@')).collect();
    let theirs = server.object(&names[3]).unwrap().to_vec();
    // As LMCache writes it: without facts.
    server.put_object(&names[3], theirs);
    let from = "s3://bucket/theirs";
    let out = kvtier_on(&server, &["migrate", from, "s3://bucket/ours"]);
    assert!(
        out.status.code() == Some(1) && all_said(&out).contains("--unverified"),
        "{}",
        all_said(&out)
    );
    let all = u64::from(CHUNKS);
    assert_eq!(
        tally(&server, &["migrate", from, "s3://bucket/ours"], COUNTS),
        (1, [0, all - 1, 1, 0, 0])
    );
    let whose = [
        "--unverified",
        "--tenant",
        "acme",
        "--layout-id",
        &Digest::derive("layout", b"tests").to_hex(),
    ];
    let words = [&["migrate", from, "s3://bucket/ours"], &whose[..]].concat();
    assert_eq!(tally(&server, &words, COUNTS), (0, [1, all - 1, 1, 0, 0]));
    let store = Store::open(&server, "ours", Layout::Kvtier);
    assert!((0..CHUNKS).all(|n| store.has(n)));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    let path = file.display().to_string();
    assert_eq!(tally(&server, &["export", "s3://bucket/ours", &path], COUNTS).0, 0);
    let good = fs::read(&file).unwrap();
    for len in [0, 7, 8, 30, 1000, good.len() / 2, good.len() - 1] {
        fs::write(&file, &good[..len]).unwrap();
        let out = kvtier_on(&server, &["import", &path, "s3://bucket/cut"]);
        assert_eq!(out.status.code(), Some(2), "cut to {len}: {}", all_said(&out));
    }
    let mut flipped = good.clone();
    let at = good.len() - 100;
    flipped[at] ^= 1;
    fs::write(&file, &flipped).unwrap();
    assert_eq!(
        tally(&server, &["import", &path, "s3://bucket/cut"], COUNTS),
        (1, [all - 1, 0, 0, 0, 1])
    );
    assert!(kvtier_on(&server, &["verify", "s3://bucket/cut"]).status.success());
}

#[test]
fn a_flat_name_is_spelled_as_the_facts_prove_or_as_the_option_says() {
    let server = server();
    let engine = |model: &str| KeyId::from_engine_text(&format!("{model}@1@0@ab@half")).unwrap();
    let ns = Arc::new(Namespace::new("", Digest::default()));
    let spelled = Key::new(Arc::clone(&ns), engine("org/my_model"));
    let store = Store::open(&server, "flat", Layout::Lmcache);
    let mut lease = store.arena.lease(LEN).unwrap();
    lease.write_at(0, &bytes(1)).unwrap();
    let op = Save { key: spelled.clone(), from: vec![lease.freeze()] };
    drop(store.tier.save(&Ctx::within(Duration::from_secs(600)), vec![op]).wait());
    drop(store);
    let name = |key: &Key| format!("{}/{}", &key.digest().to_hex()[..2], key.digest());
    assert_eq!(tally(&server, &["migrate", "s3://bucket/flat", "s3://bucket/a"], COUNTS).1[0], 1);
    assert_eq!(server.keys("a/"), [format!("a/{}", name(&spelled))]);
    // Without facts only an option can name the key.
    let flat = "flat/org_my_model@1@0@ab@half";
    server.put_object(flat, server.object(flat).unwrap().to_vec());
    let words =
        ["migrate", "s3://bucket/flat", "s3://bucket/b", "--unverified", "--model", "org/my_model"];
    assert_eq!(tally(&server, &words, COUNTS).1[0], 1);
    assert_eq!(server.keys("b/"), [format!("b/{}", name(&spelled))]);
}
