//! Chains: their order, their ids in facts, stages that refuse, and working memory.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Chain, Chunk, Decoder, ElementType, Encoded, ErrorKind, Keyring, MasterKey, Scratch,
    Stage, Stored, stage_by_name, stage_names,
};
use kvtier_key::CodecId;
use support::{kv_like, noise};

fn aes() -> Arc<dyn Stage> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(9, &[3; 32]).unwrap());
    Arc::new(Aes256Gcm::new(keys, 9))
}

fn chain(names: &[&str], aes: &Arc<dyn Stage>) -> Result<Chain, kvtier_codec::Error> {
    let stages = names.iter().map(|name| match *name {
        "aes-256-gcm" => Ok(aes.clone()),
        name => stage_by_name(name),
    });
    Chain::new(stages.collect::<Result<_, _>>()?)
}

fn encode(chain: &Chain, chunk: &Chunk<'_>, raw: &[u8]) -> (Encoded, Vec<u8>) {
    let mut out = vec![0; chain.bound(raw.len()).unwrap()];
    let encoded = chain.encode(chunk, &[raw], &mut out, &mut Scratch::new()).unwrap();
    out.truncate(if encoded.codec == CodecId(0) { 0 } else { encoded.len });
    (encoded, out)
}

/// (stages, codec for KV data, codec for noise, codec for zeros)
const CHAINS: [(&[&str], u16, u16, u16); 10] = [
    (&[], 0, 0, 0),
    (&["lz4"], 0, 0, 0x1),
    (&["zstd"], 0x2, 0, 0x2),
    (&["zstd:-3"], 0, 0, 0x2),
    (&["bf16-split"], 0x3, 0, 0x3),
    (&["aes-256-gcm"], 0x4, 0x4, 0x4),
    (&["lz4", "aes-256-gcm"], 0x4, 0x4, 0x41),
    (&["bf16-split", "lz4"], 0x3, 0, 0x13),
    (&["bf16-split", "aes-256-gcm"], 0x43, 0x4, 0x43),
    (&["bf16-split", "lz4", "zstd:3", "aes-256-gcm"], 0x43, 0x4, 0x4213),
];

#[test]
fn ids_name_the_stages_that_took_part() {
    let aes = aes();
    let decoder = Decoder::new().with_stage(aes.clone());
    let chunk = Chunk::default().with_element_type(ElementType::Bf16).with_tenant(b"t");
    for (names, for_kv, for_noise, for_zeros) in CHAINS {
        let chain = chain(names, &aes).unwrap();
        let len = 700_001;
        let kinds = [
            (kv_like(ElementType::Bf16, len, 1), for_kv),
            (noise(len, 1), for_noise),
            (vec![0; len], for_zeros),
        ];
        for (raw, codec) in kinds {
            let (encoded, stored) = encode(&chain, &chunk, &raw);
            assert_eq!(encoded.codec, CodecId(codec), "{names:?}: {:#x}", encoded.codec.0);
            let encrypts = names.contains(&"aes-256-gcm");
            assert_eq!(encoded.key_id, if encrypts { 9 } else { 0 });
            let bytes = if codec == 0 { &raw } else { &stored };
            assert_eq!(encoded.len, bytes.len());
            assert_eq!(decoder.proves_bytes(encoded.codec).unwrap(), encrypts);

            let stored = Stored { codec: encoded.codec, key_id: encoded.key_id, bytes };
            let mut back = vec![0xee; len];
            let (head, tail) = back.split_at_mut(len / 3);
            let mut scratch = Scratch::new();
            decoder.decode(&chunk, &stored, &mut [head, tail], &mut scratch).unwrap();
            assert!(back == raw, "{names:?}");

            // Facts that were changed: another codec or key is no hit with other bytes.
            let others = (0..16).map(|bit| CodecId(encoded.codec.0 ^ 1 << bit));
            for codec in others.filter(|codec| *codec != CodecId(0) || bytes.len() != len) {
                let stored = Stored { codec, ..stored };
                let outcome = decoder.decode(&chunk, &stored, &mut [&mut back], &mut scratch);
                assert!(outcome.is_err(), "{names:?} as {codec:?}");
            }
            let other_key = Stored { key_id: encoded.key_id ^ 1, ..stored };
            let outcome = decoder.decode(&chunk, &other_key, &mut [&mut back], &mut scratch);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corrupt, "{names:?}");
        }
    }
}

#[test]
fn the_order_must_make_sense() {
    let aes = aes();
    let wrong: [&[&str]; 6] = [
        &["aes-256-gcm", "zstd"],
        &["zstd", "bf16-split"],
        &["aes-256-gcm", "bf16-split"],
        &["lz4", "lz4"],
        &["zstd:1", "zstd:2"],
        &["bf16-split", "lz4", "zstd", "aes-256-gcm", "lz4"],
    ];
    for names in wrong {
        assert_eq!(chain(names, &aes).unwrap_err().kind(), ErrorKind::Invalid, "{names:?}");
    }
    for name in ["zstd:0", "zstd:20", "zstd:x", "zstd:", "aes-256-gcm"] {
        assert_eq!(stage_by_name(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
    let error = stage_by_name("zip").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("bf16-split"));
}

#[test]
fn codecs_that_no_chain_has_are_corrupt() {
    let aes = aes();
    let decoder = Decoder::new().with_stage(aes.clone());
    let raw = vec![7; 1000];
    // Each stage around what the one before it wrote: only the order is wrong.
    let codecs = [0x11, 0x22, 0x44, 0x33, 0x14, 0x24, 0x34, 0x31, 0x32, 0x424, 0x121, 0x4243];
    for codec in codecs {
        let (mut bytes, mut key_id) = (raw.clone(), 0);
        for name in stage_names(CodecId(codec)) {
            let names = [name.as_str()];
            let chunk = Chunk::default().with_element_type(ElementType::Bf16);
            let (encoded, stored) = encode(&chain(&names, &aes).unwrap(), &chunk, &bytes);
            // One that gains nothing writes no frame: the codec alone must be refused.
            if encoded.codec != CodecId(0) {
                (bytes, key_id) = (stored, key_id.max(encoded.key_id));
            }
        }
        let stored = Stored { codec: CodecId(codec), key_id, bytes: &bytes };
        let mut back = vec![0; raw.len()];
        let outcome =
            decoder.decode(&Chunk::default(), &stored, &mut [&mut back], &mut Scratch::new());
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:#x}");
        assert!(error.to_string().contains("no chain has codec"), "{codec:#x}: {error}");
        let error = decoder.proves_bytes(CodecId(codec)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:#x}");
    }
}

#[test]
fn what_this_build_lacks_is_unsupported() {
    let raw = [0; 100];
    let decoder = Decoder::new();
    for codec in [0x5, 0x6, 0xf, 0x45, 0x30, 0x0103, 0x1000] {
        let stored = Stored { codec: CodecId(codec), key_id: 0, bytes: &raw };
        let outcome =
            decoder.decode(&Chunk::default(), &stored, &mut [&mut [0; 100]], &mut Scratch::new());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported, "{codec:#x}");
    }
    assert_eq!(stage_names(CodecId(0x4213)), ["bf16-split", "lz4", "zstd", "aes-256-gcm"]);
    assert_eq!(stage_names(CodecId(0x5)), ["cachegen"]);
    assert_eq!(stage_names(CodecId(0xe)), ["stage 14"]);
    assert!(stage_names(CodecId(0)).is_empty());
}

#[test]
fn elements_of_no_known_type_are_not_split() {
    let chain = chain(&["bf16-split"], &aes()).unwrap();
    let (encoded, _) = encode(&chain, &Chunk::default(), &kv_like(ElementType::Bf16, 10_000, 1));
    assert_eq!(encoded.codec, CodecId(0));
}
