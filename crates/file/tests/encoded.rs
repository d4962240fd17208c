//! Directories with encoded chunks: right bytes, exact accounts, and misses where a chunk cannot be
//! decoded.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::mem::{Lease, View};
use kvtier_core::{ErrorKind, Key, Load, Loaded, MissReason, Save, Saved};
use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_file::{FileConfig, FileTier, TierEncoding};
use kvtier_testkit::conformance::Fixture;

use common::{as_left_by_the_dead, files_bytes, ledger};

const CAP: u64 = 64 << 20;

/// What a tier does: `zstd`, encryption with the key of this number, and the keys that it has.
struct Setup<'a> {
    zstd: bool,
    key: u32,
    keys: &'a [u32],
}

const PLAIN: Setup<'_> = Setup { zstd: false, key: 0, keys: &[1] };
const KEYLESS: Setup<'_> = Setup { zstd: false, key: 0, keys: &[] };
const ZSTD: Setup<'_> = Setup { zstd: true, key: 0, keys: &[] };
const AES: Setup<'_> = Setup { zstd: false, key: 1, keys: &[1] };
const BOTH: Setup<'_> = Setup { zstd: true, key: 1, keys: &[1] };

impl Setup<'_> {
    fn encoding(&self) -> Arc<TierEncoding> {
        let keys = Arc::new(Keyring::new());
        for id in self.keys {
            keys.insert(MasterKey::new(*id, &[*id as u8; 32]).unwrap());
        }
        let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, self.key.max(1)));
        let mut stages = Vec::new();
        stages.extend(self.zstd.then(|| stage_by_name("zstd").unwrap()));
        stages.extend((self.key != 0).then(|| Arc::clone(&aes)));
        let decoder = Decoder::new();
        let decoder = if self.keys.is_empty() { decoder } else { decoder.with_stage(aes) };
        Arc::new(TierEncoding::new(Chain::new(stages).unwrap(), decoder))
    }

    fn config(&self, dir: &Path) -> FileConfig {
        let config = FileConfig::new(dir, CAP).with_flush_every(Duration::from_millis(20));
        config.with_encoding(self.encoding())
    }

    fn open(&self, dir: &Path) -> Encoded {
        open(self.config(dir))
    }
}

struct Encoded {
    fixture: Fixture,
}

fn open(config: FileConfig) -> Encoded {
    Encoded { fixture: Fixture::new(FileTier::open(config).unwrap()) }
}

/// Bytes of chunk `n` that zstd makes much smaller; no two chunks are alike.
fn soft(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| if at % 97 == n % 97 { (at / 97) as u8 } else { n as u8 }).collect()
}

/// Bytes that no stage makes smaller.
fn hard(n: u64, len: usize) -> Vec<u8> {
    let mut state = n + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..len).map(|_| next()).collect()
}

impl Encoded {
    fn key(&self, n: u64) -> Key {
        self.fixture.key(n)
    }

    fn views(&self, bytes: &[u8], cuts: &[usize]) -> Vec<View> {
        let mut views = Vec::new();
        let mut rest = bytes;
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let (one, left) = rest.split_at(cut.min(rest.len()));
            if !one.is_empty() {
                let mut lease = self.fixture.lease(one.len());
                self.fixture.write(&mut lease, one);
                views.push(lease.freeze());
            }
            rest = left;
        }
        views
    }

    fn try_save(&self, key: &Key, bytes: &[u8]) -> Result<Saved, kvtier_core::Error> {
        self.fixture.save_with(Save { key: key.clone(), from: self.views(bytes, &[]) }).result
    }

    fn save(&self, n: u64, bytes: &[u8]) -> Saved {
        self.try_save(&self.key(n), bytes).unwrap()
    }

    /// Loads into leases of these lengths, and compares a hit with `bytes`.
    fn load_into(&self, key: &Key, bytes: &[u8], lens: &[usize]) -> Loaded {
        let into: Vec<Lease> = lens.iter().map(|len| self.fixture.lease(*len)).collect();
        let done = self.fixture.load_with(Load { key: key.clone(), into });
        let found: Vec<u8> =
            done.op.into.iter().flat_map(|lease| self.fixture.read(lease)).collect();
        let loaded = done.result.unwrap();
        let expected = if matches!(loaded, Loaded::Hit { .. }) { bytes } else { &[] };
        assert!(found == expected, "{loaded:?}: {} bytes", found.len());
        loaded
    }

    fn load(&self, n: u64, bytes: &[u8]) -> Loaded {
        self.load_into(&self.key(n), bytes, &[bytes.len()])
    }

    fn hits(&self, n: u64, bytes: &[u8]) {
        assert_eq!(self.load(n, bytes), Loaded::Hit { len: bytes.len() as u64 }, "chunk {n}");
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.fixture.tier.status().counters;
        counters.iter().find(|(counter, _)| *counter == name).unwrap().1
    }

    fn used(&self) -> u64 {
        self.fixture.tier.usage().used_bytes.unwrap()
    }
}

fn path_of(dir: &Path, key: &Key, len: usize) -> PathBuf {
    kvtier_disk::chunk_file_name::path(dir, key.digest(), len as u64)
}

const HEAD_3: &str = "kvtier directory\nformat: 3\n";
const HEAD_4: &str = "kvtier directory\nformat: 4\n";

fn head(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(".kvtier/manifest")).unwrap();
    text.split_inclusive('\n').take(2).collect()
}

#[test]
fn chunks_of_odd_lengths_come_back_from_any_pieces_and_are_counted_as_stored() {
    for setup in [ZSTD, AES, BOTH] {
        let dir = tempfile::tempdir().unwrap();
        let a = setup.open(dir.path());
        let lens = [1, 43, 4052, 4053, 4095, 4096, 4097, 8192, 12_288 - 44, 300_001];
        for (n, len) in lens.into_iter().enumerate() {
            let n = n as u64;
            for bytes in [soft(n, len), hard(n, len)] {
                let key = a.key(2 * n + u64::from(bytes == hard(n, len)));
                let cuts = [len / 3, 1, len / 2];
                let op = Save { key: key.clone(), from: a.views(&bytes, &cuts) };
                assert_eq!(a.fixture.save_with(op).result.unwrap(), Saved::Stored, "{len}");
                let hit = Loaded::Hit { len: len as u64 };
                for into in [vec![len], vec![1, len, 7], vec![len.div_ceil(2), len]] {
                    assert_eq!(a.load_into(&key, &bytes, &into), hit, "{len} in {into:?}");
                }
                let is_plain = fs::metadata(path_of(dir.path(), &key, len)).unwrap().len()
                    == kvtier_disk::chunk_file_name::file_len(len as u64);
                assert!(!is_plain || setup.key == 0, "{len}");
            }
        }
        let bytes = files_bytes(dir.path());
        assert_eq!((a.used(), ledger(dir.path())), (bytes, bytes));
        let (raw, stored) = (a.count("encoded_raw_bytes"), a.count("encoded_stored_bytes"));
        assert!(a.count("encoded_chunks") > 0 && stored > 0, "{raw} {stored}");
        assert_eq!(setup.key == 0, a.count("encode_refused_chunks") > 0);
        assert_eq!(head(dir.path()), HEAD_4);
        // Removed, nothing is left.
        let keys = a.fixture.keys(0..2 * lens.len() as u64);
        assert_eq!(a.fixture.remove(&keys).removed, keys.len());
        assert_eq!((a.used(), ledger(dir.path()), files_bytes(dir.path())), (0, 0, 0));
    }
}

#[test]
fn a_restart_finds_raw_lengths_and_stored_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let a = BOTH.open(dir.path());
    (0..8).for_each(|n| assert_eq!(a.save(n, &soft(n, 100_000)), Saved::Stored));
    let copy = as_left_by_the_dead(dir.path());
    drop(a);
    for dir in [dir.path(), copy.path()] {
        // Also by a tier that saves in clear, which did not begin to encode.
        let a = PLAIN.open(dir);
        assert_eq!((a.used(), ledger(dir)), (files_bytes(dir), files_bytes(dir)));
        assert_eq!(a.fixture.lookup(&a.fixture.keys([3]), kvtier_core::Mode::Each).len(), 1);
        (0..8).for_each(|n| a.hits(n, &soft(n, 100_000)));
        assert_eq!(a.save(0, &soft(0, 100_000)), Saved::Present);
    }
}

#[test]
fn a_directory_in_which_nothing_is_encoded_keeps_its_format() {
    let dir = tempfile::tempdir().unwrap();
    let a = PLAIN.open(dir.path());
    a.save(0, &soft(0, 5000));
    assert_eq!(head(dir.path()), HEAD_3);
    drop(ZSTD.open(dir.path()));
    assert_eq!(head(dir.path()), HEAD_4);
    drop(a);
    drop(PLAIN.open(dir.path()));
    assert_eq!(head(dir.path()), HEAD_4, "there may be encoded chunks");
    // Lost or damaged, the manifest is made anew from what the files show.
    let b = ZSTD.open(dir.path());
    b.save(1, &soft(1, 50_000));
    drop(b);
    fs::write(dir.path().join(".kvtier/manifest"), "damaged").unwrap();
    let c = PLAIN.open(dir.path());
    assert_eq!(head(dir.path()), HEAD_4);
    c.hits(1, &soft(1, 50_000));
}

#[test]
fn any_flipped_bit_and_any_cut_is_a_miss_that_is_quarantined() {
    const LEN: usize = 9000;
    for setup in [ZSTD, AES, BOTH] {
        let dir = tempfile::tempdir().unwrap();
        let a = setup.open(dir.path());
        let bytes = soft(1, LEN);
        let key = a.key(1);
        a.save(1, &bytes);
        let path = path_of(dir.path(), &key, LEN);
        let whole = fs::read(&path).unwrap();
        let footer = whole.len() - 4096;
        let stored = whole[..footer].iter().rposition(|byte| *byte != 0).unwrap() + 1;
        // Some bytes of the payload, of its padding, all of the footer's fields, some of its zeros.
        let payload = (0..stored).step_by(stored.div_ceil(12)).chain([stored - 1]);
        let padding = (stored..footer).step_by(997);
        let places = payload.chain(padding).chain((footer..footer + 320).step_by(5));
        for (round, at) in places.chain([whole.len() - 1]).enumerate() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (round % 8);
            fs::write(&path, damaged).unwrap();
            let loaded = a.load(1, &bytes);
            assert_eq!(loaded, Loaded::Miss(MissReason::Corrupt), "byte {at} of {}", whole.len());
            assert!(!path.exists());
            assert_eq!(a.save(1, &bytes), Saved::Stored);
            a.hits(1, &bytes);
        }
        for cut in [0, 1, 4096, footer, whole.len() - 1, whole.len() + 4096] {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut as u64).unwrap();
            // A file of the length of a plain one is none that an encrypting tier reads.
            let is_plain = kvtier_disk::chunk_file_name::file_len(LEN as u64) == cut as u64;
            let reason = match is_plain && setup.key != 0 {
                true => MissReason::Codec,
                false => MissReason::Corrupt,
            };
            assert_eq!(a.load(1, &bytes), Loaded::Miss(reason), "cut at {cut}");
            assert_eq!(a.save(1, &bytes), Saved::Stored);
        }
        let bytes = files_bytes(dir.path()) + quarantined(dir.path());
        assert_eq!(a.used(), bytes);
        // What was cut outside of the tier is found by a count.
        a.fixture.eventually("an exact ledger", || ledger(dir.path()) == bytes);
    }
}

#[test]
fn what_cannot_be_decoded_here_is_a_miss_that_stays_until_it_is_saved_again() {
    const LEN: usize = 50_000;
    let bytes = soft(1, LEN);
    let other_key = Setup { keys: &[2], key: 2, zstd: false };
    let cases = [
        (&AES, &KEYLESS, MissReason::KeyMissing, "misses_key"),
        (&AES, &other_key, MissReason::KeyMissing, "misses_key"),
        (&BOTH, &other_key, MissReason::KeyMissing, "misses_key"),
        // An encrypting tier takes nothing that any process could have written.
        (&PLAIN, &AES, MissReason::Codec, "misses_codec"),
        (&ZSTD, &AES, MissReason::Codec, "misses_codec"),
    ];
    for (nth, (saver, loader, reason, counter)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let a = saver.open(dir.path());
        a.save(1, &bytes);
        let path = path_of(dir.path(), &a.key(1), LEN);
        let b = loader.open(dir.path());
        for round in 1..3 {
            // The first load drops the chunk from the index of this process.
            let reason = if round == 1 { reason } else { MissReason::Absent };
            assert_eq!(b.load(1, &bytes), Loaded::Miss(reason), "case {nth}");
            assert_eq!((b.count(counter), b.count("quarantined")), (1, 0), "case {nth}");
            a.hits(1, &bytes);
            assert!(path.exists());
        }
        assert_eq!(b.save(1, &bytes), Saved::Stored, "case {nth}");
        b.hits(1, &bytes);
        drop(a);
        assert_eq!(
            (ledger(dir.path()), b.used()),
            (files_bytes(dir.path()), files_bytes(dir.path()))
        );
    }
}

#[test]
fn a_save_without_its_key_fails_and_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let a = Setup { zstd: true, key: 9, keys: &[1] }.open(dir.path());
    let e = a.try_save(&a.key(1), &soft(1, 50_000)).unwrap_err();
    let cause = std::error::Error::source(&e).map(ToString::to_string).unwrap_or_default();
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(cause.contains('9'), "{e}: {cause}");
    assert_eq!((files_bytes(dir.path()), ledger(dir.path()), a.used()), (0, 0, 0));
}

#[test]
fn ciphertexts_of_other_chunks_and_tenants_are_no_hits() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let a = AES.open(dir.path());
    let [one, two] = [a.key(1), a.fixture.key_of("another tenant", 1)];
    for key in [&one, &two] {
        a.try_save(key, &soft(1, LEN)).unwrap();
    }
    let [first, second] = [&one, &two].map(|key| fs::read(path_of(dir.path(), key, LEN)).unwrap());
    assert!(first[..LEN] != second[..LEN], "each tenant has keys of its own");
    // The whole file of another chunk; its bytes with the footer of this one; both ways.
    let grafted = [&second[..second.len() - 4096], &first[first.len() - 4096..]].concat();
    for wrong in [second, grafted] {
        fs::write(path_of(dir.path(), &one, LEN), wrong).unwrap();
        let loaded = a.load_into(&one, &[], &[LEN]);
        assert_eq!(loaded, Loaded::Miss(MissReason::Corrupt));
        assert_eq!(a.try_save(&one, &soft(1, LEN)).unwrap(), Saved::Stored);
    }
}

#[test]
fn tiers_of_different_settings_share_a_directory() {
    const LEN: usize = 60_000;
    let dir = tempfile::tempdir().unwrap();
    // The first two open it before anything is encoded there.
    let tiers = [
        PLAIN.open(dir.path()),
        PLAIN.open(dir.path()),
        ZSTD.open(dir.path()),
        ZSTD.open(dir.path()),
    ];
    for n in 0..16 {
        assert_eq!(tiers[n as usize % 4].save(n, &soft(n, LEN)), Saved::Stored);
    }
    for tier in &tiers {
        (0..16).for_each(|n| tier.hits(n, &soft(n, LEN)));
        assert_eq!(tier.save(5, &soft(5, LEN)), Saved::Present);
        assert_eq!(tier.used(), files_bytes(dir.path()));
    }
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    // Each removes what others saved.
    for (nth, tier) in tiers.iter().enumerate() {
        let keys = tier.fixture.keys((0..16).filter(|n| (n + 1) % 4 == nth as u64));
        assert_eq!(tier.fixture.remove(&keys).removed, 4);
    }
    assert_eq!((ledger(dir.path()), files_bytes(dir.path())), (0, 0));
}

#[test]
fn eviction_counts_stored_bytes() {
    const LEN: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let cap = 200_000;
    let config = FileConfig::new(dir.path(), cap).with_encoding(BOTH.encoding());
    let a = open(config.with_policy(kvtier_disk::PolicyKind::Lru));
    // Encoded, some dozens fit where one would in clear.
    for n in 0..100 {
        let bytes = if n % 7 == 0 { hard(n, LEN / 8) } else { soft(n, LEN) };
        assert_eq!(a.save(n, &bytes), Saved::Stored);
        let total = ledger(dir.path());
        assert!(total == a.used() && total <= cap, "{n}: {total} {}", a.used());
    }
    assert_eq!(files_bytes(dir.path()), a.used());
    assert!(
        a.count("evicted") > 0 && a.fixture.tier.usage().chunks > 8,
        "{:?}",
        a.fixture.tier.usage()
    );
    a.hits(99, &soft(99, LEN));
}

#[test]
fn another_secret_with_the_same_id_quarantines_nothing() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let a = AES.open(dir.path());
    a.save(1, &soft(1, LEN));
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[0xbb; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let chain = Chain::new(vec![aes.clone()]).unwrap();
    let other = TierEncoding::new(chain, Decoder::new().with_stage(aes));
    let b = open(FileConfig::new(dir.path(), CAP).with_encoding(Arc::new(other)));
    assert_eq!(b.load(1, &soft(1, LEN)), Loaded::Miss(MissReason::KeyMissing));
    assert_eq!((b.count("misses_key"), b.count("quarantined"), quarantined(dir.path())), (1, 0, 0));
    a.hits(1, &soft(1, LEN));
}

#[test]
fn a_directory_of_encoded_chunks_alone_opens_without_its_manifest() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let a = AES.open(dir.path());
    (0..3).for_each(|n| assert_eq!(a.save(n, &hard(n, LEN)), Saved::Stored));
    drop(a);
    let before = head(dir.path());
    fs::remove_file(dir.path().join(".kvtier/manifest")).unwrap();
    let b = AES.open(dir.path());
    (0..3).for_each(|n| b.hits(n, &hard(n, LEN)));
    assert_eq!(head(dir.path()), before);
}

#[test]
fn a_save_encrypts_what_was_stored_in_clear() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let a = PLAIN.open(dir.path());
    a.save(1, &hard(1, LEN));
    drop(a);
    let b = AES.open(dir.path());
    assert_eq!(b.save(1, &hard(1, LEN)), Saved::Stored);
    assert_eq!(b.save(1, &hard(1, LEN)), Saved::Present);
    b.hits(1, &hard(1, LEN));
    let stored = fs::read(path_of(dir.path(), &b.key(1), LEN)).unwrap();
    assert!(stored[..64] != hard(1, LEN)[..64]);
    assert_eq!((ledger(dir.path()), b.used()), (files_bytes(dir.path()), files_bytes(dir.path())));
}

#[test]
fn a_save_encrypts_what_was_only_compressed() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(ZSTD.open(dir.path()).save(1, &soft(1, LEN)), Saved::Stored);
    let b = BOTH.open(dir.path());
    assert_eq!(b.save(1, &soft(1, LEN)), Saved::Stored);
    assert_eq!(b.save(1, &soft(1, LEN)), Saved::Present);
    b.hits(1, &soft(1, LEN));
    assert_eq!((ledger(dir.path()), b.used()), (files_bytes(dir.path()), files_bytes(dir.path())));
}

/// A key that is lost for good must not cost the directory its space.
#[test]
fn chunks_that_cannot_be_decoded_here_make_space_for_new_ones() {
    const LEN: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let config =
        |setup: &Setup<'_>| FileConfig::new(dir.path(), 1_000_000).with_encoding(setup.encoding());
    let a = open(config(&AES));
    (0..17).for_each(|n| assert_eq!(a.save(n, &hard(n, LEN)), Saved::Stored));
    drop(a);
    let b = open(config(&Setup { keys: &[2], key: 2, zstd: false }));
    (0..17).for_each(|n| assert!(matches!(b.load(n, &hard(n, LEN)), Loaded::Miss(_))));
    assert!(b.count("misses_key") > 10);
    for n in 100..130 {
        assert_eq!(b.save(n, &hard(n, LEN)), Saved::Stored, "{n}");
    }
    b.hits(129, &hard(129, LEN));
    assert_eq!((ledger(dir.path()), b.used()), (files_bytes(dir.path()), files_bytes(dir.path())));
}

#[test]
fn more_saves_and_loads_than_memory_all_end() {
    const LEN: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    // For one chunk at a time.
    let a = open(BOTH.config(dir.path()).with_encode_bytes(2 * 120_000));
    let keys = a.fixture.keys(0..24);
    for _ in 0..2 {
        let saves: Vec<Save> = (0..24)
            .map(|n| Save { key: keys[n as usize].clone(), from: a.views(&soft(n, LEN), &[]) })
            .collect();
        let saved = a.fixture.tier.save(&a.fixture.ctx(), saves).wait();
        assert!(saved.iter().all(|done| matches!(done.result, Ok(Saved::Stored))), "{saved:?}");
        let loads: Vec<Load> = keys
            .iter()
            .map(|key| Load { key: key.clone(), into: vec![a.fixture.lease(LEN)] })
            .collect();
        for (n, done) in (0..).zip(a.fixture.tier.load(&a.fixture.ctx(), loads).wait()) {
            assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
            assert!(a.fixture.read(&done.op.into[0]) == soft(n, LEN));
        }
        assert_eq!(a.fixture.remove(&keys).removed, 24);
    }
    // What never fits is refused, and says what to change.
    let e = a.try_save(&keys[0], &soft(0, 200_000)).unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("encode_bytes"), "{e}");
    assert_eq!((files_bytes(dir.path()), ledger(dir.path())), (0, 0));
}

#[test]
fn a_chunk_that_is_too_large_to_be_decoded_here_is_a_miss_that_does_not_last() {
    const LEN: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let a = AES.open(dir.path());
    a.save(1, &soft(1, LEN));
    a.save(2, &soft(2, LEN / 4));
    let small = open(AES.config(dir.path()).with_encode_bytes(LEN));
    for loads in 1..=2 {
        assert_eq!(small.load(1, &soft(1, LEN)), Loaded::Miss(MissReason::TooLarge));
        assert_eq!(small.count("misses_too_large"), loads);
    }
    small.hits(2, &soft(2, LEN / 4));
    let said = small.fixture.tier.status().reasons.join("\n");
    assert!(said.contains("raise encode_bytes"), "{said}");
    // The file stays, and a process with more memory loads it.
    drop(small);
    AES.open(dir.path()).hits(1, &soft(1, LEN));
}

#[test]
fn facts_that_promise_too_much_cost_no_memory() {
    use kvtier_core::key::{BlockSums, CodecId, EncodedPayload, Facts};
    let dir = tempfile::tempdir().unwrap();
    let a = ZSTD.open(dir.path());
    let key = a.key(1);
    let small = soft(1, 50_000);
    a.save(1, &small);
    let path = path_of(dir.path(), &key, small.len());
    let whole = fs::read(&path).unwrap();
    let (facts, _) = kvtier_disk::footer::decode(&whole[whole.len() - 4096..]).unwrap();
    let stored = &whole[..facts.stored_len() as usize];
    // A file that says it decodes to 1 GiB: the lease is the bound.
    let payload = EncodedPayload {
        codec: CodecId(facts.codec.0),
        key_id: 0,
        raw_len: 1 << 30,
        raw_crc: facts.raw_crc,
    };
    let bomb = Facts::encoded(facts.key, facts.namespace, payload, BlockSums::from_bytes(stored));
    let footer = kvtier_disk::footer::encode(&bomb, &key).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&footer, whole.len() as u64 - 4096).unwrap();
    assert_eq!(a.load(1, &small), Loaded::Miss(MissReason::Corrupt));
    // The same under a name that agrees: the caller's memory is too short for it.
    let there = path_of(dir.path(), &key, 1 << 30);
    fs::write(&there, [stored, &vec![0; whole.len() - 4096 - stored.len()], &footer].concat())
        .unwrap();
    drop(a);
    let b = ZSTD.open(dir.path());
    assert_eq!(b.load(1, &small), Loaded::Miss(MissReason::Length));
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()) + quarantined(dir.path()));
}

fn quarantined(dir: &Path) -> u64 {
    let files = fs::read_dir(dir.join(".kvtier/quarantine")).unwrap().flatten();
    files.map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn the_tools_read_check_copy_and_remove_encoded_chunks() {
    use kvtier_file::inspect::{Damage, Directory, NewChunk, encode_again};
    const LEN: usize = 50_000;
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let a = PLAIN.open(dirs[0].path());
    a.save(0, &soft(0, LEN));
    let (zstd, aes) = (ZSTD.open(dirs[0].path()), AES.open(dirs[0].path()));
    zstd.save(1, &soft(1, LEN));
    aes.save(2, &soft(2, LEN));
    // A directory in which no process encoded.
    drop(PLAIN.open(dirs[1].path()));
    let [from, to] = dirs.each_ref().map(|dir| Directory::open(dir.path()).unwrap());
    let writer = to.writer().unwrap();
    let summary = from.summary().unwrap();
    let files = files_bytes(dirs[0].path());
    assert_eq!((summary.bytes, summary.payload_bytes), (files, 3 * LEN as u64));
    assert!((LEN as u64 * 2..LEN as u64 * 3).contains(&summary.stored_bytes().unwrap()));
    let names: Vec<_> = summary.codecs.keys().map(String::as_str).collect();
    assert_eq!((names, summary.unreadable), (vec!["aes-256-gcm", "zstd"], 0));
    let (aes_chunks, zstd_chunks) = (summary.codecs["aes-256-gcm"], summary.codecs["zstd"]);
    assert_eq!(summary.key_ids, [(1, aes_chunks)].into());
    for one in [summary.plain(), aes_chunks, zstd_chunks] {
        assert_eq!((one.chunks, one.raw_bytes), (1, LEN as u64));
    }
    assert!(zstd_chunks.stored_bytes < LEN as u64 && aes_chunks.stored_bytes > LEN as u64);
    for chunk in from.chunks().unwrap() {
        let n = (0..3).find(|n| *a.key(*n).digest() == chunk.digest).unwrap();
        assert_eq!(from.verify(&chunk).unwrap(), Ok(()));
        let read = [&ZSTD, &AES].map(|with| from.read_by(&chunk, &with.encoding()).unwrap());
        let raw = Ok((soft(n, LEN), true));
        let not = Err(Damage::NotDecoded);
        let expected = [[&raw, &raw], [&raw, &not], [&not, &raw]][n as usize];
        assert!(read.each_ref() == expected, "{n}");
        let stored = from.read_stored(&chunk).unwrap().unwrap();
        // Encoded anew for a tier with other settings.
        let [both, plain] = [&BOTH, &PLAIN].map(Setup::encoding);
        let decoder = if n == 2 { AES.encoding() } else { ZSTD.encoding() };
        let again = encode_again(&a.key(n), stored.clone(), &decoder, &both).unwrap();
        assert_eq!(again.facts.as_ref().map(|facts| facts.key_id), Some(1));
        let back = encode_again(&a.key(n), again, &both, &plain).unwrap();
        assert!(back.bytes == soft(n, LEN) && back.facts.is_some_and(|facts| facts.is_plain()));
        let (facts, canonical) = from.footer(&chunk).unwrap().unwrap();
        assert_eq!(stored.facts.as_ref(), Some(&facts));
        let new = NewChunk { facts: &facts, canonical: &canonical, payload: &stored.bytes };
        assert!(writer.write(&new).unwrap());
    }
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(head(dirs[1].path()), HEAD_4);
    assert_eq!(ledger(dirs[1].path()), files);
    let b = PLAIN.open(dirs[1].path());
    (0..3).for_each(|n| b.hits(n, &soft(n, LEN)));
    let to = Directory::open(dirs[1].path()).unwrap();
    to.chunks().unwrap().iter().for_each(|chunk| assert!(to.remove(chunk).unwrap()));
    to.finish().unwrap();
    b.fixture.eventually("nothing is left", || ledger(dirs[1].path()) == 0);
}
