//! Small directories, and looks into them.
#![allow(dead_code, reason = "each test file uses some of it")]

use kvtier_core::key::{ChunkHash, Digest, KeyId, KvRank, Namespace, ObjectKey};
use kvtier_core::{Key, Loaded, MissReason, Observe};
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const LEN: usize = 100_000;
/// The payload padded to pages, and the footer.
pub const FILE: u64 = 25 * 4096 + 4096;

pub fn config(dir: &Path, chunks: u64) -> FileConfig {
    FileConfig::new(dir, chunks * FILE + FILE / 2)
        .with_policy(kvtier_disk::PolicyKind::Lru)
        .with_flush_every(Duration::from_millis(20))
}

pub fn open(dir: &Path, chunks: u64) -> Fixture {
    Fixture::new(FileTier::open(config(dir, chunks)).unwrap())
}

pub fn absent(f: &Fixture, n: u64) -> bool {
    match f.load(&f.key(n), LEN) {
        Loaded::Hit { .. } => false,
        Loaded::Miss(MissReason::Absent) => true,
        other => panic!("chunk {n}: {other:?}"),
    }
}

pub fn counter(tier: &FileTier, name: &str) -> u64 {
    tier.status().counters.iter().find(|(n, _)| *n == name).unwrap().1
}

/// The directory as a process that dies at this moment leaves it: everything but its locks.
pub fn as_left_by_the_dead(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status = Command::new("cp").arg("-a").arg(dir.join(".")).arg(copy.path()).status().unwrap();
    assert!(status.success());
    copy
}

/// The same, once the directory `is_right`: the living process writes its state a moment later.
pub fn as_left_by_the_dead_at_last(
    dir: &Path,
    is_right: impl Fn(&Path) -> bool,
) -> tempfile::TempDir {
    let late = Instant::now() + Duration::from_secs(600);
    loop {
        let copy = as_left_by_the_dead(dir);
        if is_right(as_left_by_the_dead(copy.path()).path()) {
            return copy;
        }
        assert!(Instant::now() < late, "not so within ten minutes");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The files in the shards, by inode: one that gets another name while we walk is counted once.
pub fn files(dir: &Path) -> BTreeMap<u64, u64> {
    let shards = fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
    let files = shards.flat_map(|shard| fs::read_dir(shard.path()).unwrap().flatten());
    files.filter_map(|file| file.metadata().ok()).map(|meta| (meta.ino(), meta.len())).collect()
}

pub fn files_bytes(dir: &Path) -> u64 {
    files(dir).values().sum()
}

/// Bytes of chunks, of unfinished files and of the quarantine; one that is renamed meanwhile is
/// counted once.
pub fn bytes_there(dir: &Path) -> u64 {
    let mut files = BTreeMap::new();
    add_files(dir, &mut files);
    files.values().sum()
}

fn add_files(dir: &Path, files: &mut BTreeMap<u64, u64>) {
    let is_own = dir.ends_with(".kvtier");
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        match entry.metadata() {
            Ok(meta) if meta.is_dir() && name != "journal" => add_files(&entry.path(), files),
            Ok(meta) if meta.is_file() && !is_own && name != "alive" => {
                files.insert(meta.ino(), meta.len());
            }
            _ => {}
        }
    }
}

/// Stops another process. Returns when all its threads stand still, or have ended.
pub fn stop(process: &Child) {
    signal(process, "-STOP");
    let stands = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').map(|(_, state)| state.trim_start().to_owned());
        state.is_none_or(|state| state.starts_with(['T', 't', 'Z', 'X']))
    };
    let tasks = format!("/proc/{}/task", process.id());
    while !fs::read_dir(&tasks).unwrap().flatten().all(stands) {
        std::thread::yield_now();
    }
}

/// Lets a stopped process go on.
pub fn go_on(process: &Child) {
    signal(process, "-CONT");
}

fn signal(process: &Child, name: &str) {
    let pid = process.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// The bytes that all processes together have written and are writing; 0 while the ledger is
/// missing, because a process recreates it.
pub fn ledger(dir: &Path) -> u64 {
    loop {
        let Ok(bytes) = fs::read(dir.join(".kvtier/ledger")) else { return 0 };
        if let Some(Ok(total)) = bytes.get(8..16).map(<[u8; 8]>::try_from) {
            return u64::from_le_bytes(total);
        }
    }
}

/// Makes them say another number: under the lock, since a tier that is just changing the ledger
/// would undo it.
pub fn set_ledger(dir: &Path, total: u64) {
    let path = dir.join(".kvtier/ledger");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.lock().unwrap();
    // Magic, total, generation, number of changes, CRC32C of these.
    let mut bytes = [0; 28];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes[8..16].copy_from_slice(&total.to_le_bytes());
    let sum = kvtier_core::key::BlockSums::from_bytes(&bytes).whole();
    file.write_all_at(&[&bytes[..], &sum.to_le_bytes()].concat(), 0).unwrap();
    file.unlock().unwrap();
}

/// The chunks of a golden directory: all are alice's but the last two, which are bob's.
pub const GOLDEN_CHUNKS: u64 = 6;

pub fn golden_key(n: u64) -> Key {
    let salt = if n < GOLDEN_CHUNKS - 2 { "alice" } else { "bob" };
    let hash = ChunkHash::new(&n.to_be_bytes());
    let id = KeyId::from(ObjectKey::new("org/model", KvRank(0), 0, hash, salt).unwrap());
    let all =
        Arc::new(Namespace::new("", Digest([7; 32])).with_partial(false).with_salts_as_tenants());
    Key::new(all.for_key(&id), id)
}

/// A copy of the directory of format 2 that the build before format 3 left when it was killed; see
/// `old_format.rs`.
pub fn golden_of_format_2(layout: &str) -> tempfile::TempDir {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2").join(layout);
    let copy = as_left_by_the_dead(&golden);
    // Attributes of files are beside them.
    for entry in fs::read_dir(copy.path()).unwrap().flatten() {
        let facts = entry.path();
        if facts.extension().is_some_and(|extension| extension == "facts") {
            let hex = fs::read_to_string(&facts).unwrap();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(facts.with_extension(""), "user.kvtier", &bytes, flags).unwrap();
            fs::remove_file(facts).unwrap();
        }
    }
    copy
}
