//! What is encoded comes back: every stage, type, length and kind of data, in one piece and in
//! several.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Bf16Split, Chunk, ElementType, Keyring, Lz4, MasterKey, Scratch, Stage, Zstd,
};
use proptest::prelude::*;
use support::{LENGTHS, decoded, encoded, kv_like, noise};

fn stages() -> Vec<Box<dyn Stage>> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[3; 32]).unwrap());
    vec![
        Box::new(Lz4),
        Box::new(Zstd::default()),
        Box::new(Zstd::with_level(7).unwrap()),
        Box::new(Bf16Split),
        Box::new(Aes256Gcm::new(keys, 1)),
    ]
}

fn chunk(element: ElementType) -> Chunk<'static> {
    Chunk::default().with_element_type(element).with_tenant(b"a").with_associated_data(b"facts")
}

/// Whether the stage took it.
fn comes_back(stage: &dyn Stage, chunk: &Chunk<'_>, raw: &[u8]) -> bool {
    let Some(stored) = encoded(stage, chunk, raw) else { return false };
    assert!(stored.len() <= stage.bound(raw.len()).unwrap());
    assert_eq!(stage.raw_len(&stored).unwrap(), raw.len());
    assert!(decoded(stage, chunk, &stored, raw.len()).unwrap() == raw, "other bytes came back");
    true
}

#[test]
fn every_length_of_kv_data_comes_back() {
    for stage in stages() {
        for element in ElementType::ALL {
            for len in LENGTHS {
                let taken = comes_back(&*stage, &chunk(element), &kv_like(element, len, 7));
                let must_gain = stage.id() == Bf16Split.id() && len >= 65_535;
                assert!(taken || !must_gain, "{element:?} of {len} bytes refused");
            }
        }
    }
}

/// The encoder counts a part of the symbols of a large block. Where the others are different, it
/// counts all, and codes what gains.
#[test]
fn blocks_that_are_not_like_their_sample_are_coded_and_come_back() {
    let mut random = fastrand::Rng::with_seed(11);
    let symbols = 1 << 18;
    for element in [ElementType::Bf16, ElementType::Fp16] {
        let (shift, first) = if element == ElementType::Bf16 { (7, 100) } else { (10, 2) };
        for others in [3, 6, 12] {
            let mut counts = [0; 24];
            let raw: Vec<u8> = (0..symbols)
                .flat_map(|nth| {
                    // The first 64 of each 344 symbols are counted: few different ones.
                    let all = if nth % 344 < 64 { 2 } else { others };
                    let exponent = random.u16(..all);
                    counts[usize::from(exponent)] += 1;
                    let rest = random.u16(..) & !(0x1f << shift) & ((1 << shift) - 1);
                    ((first + exponent) << shift | rest).to_le_bytes()
                })
                .collect();
            let stored = encoded(&Bf16Split, &chunk(element), &raw).unwrap();
            let share =
                counts.iter().filter(|count| **count > 0).map(|n| *n as f64 / symbols as f64);
            let entropy: f64 = share.map(|share| -share * share.log2()).sum();
            let others_bits = if shift == 7 { 8.0 } else { 11.0 };
            let excess = 8.0 * stored.len() as f64 / (symbols as f64 * (entropy + others_bits));
            assert!(excess < 1.02, "{element:?} with {others} others: {excess}");
            assert!(comes_back(&Bf16Split, &chunk(element), &raw));
        }
    }
}

#[test]
fn symbols_that_a_sample_misses_come_back() {
    for element in ElementType::ALL {
        for stretch in [344, 688, 912] {
            let mut raw = vec![0x3c; 1 << 20];
            raw.chunks_mut(stretch).for_each(|part| *part.last_mut().unwrap() = 0x50);
            assert!(comes_back(&Bf16Split, &chunk(element), &raw), "{element:?}");
        }
    }
}

#[test]
fn other_data_comes_back() {
    for stage in stages() {
        for element in ElementType::ALL {
            for len in LENGTHS {
                comes_back(&*stage, &chunk(element), &noise(len, 8));
                comes_back(&*stage, &chunk(element), &vec![0x3f; len]);
                // Blocks of different forms: constant, coded, raw.
                let mut mixed = vec![0; len];
                let (_, half) = mixed.split_at_mut(len / 2);
                half.copy_from_slice(&kv_like(element, half.len(), 9));
                let quarter = half.len() / 2;
                let rest = &mut half[quarter..];
                rest.copy_from_slice(&noise(rest.len(), 10));
                comes_back(&*stage, &chunk(element), &mixed);
            }
        }
    }
}

#[test]
fn two_symbols_and_all_symbols_come_back() {
    for element in ElementType::ALL {
        for rare in [1, 2, 3, 1000] {
            // One frequent symbol has the shortest code there is.
            let raw: Vec<u8> =
                (0..300_000).map(|at| if at % (8 * rare) == 3 { 0x77 } else { 0x11 }).collect();
            assert!(comes_back(&Bf16Split, &chunk(element), &raw), "{element:?}, one of {rare}");
        }
        // Counts that double: the deepest tree, which is limited to codes of 12 bits.
        let mut raw = Vec::new();
        for symbol in 0..18u16 {
            for _ in 0..1usize << symbol {
                raw.extend((symbol << 7 | symbol << 2).to_le_bytes());
            }
        }
        comes_back(&Bf16Split, &chunk(element), &raw);
    }
}

#[test]
fn rare_symbols_far_below_the_others_come_back() {
    for element in ElementType::ALL {
        for every in [97, 1001] {
            let mut raw = kv_like(element, 600_000, 13);
            for zero in raw.chunks_exact_mut(4).step_by(every) {
                zero.fill(0);
            }
            assert!(comes_back(&Bf16Split, &chunk(element), &raw), "{element:?}, one of {every}");
        }
    }
}

#[test]
fn pieces_are_one_sequence() {
    let raw = kv_like(ElementType::Bf16, 1_200_003, 11);
    let chunk = chunk(ElementType::Bf16);
    // Sizes of pieces, which repeat.
    let cuts: [&[usize]; 5] =
        [&[1_000_000], &[1, 0, 15, 524_288], &[99_999], &[524_288], &[0, 600_001, 0]];
    let mut scratch = Scratch::new();
    for stage in stages() {
        let in_one = encoded(&*stage, &chunk, &raw);
        for cut in cuts {
            let mut pieces = Vec::new();
            let mut left = raw.as_slice();
            for len in cut.iter().cycle() {
                let (piece, next) = left.split_at((*len).min(left.len()));
                pieces.push(piece);
                left = next;
                if left.is_empty() {
                    break;
                }
            }
            let mut out = vec![0; stage.bound(raw.len()).unwrap()];
            let len = stage.encode(&chunk, &pieces, &mut out, &mut scratch).unwrap();
            assert_eq!(len, in_one.as_ref().map(Vec::len), "{:?} of {cut:?}", stage.id());
            let Some(len) = len else { continue };

            let mut memory: Vec<Vec<u8>> =
                pieces.iter().map(|piece| vec![0xee; piece.len()]).collect();
            let mut targets: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
            stage.decode(&chunk, &out[..len], &mut targets, &mut scratch).unwrap();
            assert!(memory.concat() == raw, "{:?} of {cut:?}", stage.id());
        }
    }
}

#[test]
fn bounds_of_impossible_lengths_do_not_overflow() {
    for stage in stages() {
        for len in [usize::MAX, usize::MAX - 30] {
            let bound = stage.bound(len).map_err(|error| error.kind());
            // Never a sum that has overflowed.
            let is_right = bound.is_ok_and(|bound| bound >= len)
                || bound == Err(kvtier_codec::ErrorKind::Invalid);
            assert!(is_right, "{:?}: {bound:?}", stage.id());
        }
    }
}

/// What one chunk leaves in the working memory does not matter to the next one.
#[test]
fn one_scratch_serves_any_sequence_of_chunks() {
    let (stages, mut random) = (stages(), fastrand::Rng::with_seed(17));
    let mut scratch = Scratch::new();
    let mut taken = 0;
    for round in 0..if cfg!(miri) { 20 } else { 600 } {
        let stage = &*stages[random.usize(..stages.len())];
        let element = ElementType::ALL[random.usize(..ElementType::ALL.len())];
        let len = LENGTHS[random.usize(..LENGTHS.len())] + random.usize(..40);
        let tenant = [random.u8(..3)];
        let chunk = chunk(element).with_tenant(&tenant);
        let raw = match random.u8(..4) {
            0 => noise(len, round),
            1 => vec![random.u8(..); len],
            _ => kv_like(element, len, round),
        };
        let (head, tail) = raw.split_at(random.usize(..=len));
        let mut out = vec![0; stage.bound(len).unwrap()];
        let encoded = stage.encode(&chunk, &[head, tail], &mut out, &mut scratch).unwrap();
        // As with working memory of its own: encryption takes a new nonce.
        let alone = self::encoded(stage, &chunk, &raw);
        assert_eq!(encoded, alone.as_ref().map(Vec::len), "{round}: {:?} of {len}", stage.id());
        let Some(stored) = encoded else { continue };
        let same = stage.key_id() != 0 || alone.as_deref() == Some(&out[..stored]);
        assert!(same, "{round}: {:?} of {len}", stage.id());
        let mut back = vec![0xee; len];
        let (head, tail) = back.split_at_mut(random.usize(..=len));
        stage.decode(&chunk, &out[..stored], &mut [head, tail], &mut scratch).unwrap();
        assert!(back == raw, "{round}: {:?} of {len}", stage.id());
        // A decode that fails leaves nothing behind either.
        out[random.usize(..stored)] ^= 1 << random.u8(..8);
        let _ = stage.decode(&chunk, &out[..stored], &mut [&mut back], &mut scratch);
        taken += 1;
    }
    assert!(cfg!(miri) || taken > 200, "{taken}");
}

#[test]
fn a_buffer_that_is_too_short_is_refused_and_not_overrun() {
    let raw = kv_like(ElementType::Bf16, 100_000, 12);
    for stage in stages() {
        let mut out = vec![0xee; 1100];
        let outcome =
            stage.encode(&chunk(ElementType::Bf16), &[&raw], &mut out[..10], &mut Scratch::new());
        let kind = outcome.unwrap_err().kind();
        assert_eq!(kind, kvtier_codec::ErrorKind::Invalid, "{:?}", stage.id());
        assert!(out[10..].iter().all(|byte| *byte == 0xee), "{:?}", stage.id());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_come_back(
        raw in proptest::collection::vec(prop_oneof![Just(0u8), Just(0x3f), any::<u8>()], 0..3000),
        element in 0..4usize,
    ) {
        for stage in stages() {
            comes_back(&*stage, &chunk(ElementType::ALL[element]), &raw);
        }
    }
}
