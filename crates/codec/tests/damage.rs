//! Damaged, cut, foreign and hostile frames: an error or, for stages without a checksum, other
//! bytes within the caller's memory. Never a panic, never memory beyond the bound.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Bf16Split, Chain, Chunk, Decoder, ElementType, Error, ErrorKind, Keyring, Lz4,
    MasterKey, Scratch, Stage, Stored, TierEncoding, Zstd,
};
use kvtier_key::{BlockSums, CodecId, Facts, Key, Namespace};
use proptest::prelude::*;
use support::{decoded, encoded, kv_like};

fn compressors() -> [Box<dyn Stage>; 3] {
    [Box::new(Lz4), Box::new(Zstd::default()), Box::new(Bf16Split)]
}

fn bf16() -> Chunk<'static> {
    Chunk::default().with_element_type(ElementType::Bf16)
}

fn aes() -> Aes256Gcm {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[3; 32]).unwrap());
    Aes256Gcm::new(keys, 1)
}

/// Compressible by all: exponents of KV data, and repetition.
fn payload() -> Vec<u8> {
    kv_like(ElementType::Bf16, 2000, 1).repeat(3)
}

fn is_miss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::KeyMissing)
}

#[test]
fn every_cut_and_every_tail_is_corrupt() {
    for stage in compressors() {
        let raw = payload();
        let mut stored = encoded(&*stage, &bf16(), &raw).unwrap();
        for cut in 0..stored.len() {
            let error = decoded(&*stage, &bf16(), &stored[..cut], raw.len()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{:?} cut at {cut}", stage.id());
        }
        stored.push(0);
        let error = decoded(&*stage, &bf16(), &stored, raw.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{:?}", stage.id());
    }
}

#[test]
fn another_raw_length_is_corrupt() {
    for stage in compressors() {
        let stored = encoded(&*stage, &bf16(), &payload()).unwrap();
        for len in [0, 1, 5999, 6001, 12_000] {
            let error = decoded(&*stage, &bf16(), &stored, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{:?} of {len}", stage.id());
            // A frame that announces this length itself is corrupt too.
            let mut stored = stored.clone();
            stored[8..16].copy_from_slice(&(len as u64).to_le_bytes());
            assert!(decoded(&*stage, &bf16(), &stored, len).is_err(), "{:?} of {len}", stage.id());
        }
    }
}

#[test]
fn flips_in_headers_are_errors() {
    for stage in compressors() {
        let raw = payload();
        let stored = encoded(&*stage, &bf16(), &raw).unwrap();
        for bit in 0..16 * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let outcome = decoded(&*stage, &bf16(), &flipped, raw.len());
            // The type of elements may become that of others of the same size.
            let is_type = stage.id() == Bf16Split.id() && bit / 8 == 2;
            match outcome {
                Ok(other) => assert!(is_type && other != raw, "{:?} bit {bit}", stage.id()),
                Err(error) => assert!(is_miss(&error), "{:?} bit {bit}", stage.id()),
            }
        }
    }
}

#[test]
fn flips_in_payloads_stay_in_their_buffer() {
    for stage in compressors() {
        let raw = payload();
        let stored = encoded(&*stage, &bf16(), &raw).unwrap();
        for bit in 16 * 8..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // These have no checksum: the caller's digest of the raw bytes proves what comes back.
            if let Err(error) = decoded(&*stage, &bf16(), &flipped, raw.len()) {
                assert!(is_miss(&error), "{:?} bit {bit}", stage.id());
            }
        }
    }
}

/// Zeros that a tier adds behind a frame: part of what is stored, and nothing else may be there.
#[test]
fn every_flip_of_padding_and_its_number_is_corrupt() {
    let key = Key::from_name(&Namespace::from_name("t"), "a");
    let stages: [Arc<dyn Stage>; 3] = [Arc::new(Lz4), Arc::new(Zstd::default()), Arc::new(aes())];
    for stage in stages {
        let decoder = Decoder::new().with_stage(stage.clone());
        let tier = TierEncoding::new(Chain::new(vec![stage.clone()]).unwrap(), decoder);
        // Every number of zeros for the encrypted ones.
        for len in 1000..1064 {
            let raw: Vec<u8> = (0..len).map(|at| (at / 100) as u8).collect();
            let mut stored = vec![0; tier.bound(len).unwrap()];
            let (payload, end) = tier.encode(&key, &[&raw], &mut stored).unwrap().unwrap();
            stored.truncate(end);
            let sums = BlockSums::from_bytes(&stored);
            let facts = Facts::encoded(*key.digest(), key.namespace().digest(), payload, sums);
            let decode = |stored: &[u8]| {
                let mut back = vec![0xee; len];
                tier.decode(&facts, stored, &mut [&mut back]).map(|()| back)
            };
            assert_eq!(decode(&stored).unwrap(), raw);
            let padding = usize::from(stored[3]);
            for bit in (24..32).chain((end - padding) * 8..end * 8) {
                let mut flipped = stored.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&flipped).is_err(), "{:?} of {len}: bit {bit}", stage.id());
            }
            for other in [&stored[..end - 1], &[&stored[..], &[0]].concat()] {
                assert!(decode(other).is_err(), "{:?} of {len}", stage.id());
            }
        }
    }
}

#[test]
fn every_flip_cut_and_tail_of_an_encrypted_chunk_is_an_error_and_shows_nothing() {
    // Several blocks of the cipher and a part of one.
    let (stage, raw) = (aes(), payload()[..500].to_vec());
    let stored = encoded(&stage, &bf16(), &raw).unwrap();
    assert_eq!(decoded(&stage, &bf16(), &stored, raw.len()).unwrap(), raw);
    let mut scratch = Scratch::new();
    let mut back = vec![0xee; raw.len()];
    for bit in 0..stored.len() * 8 {
        let mut flipped = stored.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = stage.decode(&bf16(), &flipped, &mut [&mut back], &mut scratch).unwrap_err();
        assert!(is_miss(&error), "bit {bit}");
        assert!(back.iter().all(|byte| [0, 0xee].contains(byte)), "plaintext after bit {bit}");
    }
    for cut in 0..stored.len() {
        assert!(decoded(&stage, &bf16(), &stored[..cut], raw.len()).is_err(), "cut at {cut}");
    }
    let longer = [stored.as_slice(), &[0]].concat();
    assert!(decoded(&stage, &bf16(), &longer, raw.len()).is_err());
}

/// A chain's frames may announce anything: no memory beyond what an encoder could have written.
#[test]
fn bombs_get_no_memory() {
    let aes = Arc::new(aes());
    let decoder = Decoder::new().with_stage(aes.clone());
    let chunk = bf16();
    // zstd around a bf16-split frame that announces 1 TiB, and the same for every other pair.
    let header = |stage: u8, len: u64| {
        let mut bytes = vec![0; 16];
        bytes[..3].copy_from_slice(&[stage, 1, u8::from(stage == 3)]);
        bytes[8..].copy_from_slice(&len.to_le_bytes());
        bytes
    };
    for (codec, outer) in [(0x23, 2), (0x13, 1), (0x21, 2), (0x423, 4), (0x43, 4), (0x2, 2)] {
        for len in [1 << 20, 1 << 40, u64::MAX] {
            let bytes = [header(outer, len), vec![7; 200]].concat();
            let stored = Stored { codec: CodecId(codec), key_id: 0, bytes: &bytes };
            let (mut raw, mut scratch) = ([0; 4096], Scratch::new());
            let outcome = decoder.decode(&chunk, &stored, &mut [&mut raw], &mut scratch);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corrupt, "{codec:#x} of {len}");
            assert!(scratch.buffer_bytes() < 1 << 20, "{} bytes", scratch.buffer_bytes());
        }
    }
    // A real one: zeros of 64 MiB in some KiB, for a chunk that says it has 4 KiB.
    let zeros = encoded(&Zstd::default(), &chunk, &vec![0; 64 << 20]).unwrap();
    assert!(zeros.len() < 10_000);
    let bomb = encoded(&*aes, &chunk, &zeros).unwrap();
    let stored = Stored { codec: CodecId(0x42), key_id: 1, bytes: &bomb };
    let (mut raw, mut scratch) = ([0; 4096], Scratch::new());
    let outcome = decoder.decode(&chunk, &stored, &mut [&mut raw], &mut scratch);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(scratch.buffer_bytes() < 1 << 20, "{} bytes", scratch.buffer_bytes());
}

#[test]
fn codes_that_no_encoder_writes_are_corrupt() {
    let raw = kv_like(ElementType::Bf16, 64_000, 1);
    let stored = encoded(&Bf16Split, &bf16(), &raw).unwrap();
    // After the frame's header, the block's, and the rest bits: the lengths of the codes.
    let lengths = 16 + 8 + raw.len() / 2..16 + 8 + raw.len() / 2 + 128;
    for fill in [0x00, 0x01, 0x11, 0x99, 0xcc, 0xff] {
        let mut hostile = stored.clone();
        hostile[lengths.clone()].fill(fill);
        let error = decoded(&Bf16Split, &bf16(), &hostile, raw.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{fill:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_stored_bytes_are_answered(
        payload in proptest::collection::vec(any::<u8>(), 0..400),
        raw_len in 0..5000usize,
        parameter in 0..6u8,
    ) {
        for (stage, number) in compressors().into_iter().zip(1u8..) {
            let mut stored = vec![number, 1, if number == 3 { parameter } else { 0 }, 0, 0, 0, 0, 0];
            stored.extend((raw_len as u64).to_le_bytes());
            stored.extend(&payload);
            for stored in [&stored, &payload] {
                if let Err(error) = decoded(&*stage, &bf16(), stored, raw_len) {
                    prop_assert!(is_miss(&error));
                }
            }
        }
    }
}
