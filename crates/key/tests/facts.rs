//! The facts record: what was written comes back, and nothing else is ever read.
#![allow(clippy::unwrap_used)]

use kvtier_key::{
    BLOCKS_MAX, BlockSums, CodecId, Digest, EncodedPayload, FACTS_BYTES_MAX, Facts, FactsError,
};
use proptest::prelude::*;

fn plain() -> Facts {
    let payload: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
    Facts::plain(Digest([1; 32]), Digest([2; 32]), BlockSums::from_bytes(&payload))
}

fn full() -> Facts {
    let crcs: Vec<u32> = (1..=BLOCKS_MAX as u32).map(|i| i * 0x0101_0101).collect();
    let sums = BlockSums::from_parts(64 << 20, &crcs).unwrap();
    let mut facts = Facts::plain(Digest([0xa1; 32]), Digest([0xa2; 32]), sums)
        .with_parent(Digest([0xa3; 32]), 77);
    (facts.raw_len, facts.codec, facts.key_id) = (100 << 20, CodecId(1), 5);
    facts
}

fn encoded() -> Facts {
    let payload = EncodedPayload {
        codec: CodecId(0x23),
        key_id: 0,
        raw_len: 300_000,
        raw_crc: Some(0x0102_0304),
    };
    let sums = plain().sums;
    Facts::encoded(Digest([5; 32]), Digest([6; 32]), payload, sums)
}

fn empty() -> Facts {
    Facts::plain(Digest([3; 32]), Digest([4; 32]), BlockSums::from_bytes(&[]))
}

/// Media written by version 1 stay readable: these files never change, and a new version adds
/// files.
#[test]
fn version_1_is_what_the_golden_files_say() {
    for (name, facts) in [
        ("facts-v1-plain.bin", plain()),
        ("facts-v1-full.bin", full()),
        ("facts-v1-empty.bin", empty()),
        ("facts-v1-encoded.bin", encoded()),
    ] {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("KVTIER_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, facts.encode()).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        assert_eq!(facts.encode(), golden, "{name}");
        assert_eq!(Facts::decode(&golden), Ok(facts), "{name}");
    }
}

#[test]
fn the_largest_record_fits_and_may_be_followed() {
    let mut bytes = full().encode();
    let len = bytes.len();
    assert!(len <= FACTS_BYTES_MAX);
    bytes.extend_from_slice(b"the key");
    assert_eq!(Facts::decode_prefix(&bytes), Ok((full(), len)));
    assert_eq!(Facts::decode(&bytes), Err(FactsError::Length));
}

#[test]
fn every_cut_and_every_flip_is_refused() {
    for facts in [plain(), full(), empty(), encoded()] {
        let good = facts.encode();
        (0..good.len())
            .for_each(|n| assert!(Facts::decode_prefix(&good[..n]).is_err(), "cut at {n}"));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Facts::decode_prefix(&bad).is_err(), "bit {bit}");
        }
    }
}

/// Records with a valid checksum and impossible fields: `at` is overwritten and the checksum made
/// good again.
#[test]
fn fields_that_contradict_are_refused() {
    let invalid: [(&str, usize, &[u8]); 8] = [
        ("an unknown flag", 12, &[4]),
        ("a checksum of the raw payload that is not there", 12, &[2]),
        ("no parent, yet a depth", 20, &[1]),
        ("plain, yet another raw length", 24, &[1]),
        ("another stored length", 32, &[0, 0, 9]),
        ("another block size", 40, &[17]),
        ("more blocks", 44, &[5]),
        ("no parent, yet its digest", 112, &[1]),
    ];
    for (name, at, value) in invalid {
        let mut bytes = plain().encode();
        bytes[at..at + value.len()].copy_from_slice(value);
        let body = bytes.len() - 4;
        let crc = BlockSums::from_bytes(&bytes[..body]).whole();
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Facts::decode(&bytes), Err(FactsError::Fields), "{name}");
    }
    let mut later = plain().encode();
    later[8] = 2;
    assert_eq!(Facts::decode(&later), Err(FactsError::Version));
}

prop_compose! {
    fn any_facts()(
        stored in prop_oneof![0..1u64 << 24, any::<u64>()], raw in any::<u64>(), seed in any::<u32>(),
        codec in 0..3u16, key_id in 0..2u32, raw_crc in any::<Option<u32>>(), parent in proptest::option::of((any::<[u8; 32]>(), any::<u32>())),
        key in any::<[u8; 32]>(), namespace in any::<[u8; 32]>(),
    ) -> Facts {
        let crcs: Vec<u32> = (0..BlockSums::blocks(stored) as u32).map(|i| seed.wrapping_mul(i + 1)).collect();
        let mut facts = Facts::plain(Digest(key), Digest(namespace), BlockSums::from_parts(stored, &crcs).unwrap());
        (facts.codec, facts.key_id) = (CodecId(codec), key_id);
        if codec != 0 || key_id != 0 {
            (facts.raw_len, facts.raw_crc) = (raw, raw_crc);
        }
        match parent {
            Some((digest, depth)) => facts.with_parent(Digest(digest), depth),
            None => facts,
        }
    }
}

proptest! {
    #[test]
    fn any_record_comes_back(facts in any_facts()) {
        let bytes = facts.encode();
        prop_assert!(bytes.len() <= FACTS_BYTES_MAX);
        prop_assert_eq!(Facts::decode(&bytes), Ok(facts));
    }

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Facts::decode(&bytes).is_err());
    }
}

#[test]
fn a_record_that_states_less_than_the_shortest_is_refused_whatever_its_checksum() {
    let record = plain().encode();
    for len in [4_u16, 16, 40, 60] {
        let mut bytes = record.clone();
        bytes[10..12].copy_from_slice(&len.to_le_bytes());
        let body = usize::from(len) - 4;
        if body >= 12 {
            let crc = BlockSums::from_bytes(&bytes[..body]).whole();
            bytes[body..body + 4].copy_from_slice(&crc.to_le_bytes());
        }
        assert_eq!(Facts::decode_prefix(&bytes).err(), Some(FactsError::Length), "{len}");
    }
}
