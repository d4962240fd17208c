//! Every codec: bounded, exact, and unmoved by hostile bytes.
#![allow(clippy::unwrap_used)]

use kvtier_codec::{
    Codec, Error, ErrorKind, IdentityCodec, LZ4_RAW_BYTES_MAX, Lz4, by_id, by_name,
};
use kvtier_key::CodecId;
use proptest::prelude::*;

const ALL: [&dyn Codec; 2] = [&IdentityCodec, &Lz4];

fn encoded(codec: &dyn Codec, raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; codec.bound(raw.len()).unwrap()];
    let len = codec.encode(raw, &mut out).unwrap();
    out.truncate(len);
    out
}

fn decoded(codec: &dyn Codec, stored: &[u8], raw_len: usize) -> Result<Vec<u8>, Error> {
    let mut raw = vec![0xee; raw_len];
    codec.decode(stored, &mut raw).map(|()| raw)
}

/// Half noise, half repetition, as quantised KV data is.
fn payload(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(
            |i| {
                if i % 64 < 32 { (i.wrapping_mul(0x9e37_79b9) >> 24) as u8 } else { (i >> 9) as u8 }
            },
        )
        .collect()
}

#[test]
fn codecs_are_found_by_id_and_by_name() {
    for codec in ALL {
        assert_eq!(by_id(codec.id()).unwrap().name(), codec.name());
        assert_eq!(by_name(codec.name()).unwrap().id(), codec.id());
    }
    assert_eq!([IdentityCodec.id(), Lz4.id()], [CodecId(0), CodecId(1)], "these stand on media");
    assert_eq!(by_id(CodecId(999)).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(by_name("zip").unwrap_err().to_string().contains("naive, lz4"));
}

#[test]
fn every_length_comes_back() {
    for codec in ALL {
        for len in [0, 1, 11, 12, 13, 64, 4095, 4096, 65_535, 65_536, 70_000, 1 << 20] {
            let raw = payload(len);
            assert_eq!(
                decoded(codec, &encoded(codec, &raw), len).unwrap(),
                raw,
                "{} of {len}",
                codec.name()
            );
        }
    }
}

#[test]
fn lz4_makes_repetition_small() {
    assert!(encoded(&Lz4, &[7; 1 << 20]).len() < 1 << 13);
}

#[test]
fn another_raw_length_is_corrupt() {
    for codec in ALL {
        let raw = payload(5000);
        let stored = encoded(codec, &raw);
        for len in [0, 1, 4999, 5001, 10_000] {
            assert_eq!(
                decoded(codec, &stored, len).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{}",
                codec.name()
            );
        }
    }
}

#[test]
fn every_cut_and_every_tail_is_corrupt() {
    for codec in ALL {
        let raw = payload(600);
        let mut stored = encoded(codec, &raw);
        for cut in 0..stored.len() {
            let error = decoded(codec, &stored[..cut], raw.len()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{} cut at {cut}", codec.name());
        }
        stored.push(0);
        assert_eq!(
            decoded(codec, &stored, raw.len()).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{}",
            codec.name()
        );
    }
}

#[test]
fn a_buffer_too_short_is_refused_and_not_overrun() {
    for codec in ALL {
        let raw = payload(1000);
        let mut out = vec![0xee; 1100];
        assert_eq!(
            codec.encode(&raw, &mut out[..10]).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{}",
            codec.name()
        );
        assert!(out[10..].iter().all(|byte| *byte == 0xee));
    }
    assert_eq!(Lz4.bound(LZ4_RAW_BYTES_MAX + 1).unwrap_err().kind(), ErrorKind::Invalid);
}

proptest! {
    #[test]
    fn any_payload_comes_back(raw in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..3000)) {
        for codec in ALL {
            let stored = encoded(codec, &raw);
            prop_assert!(stored.len() <= codec.bound(raw.len()).unwrap());
            prop_assert_eq!(&decoded(codec, &stored, raw.len()).unwrap(), &raw);
        }
    }

    #[test]
    fn any_stored_bytes_are_answered(stored in proptest::collection::vec(any::<u8>(), 0..300), len in 0..5000usize) {
        for codec in ALL {
            if let Err(error) = decoded(codec, &stored, len) {
                prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
    }

    #[test]
    fn any_flip_stays_in_its_buffer(at in 0..500usize, flip in 1..=255u8) {
        let raw = payload(700);
        let mut stored = encoded(&Lz4, &raw);
        let at = at % stored.len();
        stored[at] ^= flip;
        let mut buffer = vec![0xee; 1000];
        let _ = Lz4.decode(&stored, &mut buffer[100..800]);
        prop_assert!(buffer[..100].iter().chain(&buffer[800..]).all(|byte| *byte == 0xee));
    }
}
