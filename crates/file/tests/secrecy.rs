//! Tenants' names (cache salts) and what they decide: they lie nowhere on the medium, and two of
//! them are never taken for one.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{FILE, LEN, config, open};
use kvtier_core::key::{ChunkHash, Digest, KeyId, KvRank, Namespace, ObjectKey};
use kvtier_core::{Key, Loaded, ManualClock, Saved};
use kvtier_disk::Quotas;
use kvtier_file::FileTier;
use kvtier_testkit::conformance::Fixture;

const NONE: [PathBuf; 0] = [];
const SALT: &str = "user-42 secret:salt";

/// A key as an engine makes it whose salts are tenants.
fn salted(salt: &str, n: u64) -> Key {
    let hash = ChunkHash::new(&n.to_be_bytes());
    let id = KeyId::from(ObjectKey::new("org/model", KvRank(0), 0, hash, salt).unwrap());
    let all =
        Arc::new(Namespace::new("", Digest([7; 32])).with_partial(false).with_salts_as_tenants());
    Key::new(all.for_key(&id), id)
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files
}

/// Files whose name or bytes contain the text, be it spelled as the manifest spells names.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let spelled = [text.to_owned(), text.replace(' ', "%20").replace(':', "%3A")];
    let has = |bytes: &[u8]| {
        spelled.iter().any(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    let is_one = |path: &PathBuf| {
        has(path.as_os_str().as_encoded_bytes()) || fs::read(path).is_ok_and(|b| has(&b))
    };
    all_files(dir).into_iter().filter(is_one).collect()
}

fn usage(f: &Fixture) -> BTreeMap<String, u64> {
    f.tier.usage().tenants.into_iter().map(|one| (one.tenant, one.chunks)).collect()
}

#[test]
fn no_file_and_no_error_has_a_salt_and_what_is_in_kvtier_is_for_its_owner_alone() {
    let (dir, time) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let quotas = config(dir.path(), 20).with_quotas(Quotas::new().with(SALT, 10 * FILE));
    let check = |when: &str| {
        assert_eq!(files_with(dir.path(), SALT), NONE, "{when}");
        for path in all_files(&dir.path().join(".kvtier")) {
            let mode = fs::metadata(&path).map_or(0o600, |meta| meta.permissions().mode());
            assert_eq!(mode & 0o077, 0, "{when}: {} has mode {mode:o}", path.display());
        }
    };
    let f = Fixture::new(FileTier::open(quotas.with_clock(time.clock())).unwrap());
    (0..4).for_each(|n| assert_eq!(f.save(&salted(SALT, n), LEN), Saved::Stored));
    // One of another length: refused, and the error is another process' too.
    let error = f.save_with(f.save_op(&salted(SALT, 9), LEN / 2)).result.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    assert!(matches!(f.load(&salted(SALT, 1), LEN), Loaded::Hit { .. }));
    // What is written in the background is written.
    time.advance(std::time::Duration::from_secs(60));
    check("while it is open");
    assert_eq!(usage(&f), [(SALT.to_owned(), 4)].into());
    drop(f);
    check("closed");
    // A process that never met the tenant cannot say its name.
    let f = open(dir.path(), 20);
    let there = usage(&f);
    assert!(
        there.len() == 1 && there.iter().all(|(name, n)| name.starts_with('~') && *n == 4),
        "{there:?}"
    );
    assert!(matches!(f.load(&salted(SALT, 1), LEN), Loaded::Hit { .. }));
    assert_eq!(usage(&f), [(SALT.to_owned(), 4)].into(), "all of it, once it was met");
}

#[test]
fn salts_whose_digests_collide_in_32_bits_have_a_quota_each() {
    // The first four bytes of what made the numbers of earlier builds are the same.
    let pair = ["tenant-48313", "tenant-124327"];
    let number = |name: &str| Digest::derive("kvtier tenant", name.as_bytes()).0[..4].to_vec();
    assert_eq!(number(pair[0]), number(pair[1]));
    let dir = tempfile::tempdir().unwrap();
    let quotas = config(dir.path(), 40).with_quotas(Quotas::new().with_others(10 * FILE));
    let f = Fixture::new(FileTier::open(quotas).unwrap());
    for (salt, n) in (0..10).map(|n| (pair[0], n)).chain((0..30).map(|n| (pair[1], n))) {
        assert_eq!(f.save(&salted(salt, n), LEN), Saved::Stored);
    }
    assert_eq!(usage(&f), pair.map(|salt| (salt.to_owned(), 10)).into());
    assert!(
        (0..10).all(|n| matches!(f.load(&salted(pair[0], n), LEN), Loaded::Hit { .. })),
        "the victim's"
    );
}

#[test]
fn names_that_an_earlier_build_left_are_replaced_when_a_writer_opens() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 20);
    assert_eq!(f.save(&salted(SALT, 1), LEN), Saved::Stored);
    drop(f);
    let own = dir.path().join(".kvtier");
    // As it was written before: the name in a manifest of format 1, a file of names, both for
    // everybody to read.
    let text = fs::read_to_string(own.join("manifest")).unwrap();
    let word = text.split([' ', ':']).find(|word| word.starts_with('~')).unwrap().to_owned();
    let (text, _crc) = text.rsplit_once("crc: ").unwrap();
    let before = text.replace("format: 3", "format: 1").replace(&word, "user-42%20secret%3Asalt");
    fs::write(own.join("manifest"), before).unwrap();
    fs::write(own.join("tenants"), format!("{SALT}\nbob\n")).unwrap();
    [own.join("manifest"), own.join("tenants"), own.join("snapshot")]
        .iter()
        .for_each(|path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap());
    kvtier_disk::inspect::Upgrade::run(dir.path()).unwrap();
    assert!(!files_with(dir.path(), SALT).is_empty());
    let f = open(dir.path(), 20);
    assert_eq!(files_with(dir.path(), SALT), NONE);
    assert_eq!(fs::metadata(own.join("snapshot")).unwrap().permissions().mode() & 0o777, 0o600);
    // What was agreed on of the tenant's chunks still counts.
    assert!(f.save_with(f.save_op(&salted(SALT, 2), LEN / 2)).result.is_err());
}

#[test]
fn a_lost_key_costs_usage_by_tenant_until_chunks_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 20);
    (0..3).for_each(|n| assert_eq!(f.save(&salted(SALT, n), LEN), Saved::Stored));
    drop(f);
    fs::write(dir.path().join(".kvtier/tenant-key"), "kvtier tenant key\nformat: 1\n").unwrap();
    for round in 0..2 {
        let quotas = config(dir.path(), 20).with_quotas(Quotas::new().with(SALT, 3 * FILE));
        let f = Fixture::new(FileTier::open(quotas).unwrap());
        assert_eq!(
            usage(&f).get(SALT).copied().unwrap_or(0),
            3 * round,
            "known again after the next start"
        );
        assert!((0..3).all(|n| matches!(f.load(&salted(SALT, n), LEN), Loaded::Hit { .. })));
        assert_eq!(usage(&f), [(SALT.to_owned(), 3)].into(), "round {round}");
    }
}
