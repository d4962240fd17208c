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

/// A stage, a chunk that it takes, and the length of its payload.
struct Case {
    stage: Box<dyn Stage>,
    element: ElementType,
    len: usize,
}

impl Case {
    fn chunk(&self) -> Chunk<'static> {
        Chunk::default().with_element_type(self.element)
    }

    /// Compressible by all: exponents of KV data, and repetition.
    fn payload(&self) -> Vec<u8> {
        kv_like(self.element, self.len / 3, 1).repeat(3)
    }

    fn encoded(&self) -> Vec<u8> {
        encoded(&*self.stage, &self.chunk(), &self.payload()).unwrap()
    }

    fn decoded(&self, stored: &[u8]) -> Result<Vec<u8>, Error> {
        decoded(&*self.stage, &self.chunk(), stored, self.len)
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.stage.id(), self.element)
    }
}

fn compressors() -> Vec<Case> {
    let case = |stage: Box<dyn Stage>, element, len| Case { stage, element, len };
    let mut cases = vec![
        case(Box::new(Lz4), ElementType::Bf16, 6000),
        case(Box::<Zstd>::default(), ElementType::Bf16, 6000),
        case(Box::new(Bf16Split), ElementType::Bf16, 6000),
        case(Box::new(Bf16Split), ElementType::Fp16, 6000),
    ];
    // Words, whose list takes a while to build: fewer flips. An odd number of words too.
    for (element, len) in [(ElementType::Fp8E4M3, 1500), (ElementType::Fp8E5M2, 1512)] {
        let words = case(Box::new(Bf16Split), element, len);
        assert_eq!(words.encoded()[16], 3);
        cases.push(words);
    }
    cases
}

fn bf16() -> Chunk<'static> {
    Chunk::default().with_element_type(ElementType::Bf16)
}

fn aes() -> Aes256Gcm {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[3; 32]).unwrap());
    Aes256Gcm::new(keys, 1)
}

/// Compressible by all.
fn payload() -> Vec<u8> {
    kv_like(ElementType::Bf16, 2000, 1).repeat(3)
}

fn is_miss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::KeyMissing)
}

#[test]
fn every_cut_and_every_tail_is_corrupt() {
    for case in compressors() {
        let mut stored = case.encoded();
        for cut in 0..stored.len() {
            let error = case.decoded(&stored[..cut]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{case:?} cut at {cut}");
        }
        stored.push(0);
        assert_eq!(case.decoded(&stored).unwrap_err().kind(), ErrorKind::Corrupt, "{case:?}");
    }
}

#[test]
fn another_raw_length_is_corrupt() {
    for case in compressors() {
        let stored = case.encoded();
        for len in [0, 1, case.len - 1, case.len + 1, 2 * case.len] {
            let error = decoded(&*case.stage, &case.chunk(), &stored, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{case:?} of {len}");
            // A frame that announces this length itself is corrupt too.
            let mut stored = stored.clone();
            stored[8..16].copy_from_slice(&(len as u64).to_le_bytes());
            let outcome = decoded(&*case.stage, &case.chunk(), &stored, len);
            assert!(outcome.is_err(), "{case:?} of {len}");
        }
    }
}

#[test]
fn flips_in_headers_are_errors() {
    for case in compressors() {
        let (raw, stored) = (case.payload(), case.encoded());
        for bit in 0..16 * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // The type of elements may become that of others of the same size.
            let is_type = case.stage.id() == Bf16Split.id() && bit / 8 == 2;
            match case.decoded(&flipped) {
                Ok(other) => assert!(is_type && other != raw, "{case:?} bit {bit}"),
                Err(error) => assert!(is_miss(&error), "{case:?} bit {bit}"),
            }
        }
    }
}

#[test]
fn flips_in_payloads_stay_in_their_buffer() {
    for case in compressors() {
        let stored = case.encoded();
        for bit in 16 * 8..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // These have no checksum: the caller's digest of the raw bytes proves what comes back.
            if let Err(error) = case.decoded(&flipped) {
                assert!(is_miss(&error), "{case:?} bit {bit}");
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

/// The costs in a frame that begins with a block of words: after the frame's header, the block's,
/// and the rest bits.
fn costs(element: ElementType, raw_len: usize) -> std::ops::Range<usize> {
    let (rest, symbols) = match element {
        ElementType::Fp8E4M3 => (raw_len / 2, 16),
        _ => (raw_len / 4 + raw_len / 8, 32),
    };
    16 + 8 + rest..16 + 8 + rest + symbols
}

#[test]
fn costs_that_no_encoder_writes_are_corrupt() {
    for element in [ElementType::Fp8E4M3, ElementType::Fp8E5M2] {
        let chunk = Chunk::default().with_element_type(element);
        let raw = kv_like(element, 64_000, 1);
        let stored = encoded(&Bf16Split, &chunk, &raw).unwrap();
        assert_eq!(stored[16], 3);
        let costs = costs(element, raw.len());
        let kind = |hostile: &[u8]| {
            let outcome = decoded(&Bf16Split, &chunk, hostile, raw.len());
            outcome.err().map(|error| error.kind())
        };
        // No words, costs out of range, too many words, and words of one symbol alone.
        for fill in [0, 1, 7, 8, 15, 63, 64, 255] {
            let mut hostile = stored.clone();
            hostile[costs.clone()].fill(fill);
            assert_eq!(kind(&hostile), Some(ErrorKind::Corrupt), "{element:?}: {fill}");
        }
        // One symbol out of range among good ones.
        for at in costs {
            for cost in [7, 64, 200] {
                let mut hostile = stored.clone();
                hostile[at] = cost;
                assert_eq!(kind(&hostile), Some(ErrorKind::Corrupt), "{element:?}: {at}, {cost}");
            }
        }
    }
}

/// Words are in frames of version 2 of fp8 elements, and nowhere else.
#[test]
fn words_in_other_frames_are_errors() {
    for (element, number) in [(ElementType::Fp8E4M3, 3), (ElementType::Fp8E5M2, 4)] {
        let chunk = Chunk::default().with_element_type(element);
        let raw = kv_like(element, 64_000, 1);
        let stored = encoded(&Bf16Split, &chunk, &raw).unwrap();
        assert_eq!((stored[1], stored[2], stored[16]), (2, number, 3));
        let others = [
            (1, number, ErrorKind::Corrupt),
            (2, 1, ErrorKind::Corrupt),
            (2, 2, ErrorKind::Corrupt),
            (2, 7 - number, ErrorKind::Corrupt),
            (3, number, ErrorKind::Unsupported),
            (0, number, ErrorKind::Unsupported),
        ];
        for (version, parameter, kind) in others {
            let mut other = stored.clone();
            (other[1], other[2]) = (version, parameter);
            let error = decoded(&Bf16Split, &chunk, &other, raw.len()).unwrap_err();
            assert_eq!(error.kind(), kind, "{version}, {parameter}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_stored_bytes_are_answered(
        payload in proptest::collection::vec(any::<u8>(), 0..400),
        raw_len in 0..5000usize,
        parameter in 0..6u8,
        version in 1..3u8,
    ) {
        let stages: [Box<dyn Stage>; 3] = [Box::new(Lz4), Box::<Zstd>::default(), Box::new(Bf16Split)];
        for (stage, number) in stages.into_iter().zip(1u8..) {
            let parameter = if number == 3 { parameter } else { 0 };
            let mut stored = vec![number, version, parameter, 0, 0, 0, 0, 0];
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
