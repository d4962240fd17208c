//! Chunks that are decoded while their bytes arrive: the same bytes, in whatever portions they come,
//! and errors where there is no chunk.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_codec::{Chain, DecodeProgress, Decoder, ElementType, ErrorKind, TierEncoding};
use kvtier_codec::{may_be_encoded, stage_by_name};
use kvtier_key::{BlockSums, Facts, Key, Namespace};
use proptest::prelude::*;
use support::kv_like;

/// Two whole blocks of each type, a part of a third one, and bytes that no block has.
const LEN: usize = (1 << 20) + 70_001;

fn tier(stages: &[&str], element: ElementType) -> TierEncoding {
    let stages = stages.iter().map(|name| stage_by_name(name).unwrap()).collect();
    TierEncoding::new(Chain::new(stages).unwrap(), Decoder::new()).with_element_type(element)
}

fn stored(tier: &TierEncoding, raw: &[u8]) -> (Facts, Vec<u8>) {
    let key = Key::from_name(&Namespace::from_name("t"), "a");
    let mut out = vec![0; tier.bound(raw.len()).unwrap()];
    let (payload, len) = tier.encode(&key, &[raw], &mut out).unwrap().unwrap();
    out.truncate(len);
    assert!(may_be_encoded(len as u64));
    let facts = Facts::encoded(
        *key.digest(),
        key.namespace().digest(),
        payload,
        BlockSums::from_bytes(&out),
    );
    (facts, out)
}

/// Decodes what arrives up to each of `ends`, into pieces that are cut at `cut`, and then the rest.
/// Answers what was decoded before the end.
fn arrive(
    tier: &TierEncoding,
    facts: &Facts,
    stored: &[u8],
    ends: &[usize],
    raw: &mut [u8],
    cut: usize,
) -> Result<usize, ErrorKind> {
    let (first, second) = raw.split_at_mut(cut);
    let raw = &mut [first, &mut [], second];
    let mut progress = DecodeProgress::default();
    for end in ends {
        if *end >= progress.wanted() {
            let before = progress.raw_bytes();
            progress = tier
                .decode_arrived(facts, &stored[..*end], raw, progress)
                .map_err(|error| error.kind())?;
            assert!(progress.raw_bytes() >= before && progress.wanted() > *end);
        }
    }
    let rest = tier.decode_rest(facts, stored, raw, progress);
    rest.map_err(|error| error.kind()).map(|()| progress.raw_bytes())
}

#[test]
fn blocks_are_decoded_as_they_arrive() {
    for element in ElementType::ALL {
        let tier = tier(&["bf16-split"], element);
        let raw = kv_like(element, LEN, 3);
        let (facts, stored) = stored(&tier, &raw);
        let mut loaded = vec![0xee; LEN];
        let half = arrive(&tier, &facts, &stored, &[stored.len() * 2 / 3], &mut loaded, 300_000);
        assert!((1..LEN).contains(&half.unwrap()) && loaded == raw, "{element:?}");
        loaded.fill(0xee);
        let whole = arrive(&tier, &facts, &stored, &[stored.len()], &mut loaded, LEN);
        assert!(whole.unwrap() > LEN - 16 && loaded == raw, "{element:?}");
    }
}

#[test]
fn other_chains_are_decoded_when_all_is_there() {
    for stages in [&["zstd"][..], &["bf16-split", "zstd"]] {
        let tier = tier(stages, ElementType::Bf16);
        let raw = kv_like(ElementType::Bf16, 3000, 3).repeat(9);
        let (facts, stored) = stored(&tier, &raw);
        let mut loaded = vec![0xee; raw.len()];
        let ends = [1, 100, stored.len()];
        assert_eq!(arrive(&tier, &facts, &stored, &ends, &mut loaded, 100), Ok(0), "{stages:?}");
        assert!(loaded == raw, "{stages:?}");
    }
}

#[test]
fn what_changes_after_it_was_decoded_is_noticed() {
    let tier = tier(&["bf16-split"], ElementType::Bf16);
    let raw = kv_like(ElementType::Bf16, LEN, 3);
    let (facts, stored) = stored(&tier, &raw);
    let mut loaded = vec![0xee; LEN];
    let mut pieces = [&mut loaded[..]];
    let half = &stored[..stored.len() / 2 + 1];
    let progress =
        tier.decode_arrived(&facts, half, &mut pieces, DecodeProgress::default()).unwrap();
    assert!(progress.raw_bytes() > 0);
    pieces[0][7] ^= 1;
    let error = tier.decode_rest(&facts, &stored, &mut pieces, progress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn portions_do_not_matter(
        element in proptest::sample::select(ElementType::ALL.to_vec()),
        mut ends in proptest::collection::vec(0.0..1.0, 0..12),
        cut in 0..LEN,
        len in 1000..LEN,
    ) {
        let tier = tier(&["bf16-split"], element);
        let raw = kv_like(element, len, 3);
        let (facts, stored) = stored(&tier, &raw);
        ends.sort_unstable_by(f64::total_cmp);
        let ends: Vec<usize> =
            ends.into_iter().map(|end: f64| (end * stored.len() as f64) as usize).collect();
        let mut loaded = vec![0xee; len];
        prop_assert!(arrive(&tier, &facts, &stored, &ends, &mut loaded, cut.min(len)).is_ok());
        prop_assert!(loaded == raw);
    }

    #[test]
    fn damage_is_an_error(at in 0.0..1.0, flip in 1..=255u8, end in 0.0..1.0) {
        let tier = tier(&["bf16-split"], ElementType::Bf16);
        let raw = kv_like(ElementType::Bf16, LEN, 3);
        let (facts, mut stored) = stored(&tier, &raw);
        let position = |share: f64| (share * stored.len() as f64) as usize;
        let (at, end) = (position(at), position(end));
        stored[at] ^= flip;
        let mut loaded = vec![0xee; LEN];
        let ends = [end / 2, end];
        let decoded = arrive(&tier, &facts, &stored, &ends, &mut loaded, LEN / 3);
        // A changed number that says nothing decodes to the same bytes.
        prop_assert!(decoded.is_err() || loaded == raw);
    }
}
