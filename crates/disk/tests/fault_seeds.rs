//! A directory over a device that fails, tears and loses writes: never a wrong byte, every op answered,
//! every byte of memory home, and nothing unfinished left. Each seed is another story.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::BadDay;
use kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, TierEncoding, stage_by_name,
};
use kvtier_core::{Ctx, Loaded, Observe, Saved, ShedReason, Tier};
use kvtier_disk::{Disk, DiskConfig, Layout};
use kvtier_testkit::Seed;
use kvtier_testkit::conformance::Fixture;

const CAPACITY: u64 = 400_000;
const LENS: [usize; 6] = [1, 4096, 4097, 12_288, 50_000, 70_001];
const KEYS: u64 = 6;

/// The files of a directory.
#[derive(Clone, Copy, Debug)]
struct Files {
    layout: Layout,
    /// Chunks are stored by `zstd` and `aes-256-gcm`.
    encodes: bool,
}

impl From<Layout> for Files {
    fn from(layout: Layout) -> Self {
        Files { layout, encodes: false }
    }
}

const ENCODED: Files = Files { layout: Layout::Kvtier, encodes: true };

fn encoding() -> Arc<TierEncoding> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let chain = Chain::new(vec![stage_by_name("zstd").unwrap(), Arc::clone(&aes)]).unwrap();
    Arc::new(TierEncoding::new(chain, Decoder::new().with_stage(aes)))
}

fn open(dir: &Path, Files { layout, encodes }: Files, mover: BadDay) -> Disk<BadDay> {
    let mut config = DiskConfig::new(dir, CAPACITY);
    config.layout = layout;
    if encodes {
        config.encoding = encoding();
        config.encode_bytes = 256 << 10;
    }
    config.threads = 2;
    config.ops_max = 8;
    config.bounce_bytes = 256 << 10;
    // A byte a token.
    config.chunk_shape = layout.has_headers().then(|| "1x1x65536x1".parse().unwrap());
    Disk::open(config, mover).unwrap()
}

fn len_of(n: u64) -> usize {
    LENS[n as usize % LENS.len()]
}

/// One op of the story, or a small batch of them.
fn step(disk: &Disk<BadDay>, f: &Fixture, seed: &mut Seed) {
    let within =
        if seed.below(8) == 0 { Duration::from_millis(2) } else { Duration::from_secs(20) };
    let ctx = Ctx::within(within);
    let numbers: Vec<u64> = (0..1 + seed.below(3)).map(|_| seed.below(KEYS)).collect();
    match seed.below(10) {
        0..=4 => {
            let ops = numbers.iter().map(|n| f.save_op(&f.key(*n), len_of(*n))).collect();
            for done in disk.save(&ctx, ops).wait() {
                let Ok(saved) = done.result else { continue };
                let shed = [
                    ShedReason::Full,
                    ShedReason::DeviceFull,
                    ShedReason::Throttled,
                    ShedReason::NotWorth,
                ];
                let shed = shed.map(Saved::Shed);
                assert!(
                    [Saved::Stored, Saved::Present].contains(&saved) || shed.contains(&saved),
                    "{saved:?}"
                );
            }
        }
        5..=8 => {
            let ops = numbers.iter().map(|n| f.load_op(&f.key(*n), len_of(*n))).collect();
            for (n, done) in numbers.iter().zip(disk.load(&ctx, ops).wait()) {
                if let Ok(Loaded::Hit { len }) = done.result {
                    assert_eq!(len, len_of(*n) as u64);
                    let bytes = done.op.into[0].as_host().unwrap();
                    assert_eq!(kvtier_testkit::Content::of(&done.op.key).check(0, bytes), Ok(()));
                }
            }
        }
        _ => drop(disk.remove(&ctx, f.keys(numbers)).wait()),
    }
}

/// Bytes of all files below a directory, but for those of our own affairs.
fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
    let bytes = |path: &Path| {
        if path.is_dir() { bytes_below(path) } else { path.metadata().unwrap().len() }
    };
    entries.map(|entry| bytes(&entry.path())).sum()
}

/// The bytes stored in the directory, and its unfinished files.
fn stored(dir: &Path) -> (u64, Vec<String>) {
    let bytes = bytes_below(dir) + bytes_below(&dir.join(".kvtier/quarantine"));
    let mut drafts = vec![];
    for staging in std::fs::read_dir(dir.join(".kvtier/tmp")).unwrap().flatten() {
        for file in std::fs::read_dir(staging.path()).unwrap().flatten() {
            drafts.push(file.file_name().to_string_lossy().into_owned());
        }
    }
    (bytes, drafts)
}

/// A directory in memory where there is one: a thousand stories make and clear a quarter of a
/// million directories.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn story(number: u64, files: impl Into<Files>) -> u64 {
    let files = files.into();
    let layout = files.layout;
    let dir = quick_dir();
    let mut seed = Seed::new(number);
    let f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    let f = match layout {
        Layout::VllmFs => f.with_vllm_keys(),
        _ if layout.has_headers() => f.with_engine_keys(),
        _ => f,
    };
    let disk = open(dir.path(), files, BadDay::new(number, 300));
    (0..16).for_each(|_| step(&disk, &f, &mut seed));
    let met = disk.mover().met();
    disk.mover().heal();
    // It comes back: with the device healthy again, a chunk can be saved and loaded at once,
    // whatever was there before.
    let n = seed.below(KEYS);
    f.eventually("a chunk saved after the faults comes back", || {
        let save = disk.save(&f.ctx(), vec![f.save_op(&f.key(n), len_of(n))]).wait().pop().unwrap();
        let load = disk.load(&f.ctx(), vec![f.load_op(&f.key(n), len_of(n))]).wait().pop().unwrap();
        save.result.is_ok() && matches!(load.result, Ok(Loaded::Hit { .. }))
    });
    disk.close().wait().unwrap();
    f.eventually("the stored bytes are known", || disk.usage().used_bytes.is_some());
    let used = disk.usage().used_bytes.unwrap();
    let (bytes, drafts) = stored(dir.path());
    assert_eq!(drafts, ["alive"], "unfinished files are left");
    assert_eq!(bytes, used, "the stored bytes equal those of the index");
    // In a foreign layout it is as right as the last sweep was quiet.
    if layout == Layout::Kvtier {
        let ledger = std::fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        assert_eq!(
            ledger[8..16],
            bytes.to_le_bytes(),
            "the stored bytes equal those of the ledger"
        );
    }
    assert!(bytes <= CAPACITY, "over the cap: {bytes}");
    drop(disk);
    assert_eq!(f.arena.stats().free, f.arena.stats().capacity, "memory lost");

    let disk = open(dir.path(), files, BadDay::new(number, 0));
    for n in 0..KEYS {
        let done = disk.load(&f.ctx(), vec![f.load_op(&f.key(n), len_of(n))]).wait().pop().unwrap();
        if let Loaded::Hit { len } = done.result.unwrap() {
            assert_eq!(len, len_of(n) as u64);
            let bytes = done.op.into[0].as_host().unwrap();
            assert_eq!(
                kvtier_testkit::Content::of(&done.op.key).check(0, bytes),
                Ok(()),
                "after a restart"
            );
        }
    }
    met
}

/// A story in a layout that is not ours: of many seeds every third, since all but the names of
/// files is the same.
fn elsewhere(number: u64, layout: Layout) -> u64 {
    if number < 100 || number.is_multiple_of(3) { story(number, layout) } else { 0 }
}

#[test]
fn fault_seeds_of_the_device_give_no_wrong_byte_in_a_directory_with_encoded_chunks() {
    let met = kvtier_testkit::for_each_seed(50, |number| story(number, ENCODED));
    assert!(met > 50, "too few faults to prove anything: {met}");
}

#[test]
fn fault_seeds_of_the_device_give_no_wrong_byte_and_leave_nothing_behind() {
    let met = kvtier_testkit::for_each_seed(50, |number| story(number, Layout::Kvtier));
    assert!(met > 50, "too few faults to prove anything: {met}");
}

#[test]
fn fault_seeds_of_the_device_give_no_wrong_byte_in_a_foreign_layout() {
    let met = kvtier_testkit::for_each_seed(50, |number| elsewhere(number, Layout::LmcacheMp));
    assert!(met > 50, "too few faults to prove anything: {met}");
}

#[test]
fn fault_seeds_of_the_device_give_no_wrong_byte_in_a_layout_with_headers() {
    let met = kvtier_testkit::for_each_seed(50, |number| elsewhere(number, Layout::LmcacheGds));
    assert!(met > 50, "too few faults to prove anything: {met}");
}

#[test]
fn fault_seeds_of_the_device_give_no_wrong_byte_in_the_layout_of_vllm() {
    let met = kvtier_testkit::for_each_seed(50, |number| elsewhere(number, Layout::VllmFs));
    assert!(met > 50, "too few faults to prove anything: {met}");
}
