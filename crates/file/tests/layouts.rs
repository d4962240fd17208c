//! Directories that LMCache and we share: what it wrote serves, what we write is byte for byte what
//! it would have written.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kvtier_core::{
    Digest, ErrorKind, Key, Load, Loaded, MissReason, Namespace, Observe, Presence, Saved, Tier,
};
use kvtier_file::{FileConfig, FileTier, Layout, Verify};
use serde_json::Value;

mod common_layouts;

use common_layouts::*;

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
