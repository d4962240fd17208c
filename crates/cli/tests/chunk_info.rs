//! `ls --long`, `stat --by`, and the choices of `rm`, `verify` and `migrate`, over a directory and
//! a bucket with chunks of two models.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kvtier::core::{Ctx, Digest, Key, Namespace, Save, Saved, Tier};
use kvtier::file::{FileConfig, FileTier, Layout};
use kvtier::key::{
    ChunkHash, DType, GdsElement, GdsHeader, KeyId, KvRank, MemoryFormat, ObjectKey,
};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier_testkit::s3::{Server, Setup};
use serde_json::Value;
use support::kvtier_on;

const LEN: u64 = 4096;
const DAY: Duration = Duration::from_secs(86_400);

/// A chunk of a test: its model, cache salt and number.
struct Chunk {
    model: &'static str,
    salt: &'static str,
    number: u8,
}

/// Three chunks of org/a, one of them with a salt, and two of org/b.
const CHUNKS: [Chunk; 5] = [
    Chunk { model: "org/a", salt: "", number: 1 },
    Chunk { model: "org/a", salt: "pepper", number: 2 },
    Chunk { model: "org/a", salt: "", number: 3 },
    Chunk { model: "org/b", salt: "", number: 4 },
    Chunk { model: "org/b", salt: "", number: 5 },
];

impl Chunk {
    fn key(&self) -> Key {
        let ns = Arc::new(Namespace::new("acme", Digest::derive("layout", b"tests")));
        let id =
            ObjectKey::new(self.model, KvRank(0), 0, ChunkHash::new(&[self.number; 32]), self.salt)
                .unwrap();
        Key::new(ns, KeyId::Object(id))
    }
}

fn save(path: &Path, layout: Layout) {
    let config = FileConfig::new(path, 64 << 20).with_layout(layout);
    let tier = FileTier::open(config).unwrap();
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
    for chunk in &CHUNKS {
        let mut lease = arena.lease(LEN as usize).unwrap();
        lease.write_at(0, &[chunk.number; LEN as usize]).unwrap();
        let op = Save { key: chunk.key(), from: vec![lease.freeze()] };
        let done = tier.save(&Ctx::within(Duration::from_secs(600)), vec![op]).wait();
        assert!(matches!(done[0].result, Ok(Saved::Stored)), "{:?}", done[0].result);
    }
    tier.close().wait().unwrap();
}

fn kvtier(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words).stdin(Stdio::null()).output().unwrap()
}

fn ok(out: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A place of chunks: how the command names it, and how the chunks of org/a are made ten days old.
trait Place {
    fn name(&self) -> String;
    fn run(&self, words: &[&str]) -> Output;
    fn age_model_a(&self);
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn filled(layout: Layout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        save(&dir.path().join("kv"), layout);
        Dir(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("kv")
    }

    fn file(&self, chunk: &Chunk) -> PathBuf {
        let digest = chunk.key().digest().to_hex();
        self.path().join(&digest[..2]).join(format!("{digest}-{LEN:x}"))
    }
}

impl Place for Dir {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        kvtier(words)
    }

    fn age_model_a(&self) {
        for chunk in &CHUNKS[..3] {
            let file = fs::File::options().write(true).open(self.file(chunk)).unwrap();
            file.set_modified(SystemTime::now() - 10 * DAY).unwrap();
        }
    }
}

struct Bucket(Server);

impl Bucket {
    fn filled() -> Self {
        let server = Server::start(Setup::default()).unwrap();
        let dir = Dir::filled(Layout::Kvtier);
        ok(kvtier_on(&server, &["migrate", &dir.name(), "s3://bucket/kv"]));
        Bucket(server)
    }
}

impl Place for Bucket {
    fn name(&self) -> String {
        "s3://bucket/kv".into()
    }

    fn run(&self, words: &[&str]) -> Output {
        kvtier_on(&self.0, words)
    }

    fn age_model_a(&self) {
        for chunk in &CHUNKS[..3] {
            let digest = chunk.key().digest().to_hex();
            assert!(
                self.0
                    .backdate(&format!("kv/{}/{digest}", &digest[..2]), 10 * DAY.as_secs() as i64)
            );
        }
    }
}

/// Both kinds of places.
fn places() -> [Box<dyn Place>; 2] {
    [Box::new(Dir::filled(Layout::Kvtier)), Box::new(Bucket::filled())]
}

fn count(place: &dyn Place) -> usize {
    ok(place.run(&["ls", &place.name()])).lines().count()
}

#[test]
fn ls_long_shows_model_tenant_age_and_last_use_and_never_a_salt() {
    for place in places() {
        place.age_model_a();
        let name = place.name();
        let text = ok(place.run(&["ls", &name, "--long"]));
        assert_eq!(text.lines().count(), 1 + CHUNKS.len(), "{text}");
        assert!(
            text.lines().next().unwrap().contains("MODEL KEY") && !text.contains("pepper"),
            "{text}"
        );
        let found = lines(&ok(place.run(&["ls", &name, "--long", "--json"])));
        for chunk in &CHUNKS {
            let digest = chunk.key().digest().to_hex();
            let one = found.iter().find(|one| one["key"] == digest.as_str()).unwrap();
            assert_eq!((&one["model"], &one["bytes"]), (&chunk.model.into(), &LEN.into()), "{one}");
            assert_eq!(one["namespace"], chunk.key().namespace().digest().to_hex());
            let salt = kvtier::key::KeySummary::from_canonical(&chunk.key().canonical())
                .unwrap()
                .salt_digest;
            let digits = salt.map(|digest| {
                digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            });
            // The tenant of a key without a salt is in the journals, which a copy into a bucket
            // does not write.
            assert!(digits.is_none_or(|digits| one["tenant"] == digits.as_str()), "{one}");
            let line = text.lines().find(|line| line.ends_with(&digest)).unwrap();
            assert!(
                line.contains(chunk.model) && (chunk.model == "org/b" || line.contains(" 10d ")),
                "{line}"
            );
        }
    }
}

#[test]
fn the_last_use_is_what_the_journals_of_a_directory_say() {
    let dir = Dir::filled(Layout::Kvtier);
    let found = lines(&ok(kvtier(&["ls", &dir.name(), "--long", "--json"])));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for one in &found {
        let used = one["used_s"].as_u64().unwrap();
        assert!(used <= now && now - used < 3600, "{one}");
        assert_eq!(one["tenant"].as_str().unwrap().len(), 32, "{one}");
    }
    fs::remove_dir_all(dir.path().join(".kvtier/journal")).unwrap();
    let _ = fs::remove_file(dir.path().join(".kvtier/snapshot"));
    let found = lines(&ok(kvtier(&["ls", &dir.name(), "--long", "--json"])));
    assert!(
        found.iter().all(|one| one["used_s"].is_null() && one["used_exact"].is_null()),
        "{found:?}"
    );
}

#[test]
fn the_last_use_in_a_bucket_is_what_its_nodes_wrote() {
    let server = Server::start(Setup::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kv.json");
    let tier = serde_json::json!({
        "type": "s3", "s3_endpoint": "s3://bucket", "s3_region": "us-east-1", "prefix": "kv", "max_capacity_gb": 1,
    });
    let host = serde_json::json!({"type": "host", "bytes": "1MiB"});
    fs::write(&config, serde_json::json!({"tiers": [host, tier]}).to_string()).unwrap();
    let path = config.display().to_string();
    ok(kvtier_on(
        &server,
        &["replay", "--config", &path, "--requests", "5", "--chunk-bytes", "4096"],
    ));
    let found = lines(&ok(kvtier_on(&server, &["ls", "s3://bucket/kv", "--long", "--json"])));
    let keys = server.keys("kv/.kvtier/");
    assert!(!found.is_empty(), "{keys:?}");
    for one in found {
        assert!(one["used_s"].as_i64().is_some_and(|used| used > 0), "{one} {keys:?}");
        assert!(one["tenant"].as_str().is_some_and(|tenant| tenant.len() == 32), "{one}");
    }
}

#[test]
fn damaged_journals_of_a_bucket_cost_last_uses_and_nothing_else() {
    let bucket = Bucket::filled();
    let server = &bucket.0;
    let name = |n: usize| format!("kv/.kvtier/journal/node/{n:08x}");
    server.put_object(&name(1), b"no journal".to_vec());
    server.put_object(&name(2), vec![0; 9 << 20]);
    let list = ["ls", "s3://bucket/kv", "--long"];
    let out = kvtier_on(server, &list);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(ok(out).lines().count(), CHUNKS.len() + 1, "with a head");
    let first =
        format!("some last uses are missing: {} is damaged from byte 0 on (and 1 more)", name(1));
    assert!(said.contains(&first), "{said}");
    // What does not need last uses does not read them.
    let gets = || server.seen().iter().filter(|request| request.target.contains("journal")).count();
    let before = gets();
    let rm = ["rm", "s3://bucket/kv", "--model", "org/a", "--older", "0s"];
    let by = |what| ["stat", "s3://bucket/kv", "--by", what];
    for words in [&rm[..], &by("model"), &by("namespace")] {
        let out = kvtier_on(server, words);
        assert!(out.stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        ok(out);
    }
    assert_eq!(gets(), before);
    ok(kvtier_on(server, &by("tenant")));
    assert!(gets() > before, "which tenant it is, journals say");
}

#[test]
fn a_directory_without_readable_journals_is_still_chosen_from_by_model() {
    let dir = Dir::filled(Layout::Kvtier);
    let journals = dir.path().join(".kvtier/journal");
    fs::remove_dir_all(&journals).unwrap();
    fs::write(&journals, "").unwrap();
    ok(kvtier(&["ls", &dir.name(), "--long"]));
    ok(kvtier(&["rm", &dir.name(), "--model", "org/a", "--yes"]));
    ok(kvtier(&["stat", &dir.name(), "--by", "model"]));
    assert_eq!(count(&dir), 2);
}

#[test]
fn a_foreign_layout_shows_what_its_names_and_facts_say() {
    let dir = Dir::filled(Layout::LmcacheMp);
    let text = ok(kvtier(&["ls", &dir.name(), "--long", "--json"]));
    let found = lines(&text);
    let of = |model: &str| found.iter().filter(|one| one["model"] == model).count();
    assert_eq!((of("org/a"), of("org/b")), (3, 2), "{text}");
    // Without facts, as another program writes files, the namespace is not known.
    for entry in fs::read_dir(dir.path()).unwrap().flatten().filter(|entry| entry.path().is_file())
    {
        let bytes = fs::read(entry.path()).unwrap();
        fs::remove_file(entry.path()).unwrap();
        fs::write(entry.path(), bytes).unwrap();
    }
    let text = ok(kvtier(&["ls", &dir.name(), "--long", "--json"]));
    let found = lines(&text);
    assert!(
        found.iter().all(|one| one["namespace"].is_null() && one["model"].is_string()),
        "{text}"
    );
    assert!(
        !found
            .iter()
            .filter_map(|one| one["tenant"].as_str())
            .any(|tenant| tenant.contains("pepper")),
        "{text}"
    );
}

#[test]
fn stat_by_sums_chunks_up() {
    for place in places() {
        let name = place.name();
        let by = |by: &str| -> Value {
            serde_json::from_str(&ok(place.run(&["stat", &name, "--by", by, "--json"]))).unwrap()
        };
        let models = by("model");
        let expected = serde_json::json!([
            {"name": "org/a", "chunks": 3, "bytes": 3 * LEN}, {"name": "org/b", "chunks": 2, "bytes": 2 * LEN},
        ]);
        assert_eq!((&models["by"], &models["groups"]), (&"model".into(), &expected));
        assert_eq!(by("tenant")["groups"].as_array().unwrap().len(), 2);
        let namespace = CHUNKS[0].key().namespace().digest().to_hex();
        assert_eq!(
            by("namespace")["groups"][0],
            serde_json::json!({"name": namespace, "chunks": 5, "bytes": 5 * LEN})
        );
        let table = ok(place.run(&["stat", &name, "--by", "model"]));
        assert!(
            table.starts_with("model  chunks") && table.contains("org/a       3  12 KiB"),
            "{table}"
        );
    }
}

#[test]
fn rm_takes_a_model_and_an_age_together() {
    for place in places() {
        let name = place.name();
        place.age_model_a();
        let dry = ok(place.run(&["rm", &name, "--model", "org/a", "--older", "7d"]));
        assert_eq!(dry, "would remove 3 chunks (12 KiB); add --yes to do it\n");
        assert_eq!(count(&*place), 5);
        for (words, chosen) in [
            (&["--model", "org/b", "--older", "7d"][..], 0),
            (&["--model", "org/a", "--older", "2w"], 0),
            (&["--older", "7d"], 3),
            (&["--model", "org/b"], 2),
            (&["--model", "other"], 0),
            (&["--all", "--exclude", "*"], 0),
        ] {
            let said = ok(place.run(&[&["rm", &name], words].concat()));
            assert!(
                said.starts_with(&format!("would remove {chosen} chunks")),
                "{words:?}: {said}"
            );
        }
        let out =
            ok(place.run(&["rm", &name, "--model", "org/a", "--older", "7d", "--yes", "--json"]));
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(out, serde_json::json!({"removed": true, "chunks": 3, "bytes": 3 * LEN}));
        let left = ok(place.run(&["ls", &name]));
        let stays = |chunk: &Chunk| {
            left.contains(&chunk.key().digest().to_hex()) == (chunk.model == "org/b")
        };
        assert!(left.lines().count() == 2 && CHUNKS.iter().all(stays), "{left}");
        for words in
            [&["--older", "soon"][..], &["--include", "[a"], &["--exclude", "*"], &["--older", "7"]]
        {
            let out = place.run(&[&["rm", &name], words].concat());
            assert_eq!(out.status.code(), Some(2), "{words:?}");
        }
    }
}

#[test]
fn filters_and_limits_hold_for_verify_migrate_and_rm() {
    for place in places() {
        let name = place.name();
        let first = CHUNKS[0].key().digest().to_hex();
        let include = format!("{}*", &first[..20]);
        let words = [
            "verify",
            &name,
            "--include",
            &include,
            "--concurrency",
            "4",
            "--bwlimit",
            "1GiB",
            "--json",
        ];
        let verified: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(verified["chunks"], 1);
        let words = ["verify", &name, "--exclude", &include, "--json"];
        let verified: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(verified["chunks"], 4);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to").display().to_string();
        // Of a salt only a digest is stored: such a chunk cannot be copied into a directory.
        let salted = CHUNKS[1].key().digest().to_hex();
        let exclude = ["--exclude", &include, "--exclude", &salted];
        let pace = ["--concurrency", "3", "--bwlimit", "1GiB", "--json"];
        let words = [&["migrate", &name, &to][..], &exclude, &pace].concat();
        let copied: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(copied["copied"], 3);
        assert_eq!(ok(kvtier(&["ls", &to])).lines().count(), 3);
        let words = [
            "rm",
            &name,
            "--include",
            &include,
            "--concurrency",
            "2",
            "--bwlimit",
            "1GiB",
            "--yes",
        ];
        assert!(ok(place.run(&words)).starts_with("removed 1 chunks"));
        assert_eq!(count(&*place), 4);
        for words in [&["--concurrency", "0"][..], &["--bwlimit", "0"], &["--bwlimit", "fast"]] {
            for command in
                [&["verify", &name][..], &["rm", &name, "--all"], &["migrate", &name, &to]]
            {
                let out = place.run(&[command, words].concat());
                assert_eq!(out.status.code(), Some(2), "{command:?} {words:?}");
            }
        }
    }
}

#[test]
fn a_limit_of_bytes_a_second_is_kept() {
    for place in places() {
        let name = place.name();
        let began = Instant::now();
        ok(place.run(&["verify", &name, "--bwlimit", "8KiB", "--concurrency", "5"]));
        // Five chunks of 4 KiB: the last begins after two seconds.
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        let began = Instant::now();
        ok(place.run(&["rm", &name, "--all", "--bwlimit", "8KiB", "--yes"]));
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

#[test]
fn progress_is_printed_on_standard_error_where_it_is_asked_for() {
    for place in places() {
        let name = place.name();
        let said = |words: &[&str]| String::from_utf8(place.run(words).stderr).unwrap();
        assert_eq!(said(&["verify", &name]), "");
        assert!(said(&["verify", &name, "--progress"]).contains("20 KiB of 20 KiB"));
        let rm = said(&["rm", &name, "--model", "org/a", "--yes", "--progress"]);
        assert!(rm.contains("asked of 5 of 5 chunks") && rm.contains("12 KiB of 12 KiB"), "{rm}");
    }
}

/// Runs the command at a terminal; what it printed there.
fn at_a_terminal(words: &[&str]) -> String {
    let command = std::iter::once(env!("CARGO_BIN_EXE_kvtier"))
        .chain(words.iter().copied())
        .collect::<Vec<_>>()
        .join(" ");
    let out =
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
    ok(out.expect("the program `script` of util-linux"))
}

#[test]
fn at_a_terminal_a_bar_shows_progress() {
    let dir = Dir::filled(Layout::Kvtier);
    assert_eq!(at_a_terminal(&["ls", &dir.name()]).lines().count(), CHUNKS.len());
    // Slow enough that the bar is drawn between two chunks.
    let bar = at_a_terminal(&["verify", &dir.name(), "--bwlimit", "16KiB"]);
    assert!(bar.contains("/20.00 KiB") && bar.contains("eta"), "{bar:?}");
    let bar = at_a_terminal(&["rm", &dir.name(), "--all", "--yes", "--bwlimit", "16KiB"]);
    assert!(bar.contains("/20.00 KiB") && bar.contains("removed 5 chunks"), "{bar:?}");
}

#[test]
fn a_signal_ends_a_run_in_order() {
    let dir = Dir::filled(Layout::Kvtier);
    let to = dir.0.path().join("to").display().to_string();
    for words in [
        &["verify", &dir.name()][..],
        &["migrate", &dir.name(), &to],
        &["rm", &dir.name(), "--all", "--yes"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        // A chunk in more than an hour: it ends by the signal.
        let child =
            command.args(words).args(["--bwlimit", "1"]).stdin(Stdio::null()).spawn().unwrap();
        let tasks = format!("/proc/{}/task", child.id());
        let waits = |task: fs::DirEntry| {
            fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim_end() == "signals")
        };
        while !fs::read_dir(&tasks).unwrap().flatten().any(waits) {
            std::thread::yield_now();
        }
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{words:?}");
    }
}

#[test]
fn key_reads_the_file_of_a_chunk() {
    let dir = Dir::filled(Layout::Kvtier);
    let answer = |path: &Path| -> Value {
        serde_json::from_str(&ok(kvtier(&["key", "--json", &path.display().to_string()]))).unwrap()
    };
    let plain = answer(&dir.file(&CHUNKS[0]));
    let footer = &plain["readings"][0];
    assert_eq!(
        (&footer["form"], &footer["key"]["model"]),
        (&"kvtier-footer".into(), &"org/a".into()),
        "{plain}"
    );
    assert_eq!(footer["key"]["chunk_hash"], "01".repeat(32));
    assert_eq!(footer["key"]["digest"], CHUNKS[0].key().digest().to_hex());
    assert!(footer["names"]["mp-native"].as_str().unwrap().starts_with("org/a@"), "{plain}");
    let salted = answer(&dir.file(&CHUNKS[1]));
    assert_eq!(salted["readings"][0]["key"]["model"], "org/a");
    assert!(
        salted["readings"][0]["key"]["tenant"].as_str().unwrap().len() == 32
            && !salted.to_string().contains("pepper")
    );
    let path = dir.file(&CHUNKS[0]).display().to_string();
    assert!(ok(kvtier(&["key", &path, "--to", "mp-native"])).starts_with("org/a@"));

    // The footer of another chunk, a file that is no chunk's, and one that is not there.
    fs::copy(dir.file(&CHUNKS[3]), dir.file(&CHUNKS[0])).unwrap();
    let swapped = kvtier(&["key", &path]);
    assert!(String::from_utf8(swapped.stdout).unwrap().contains("the footer is of another chunk"));
    for (name, says) in [
        ("readme.txt", "not the file of a chunk"),
        ("missing", "no such file"),
        ("", "not a regular file"),
    ] {
        fs::write(dir.path().join("readme.txt"), "text").unwrap();
        let out = kvtier(&["key", &dir.path().join(name).display().to_string()]);
        assert_eq!(out.status.code(), Some(1), "{name}");
        assert!(String::from_utf8(out.stdout).unwrap().contains(says), "{name}");
    }

    let dir = Dir::filled(Layout::LmcacheMp);
    let file = fs::read_dir(dir.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.is_file())
        .unwrap();
    let foreign = answer(&file);
    let forms: Vec<&str> = foreign["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["form"].as_str().unwrap())
        .collect();
    assert!(
        forms.contains(&"facts") && forms.iter().any(|form| form.starts_with("mp-")),
        "{foreign}"
    );
}

#[test]
fn key_reads_a_gds_header() {
    let element = GdsElement::from_dtype(DType::from_torch_name("bfloat16").unwrap()).unwrap();
    let header = GdsHeader::new(element, vec![2, 4, 16, 32], MemoryFormat::Kv2Ltd);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("47/79");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("m%401%400%4012ab%40bfloat16.kvcache.safetensors");
    let payload = vec![7; header.payload_bytes().unwrap() as usize];
    fs::write(&file, [header.encode().unwrap(), payload].concat()).unwrap();
    let answer: Value =
        serde_json::from_str(&ok(kvtier(&["key", "--json", file.to_str().unwrap()]))).unwrap();
    let readings = answer["readings"].as_array().unwrap();
    assert_eq!(
        (&readings[0]["form"], &readings[0]["key"]["shape"]),
        (&"gds-header".into(), &"2x4x16x32".into())
    );
    assert_eq!(readings[0]["key"]["payload_bytes"], 2 * 2 * 4 * 16 * 32);
    assert!(
        readings.iter().any(|one| one["form"] == "gds" && one["key"]["model"] == "m"),
        "{answer}"
    );
}
