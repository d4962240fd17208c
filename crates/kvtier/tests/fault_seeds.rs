//! A host tier over a tier that fails, stalls, loses ops and returns wrong bytes: never a wrong byte, every op
//! answered by its deadline, every byte of memory home. Each seed is another story. The same seeds run over a
//! model in memory and over directories that encode.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::core::ShedReason;
use kvtier::prelude::*;
use kvtier::{Admit, StackConfig, TierRule, Write};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{Content, FaultTier, Faults, ModelConfig, ModelTier, Seed};

const LEN: usize = 20_000;
const KEYS: u64 = 8;
/// What a busy machine may add to a deadline before we call it missed.
const GRACE: Duration = Duration::from_secs(600);

/// A story over a model in memory.
fn story(number: u64) -> u64 {
    let model = ModelTier::open(ModelConfig::default().with_capacity(1 << 20)).unwrap();
    story_over(number, Arc::new(model), false)
}

/// A story over this tier, behind faults, which may decline a chunk when it is full. Returns how many ops met one.
fn story_over(number: u64, medium: Arc<dyn Tier>, may_decline: bool) -> u64 {
    let mut seed = Seed::new(number);
    let faults = Faults::all(60, Duration::from_millis(2));
    let low = Arc::new(FaultTier::new(medium, faults, number).unwrap());
    let host = Arc::new(HostTier::open(HostConfig::new(3 * LEN as u64 + 8192)).unwrap());
    let (top, below) = rules(number);
    let config = StackConfig::new("story")
        .with_dirty_bytes_max(4 * LEN as u64)
        .with_write_back_timeout(Duration::from_millis(50));
    let f = Fixture::new(
        Stack::open(config.with_rule(host, top).with_rule(low.clone(), below)).unwrap(),
    );
    for _ in 0..24 {
        let ctx = Ctx::within(Duration::from_millis(25));
        let start = Instant::now();
        step(&f, &ctx, &mut seed);
        assert!(
            start.elapsed() < Duration::from_millis(25) + GRACE,
            "an answer long after its deadline"
        );
    }
    low.heal();
    let n = seed.below(KEYS);
    f.eventually("a chunk saved after the faults comes back", || {
        let saved = f.save_with(f.save_op(&f.key(n), LEN)).result;
        let loaded = f.load_with(f.load_op(&f.key(n), LEN)).result;
        // A full tier may hold that the chunks that it has are worth more.
        let is_declined = matches!(saved, Ok(Saved::Shed(ShedReason::NotWorth)));
        let is_hit = loaded.is_ok_and(|loaded| loaded == Loaded::Hit { len: LEN as u64 });
        (may_decline && is_declined) || (saved.is_ok() && is_hit)
    });
    f.tier.close().wait().unwrap();
    let met = low.met();
    let arena = f.arena.clone();
    drop(f);
    drop(low);
    assert_eq!(arena.stats().free, arena.stats().capacity, "memory lost");
    met
}

/// Every way of saving and of admission has its stories.
fn rules(number: u64) -> (TierRule, TierRule) {
    let write = [Write::Through, Write::Back, Write::Spill][number as usize % 3];
    let admit = [Admit::Policy, Admit::AfterHits(2), Admit::Never][number as usize / 3 % 3];
    let below = TierRule::new().with_write(write);
    let own = number.is_multiple_of(2).then_some(Duration::from_millis(10));
    (TierRule::new().with_admit(admit), own.map_or(below, |own| below.with_deadline(own)))
}

fn step(f: &Fixture, ctx: &Ctx, seed: &mut Seed) {
    let keys = f.keys((0..1 + seed.below(4)).map(|_| seed.below(KEYS)));
    match seed.below(8) {
        0..=2 => {
            let ops = keys.iter().map(|key| f.save_op(key, LEN)).collect();
            assert_eq!(f.tier.save(ctx, ops).wait().len(), keys.len());
        }
        3..=5 => {
            let ops = keys.iter().map(|key| f.load_op(key, LEN)).collect();
            let answers = f.tier.load(ctx, ops).wait();
            assert_eq!(answers.len(), keys.len());
            for done in answers {
                if let Ok(Loaded::Hit { len }) = done.result {
                    assert_eq!(len, LEN as u64);
                    assert_eq!(
                        Content::of(&done.op.key).check(0, done.op.into[0].as_host().unwrap()),
                        Ok(())
                    );
                }
            }
        }
        // No caller waits: what is under way ends by itself.
        6 => drop(f.tier.load(ctx, keys.iter().map(|key| f.load_op(key, LEN)).collect())),
        _ => {
            if let Ok(found) =
                f.tier.lookup(ctx, keys, Mode::Prefix, Hold::For(Duration::from_millis(5))).wait()
            {
                found.hold.into_iter().for_each(|hold| f.tier.release(hold));
            }
        }
    }
}

#[test]
fn fault_seeds_below_a_host_tier_give_no_wrong_byte_and_lose_no_memory() {
    let met = kvtier_testkit::for_each_seed(50, story);
    assert!(met > 50, "too few faults to prove anything: {met}");
}

#[cfg(all(feature = "config", feature = "file"))]
mod encoded {
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use kvtier::config::{Config, OpenTiers};

    use super::*;

    /// Less than the files of all keys, so that chunks are evicted.
    const CAP: u64 = 4 * 28_672;
    const COMPRESSED: &str = r#""lz4""#;

    /// A directory for chunks, with the file of a key beside it. In memory where that can be had: a
    /// thousand stories make and clear very many files.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            kvtier::config::write_new_key_file(&place.path().join("key")).unwrap();
            Place(place)
        }

        /// `lz4`, and the encryption behind it.
        fn encrypted(&self) -> String {
            let key = self.0.path().join("key");
            format!(r#"{COMPRESSED}, {{"name": "aes-256-gcm", "key_file": {key:?}, "key_id": 3}}"#)
        }

        fn open(&self, stages: &str) -> OpenTiers {
            let path = self.0.path().join("kv");
            let text = format!(
                r#"{{"tiers": [{{"type": "file", "path": {path:?}, "bytes": {CAP}, "free_min": 0, "encode": [{stages}]}}]}}"#
            );
            Config::from_json(&text, "kv.json").unwrap().open().unwrap()
        }

        /// The files of chunks.
        fn files(&self) -> Vec<Vec<u8>> {
            let mut files = vec![];
            chunk_files(&self.0.path().join("kv"), &mut files);
            files
        }
    }

    fn chunk_files(dir: &Path, files: &mut Vec<Vec<u8>>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            match entry.path() {
                own if own.ends_with(".kvtier") => {}
                dir if dir.is_dir() => chunk_files(&dir, files),
                file => files.push(std::fs::read(file).unwrap()),
            }
        }
    }

    fn counted(open: &OpenTiers, counter: &str) -> u64 {
        open.tiers[0].status().counter(counter)
    }

    /// Loads each key from the directory alone; how many are hits. What is no hit is a miss.
    fn hits(open: &OpenTiers, f: &Fixture) -> u64 {
        let ops = (0..KEYS).map(|n| f.load_op(&f.key(n), LEN)).collect();
        let answers = open.tiers[0].load(&Ctx::within(GRACE), ops).wait();
        assert_eq!(answers.len(), KEYS as usize);
        let mut hits = 0;
        for done in answers {
            if let Loaded::Hit { len } = done.result.unwrap() {
                let bytes = done.op.into[0].as_host().unwrap();
                assert_eq!(len, LEN as u64);
                assert_eq!(Content::of(&done.op.key).check(0, bytes), Ok(()));
                hits += 1;
            }
        }
        hits
    }

    /// What a story came to.
    struct StoryEnd {
        met: u64,
        encoded: u64,
        found: u64,
    }

    fn encrypted_story(number: u64) -> StoryEnd {
        let place = Place::new();
        let open = place.open(&place.encrypted());
        let met = story_over(number, Arc::clone(&open.tiers[0]), true);
        let encoded = counted(&open, "encoded_chunks");
        open.top.close().wait().unwrap();
        drop(open);

        let files = place.files();
        let bytes: usize = files.iter().map(Vec::len).sum();
        assert!(bytes as u64 <= CAP, "over the cap: {bytes}");
        let f = Fixture::new(ModelTier::open(ModelConfig::default()).unwrap());
        for n in 0..KEYS {
            let raw = Content::of(&f.key(n)).bytes(64);
            let shown = files.iter().any(|file| file.windows(raw.len()).any(|part| part == raw));
            assert!(!shown, "the chunk {n} is in a file in clear");
        }

        let again = place.open(&place.encrypted());
        let found = hits(&again, &f);
        assert!(found <= files.len() as u64);
        assert_eq!(counted(&again, "decoded_chunks"), found, "each hit is decoded");
        again.top.close().wait().unwrap();
        drop(again);
        // Without the key all are misses, and stay.
        let without = place.open(COMPRESSED);
        assert_eq!(hits(&without, &f), 0);
        without.top.close().wait().unwrap();
        assert_eq!(place.files().len(), files.len());
        StoryEnd { met, encoded, found }
    }

    #[test]
    fn fault_seeds_over_a_directory_that_encrypts_give_no_wrong_byte_and_hold_the_cap() {
        let (all_encoded, all_found) = (AtomicU64::new(0), AtomicU64::new(0));
        let met = kvtier_testkit::for_each_seed(50, |number| {
            let StoryEnd { met, encoded, found } = encrypted_story(number);
            all_encoded.fetch_add(encoded, Relaxed);
            all_found.fetch_add(found, Relaxed);
            met
        });
        let (encoded, found) = (all_encoded.into_inner(), all_found.into_inner());
        assert!(met > 50, "too few faults to prove anything: {met}");
        assert!(encoded > 50 && found > 50, "too few chunks: {encoded} encoded, {found} found");
    }
}
