//! Directories that LMCache and we share: what it wrote serves, what we write is byte for byte what
//! it would have written.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{
    Ctx, Cursor, Digest, ErrorKind, Hold, Key, Load, Loaded, MissReason, Mode, Namespace, Observe,
    Presence, Save, Saved, ShedReason, Tier,
};
use kvtier_file::{FileConfig, FileTier, Layout, Verify};
use kvtier_mem::{Arena, ArenaConfig};
use serde_json::Value;

const XATTR: &str = "user.kvtier";

fn ns() -> Arc<Namespace> {
    Arc::new(Namespace::new("shared", Digest::default()))
}

fn key(layout: Layout, name: &str) -> Key {
    Key::new(ns(), layout.key_of(name).unwrap())
}

/// Name number `n` of an MP chunk.
fn name(n: u64) -> String {
    format!("org-SEP-m@0x02010201@0@{n:016x}.data")
}

fn bytes(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + n * 7 + 1) as u8).collect()
}

struct Use {
    tier: FileTier,
    arena: Arena,
}

impl Use {
    fn open(config: FileConfig) -> Self {
        Use {
            tier: FileTier::open(config).unwrap(),
            arena: Arena::new(ArenaConfig::heap(16 << 20)).unwrap(),
        }
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(Duration::from_secs(600))
    }

    fn load(&self, key: &Key, len: usize) -> (Loaded, Vec<u8>) {
        let into = vec![self.arena.lease(len).unwrap()];
        let done =
            self.tier.load(&self.ctx(), vec![Load { key: key.clone(), into }]).wait().remove(0);
        (done.result.unwrap(), done.op.into[0].as_host().unwrap().to_vec())
    }

    fn save(&self, key: &Key, bytes: &[u8]) -> Saved {
        let mut lease = self.arena.lease(bytes.len()).unwrap();
        lease.write_at(0, bytes).unwrap();
        let op = Save { key: key.clone(), from: vec![lease.freeze()] };
        self.tier.save(&self.ctx(), vec![op]).wait().remove(0).result.unwrap()
    }

    fn find(&self, key: &Key) -> Presence {
        let looked =
            self.tier.lookup(&self.ctx(), [key.clone()].into(), Mode::Each, Hold::None).wait();
        looked.unwrap().found[0]
    }

    fn hits(&self, key: &Key, expected: &[u8]) {
        let len = expected.len() as u64;
        assert_eq!(self.find(key), Presence::Hit { len });
        let (loaded, got) = self.load(key, expected.len());
        assert_eq!(loaded, Loaded::Hit { len });
        assert!(got == expected, "a wrong byte");
    }

    fn counter(&self, name: &str) -> u64 {
        self.tier.status().counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    fn eventually(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(600);
        while !done() {
            assert!(
                Instant::now() < end,
                "{what}: not within ten minutes; {:?}",
                self.tier.usage()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn config(dir: &Path, layout: Layout) -> FileConfig {
    let fast = Duration::from_millis(20);
    FileConfig::new(dir, 1 << 30).with_layout(layout).with_flush_every(fast).with_sweep_every(fast)
}

/// All files besides our own affairs.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier");
    // One that goes while we look is gone.
    all.filter_map(|file| {
        Some((file.file_name().into_string().unwrap(), fs::read(file.path()).ok()?))
    })
    .collect()
}

fn facts(path: &Path) -> Option<Vec<u8>> {
    let mut record = [0; 2048];
    let len = rustix::fs::lgetxattr(path, XATTR, &mut record[..]).ok()?;
    Some(record[..len].to_vec())
}

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

/// The cases of `fs_files.json`: adapter, and its files by name.
fn cases() -> Vec<(String, BTreeMap<String, Vec<u8>>)> {
    load::cases("fs_files.json").iter().map(case).collect()
}

fn case(case: &Value) -> (String, BTreeMap<String, Vec<u8>>) {
    let files = case["out"]["files"].as_object().unwrap();
    let files: BTreeMap<_, _> =
        files.iter().map(|(name, hex)| (name.clone(), unhex(hex.as_str().unwrap()))).collect();
    // The files are what LMCache was given: a case that contradicts itself is wrong.
    if let Some(given) = case["in"]["payload_hex"].as_array() {
        let mut given: Vec<Vec<u8>> =
            given.iter().map(|hex| unhex(hex.as_str().unwrap())).collect();
        let mut written: Vec<Vec<u8>> = files.values().cloned().collect();
        given.sort();
        written.sort();
        assert!(given == written, "files and payloads differ: {}", case["in"]);
    }
    if let Some(bytes) = case["out"]["get"]["size"].as_u64() {
        let metadata = if case["in"]["save_chunk_meta"] == true { 28 } else { 0 };
        assert!(
            files.values().all(|file| file.len() as u64 == metadata + bytes),
            "another length: {}",
            case["in"]
        );
    }
    (case["in"]["adapter"].as_str().unwrap().to_owned(), files)
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn layout_of(adapter: &str) -> Option<Layout> {
    match adapter {
        "fs" | "fs_native" => Some(Layout::LmcacheMp),
        "FSConnector" => Some(Layout::Lmcache),
        _ => None,
    }
}

#[test]
fn what_lmcache_wrote_serves() {
    for (adapter, theirs) in cases() {
        let Some(layout) = layout_of(&adapter) else { continue };
        let dir = tempfile::tempdir().unwrap();
        theirs.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
        let it = Use::open(config(dir.path(), layout));
        for (name, bytes) in &theirs {
            let key = key(layout, name);
            it.hits(&key, bytes);
            // A chunk that lost its end looks like one that was never longer: only the exact
            // length is a hit.
            assert_eq!(it.load(&key, bytes.len() + 1).0, Loaded::Miss(MissReason::Length));
            if bytes.len() > 1 {
                assert_eq!(it.load(&key, bytes.len() - 1).0, Loaded::Miss(MissReason::Length));
            }
            assert_eq!(it.save(&key, bytes), Saved::Present);
        }
        let loads: usize = theirs.values().map(|bytes| 2 + usize::from(bytes.len() > 1)).sum();
        assert_eq!(it.counter("unverified"), loads as u64);
        assert_eq!(files(dir.path()), theirs, "{adapter}: nothing was changed");
    }
}

#[test]
fn what_we_write_is_what_lmcache_writes() {
    for (adapter, theirs) in cases() {
        let Some(layout) = layout_of(&adapter) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let it = Use::open(config(dir.path(), layout));
        for (name, bytes) in &theirs {
            assert_eq!(it.save(&key(layout, name), bytes), Saved::Stored);
            it.hits(&key(layout, name), bytes);
            assert!(facts(&dir.path().join(name)).is_some());
        }
        assert_eq!(files(dir.path()), theirs, "{adapter}");
        assert_eq!((it.counter("unverified"), it.counter("facts_write_failed")), (0, 0));
        drop(it);
        assert_eq!(files(dir.path()), theirs, "{adapter}");
    }
}

#[test]
fn files_that_are_no_chunks_of_the_layout_stay() {
    let dir = tempfile::tempdir().unwrap();
    let local_disk = cases().into_iter().filter(|(adapter, _)| adapter == "LocalDiskBackend");
    let mut local_files: BTreeMap<_, _> = local_disk.flat_map(|(_, files)| files).collect();
    local_files
        .extend([("x.data".into(), vec![1]), ("org-SEP-m@0x02010201@0@00.tmp".into(), vec![2])]);
    local_files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
    fs::create_dir(dir.path().join("tmp")).unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(ns()));
    it.eventually("swept", || it.tier.usage().used_bytes == Some(0));
    it.tier.remove(&it.ctx(), [key(Layout::LmcacheMp, &name(1))].into()).wait().unwrap();
    drop(it);
    assert!(
        local_files.keys().all(|name| dir.path().join(name).exists())
            && dir.path().join("tmp").exists()
    );
    let ours = FileTier::open(FileConfig::new(dir.path(), 1 << 30)).unwrap_err();
    assert!(ours.to_string().contains("layout: lmcache-mp"), "{ours}");
}

#[test]
fn keys_without_a_name_and_other_namespaces_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp));
    let refused = |key: &Key| {
        let into = vec![it.arena.lease(4096).unwrap()];
        let done = it.tier.load(&it.ctx(), vec![Load { key: key.clone(), into }]).wait().remove(0);
        done.result.unwrap_err().kind()
    };
    assert_eq!(refused(&key(Layout::Lmcache, "m@2@1@1234@half.data")), ErrorKind::Unsupported);
    it.save(&key(Layout::LmcacheMp, &name(1)), b"one");
    let id = Layout::LmcacheMp.key_of(&name(1)).unwrap();
    let other = Key::new(Arc::new(Namespace::new("other", Digest::default())), id);
    assert_eq!(refused(&other), ErrorKind::Invalid);
    drop(it);
    // The facts show another tier that the chunk is not its own; the chunk stays for its tenant.
    let it = Use::open(config(dir.path(), Layout::LmcacheMp));
    assert_eq!(it.find(&other), Presence::Miss);
    assert_eq!(it.load(&other, 3).0, Loaded::Miss(MissReason::Absent));
    drop(it);
    Use::open(config(dir.path(), Layout::LmcacheMp))
        .hits(&key(Layout::LmcacheMp, &name(1)), b"one");
}

#[test]
fn salts_are_tenants_of_one_directory_and_counted_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let all = Arc::new(
        Namespace::new("", Digest::derive("layout", b"x"))
            .with_partial(false)
            .with_salts_as_tenants(),
    );
    let key = |salt: &str, n: u64| {
        let name = format!("org-SEP-m@0x02010201@0@{n:016x}{salt}.data");
        let id = Layout::LmcacheMp.key_of(&name).unwrap();
        Key::new(all.for_key(&id), id)
    };
    let open = || Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(Arc::clone(&all)));
    let by_tenant = |it: &Use| {
        let tenants = it.tier.usage().tenants.into_iter().filter(|t| t.chunks > 0);
        tenants.map(|t| (t.tenant, t.used_bytes)).collect::<BTreeMap<_, _>>()
    };
    let it = open();
    for (n, salt) in ["", "@alice", "@bob", "@bob"].into_iter().enumerate() {
        assert_eq!(it.save(&key(salt, n as u64), &bytes(n as u64, 5000)), Saved::Stored, "{salt}");
        it.hits(&key(salt, n as u64), &bytes(n as u64, 5000));
    }
    assert_eq!(it.find(&key("@alice", 0)), Presence::Miss, "another's");
    let expected =
        BTreeMap::from([(String::new(), 5000), ("alice".into(), 5000), ("bob".into(), 10_000)]);
    assert_eq!(by_tenant(&it), expected);
    drop(it);
    // What LMCache stored meanwhile is its salt's too.
    fs::write(
        dir.path().join("org-SEP-m@0x02010201@0@00000000000000ff@alice.data"),
        bytes(9, 5000),
    )
    .unwrap();
    let it = open();
    let expected =
        BTreeMap::from([(String::new(), 5000), ("alice".into(), 10_000), ("bob".into(), 10_000)]);
    it.eventually("swept, before any key", || by_tenant(&it) == expected);
    it.hits(&key("@alice", 0xff), &bytes(9, 5000));
    it.hits(&key("@bob", 3), &bytes(3, 5000));
}

#[test]
fn without_facts_strict_refuses_and_a_save_brings_them() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = bytes(1, 5000);
    fs::write(dir.path().join(name(1)), &theirs).unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_verify(Verify::Strict));
    let key = key(Layout::LmcacheMp, &name(1));
    assert_eq!(it.find(&key), Presence::Miss);
    assert_eq!(it.load(&key, 5000).0, Loaded::Miss(MissReason::Unverified));
    assert_eq!((it.counter("unverified"), it.counter("misses_unverified")), (1, 1));
    it.eventually("counted all the same", || it.tier.usage().used_bytes == Some(5000));
    assert_eq!(it.find(&key), Presence::Miss, "swept or not");
    assert_eq!(it.save(&key, &theirs), Saved::Stored);
    it.hits(&key, &theirs);
    assert_eq!(it.save(&key, &theirs), Saved::Present);
    assert_eq!(it.tier.usage().used_bytes, Some(5000));
}

#[test]
fn whole_page_writers_leave_zeros_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp));
    for (n, len) in [(1, 5000), (2, 4095), (3, 4097)] {
        let mut padded = bytes(n, len);
        padded.resize(len.next_multiple_of(4096), 0);
        fs::write(dir.path().join(name(n)), &padded).unwrap();
        let key = key(Layout::LmcacheMp, &name(n));
        assert_eq!(it.load(&key, len), (Loaded::Hit { len: len as u64 }, bytes(n, len)));
        assert_eq!(it.load(&key, len - 4096.min(len - 1)).0, Loaded::Miss(MissReason::Length));
        *padded.last_mut().unwrap() = 1;
        fs::write(dir.path().join(name(n)), &padded).unwrap();
        assert_eq!(it.load(&key, len).0, Loaded::Miss(MissReason::Length));
        assert!(dir.path().join(name(n)).exists(), "it may be fine for others");
    }
    // Where the namespace states the length, lookups report it.
    let ns = Arc::new(
        Namespace::new("", Digest::default()).with_chunk_bytes(0, 5000).with_partial(false),
    );
    fs::write(dir.path().join(name(4)), [bytes(4, 5000), vec![0; 3192]].concat()).unwrap();
    fs::write(dir.path().join(name(5)), bytes(5, 4999)).unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(Arc::clone(&ns)));
    let key = |n| Key::new(Arc::clone(&ns), Layout::LmcacheMp.key_of(&name(n)).unwrap());
    it.hits(&key(4), &bytes(4, 5000));
    assert_eq!(it.load(&key(5), 4999).0, Loaded::Miss(MissReason::Length), "it lost its end");
}

#[test]
fn a_flipped_byte_and_wrong_facts_are_corrupt() {
    for len in [3, 4096, 5000, 100_000] {
        let dir = tempfile::tempdir().unwrap();
        let it = Use::open(config(dir.path(), Layout::LmcacheMp));
        let key = |n| key(Layout::LmcacheMp, &name(n));
        (1..=5).for_each(|n| assert_eq!(it.save(&key(n), &bytes(n, len)), Saved::Stored));
        let path = |n| dir.path().join(name(n));
        let write = |n| fs::OpenOptions::new().write(true).open(path(n)).unwrap();
        write(1).write_all_at(&[bytes(1, len)[len - 1] ^ 1], len as u64 - 1).unwrap();
        write(2).write_all_at(&[bytes(2, len)[0] ^ 1], 0).unwrap();
        write(3).set_len(len as u64 - 1).unwrap();
        rustix::fs::setxattr(path(4), XATTR, b"junk", rustix::fs::XattrFlags::empty()).unwrap();
        let swapped = facts(&path(1)).unwrap();
        rustix::fs::setxattr(path(5), XATTR, &swapped, rustix::fs::XattrFlags::empty()).unwrap();
        for n in 1..=5 {
            assert_eq!(
                it.load(&key(n), len).0,
                Loaded::Miss(MissReason::Corrupt),
                "{n} of {len} bytes"
            );
            assert_eq!(it.find(&key(n)), Presence::Miss);
            assert!(
                !path(n).exists() && dir.path().join(".kvtier/quarantine").join(name(n)).exists()
            );
            assert_eq!(it.save(&key(n), &bytes(n, len)), Saved::Stored);
            it.hits(&key(n), &bytes(n, len));
        }
        assert_eq!((it.counter("quarantined"), it.counter("misses_corrupt")), (5, 5));
    }
}

#[test]
fn what_others_write_and_delete_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(ns()));
    let key = |n| key(Layout::LmcacheMp, &name(n));
    (0..4).for_each(|n| assert_eq!(it.save(&key(n), &bytes(n, 6000)), Saved::Stored));
    // Found by lookup and by load before any sweep, and counted by it.
    (4..8).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 7000)).unwrap());
    (4..8).for_each(|n| it.hits(&key(n), &bytes(n, 7000)));
    it.eventually("counted", || {
        it.tier.usage().used_bytes == Some(4 * 13_000) && it.tier.usage().chunks == 8
    });
    // Gone before a sweep can know: a miss.
    (0..2).for_each(|n| fs::remove_file(dir.path().join(name(n))).unwrap());
    (0..2).for_each(|n| assert_eq!(it.load(&key(n), 6000).0, Loaded::Miss(MissReason::Absent)));
    assert_eq!(it.find(&key(0)), Presence::Miss);
    // Gone and never asked for again: the sweep forgets it.
    fs::remove_file(dir.path().join(name(4))).unwrap();
    it.eventually("forgotten", || it.tier.usage().used_bytes == Some(2 * 6000 + 3 * 7000));
    // Written anew by another program, with another length.
    fs::write(dir.path().join("new"), bytes(9, 100)).unwrap();
    fs::rename(dir.path().join("new"), dir.path().join(name(2))).unwrap();
    assert_eq!(it.load(&key(2), 100), (Loaded::Hit { len: 100 }, bytes(9, 100)));
    it.hits(&key(2), &bytes(9, 100));
    let page = it.tier.keys(Cursor::default(), 100);
    let mut lens: Vec<u64> = page.keys.iter().map(|info| info.len).collect();
    lens.sort_unstable();
    assert_eq!(lens, [100, 6000, 7000, 7000, 7000]);
}

#[test]
fn usage_and_cap_return_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let key = |n| key(Layout::LmcacheMp, &name(n));
    let it = Use::open(config(dir.path(), Layout::LmcacheMp));
    (0..10).for_each(|n| assert_eq!(it.save(&key(n), &bytes(n, 50_000)), Saved::Stored));
    it.hits(&key(0), &bytes(0, 50_000));
    drop(it);
    let config = |chunks: u64| {
        let mut config = FileConfig::new(dir.path(), chunks * 50_000)
            .with_policy(kvtier_disk::PolicyKind::Lru)
            .with_layout(Layout::LmcacheMp);
        config = config
            .with_flush_every(Duration::from_millis(20))
            .with_sweep_every(Duration::from_millis(20));
        config.with_namespace(ns())
    };
    let it = Use::open(config(20));
    assert_eq!(it.tier.usage().chunks, 10, "names are listed at once");
    it.eventually("swept", || it.tier.usage().used_bytes == Some(500_000));
    drop(it);
    // Another program writes meanwhile; a smaller cap is brought about after the sweep, in the
    // order of use.
    (10..12).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap());
    let it = Use::open(config(5));
    it.eventually("swept", || it.tier.usage().used_bytes == Some(600_000));
    assert_eq!(
        it.save(&key(20), &bytes(20, 50_000)),
        Saved::Shed(ShedReason::Full),
        "nothing is evicted by default"
    );
    assert_eq!(files(dir.path()).len(), 12);
    assert!(
        it.tier.status().reasons.iter().any(|reason| reason.contains("shrink")),
        "{:?}",
        it.tier.status()
    );
    drop(it);
    let it = Use::open(config(5).with_shrink(true));
    it.eventually("under the cap", || {
        it.tier.usage().used_bytes.is_some_and(|used| used <= 250_000)
    });
    assert_eq!(files(dir.path()).len(), 5);
    assert!(dir.path().join(name(0)).exists(), "the most recently used stays");
    for n in 20..40 {
        assert_eq!(it.save(&key(n), &bytes(n, 50_000)), Saved::Stored);
        assert!(files(dir.path()).len() <= 5);
    }
    it.hits(&key(39), &bytes(39, 50_000));
    assert_eq!(it.counter("recycled"), 0, "others may be reading what is evicted");
    assert_eq!(it.save(&key(50), &bytes(50, 250_001)), Saved::Shed(ShedReason::TooLarge));
    // What another program adds is brought under the cap too.
    (40..45).for_each(|n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap());
    it.eventually("under the cap again", || files(dir.path()).len() <= 5);
}

/// On this thread and those it starts, files of others are closed as they are to any user but root.
fn as_unprivileged(dir: &Path) {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(dir, Some(65534), None).unwrap();
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_counted_and_stops_neither_sweep_nor_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let work = || {
        let put = |n| fs::write(dir.path().join(name(n)), bytes(n, 50_000)).unwrap();
        (0..3).for_each(put);
        fs::set_permissions(
            dir.path().join(name(1)),
            std::os::unix::fs::PermissionsExt::from_mode(0o0),
        )
        .unwrap();
        as_unprivileged(dir.path());
        let mut config = FileConfig::new(dir.path(), 5 * 50_000)
            .with_policy(kvtier_disk::PolicyKind::Lru)
            .with_layout(Layout::LmcacheMp)
            .with_namespace(ns());
        config = config.with_sweep_every(Duration::from_millis(20));
        let it = Use::open(config);
        it.eventually("all are counted", || it.tier.usage().used_bytes == Some(150_000));
        assert_eq!(it.counter("io_errors"), 1);
        let said = |reason: &String| reason.contains(&name(1));
        assert!(it.tier.status().reasons.iter().any(said), "{:?}", it.tier.status());
        (3..9).for_each(put);
        it.eventually("under the cap", || files_there(dir.path()) <= 5);
        assert_ne!(it.find(&key(Layout::LmcacheMp, &name(1))), Presence::Hit { len: 50_000 });
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

fn files_there(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier").count()
}

#[test]
fn what_another_program_wrote_since_a_sweep_is_not_released_when_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        FileConfig::new(dir.path(), 1 << 20).with_layout(Layout::LmcacheMp).with_namespace(ns());
    let it = Use::open(config.with_sweep_every(Duration::from_secs(3600)));
    let counted = || {
        let ledger = fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        u64::from_le_bytes(ledger[8..16].try_into().unwrap())
    };
    let ours = key(Layout::LmcacheMp, &name(1));
    let theirs = key(Layout::LmcacheMp, &name(2));
    let late = Instant::now() + Duration::from_secs(600);
    while it.tier.usage().used_bytes.is_none() {
        assert!(Instant::now() < late);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(it.save(&ours, &bytes(1, 8192)), Saved::Stored);
    fs::write(dir.path().join(name(2)), bytes(2, 7000)).unwrap();
    it.hits(&theirs, &bytes(2, 7000));
    let before = counted();
    for (key, less) in [(theirs, 0), (ours, 8192)] {
        assert_eq!(it.tier.remove(&it.ctx(), [key].into()).wait().unwrap().removed, 1);
        assert_eq!(counted(), before - less);
    }
}

#[test]
fn a_sweep_counts_unfinished_files_of_peers() {
    let dir = tempfile::tempdir().unwrap();
    drop(Use::open(config(dir.path(), Layout::LmcacheMp)));
    // A living peer in the middle of a save.
    let staging = dir.path().join(".kvtier/tmp/elsewhere.1.1.0");
    fs::create_dir(&staging).unwrap();
    let alive = fs::File::create(staging.join("alive")).unwrap();
    alive.lock().unwrap();
    fs::write(staging.join("0"), [0; 7000]).unwrap();
    fs::write(dir.path().join(name(1)), bytes(1, 5000)).unwrap();
    let ledger = || {
        let bytes = fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        bytes.get(8..16).map_or(0, |total| u64::from_le_bytes(total.try_into().unwrap()))
    };
    let it = Use::open(config(dir.path(), Layout::LmcacheMp).with_namespace(ns()));
    it.eventually("both are counted", || ledger() == 12_000);
    fs::remove_file(staging.join("0")).unwrap();
    it.eventually("what was given up is not", || ledger() == 5000);
}

#[test]
fn two_tiers_and_another_program_share_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Use::open(
            FileConfig::new(dir.path(), 20 * 50_000)
                .with_policy(kvtier_disk::PolicyKind::Lru)
                .with_layout(Layout::LmcacheMp),
        )
    };
    let a = open();
    let b = open();
    let key = |n| key(Layout::LmcacheMp, &name(n));
    let end = Instant::now() + Duration::from_secs(3);
    let late = Instant::now() + Duration::from_secs(120);
    let work = |it: &Use, mut seed: u64| {
        let mut hits = 0;
        // A busy machine needs longer for as much.
        while Instant::now() < end || (Instant::now() < late && hits <= 10) {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let n = (seed >> 33) % 60;
            let m = (seed >> 40) % 60;
            let saved = it.save(&key(n), &bytes(n, 50_000));
            assert!(matches!(saved, Saved::Stored | Saved::Present | Saved::Shed(_)), "{saved:?}");
            let (loaded, got) = it.load(&key(m), 50_000);
            match loaded {
                Loaded::Hit { .. } => assert!(got == bytes(m, 50_000), "a wrong byte"),
                other => assert_eq!(other, Loaded::Miss(MissReason::Absent)),
            }
            hits += u64::from(matches!(loaded, Loaded::Hit { .. }));
        }
        assert!(hits > 10, "{hits} hits");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&a, 1));
        scope.spawn(|| work(&b, 2));
        scope.spawn(|| {
            for n in (0..60).cycle() {
                let draft = dir.path().join("draft.tmp");
                fs::write(&draft, bytes(n, 50_000)).unwrap();
                fs::rename(&draft, dir.path().join(name(n))).unwrap();
                let _ = fs::remove_file(dir.path().join(name((n + 7) % 60)));
                std::thread::sleep(Duration::from_millis(3));
                if Instant::now() > end {
                    break;
                }
            }
        });
    });
}

/// A file system in memory that keeps no attributes; unmounted in the end.
struct Bare(tempfile::TempDir);

impl Bare {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "ramfs", "ramfs"])
            .arg(dir.path())
            .output();
        if mount.as_ref().is_ok_and(|out| out.status.success()) {
            return Some(Bare(dir));
        }
        eprintln!("not tried, cannot mount a file system here: {mount:?}");
        None
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let out = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(
            std::thread::panicking() || out.is_ok_and(|status| status.success()),
            "cannot unmount"
        );
    }
}

#[test]
fn where_no_attributes_are_kept_chunks_are_unverified_and_strict_says_so_at_once() {
    let Some(bare) = Bare::new() else { return };
    let dir = bare.0.path().join("kv");
    let it = Use::open(config(&dir, Layout::LmcacheMp).with_free_min(0));
    let key = key(Layout::LmcacheMp, &name(1));
    assert_eq!(it.save(&key, &bytes(1, 5000)), Saved::Stored);
    it.hits(&key, &bytes(1, 5000));
    assert_eq!(
        (it.counter("facts_write_failed"), it.counter("unverified"), it.counter("io_errors")),
        (1, 1, 0)
    );
    assert!(it.tier.status().reasons.iter().any(|reason| reason.contains("keeps no facts")));
    drop(it);
    let strict =
        FileTier::open(config(&dir, Layout::LmcacheMp).with_verify(Verify::Strict)).unwrap_err();
    assert_eq!(strict.kind(), ErrorKind::Unsupported);
    assert!(strict.to_string().contains("verify: lenient"), "{strict}");
}
