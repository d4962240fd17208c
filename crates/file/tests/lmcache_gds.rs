//! Directories of LMCache's GDS backend: what it wrote serves, what we write is byte for byte what
//! it would have written, and what its headers say is believed only as far as the files bear it
//! out.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::key::{
    ChunkShape, DType, GDS_HEADER_BYTES, GdsElement, GdsHeader, KeyId, MemoryFormat,
};
use kvtier_core::{
    Ctx, Digest, ErrorKind, Hold, Key, Load, Loaded, MissReason, Mode, Namespace, Observe,
    Presence, Save, Saved, ShedReason, Tier,
};
use kvtier_disk::inspect::{Damage, Directory};
use kvtier_file::{FileConfig, FileTier, Layout, Verify};
use kvtier_mem::{Arena, ArenaConfig};

const GDS: Layout = Layout::LmcacheGds;
/// 4 KiB a token: 2 layers, keys and values, 512 elements of 2 bytes.
const SHAPE: &str = "2x2x16x512";
const TOKEN: usize = 2 * 2 * 512 * 2;
const FULL: usize = 16 * TOKEN;
/// The header and the file beside it.
const EXTRA: u64 = 2 * GDS_HEADER_BYTES as u64;

fn ns() -> Arc<Namespace> {
    Arc::new(Namespace::new("shared", Digest::default()))
}

fn key_of(text: &str) -> Key {
    Key::new(ns(), KeyId::from_engine_text(text).unwrap())
}

fn key(n: u64) -> Key {
    key_of(&format!("org/m@1@0@{:x}@bfloat16", 0x1a2b_3c4d_0000_0000 + n))
}

fn bytes(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + n * 7 + 1 + (i as u64 >> 9)) as u8).collect()
}

fn header(shape: &[u64]) -> Vec<u8> {
    let bf16 = GdsElement::from_name("BF16").unwrap();
    GdsHeader::new(bf16, shape.into(), MemoryFormat::Kv2Ltd).encode().unwrap()
}

fn full() -> Vec<u8> {
    header(&[2, 2, 16, 512])
}

fn path_of(dir: &Path, key: &Key) -> PathBuf {
    dir.join(GDS.file_name(key.id()).unwrap())
}

fn beside(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.metadata", path.display()))
}

/// As LMCache writes a chunk.
fn put(dir: &Path, key: &Key, header: &[u8], payload: &[u8]) {
    let path = path_of(dir, key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, [header, payload].concat()).unwrap();
    fs::write(beside(&path), header).unwrap();
}

struct Use {
    tier: FileTier,
    arena: Arena,
    dir: PathBuf,
}

impl Use {
    fn open(dir: &Path) -> Self {
        Use::with(dir, |config| config.with_chunk_shape(SHAPE.parse().unwrap()))
    }

    fn with(dir: &Path, change: impl FnOnce(FileConfig) -> FileConfig) -> Self {
        let fast = Duration::from_millis(20);
        let config = FileConfig::new(dir, 1 << 30)
            .with_layout(GDS)
            .with_flush_every(fast)
            .with_sweep_every(fast);
        let tier = FileTier::open(change(config.with_namespace(ns()))).unwrap();
        let it =
            Use { tier, arena: Arena::new(ArenaConfig::heap(16 << 20)).unwrap(), dir: dir.into() };
        it.eventually("swept", || it.tier.usage().used_bytes.is_some());
        it
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(Duration::from_secs(600))
    }

    fn load(&self, key: &Key, buffer: usize) -> (Loaded, Vec<u8>) {
        let into = vec![self.arena.lease(buffer).unwrap()];
        let done =
            self.tier.load(&self.ctx(), vec![Load { key: key.clone(), into }]).wait().remove(0);
        (done.result.unwrap(), done.op.into[0].as_host().unwrap().to_vec())
    }

    fn try_save(&self, key: &Key, bytes: &[u8]) -> Result<Saved, kvtier_core::Error> {
        self.save_within(&self.ctx(), key, bytes)
    }

    fn save_within(&self, ctx: &Ctx, key: &Key, bytes: &[u8]) -> Result<Saved, kvtier_core::Error> {
        let mut lease = self.arena.lease(bytes.len()).unwrap();
        lease.write_at(0, bytes).unwrap();
        let op = Save { key: key.clone(), from: vec![lease.freeze()] };
        self.tier.save(ctx, vec![op]).wait().remove(0).result
    }

    fn save(&self, key: &Key, bytes: &[u8]) -> Saved {
        self.try_save(key, bytes).unwrap()
    }

    fn find(&self, key: &Key) -> Presence {
        let looked =
            self.tier.lookup(&self.ctx(), [key.clone()].into(), Mode::Each, Hold::None).wait();
        looked.unwrap().found[0]
    }

    fn hits(&self, key: &Key, expected: &[u8]) {
        let len = expected.len() as u64;
        assert_eq!(self.find(key), Presence::Hit { len });
        for buffer in [expected.len(), expected.len() + 5000] {
            let (loaded, got) = self.load(key, buffer);
            assert_eq!(loaded, Loaded::Hit { len });
            assert!(got == expected, "a wrong byte");
        }
    }

    fn misses(&self, key: &Key, why: MissReason) {
        assert_eq!(self.load(key, FULL).0, Loaded::Miss(why));
        assert_eq!(self.find(key), Presence::Miss);
    }

    fn path(&self, key: &Key) -> PathBuf {
        path_of(&self.dir, key)
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

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

/// Headers of the real code, whole: what tensor each is of, in our words, whether it is one that
/// LMCache reads, and its bytes.
fn vectors() -> Vec<(GdsHeader, Vec<u8>)> {
    let cases = load::cases("gds_metadata.json");
    let texts = cases.iter().filter_map(|case| case["out"]["ok"]["json"].as_str());
    let bytes = texts
        .map(|text| [&4088_u64.to_le_bytes()[..], format!("{text:<4088}").as_bytes()].concat());
    // What has gigabytes is another test's.
    let all = bytes.map(|bytes| (GdsHeader::decode(&bytes).unwrap(), bytes));
    let small: Vec<_> =
        all.filter(|(header, _)| (1..1 << 20).contains(&header.payload_bytes().unwrap())).collect();
    assert!(small.len() >= 5 || !load::is_committed(), "{}", small.len());
    small
}

#[test]
fn what_lmcache_wrote_serves_whatever_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..).map(key).zip(vectors()).collect();
    for (n, (key, (header, bytes_of_it))) in all.iter().enumerate() {
        put(
            dir.path(),
            key,
            bytes_of_it,
            &bytes(n as u64, header.payload_bytes().unwrap() as usize),
        );
    }
    let it = Use::open(dir.path());
    for (n, (key, (header, _))) in all.iter().enumerate() {
        let len = header.payload_bytes().unwrap() as usize;
        if !header.is_current() {
            it.misses(key, MissReason::Absent);
            continue;
        }
        it.hits(key, &bytes(n as u64, len));
        if len > 1 {
            assert_eq!(it.load(key, len - 1).0, Loaded::Miss(MissReason::Length));
        }
        assert_eq!(it.save(key, &bytes(n as u64, len)), Saved::Present);
    }
    let current = all.iter().any(|(_, (header, _))| header.is_current());
    assert_eq!(it.counter("unverified") > 0, current);
    assert_eq!((it.counter("misses_corrupt"), it.counter("io_errors")), (0, 0));
    for (n, (key, (header, bytes_of_it))) in all.iter().enumerate() {
        let payload = bytes(n as u64, header.payload_bytes().unwrap() as usize);
        assert!(
            fs::read(it.path(key)).unwrap() == [&bytes_of_it[..], &payload].concat(),
            "nothing was changed"
        );
        assert!(fs::read(beside(&it.path(key))).unwrap() == *bytes_of_it, "nothing was changed");
    }
}

#[test]
fn what_we_write_is_what_lmcache_writes() {
    let words = [
        ("F16", "half"),
        ("BF16", "bfloat16"),
        ("F32", "float"),
        ("U8", "uint8"),
        ("F8E4M3FN", "fp8_e4m3fn"),
        ("F8E5M2", "fp8_e5m2"),
        ("I16", "int16"),
    ];
    let mut written = 0;
    for (header, whole) in
        vectors().iter().filter(|(header, _)| header.is_current() && header.metadata.len() == 1)
    {
        let Some((_, dtype)) = words.iter().find(|(name, _)| *name == header.element.name()) else {
            continue;
        };
        if header.shape.is_empty() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let axes: Vec<String> = header.shape.iter().map(u64::to_string).collect();
        let shape = format!("{} {}", axes.join("x"), header.format);
        let it = Use::with(dir.path(), |config| config.with_chunk_shape(shape.parse().unwrap()));
        let key = key_of(&format!("m@1@0@1234@{dtype}"));
        let payload = bytes(9, header.payload_bytes().unwrap() as usize);
        assert_eq!(it.save(&key, &payload), Saved::Stored);
        assert!(fs::read(it.path(&key)).unwrap() == [&whole[..], &payload].concat(), "{shape}");
        assert!(fs::read(beside(&it.path(&key))).unwrap() == *whole, "{shape}");
        it.hits(&key, &payload);
        assert_eq!((it.counter("unverified"), it.counter("facts_write_failed")), (0, 0));
        written += 1;
    }
    assert!(written >= 4 || !load::is_committed(), "{written}");
}

#[test]
fn chunks_of_any_number_of_tokens_come_back_in_memory_of_any_alignment() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(dir.path());
    for (n, tokens) in [(1, 16), (2, 1), (3, 7)] {
        let payload = bytes(n, tokens * TOKEN);
        assert_eq!(it.save(&key(n), &payload), Saved::Stored);
        assert_eq!(
            fs::read(beside(&it.path(&key(n)))).unwrap(),
            header(&[2, 2, tokens as u64, 512])
        );
        it.hits(&key(n), &payload);
        // Two leases, the first of them no whole pages.
        let into = vec![it.arena.lease(1000).unwrap(), it.arena.lease(payload.len()).unwrap()];
        let done = it.tier.load(&it.ctx(), vec![Load { key: key(n), into }]).wait().remove(0);
        let got: Vec<u8> =
            done.op.into.iter().flat_map(|lease| lease.as_host().unwrap().to_vec()).collect();
        assert!(
            done.result.unwrap() == Loaded::Hit { len: payload.len() as u64 } && got == payload
        );
    }
    // Elements of one byte: lengths that end within a page.
    let dir = tempfile::tempdir().unwrap();
    let it = Use::with(dir.path(), |config| config.with_chunk_shape("1x1x9999x1".parse().unwrap()));
    for len in [1, 4095, 4096, 4097, 9999] {
        let key = key_of(&format!("m@1@0@{len:x}@uint8"));
        let payload = bytes(len as u64, len);
        assert_eq!(it.save(&key, &payload), Saved::Stored);
        assert_eq!(fs::metadata(it.path(&key)).unwrap().len(), (GDS_HEADER_BYTES + len) as u64);
        it.hits(&key, &payload);
    }
}

#[test]
fn without_facts_a_torn_file_and_headers_that_lie_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let other = header(&[2, 1, 32, 512]);
    let short = bytes(1, FULL - 1);
    let long = bytes(1, FULL + 1);
    let offsets = with_offsets("0, 2048");
    let torn: [(&str, Vec<u8>, Vec<u8>, Vec<u8>); 8] = [
        ("offsets of another length than the shape's", offsets.clone(), bytes(1, FULL), offsets),
        ("lost its end", full(), short, full()),
        ("longer than it says", full(), long, full()),
        ("another shape beside it", full(), bytes(1, FULL), other.clone()),
        ("another shape in it", other, bytes(1, FULL), full()),
        ("half a file beside it", full(), bytes(1, FULL), full()[..2048].to_vec()),
        ("more than a header beside it", full(), bytes(1, FULL), [full(), vec![b' ']].concat()),
        ("no header", vec![0; GDS_HEADER_BYTES], bytes(1, FULL), vec![0; GDS_HEADER_BYTES]),
    ];
    let it = Use::open(dir.path());
    for (n, (what, head, payload, sidecar)) in torn.iter().enumerate() {
        let key = key(n as u64);
        put(dir.path(), &key, head, payload);
        fs::write(beside(&it.path(&key)), sidecar).unwrap();
        assert_eq!(it.load(&key, 2 * FULL).0, Loaded::Miss(MissReason::Corrupt), "{what}");
        assert_eq!(it.find(&key), Presence::Miss, "{what}");
        assert!(
            !it.path(&key).exists() && !beside(&it.path(&key)).exists(),
            "{what}: out of LMCache's way too"
        );
        assert_eq!(it.save(&key, &bytes(7, FULL)), Saved::Stored, "{what}");
        it.hits(&key, &bytes(7, FULL));
    }
    assert_eq!(it.counter("quarantined"), torn.len() as u64);
    // Too short for a header, and a header alone.
    for len in [1, 4095, 4096] {
        let key = key(100 + len);
        put(dir.path(), &key, &full()[..len as usize], &[]);
        assert!(
            matches!(it.load(&key, FULL).0, Loaded::Miss(_)) && it.find(&key) == Presence::Miss,
            "{len}"
        );
        assert_eq!(it.save(&key, &bytes(7, FULL)), Saved::Stored);
        it.hits(&key, &bytes(7, FULL));
    }
    // Who writes whole pages only leaves zeros.
    let odd = key_of("m@1@0@77@uint8");
    let header = GdsHeader::new(
        GdsElement::from_name("U8").unwrap(),
        vec![1, 1, 5000, 1],
        MemoryFormat::KvMla,
    );
    let padded = |last: u8| [bytes(5, 5000), vec![0; 3191], vec![last]].concat();
    put(dir.path(), &odd, &header.encode().unwrap(), &padded(0));
    it.hits(&odd, &bytes(5, 5000));
    put(dir.path(), &odd, &header.encode().unwrap(), &padded(1));
    assert_eq!(it.load(&odd, 5000).0, Loaded::Miss(MissReason::Length));
}

/// The header of a full chunk with these two numbers as its offsets.
fn with_offsets(offsets: &str) -> Vec<u8> {
    let text = String::from_utf8(full()[8..].to_vec()).unwrap();
    let text = text.replacen(&format!("[0, {FULL}]"), &format!("[{offsets}]"), 1);
    let text = format!("{:<4088}", text.trim_end());
    [&4088_u64.to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn offsets_that_do_not_begin_at_zero_move_no_byte_of_the_payload() {
    let dir = tempfile::tempdir().unwrap();
    let header = with_offsets(&format!("10, {}", FULL + 10));
    assert_ne!(header, full());
    put(dir.path(), &key(1), &header, &bytes(1, FULL));
    let it = Use::open(dir.path());
    it.hits(&key(1), &bytes(1, FULL));
    assert_eq!((it.counter("quarantined"), it.counter("misses_corrupt")), (0, 0));
    // Its end is missing, or there is more than it says: as with any other header.
    for len in [FULL - 10, FULL + 10] {
        put(dir.path(), &key(2), &header, &bytes(2, len));
        assert_eq!(it.load(&key(2), 2 * FULL).0, Loaded::Miss(MissReason::Corrupt), "{len}");
    }
}

#[test]
fn without_a_file_beside_it_lmcache_has_no_chunk_and_our_save_brings_one() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), &key(1), &full(), &bytes(1, FULL));
    fs::remove_file(beside(&path_of(dir.path(), &key(1)))).unwrap();
    let it = Use::open(dir.path());
    it.misses(&key(1), MissReason::Absent);
    it.eventually("counted all the same", || {
        it.tier.usage().used_bytes == Some(FULL as u64 + EXTRA)
    });
    assert_eq!(it.save(&key(1), &bytes(2, FULL)), Saved::Stored);
    it.hits(&key(1), &bytes(2, FULL));
    assert_eq!(it.tier.usage().used_bytes, Some(FULL as u64 + EXTRA));
    drop(it);
    // Ours, of a process that ended between its two names: proven, and not promised before it is
    // whole.
    fs::remove_file(beside(&path_of(dir.path(), &key(1)))).unwrap();
    let it = Use::open(dir.path());
    assert_eq!(it.find(&key(1)), Presence::Miss);
    assert_eq!(it.save(&key(1), &bytes(2, FULL)), Saved::Stored);
    assert_eq!(fs::read(beside(&it.path(&key(1)))).unwrap(), full());
    // What has that name and is no file is neither waited for nor followed.
    for n in [3, 4] {
        put(dir.path(), &key(n), &full(), &bytes(n, FULL));
        fs::remove_file(beside(&it.path(&key(n)))).unwrap();
    }
    nix::unistd::mkfifo(&beside(&it.path(&key(3))), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(it.path(&key(1)), beside(&it.path(&key(4)))).unwrap();
    for n in [3, 4] {
        assert_eq!(it.load(&key(n), FULL).0, Loaded::Miss(MissReason::Corrupt), "{n}");
        assert_eq!(it.save(&key(n), &bytes(n, FULL)), Saved::Stored);
        it.hits(&key(n), &bytes(n, FULL));
    }
    it.hits(&key(1), &bytes(2, FULL));
}

#[test]
fn with_facts_every_byte_of_the_payload_is_proven() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(dir.path());
    let places = [0, 4095, 4096, FULL - 1];
    for (n, at) in places.iter().enumerate() {
        let key = key(n as u64);
        assert_eq!(it.save(&key, &bytes(1, FULL)), Saved::Stored);
        let file = fs::OpenOptions::new().write(true).open(it.path(&key)).unwrap();
        file.write_all_at(&[bytes(1, FULL)[*at] ^ 4], (GDS_HEADER_BYTES + at) as u64).unwrap();
        assert_eq!(it.load(&key, FULL).0, Loaded::Miss(MissReason::Corrupt), "{at}");
        assert!(!it.path(&key).exists() && !beside(&it.path(&key)).exists());
    }
    assert_eq!(it.save(&key(9), &bytes(1, FULL)), Saved::Stored);
    let file = fs::OpenOptions::new().write(true).open(it.path(&key(9))).unwrap();
    file.set_len((GDS_HEADER_BYTES + FULL - 1) as u64).unwrap();
    it.misses(&key(9), MissReason::Corrupt);
    assert_eq!(it.counter("misses_corrupt"), places.len() as u64 + 1);
    // Strict mode accepts nothing without checksums.
    put(dir.path(), &key(10), &full(), &bytes(1, FULL));
    drop(it);
    let it = Use::with(dir.path(), |config| {
        config.with_verify(Verify::Strict).with_chunk_shape(SHAPE.parse().unwrap())
    });
    it.misses(&key(10), MissReason::Unverified);
    assert_eq!(it.save(&key(10), &bytes(1, FULL)), Saved::Stored);
    it.hits(&key(10), &bytes(1, FULL));
}

#[test]
fn a_shape_is_learned_from_what_is_there_and_without_one_nothing_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::with(dir.path(), |config| config);
    let error = it.try_save(&key(1), &bytes(1, FULL)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("set `shape`"), "{error}");
    assert_eq!(it.tier.usage().used_bytes, Some(0), "nothing was made");
    // A partial chunk of LMCache's states the shape as well as a whole one.
    put(dir.path(), &key(2), &header(&[2, 2, 3, 512]), &bytes(2, 3 * TOKEN));
    it.hits(&key(2), &bytes(2, 3 * TOKEN));
    assert_eq!(it.save(&key(1), &bytes(1, FULL)), Saved::Stored);
    assert_eq!(fs::read(beside(&it.path(&key(1)))).unwrap(), full());
    let error = it.try_save(&key(3), &bytes(1, FULL + 2)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("do not fit"),
        "{error}"
    );
    // Another model, another worker, another type, one layer: what is known says nothing of them.
    for other in [
        "org/n@1@0@5@bfloat16",
        "org/m@2@0@5@bfloat16",
        "org/m@1@1@5@bfloat16",
        "org/m@1@0@5@half",
        "org/m@1@0@5@bfloat16@0",
    ] {
        assert_eq!(
            it.try_save(&key_of(other), &bytes(1, FULL)).unwrap_err().kind(),
            ErrorKind::Unsupported,
            "{other}"
        );
    }
    drop(it);
    let it = Use::with(dir.path(), |config| config);
    assert_eq!(
        it.save(&key(4), &bytes(4, 5 * TOKEN)),
        Saved::Stored,
        "known again after a restart"
    );
    it.hits(&key(4), &bytes(4, 5 * TOKEN));
    drop(it);
    // Said of a layout whose files do not say it, it is a mistake.
    let dir = tempfile::tempdir().unwrap();
    let config = FileConfig::new(dir.path(), 1 << 30).with_chunk_shape(SHAPE.parse().unwrap());
    assert_eq!(FileTier::open(config).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_shape_given_with_a_save_makes_its_header_and_is_learned() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::with(dir.path(), |config| config);
    let shape_is = |word: &str| {
        it.tier.status().reasons.iter().any(|reason| reason.contains(&format!("shape {word}")))
    };
    assert!(shape_is("missing"), "{:?}", it.tier.status().reasons);
    let given = |shape: &ChunkShape| it.ctx().with_shape(Arc::new(shape.clone()));
    let shape: ChunkShape = SHAPE.parse().unwrap();
    // A short chunk of this shape, of 3 tokens, and then a full one without a word about it.
    assert_eq!(
        it.save_within(&given(&shape), &key(1), &bytes(1, 3 * TOKEN)).unwrap(),
        Saved::Stored
    );
    assert_eq!(fs::read(beside(&it.path(&key(1)))).unwrap(), header(&[2, 2, 3, 512]));
    assert!(shape_is("learned"), "{:?}", it.tier.status().reasons);
    assert_eq!(it.save(&key(2), &bytes(2, FULL)), Saved::Stored);
    assert_eq!(fs::read(beside(&it.path(&key(2)))).unwrap(), full());
    // A format in which not every axis is known, and elements of another type than the key's.
    let other = ChunkShape::new([16, 2, 512], MemoryFormat::KvT2d).with_dtype(DType::Half);
    let layer = key_of("org/m@1@0@77@bfloat16@5");
    assert_eq!(
        it.save_within(&given(&other), &layer, &bytes(3, 16 * 2 * 512 * 2)).unwrap(),
        Saved::Stored
    );
    let half = GdsElement::from_name("F16").unwrap();
    let expected = GdsHeader::new(half, vec![16, 2, 512], MemoryFormat::KvT2d).encode().unwrap();
    assert_eq!(fs::read(beside(&it.path(&layer))).unwrap(), expected);
    it.hits(&key(1), &bytes(1, 3 * TOKEN));
    it.hits(&key(2), &bytes(2, FULL));
    it.hits(&layer, &bytes(3, 16 * 2 * 512 * 2));
    // What does not fit its shape is an error that names the shape, and nothing is written.
    let error = it.save_within(&given(&shape), &key(9), &bytes(9, TOKEN + 2)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("2x2x16x512"),
        "{error}"
    );
    assert!(!it.path(&key(9)).exists());
    // The tensor that the caller of a save passes wins over the configuration.
    let dir = tempfile::tempdir().unwrap();
    let it =
        Use::with(dir.path(), |config| config.with_chunk_shape("1x1x16x1024".parse().unwrap()));
    assert!(
        it.tier.status().reasons.iter().any(|reason| reason.contains("shape known: 1x1x16x1024"))
    );
    assert_eq!(it.save_within(&given(&shape), &key(1), &bytes(1, FULL)).unwrap(), Saved::Stored);
    assert_eq!(fs::read(beside(&it.path(&key(1)))).unwrap(), full());
}

#[test]
fn keys_that_have_no_such_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(dir.path());
    let mp = Key::new(ns(), Layout::LmcacheMp.key_of("m@0x02010201@0@00.data").unwrap());
    assert_eq!(it.try_save(&mp, &bytes(1, FULL)).unwrap_err().kind(), ErrorKind::Unsupported);
    let error = it.try_save(&key_of("m@1@0@5@bool"), &bytes(1, FULL)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("bool"),
        "{error}"
    );
    let error = it.try_save(&key(1), &bytes(1, TOKEN + 1)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("no whole tokens"),
        "{error}"
    );
}

#[test]
fn cap_eviction_and_restart_count_both_files_and_every_hash() {
    let dir = tempfile::tempdir().unwrap();
    // LMCache itself does not find the short and the negative ones again after a restart.
    let hashes = [
        "5",
        "-5",
        "-1a2b",
        "4d2",
        "1a2b3c4d5e6f",
        "-7271d3f93d77abe6",
        "ffffffffffffffff",
        "3039",
        "0",
        "1f",
    ];
    let keys: Vec<Key> =
        hashes.iter().map(|hash| key_of(&format!("org/m@1@0@{hash}@bfloat16"))).collect();
    let each = FULL as u64 + EXTRA;
    let it = Use::open(dir.path());
    keys.iter().for_each(|key| assert_eq!(it.save(key, &bytes(1, FULL)), Saved::Stored));
    assert_eq!(it.tier.usage().used_bytes, Some(10 * each));
    drop(it);
    fs::write(dir.path().join("77"), "a file, not a directory").unwrap();
    fs::create_dir_all(dir.path().join("88/unknown")).unwrap();
    let capped = |chunks: u64| {
        Use::with(dir.path(), |_| {
            let fast = Duration::from_millis(20);
            let config = FileConfig::new(dir.path(), chunks * each)
                .with_layout(GDS)
                .with_namespace(ns())
                .with_shrink(true);
            let config = config
                .with_chunk_shape(SHAPE.parse().unwrap())
                .with_policy(kvtier_disk::PolicyKind::Lru);
            config.with_flush_every(fast).with_sweep_every(fast)
        })
    };
    let it = capped(10);
    it.eventually("all are found again", || it.tier.usage().used_bytes == Some(10 * each));
    keys.iter().for_each(|key| it.hits(key, &bytes(1, FULL)));
    assert_eq!(it.counter("unverified"), 0);
    // Another makes the oldest go, both files of it.
    let more: Vec<Key> = (0..5).map(key).collect();
    more.iter().for_each(|key| assert_eq!(it.save(key, &bytes(3, FULL)), Saved::Stored));
    more.iter().for_each(|key| it.hits(key, &bytes(3, FULL)));
    assert!(it.tier.usage().used_bytes.unwrap() <= 10 * each);
    let left = keys.iter().filter(|key| it.path(key).exists()).count();
    assert_eq!(left, keys.iter().filter(|key| beside(&it.path(key)).exists()).count());
    assert!(left <= 5, "{left}");
    drop(it);
    let it = capped(3);
    it.eventually("under the smaller cap", || {
        it.tier.usage().used_bytes.is_some_and(|used| used <= 3 * each)
    });
    let big = bytes(1, 4 * FULL);
    assert!(matches!(it.save(&key(99), &big), Saved::Shed(ShedReason::TooLarge)));
    // What LMCache adds is counted, and its files go like ours.
    put(dir.path(), &key(50), &full(), &bytes(5, FULL));
    it.hits(&key(50), &bytes(5, FULL));
    it.tier.remove(&it.ctx(), [key(50)].into()).wait().unwrap();
    assert!(!it.path(&key(50)).exists() && !beside(&it.path(&key(50))).exists());
    assert!(dir.path().join("77").exists() && dir.path().join("88/unknown").exists());
}

#[test]
fn looked_at_from_outside_it_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let it = Use::open(dir.path());
    assert_eq!(it.save(&key(1), &bytes(1, FULL)), Saved::Stored);
    drop(it);
    put(dir.path(), &key(2), &full(), &bytes(2, FULL));
    put(dir.path(), &key(3), &full(), &bytes(3, FULL));
    fs::write(beside(&path_of(dir.path(), &key(3))), header(&[2, 1, 32, 512])).unwrap();
    fs::remove_dir_all(dir.path().join(".kvtier")).unwrap();
    assert_eq!(Directory::detect_layout(dir.path()).unwrap(), Some(GDS));
    let it = Directory::open_as(dir.path(), GDS).unwrap();
    let sum = it.summary().unwrap();
    assert_eq!(
        (sum.chunks, sum.payload_bytes, sum.bytes),
        (3, 3 * FULL as u64, 3 * (FULL as u64 + EXTRA))
    );
    assert!(sum.unknown.is_empty(), "{:?}", sum.unknown);
    let chunks = it.chunks().unwrap();
    let of = |n| {
        chunks.iter().find(|chunk| chunk.label() == GDS.file_name(key(n).id()).unwrap()).unwrap()
    };
    assert_eq!(it.verify(of(1)).unwrap(), Ok(()));
    assert_eq!(it.verify(of(2)).unwrap(), Err(Damage::Unverified));
    assert_eq!(it.verify(of(3)).unwrap(), Err(Damage::Header));
    assert_eq!(it.read(of(1)).unwrap(), Ok((bytes(1, FULL), true)));
    assert_eq!(it.read(of(2)).unwrap(), Ok((bytes(2, FULL), false)));
    assert!(it.quarantine(of(3)).unwrap() && it.remove(of(2)).unwrap());
    for n in [2, 3] {
        let path = path_of(dir.path(), &key(n));
        assert!(!path.exists() && !beside(&path).exists(), "{n}");
    }
    assert_eq!(it.summary().unwrap().chunks, 1);
}
