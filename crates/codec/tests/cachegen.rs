//! CacheGen's containers: round trips of every shape and type, and damaged and hostile ones.
#![allow(clippy::unwrap_used)]

use kvtier_codec::cachegen::{BinRange, Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{Error, ErrorKind, FloatType};
use proptest::prelude::*;

const SHAPE: KvShape = KvShape { layers: 2, heads: 2, head_size: 3 };
const ORDERS: [KvOrder; 2] = [KvOrder::KeysThenValues, KvOrder::ByLayer];

fn codec(order: KvOrder) -> CacheGen {
    CacheGen::new(SHAPE, order, FloatType::Fp32, Bins::for_layers(2)).unwrap()
}

/// Values of about a bell curve, the same for the same `seed`.
fn floats(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|_| (0..6).map(|_| next()).sum()).collect()
}

fn payload(tokens: usize) -> Vec<u8> {
    floats(2 * 2 * 6 * tokens, 5).iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn encoded(codec: &CacheGen, raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; codec.bound(raw.len()).unwrap()];
    let len = codec.encode(raw, &mut out).unwrap();
    out.truncate(len);
    out
}

fn decoded(codec: &CacheGen, stored: &[u8], raw_len: usize) -> Result<Vec<u8>, Error> {
    let mut raw = vec![0xee; raw_len];
    codec.decode(stored, &mut raw).map(|()| raw)
}

#[test]
fn a_decode_is_near_and_a_second_one_the_same() {
    for order in ORDERS {
        for tokens in [1, 2, 255, 256, 257, 600] {
            let codec = codec(order);
            let raw = payload(tokens);
            let near = decoded(&codec, &encoded(&codec, &raw), raw.len()).unwrap();
            let rows = raw.chunks_exact(24).zip(near.chunks_exact(24));
            for (row, near) in rows {
                let read = |row: &[u8]| -> Vec<f32> {
                    row.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
                };
                let (row, near) = (read(row), read(near));
                let max = row.iter().fold(0f32, |max, x| max.max(x.abs()));
                for (x, y) in row.iter().zip(near) {
                    assert!((x - y).abs() <= max / 15.0 * 0.501, "{x} {y} of {max}");
                }
            }
            let again = decoded(&codec, &encoded(&codec, &near), raw.len()).unwrap();
            assert_eq!(again, near, "{tokens} tokens");
        }
    }
}

#[test]
fn the_orders_hold_the_same_data() {
    let by_layer = payload(5);
    let plane = 5 * 24;
    let planes: Vec<&[u8]> = by_layer.chunks_exact(plane).collect();
    // Layer 0's keys and values, then layer 1's: the keys of both come first in the other order.
    let keys_first = [planes[0], planes[2], planes[1], planes[3]].concat();
    let stored = encoded(&codec(KvOrder::ByLayer), &by_layer);
    assert_eq!(stored, encoded(&codec(KvOrder::KeysThenValues), &keys_first));
}

#[test]
fn other_lengths_and_shapes_are_errors() {
    let codec = codec(KvOrder::ByLayer);
    let raw = payload(5);
    let stored = encoded(&codec, &raw);
    for len in [0, 1, raw.len() - 1] {
        assert_eq!(codec.bound(len).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(decoded(&codec, &stored, len).is_err());
    }
    let short = codec.encode(&raw, &mut vec![0; stored.len() - 1]).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Invalid);
    assert_eq!(codec.encode(&raw, &mut vec![0; stored.len()]).unwrap(), stored.len());
    for tokens in [1, 4, 6, 500] {
        let error = decoded(&codec, &stored, tokens * raw.len() / 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let others = [
        KvShape { layers: 1, ..SHAPE },
        KvShape { heads: 3, head_size: 2, ..SHAPE },
        KvShape { layers: 4, heads: 1, ..SHAPE },
    ];
    for shape in others {
        let bins = Bins::for_layers(shape.layers);
        let other = CacheGen::new(shape, KvOrder::ByLayer, FloatType::Fp32, bins).unwrap();
        assert_eq!(decoded(&other, &stored, raw.len()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let range = |bins| [BinRange { start: 0, end: 2, bins }];
    let bins = Bins::from_ranges(2, &range(16), &range(16)).unwrap();
    let other = CacheGen::new(SHAPE, KvOrder::ByLayer, FloatType::Fp32, bins).unwrap();
    assert_eq!(decoded(&other, &stored, raw.len()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn more_than_memory_can_have_is_refused() {
    let shape = KvShape { layers: 1, heads: 1, head_size: 1 };
    let codec =
        CacheGen::new(shape, KvOrder::ByLayer, FloatType::Bf16, Bins::for_layers(1)).unwrap();
    for len in [usize::MAX, usize::MAX / 2] {
        let error = codec.bound(len / 4 * 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{len}");
    }
}

#[test]
fn settings_are_checked() {
    let new = |shape, layers| {
        CacheGen::new(shape, KvOrder::ByLayer, FloatType::Bf16, Bins::for_layers(layers))
    };
    assert!(new(SHAPE, 3).is_err());
    assert!(new(KvShape { heads: 0, ..SHAPE }, 2).is_err());
    assert!(new(KvShape { heads: usize::MAX, ..SHAPE }, 2).is_err());
    assert!(new(KvShape { layers: 0, ..SHAPE }, 0).is_err());
    for device in ["", "cuda:0\n", "os system", &"c".repeat(33)] {
        assert!(codec(KvOrder::ByLayer).with_device(device).is_err(), "{device:?}");
    }
    let range = |start, end, bins| BinRange { start, end, bins };
    for (key, value) in [
        (vec![range(0, 1, 32)], vec![range(0, 2, 32)]),
        (vec![range(0, 3, 32)], vec![range(0, 2, 32)]),
        (vec![range(0, 2, 3)], vec![range(0, 2, 3)]),
        (vec![range(0, 2, 130)], vec![range(0, 2, 130)]),
        (vec![range(0, 2, 32)], vec![range(0, 2, 16)]),
        (vec![range(0, 2, 32), range(2, 1, 32)], vec![range(0, 2, 32)]),
    ] {
        assert!(Bins::from_ranges(2, &key, &value).is_err(), "{key:?} {value:?}");
    }
}

#[test]
fn every_truncation_is_corrupt() {
    let codec = codec(KvOrder::ByLayer);
    let raw = payload(9);
    let stored = encoded(&codec, &raw);
    for len in 0..stored.len() {
        let error = decoded(&codec, &stored[..len], raw.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} of {}", stored.len());
    }
    let longer = [&stored[..], b"."].concat();
    assert_eq!(decoded(&codec, &longer, raw.len()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn every_flipped_bit_is_corrupt_or_other_values() {
    let codec = codec(KvOrder::ByLayer);
    let raw = payload(9);
    let mut stored = encoded(&codec, &raw);
    let mut found = 0;
    for bit in 0..stored.len() * 8 {
        stored[bit / 8] ^= 1 << (bit % 8);
        match decoded(&codec, &stored, raw.len()) {
            Ok(_) => {}
            Err(error) => {
                found += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
            }
        }
        stored[bit / 8] ^= 1 << (bit % 8);
    }
    // All in opcodes, names and extents, and most in streams and CDFs; not those in maxima and keys.
    assert!(found > stored.len() * 8 * 2 / 3, "{found} of {}", stored.len() * 8);
}

/// A pickle of protocol 4.
fn pickle(opcodes: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", &opcodes.concat()[..], b"."].concat()
}

#[test]
fn other_pickles_are_refused() {
    let codec = codec(KvOrder::ByLayer);
    let system = pickle(&[b"\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R"]);
    let global = pickle(&[b"cposix\nsystem\n(S'ls'\ntR"]);
    let class = pickle(&[
        b"\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93C\x04evil\x85R",
        b"\x8c\x08builtins\x8c\x04eval\x93",
    ]);
    // A billion items by few opcodes, a billion bytes announced, and values without end.
    let doubled = pickle(&[b"]\x94", &b"(h\0h\0e\x94".repeat(40)]);
    let announced = pickle(&[b"B\xff\xff\xff\x7f"]);
    let announced_too = pickle(&[b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff"]);
    let many = pickle(&[&b")".repeat(1 << 20)]);
    let marks = pickle(&[&b"(".repeat(1 << 20)]);
    let memo = pickle(&[b")", &b"\x94".repeat(1 << 20)]);
    let nested = pickle(&[b")", &b"\x85".repeat(1 << 20)]);
    let itself = pickle(&[b"]\x94h\0a"]);
    for (index, stored) in [
        system,
        global,
        class,
        doubled,
        announced,
        announced_too,
        many,
        marks,
        memo,
        nested,
        itself,
    ]
    .iter()
    .enumerate()
    {
        let error = decoded(&codec, stored, payload(5).len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "pickle {index}");
        assert!(CacheGen::inspect(stored).is_err(), "pickle {index}");
    }
    for opcode in 0..=255 {
        assert!(CacheGen::inspect(&pickle(&[&[opcode]])).is_err(), "opcode {opcode:#x}");
    }
}

/// Few values, but each with many items: two bytes of a pickle become eight of memory.
#[test]
fn items_of_all_values_together_are_limited() {
    let items = b"h\0".repeat(1000);
    let of = |opcodes: [&[u8]; 3]| opcodes.concat().repeat(100);
    let tuples = of([b"(", &items, b"t"]);
    let lists = of([b"](", &items, b"e"]);
    for values in [tuples, lists] {
        let error = CacheGen::inspect(&pickle(&[b"]\x94", &values])).unwrap_err();
        assert!(error.to_string().contains("more than 65536"), "{error}");
    }
}

#[test]
fn objects_of_more_than_eight_fields_are_refused() {
    let stored = encoded(&codec(KvOrder::ByLayer), &payload(5));
    let with_more = |pairs| {
        let end = stored.len() - b"ub.".len();
        CacheGen::inspect(&[&stored[..end], &b"K\0K\0".repeat(pairs), b"ub."].concat())
    };
    // An encoded chunk has six.
    with_more(2).unwrap();
    for pairs in [3, 9000] {
        let error = with_more(pairs).unwrap_err();
        assert!(error.to_string().contains("more than 8 fields"), "{error}");
    }
    // The limit is that of a dictionary, however often it is added to.
    let twice = pickle(&[b"}", &b"(K\0K\0u".repeat(9)]);
    let error = CacheGen::inspect(&twice).unwrap_err();
    assert!(error.to_string().contains("more than 8 fields"), "{error}");
}

#[test]
fn half_a_million_tokens_are_not_too_many_values() {
    let shape = KvShape { layers: 1, heads: 1, head_size: 1 };
    let codec =
        CacheGen::new(shape, KvOrder::ByLayer, FloatType::Bf16, Bins::for_layers(1)).unwrap();
    let raw = [0x80, 0x3f].repeat(2 * 500_000);
    let stored = encoded(&codec, &raw);
    assert_eq!(CacheGen::inspect(&stored).unwrap().tokens, 500_000);
}

#[test]
fn chunks_that_share_their_streams_are_refused() {
    let stored = encoded(&codec(KvOrder::ByLayer), &payload(5));
    // The object of the one chunk is the tenth value that the pickle notes.
    let end = b"ntokens\x94K\x05uba";
    let at = stored.windows(end.len()).position(|bytes| bytes == end).unwrap() + end.len();
    let again = b"h\x09a".repeat(9999);
    let bomb = [&stored[..at], &again, &stored[at..]].concat();
    let error = CacheGen::inspect(&bomb).unwrap_err();
    assert!(error.to_string().contains("share their streams"), "{error}");
    let too_many = [&stored[..at], &b"h\x09a".repeat(99_999), &stored[at..]].concat();
    let error = CacheGen::inspect(&too_many).unwrap_err();
    assert!(error.to_string().contains("more than 65536"), "{error}");
}

#[test]
fn views_of_other_data_are_refused() {
    let mut stored = encoded(&codec(KvOrder::ByLayer), &payload(5));
    // Extents 2, 5 and 1 with strides of 5, 1 and 1.
    let maxima = b"K\x02K\x05K\x01\x87\x94K\x05K\x01K\x01\x87";
    let at = stored.windows(maxima.len()).position(|bytes| bytes == maxima).unwrap();
    // Transposed: each element is still in the storage, but elsewhere.
    stored[at + 9] = 1;
    stored[at + 11] = 2;
    let error = CacheGen::inspect(&stored).unwrap_err();
    assert!(error.to_string().contains("a view of other data"), "{error}");
}

#[test]
fn a_huge_container_is_refused_before_memory_is_taken() {
    // The extents of a container are compared with the caller's before anything is allocated.
    let shape = KvShape { layers: 1, heads: 1, head_size: 1 };
    let small =
        CacheGen::new(shape, KvOrder::ByLayer, FloatType::Fp32, Bins::for_layers(1)).unwrap();
    let raw = payload(5);
    let stored = encoded(&codec(KvOrder::ByLayer), &raw);
    assert_eq!(decoded(&small, &stored, 8).unwrap_err().kind(), ErrorKind::Corrupt);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_shape_and_type_returns(
        extents in (1usize..12, 1usize..4, 1usize..7, 1usize..300),
        dtype in prop::sample::select(vec![FloatType::Bf16, FloatType::Fp16, FloatType::Fp32]),
        seed in any::<u32>(),
        any_bits in any::<bool>(),
    ) {
        let (layers, heads, head_size, tokens) = extents;
        let shape = KvShape { layers, heads, head_size };
        let codec =
            CacheGen::new(shape, KvOrder::ByLayer, dtype, Bins::for_layers(layers)).unwrap();
        let elements = 2 * layers * heads * head_size * tokens;
        let raw: Vec<u8> = floats(elements, seed)
            .iter()
            .flat_map(|x| {
                // Of any bits some are NaN, infinite, or almost zero.
                let bits = if any_bits { x.to_bits().wrapping_mul(0x9e37_79b9) } else { x.to_bits() };
                bits.to_le_bytes()[4 - dtype.bytes()..].to_vec()
            })
            .collect();
        let stored = encoded(&codec, &raw);
        let near = decoded(&codec, &stored, raw.len()).unwrap();
        prop_assert_eq!(decoded(&codec, &stored, raw.len()).unwrap(), near);
        let found = CacheGen::inspect(&stored).unwrap();
        prop_assert_eq!((found.layers, found.tokens, found.dtype), (layers, tokens, dtype));
    }

    #[test]
    fn noise_is_corrupt(noise in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..2000) {
        let codec = codec(KvOrder::ByLayer);
        prop_assert!(decoded(&codec, &noise, 480).is_err());
        let raw = payload(5);
        let mut stored = encoded(&codec, &raw);
        let at = at.min(stored.len());
        let end = (at + noise.len()).min(stored.len());
        stored[at..end].copy_from_slice(&noise[..end - at]);
        if let Err(error) = decoded(&codec, &stored, raw.len()) {
            prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}
