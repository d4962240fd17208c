//! CacheGen as a stage: what it takes, that it decodes as LMCache does, that each load is proven, and
//! damage of every byte.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{
    Aes256Gcm, CacheGenStage, Chain, Chunk, Decoder, ElementType, ErrorKind, FloatType, Keyring,
    MasterKey, Stage, TierEncoding, is_lossy, stage_by_name, stage_names,
};
use kvtier_key::{BlockSums, CodecId, DType, Digest, Facts};
use support::{decoded, encoded, kv_like};

const SHAPE: KvShape = KvShape { layers: 2, heads: 2, head_size: 8 };
const TOKENS: usize = 300;
const DTYPES: [(DType, FloatType); 3] = [
    (DType::BFloat16, FloatType::Bf16),
    (DType::Half, FloatType::Fp16),
    (DType::Float, FloatType::Fp32),
];

fn stage(order: KvOrder) -> CacheGenStage {
    CacheGenStage::new(SHAPE, order, TOKENS).unwrap()
}

fn kv_data(float: FloatType, seed: u64) -> Vec<u8> {
    let elements = 2 * SHAPE.layers * SHAPE.heads * SHAPE.head_size * TOKENS;
    let bf16 = || kv_like(ElementType::Bf16, 2 * elements, seed);
    match float {
        FloatType::Bf16 => bf16(),
        FloatType::Fp16 => kv_like(ElementType::Fp16, 2 * elements, seed),
        FloatType::Fp32 => bf16().chunks_exact(2).flat_map(|x| [0, 0, x[0], x[1]]).collect(),
    }
}

fn declared(dtype: DType) -> Chunk<'static> {
    Chunk::default().with_declared_dtype(dtype)
}

/// A tier that encodes with CacheGen and these stages after it.
fn tier(later: Vec<Arc<dyn Stage>>) -> TierEncoding {
    let cachegen: Arc<dyn Stage> = Arc::new(stage(KvOrder::KeysThenValues));
    let mut decoder = Decoder::new().with_stage(cachegen.clone());
    for stage in &later {
        decoder = decoder.with_stage(stage.clone());
    }
    let stages = std::iter::once(cachegen).chain(later).collect();
    TierEncoding::new(Chain::new(stages).unwrap(), decoder)
}

fn aes() -> Arc<dyn Stage> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    Arc::new(Aes256Gcm::new(keys, 1))
}

/// A bf16 chunk as a tier stores it.
fn stored(tier: &TierEncoding, raw: &[u8]) -> (Facts, Vec<u8>) {
    let (key, namespace) = (Digest::default(), Digest::derive("namespace", b""));
    let mut out = vec![0; tier.bound(raw.len()).unwrap()];
    let (head, tail) = raw.split_at(raw.len() / 3);
    let dtype = Some(DType::BFloat16);
    let encoded = tier.encode_by_digests(key, namespace, dtype, &[head, tail], &mut out).unwrap();
    let (payload, len) = encoded.unwrap();
    out.truncate(len);
    (Facts::encoded(key, namespace, payload, BlockSums::from_bytes(&out)), out)
}

fn load(tier: &TierEncoding, facts: &Facts, bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    let mut raw = vec![0xee; facts.raw_len as usize];
    let (head, tail) = raw.split_at_mut(1001);
    tier.decode(facts, bytes, &mut [head, tail]).map_err(|error| error.kind()).map(|()| raw)
}

#[test]
fn it_decodes_to_what_lmcache_decodes_to_and_is_smaller() {
    for (dtype, float) in DTYPES {
        for order in [KvOrder::KeysThenValues, KvOrder::ByLayer] {
            let raw = kv_data(float, 1);
            let lmcache =
                CacheGen::new(SHAPE, order, float, Bins::for_layers(SHAPE.layers)).unwrap();
            let mut container = vec![0; lmcache.bound(raw.len()).unwrap()];
            let container_len = lmcache.encode(&raw, &mut container).unwrap();
            let mut expected = vec![0; raw.len()];
            lmcache.decode(&container[..container_len], &mut expected).unwrap();
            assert_ne!(expected, raw);

            let frame = encoded(&stage(order), &declared(dtype), &raw).unwrap();
            assert!(frame.len() < container_len, "{} {container_len}", frame.len());
            // A frame states its own shape.
            let other = KvShape { layers: 7, heads: 1, head_size: 1 };
            let other = CacheGenStage::new(other, KvOrder::ByLayer, 1).unwrap();
            let found = decoded(&other, &Chunk::default(), &frame, raw.len()).unwrap();
            assert!(found == expected, "{dtype:?} {order:?}");
        }
    }
}

#[test]
fn it_takes_full_chunks_of_a_declared_type_only() {
    let stage = stage(KvOrder::KeysThenValues);
    let raw = kv_data(FloatType::Bf16, 1);
    let takes = |chunk: &Chunk<'_>, raw: &[u8]| encoded(&stage, chunk, raw).is_some();
    assert!(takes(&declared(DType::BFloat16), &raw));
    assert!(!takes(&Chunk::default(), &raw), "no type");
    assert!(!takes(&Chunk::default().with_element_type(ElementType::Bf16), &raw), "a setting's");
    for dtype in [DType::Float, DType::Int16, DType::Fp8E4M3Fn] {
        assert!(!takes(&declared(dtype), &raw), "{dtype:?}");
    }
    let token = raw.len() / TOKENS;
    for len in [0, 1, token, raw.len() - token, raw.len() - 2, raw.len() - 1] {
        assert!(!takes(&declared(DType::BFloat16), &raw[..len]), "{len} bytes");
    }
    assert!(!takes(&declared(DType::BFloat16), &raw.repeat(2)), "two chunks");
    for special in [0x7f80_u16, 0xff80, 0x7fc0] {
        let mut raw = raw.clone();
        let middle = raw.len() / 2;
        raw[middle..middle + 2].copy_from_slice(&special.to_le_bytes());
        assert!(!takes(&declared(DType::BFloat16), &raw), "{special:#x}");
    }
    // Too few tokens: the tables of symbols take more than half.
    let few = CacheGenStage::new(SHAPE, KvOrder::KeysThenValues, 8).unwrap();
    assert_eq!(encoded(&few, &declared(DType::BFloat16), &raw[..8 * token]), None);
    // A channel that is always zero is no special case.
    assert!(takes(&declared(DType::BFloat16), &vec![0; raw.len()]));
}

#[test]
fn extents_that_no_chunk_has_are_refused() {
    let by_layer = KvOrder::ByLayer;
    for shape in [KvShape { layers: 0, ..SHAPE }, KvShape { head_size: 1 << 31, ..SHAPE }] {
        let error = CacheGenStage::new(shape, by_layer, 256).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    for tokens in [0, (1 << 15) + 1] {
        assert!(CacheGenStage::new(SHAPE, by_layer, tokens).is_err());
    }
    let error = stage_by_name("cachegen").unwrap_err();
    assert!(error.to_string().contains("kv_width"), "{error}");
}

#[test]
fn a_chain_has_it_first_and_beside_no_other_that_reads_elements() {
    let cachegen = || Arc::new(stage(KvOrder::ByLayer)) as Arc<dyn Stage>;
    let named = |name: &str| stage_by_name(name).unwrap();
    for wrong in [
        vec![named("zstd"), cachegen()],
        vec![named("bf16-split"), cachegen()],
        vec![cachegen(), named("bf16-split")],
        vec![aes(), cachegen()],
    ] {
        assert_eq!(Chain::new(wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let chain = Chain::new(vec![cachegen(), named("zstd"), aes()]).unwrap();
    assert!(chain.is_lossy() && is_lossy(CodecId(0x425)));
    assert_eq!(stage_names(CodecId(0x425)), ["cachegen", "zstd", "aes-256-gcm"]);
    let lossless = Chain::new(vec![named("bf16-split"), named("zstd"), aes()]).unwrap();
    assert!(!lossless.is_lossy() && !is_lossy(CodecId(0x423)) && !is_lossy(CodecId(0)));
}

/// The values that a chunk decodes to are decided when it is saved: another load of it, and a
/// second encoding, give the same.
#[test]
fn each_load_is_proven_whatever_stages_follow() {
    let raw = kv_data(FloatType::Bf16, 3);
    let zstd = || stage_by_name("zstd").unwrap();
    let plain = tier(vec![]);
    let (facts, bytes) = stored(&plain, &raw);
    assert_eq!(facts.codec, CodecId(5));
    let near = load(&plain, &facts, &bytes).unwrap();
    assert_ne!(near, raw);
    assert_eq!(facts.raw_crc, Some(BlockSums::from_bytes(&near).whole()));
    let (again, bytes_again) = stored(&plain, &near);
    assert!(load(&plain, &again, &bytes_again).unwrap() == near);
    for (later, codec) in [(vec![zstd()], 0x25), (vec![aes()], 0x45), (vec![zstd(), aes()], 0x425)]
    {
        let tier = tier(later);
        assert!(tier.is_lossy());
        let (facts, bytes) = stored(&tier, &raw);
        assert_eq!(facts.codec, CodecId(codec));
        assert!(load(&tier, &facts, &bytes).unwrap() == near, "{codec:#x}");
    }
    // A checksum of the raw bytes as they were saved is no proof.
    let mut wrong = facts;
    wrong.raw_crc = Some(BlockSums::from_bytes(&raw).whole());
    assert_eq!(load(&plain, &wrong, &bytes), Err(ErrorKind::Corrupt));
}

#[test]
fn a_tier_without_it_misses_lossy_chunks() {
    let (facts, bytes) = stored(&tier(vec![]), &kv_data(FloatType::Bf16, 3));
    let lossless = TierEncoding::default();
    assert!(!lossless.is_lossy());
    assert_eq!(load(&lossless, &facts, &bytes), Err(ErrorKind::Unsupported));
    let error = lossless.check(&facts).unwrap_err();
    assert!(error.to_string().contains("lossy"), "{error}");
}

#[test]
fn every_flip_and_cut_is_an_error_or_the_same_values() {
    let shape = KvShape { layers: 1, heads: 1, head_size: 12 };
    let cachegen: Arc<dyn Stage> =
        Arc::new(CacheGenStage::new(shape, KvOrder::ByLayer, 260).unwrap());
    let chain = Chain::new(vec![cachegen.clone()]).unwrap();
    let tier = TierEncoding::new(chain, Decoder::new().with_stage(cachegen));
    let raw = kv_like(ElementType::Bf16, 2 * 12 * 260 * 2, 1);
    let (facts, bytes) = stored(&tier, &raw);
    let near = load(&tier, &facts, &bytes).unwrap();
    let mut harmless = 0;
    // Every bit of the fields before the maxima, and one of each byte after them.
    let bits = (0..64 * 8).chain((64..bytes.len()).map(|at| 8 * at + at % 8));
    for bit in bits {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match load(&tier, &facts, &flipped) {
            // Bits after the end of a stream, or a bin that no symbol is in.
            Ok(found) => {
                assert!(found == near, "bit {bit}");
                harmless += 1;
            }
            Err(kind) => assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported)),
        }
    }
    assert!(harmless < bytes.len() / 8, "{harmless} flips of {} bytes did nothing", bytes.len());
    for cut in 0..bytes.len() {
        assert_eq!(load(&tier, &facts, &bytes[..cut]), Err(ErrorKind::Corrupt), "cut at {cut}");
    }
    assert_eq!(load(&tier, &facts, &[&bytes[..], &[0]].concat()), Err(ErrorKind::Corrupt));
    for fill in [0, 0x7f, 0x80, 0xff] {
        for at in (16..bytes.len()).step_by(9) {
            let mut hostile = bytes.clone();
            hostile[at..].fill(fill);
            if hostile != bytes {
                assert!(load(&tier, &facts, &hostile).is_err(), "{fill:#x} from {at}");
            }
        }
    }
}

/// `KVTIER_WRITE_GOLDEN=1` writes the file, for a new version.
#[test]
fn the_frame_is_that_on_media() {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests", "golden", "cachegen-v1-bf16.bin"].iter().collect();
    let raw = kv_data(FloatType::Bf16, 42);
    let now = encoded(&stage(KvOrder::KeysThenValues), &declared(DType::BFloat16), &raw).unwrap();
    if std::env::var_os("KVTIER_WRITE_GOLDEN").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let stored = fs::read(path).unwrap();
    assert!(stored == now, "it is encoded differently now");
    assert_eq!(stored[..4], [5, 1, 1, 0]);
    let near = decoded(&stage(KvOrder::ByLayer), &Chunk::default(), &stored, raw.len()).unwrap();
    assert_eq!(BlockSums::from_bytes(&near).whole(), 2_173_443_000, "what it decodes to");
}
