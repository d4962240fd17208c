//! The facts in an object's headers, and the verification of its bytes while they arrive.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use kvtier_core::Key;
use kvtier_index::CHUNK_BYTES_LIMIT;
use kvtier_key::{BlockSums, Facts};
use kvtier_s3::{BodyFraming, BodyObserver, Provider, Put, ResponseHead};

/// The prefix of metadata headers.
const META: &str = "x-amz-meta-";
/// The header of the facts, and its continuations in stores with shorter fields.
const FACTS_HEADERS: [&str; 7] = [
    "x-amz-meta-kvtier",
    "x-amz-meta-kvtier-2",
    "x-amz-meta-kvtier-3",
    "x-amz-meta-kvtier-4",
    "x-amz-meta-kvtier-5",
    "x-amz-meta-kvtier-6",
    "x-amz-meta-kvtier-7",
];
/// The header of the key's canonical form, in layout `kvtier`, whose names are digests; and its
/// continuations.
const KEY_HEADERS: [&str; 7] = [
    "x-amz-meta-kvtier-key",
    "x-amz-meta-kvtier-key-2",
    "x-amz-meta-kvtier-key-3",
    "x-amz-meta-kvtier-key-4",
    "x-amz-meta-kvtier-key-5",
    "x-amz-meta-kvtier-key-6",
    "x-amz-meta-kvtier-key-7",
];
/// The most metadata in S3: bytes of the names behind `x-amz-meta-`, and of the values.
const META_BYTES_MAX: usize = 2048;
/// Swift's fields have at most 256 characters.
const SWIFT_FIELD_MAX: usize = 240;

/// The facts in an object's headers.
#[derive(Debug)]
pub enum StoredFacts {
    /// Facts of this key.
    Valid(Box<Facts>),
    /// Another program wrote the object.
    Missing,
    /// They are unreadable, of another key, or do not fit the object.
    Invalid,
}

/// The encoded facts in the headers of a response, from one field or several.
pub fn facts_text<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<Cow<'h, str>> {
    joined(&FACTS_HEADERS, header)
}

/// The canonical form of the key in an object's headers; `None` if an earlier build wrote the
/// object or it did not fit.
pub fn canonical_of<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<Vec<u8>> {
    STANDARD.decode(&*joined(&KEY_HEADERS, header)?).ok()
}

fn joined<'h>(names: &[&str], header: impl Fn(&str) -> Option<&'h str>) -> Option<Cow<'h, str>> {
    let mut texts = names.iter().map_while(|name| header(name));
    let first = texts.next()?;
    Some(texts.fold(Cow::Borrowed(first), |text, more| Cow::Owned(text.into_owned() + more)))
}

/// Parses the facts in the headers of a response and checks all but the checksums; `total` is the
/// object's length, if known.
pub fn parse<'h>(
    header: impl Fn(&str) -> Option<&'h str>,
    total: Option<u64>,
    key: &Key,
) -> StoredFacts {
    let Some(text) = facts_text(header) else { return StoredFacts::Missing };
    let Some(facts) = STANDARD.decode(&*text).ok().and_then(|bytes| Facts::decode(&bytes).ok())
    else {
        return StoredFacts::Invalid;
    };
    // No save writes a chunk without bytes, and none that long fits an index.
    let is_possible = (1..CHUNK_BYTES_LIMIT).contains(&facts.raw_len);
    let same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && total.is_none_or(|total| facts.stored_len() == total);
    if same && is_possible { StoredFacts::Valid(Box::new(facts)) } else { StoredFacts::Invalid }
}

/// The metadata of an object: its facts, and its key's canonical form if it is given and both fit.
/// Each has one field, or several where the store's are short.
pub fn to_metadata(facts: &Facts, canonical: Option<&[u8]>, provider: Provider) -> Put {
    let put =
        with_fields(Put::default(), &FACTS_HEADERS, &STANDARD.encode(facts.encode()), provider);
    let Some(canonical) = canonical else { return put };
    let text = STANDARD.encode(canonical);
    let bytes = |put: &Put| {
        put.meta.iter().map(|(name, value)| name.len() - META.len() + value.len()).sum::<usize>()
    };
    let is_cut = provider == Provider::Swift && text.len() > KEY_HEADERS.len() * SWIFT_FIELD_MAX;
    let key = with_fields(Put::default(), &KEY_HEADERS, &text, provider);
    if is_cut || bytes(&put) + bytes(&key) > META_BYTES_MAX {
        return put;
    }
    key.meta.into_iter().fold(put, |put, (name, value)| put.meta(&name[META.len()..], value))
}

fn with_fields(put: Put, names: &[&str], text: &str, provider: Provider) -> Put {
    let piece = if provider == Provider::Swift { SWIFT_FIELD_MAX } else { text.len().max(1) };
    let pieces = text.as_bytes().chunks(piece).map(String::from_utf8_lossy);
    names.iter().zip(pieces).fold(put, |put, (name, piece)| put.meta(&name[META.len()..], piece))
}

/// Verifies the stored bytes of one load: each block is compared when its last byte has arrived.
#[derive(Debug)]
pub struct StreamVerifier<'a> {
    key: &'a Key,
    /// The facts; `None` before the response.
    pub facts: Option<StoredFacts>,
    /// The object's length in the response.
    pub total: Option<u64>,
    /// The object's version in the response.
    pub etag: Option<String>,
    crc: crc_fast::Digest,
    fed: u64,
    sound: bool,
}

impl<'a> StreamVerifier<'a> {
    /// Before the first byte.
    pub fn new(key: &'a Key) -> Self {
        StreamVerifier {
            key,
            facts: None,
            total: None,
            etag: None,
            crc: crc_fast::Digest::new(Crc32Iscsi),
            fed: 0,
            sound: true,
        }
    }

    /// Whether all received bytes match the facts.
    pub fn is_verified(&self) -> bool {
        matches!(&self.facts, Some(StoredFacts::Valid(facts)) if self.sound && self.fed == facts.stored_len())
    }

    /// How many of the first bytes match the checksums of the facts: whole blocks.
    pub fn verified_bytes(&self) -> u64 {
        match &self.facts {
            Some(StoredFacts::Valid(_)) if self.is_verified() => self.fed,
            Some(StoredFacts::Valid(facts)) if self.sound => {
                self.fed - self.fed % BlockSums::block_bytes(facts.stored_len())
            }
            _ => 0,
        }
    }
}

impl BodyObserver for StreamVerifier<'_> {
    fn begin(&mut self, head: &ResponseHead) -> bool {
        let total = if let BodyFraming::Length(len) = head.framing { Some(len) } else { None };
        let facts = parse(|name| head.header(name), total, self.key);
        let known = matches!(facts, StoredFacts::Valid(_));
        let etag = head.etag().map(str::to_owned);
        *self = StreamVerifier { facts: Some(facts), total, etag, ..StreamVerifier::new(self.key) };
        known
    }

    fn received(&mut self, landed: &[u8], new: usize) {
        let mut bytes = &landed[landed.len() - new..];
        let Some(StoredFacts::Valid(facts)) = &self.facts else { return };
        let len = facts.stored_len();
        let block = BlockSums::block_bytes(len);
        while !bytes.is_empty() && self.fed < len {
            let index = self.fed / block;
            let end = ((index + 1) * block).min(len);
            let (head, rest) = bytes
                .split_at(usize::try_from(end - self.fed).unwrap_or(usize::MAX).min(bytes.len()));
            self.crc.update(head);
            self.fed += head.len() as u64;
            bytes = rest;
            if self.fed == end {
                let expected = facts.sums.crcs().get(index as usize).copied().map(u64::from);
                self.sound &= expected == Some(self.crc.finalize());
                self.crc.reset();
            }
        }
        self.sound &= bytes.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use kvtier_core::{Digest, Namespace};

    use super::*;

    fn key(n: u64) -> Key {
        let id = kvtier_key::KeyId::from_engine_text(&format!("m@1@0@{n:x}@half")).unwrap();
        Key::new(Namespace::new("t", Digest::default()).into(), id)
    }

    fn head(put: &Put, len: usize) -> ResponseHead {
        let meta: String =
            put.meta.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n{meta}\r\n");
        ResponseHead::parse(text.as_bytes(), false).unwrap().unwrap().0
    }

    #[test]
    fn only_the_exact_bytes_are_verified() {
        let key = key(1);
        let bytes = (0..300_001u32).map(|n| (n * 31 + n / 1000) as u8).collect::<Vec<_>>();
        let facts =
            Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&bytes));
        let head = head(&to_metadata(&facts, None, Provider::Aws), bytes.len());
        let proof = |bytes: &[u8], piece: usize| {
            let mut proof = StreamVerifier::new(&key);
            assert!(proof.begin(&head));
            assert_eq!(proof.total, Some(300_001));
            bytes.chunks(piece).for_each(|piece| proof.received(piece, piece.len()));
            proof.is_verified()
        };
        for piece in [1000, 65_536, 70_000, 400_000] {
            assert!(proof(&bytes, piece));
            assert!(!proof(&bytes[..300_000], piece), "short");
            assert!(!proof(&[&bytes[..], &[0]].concat(), piece), "long");
        }
        for at in [0, 65_535, 65_536, 300_000] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(!proof(&flipped, 50_000), "a flipped bit at {at}");
        }
        let mut swapped = bytes.clone();
        swapped[..131_072].rotate_left(65_536);
        assert!(!proof(&swapped, 65_536), "blocks in another order");
    }

    #[test]
    fn whole_blocks_are_verified_before_the_last_byte_is_there() {
        let key = key(1);
        let bytes = vec![5; 300_001];
        let facts =
            Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&bytes));
        let head = head(&to_metadata(&facts, None, Provider::Aws), bytes.len());
        let verified = |bytes: &[u8]| {
            let mut proof = StreamVerifier::new(&key);
            assert_eq!(proof.verified_bytes(), 0, "before the response");
            assert!(proof.begin(&head));
            proof.received(bytes, bytes.len());
            proof.verified_bytes()
        };
        for (fed, whole) in [(65_535, 0), (65_536, 65_536), (100_000, 65_536), (300_001, 300_001)] {
            assert_eq!(verified(&bytes[..fed]), whole, "of {fed}");
        }
        let mut flipped = bytes.clone();
        flipped[0] ^= 1;
        assert_eq!(verified(&flipped[..200_000]), 0);
    }

    #[test]
    fn headers_of_other_chunks_are_detected() {
        let mine = key(1);
        let bytes = [7; 100];
        let facts = |key: &Key| {
            let facts = Facts::plain(
                *key.digest(),
                key.namespace().digest(),
                BlockSums::from_bytes(&bytes),
            );
            to_metadata(&facts, None, Provider::Other).meta.remove(0).1
        };
        let parsed = |text: Option<&str>, total| {
            parse(|name| text.filter(|_| name == FACTS_HEADERS[0]), total, &mine)
        };
        assert!(matches!(parsed(None, Some(100)), StoredFacts::Missing));
        assert!(matches!(parsed(Some(&facts(&mine)), Some(100)), StoredFacts::Valid(_)));
        assert!(matches!(parsed(Some(&facts(&mine)), None), StoredFacts::Valid(_)));
        assert!(matches!(parsed(Some(&facts(&mine)), Some(101)), StoredFacts::Invalid));
        assert!(matches!(parsed(Some(&facts(&key(2))), Some(100)), StoredFacts::Invalid));
        assert!(matches!(parsed(Some("junk"), Some(100)), StoredFacts::Invalid));
        let elsewhere =
            Key::new(Namespace::new("other", Digest::default()).into(), mine.id().clone());
        assert!(matches!(parsed(Some(&facts(&elsewhere)), Some(100)), StoredFacts::Invalid));
    }

    #[test]
    fn facts_fit_the_short_fields_of_swift_and_come_back() {
        let key = key(1);
        let bytes = vec![3; 64 * 65_536];
        let facts =
            Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&bytes));
        let put = to_metadata(&facts, None, Provider::Swift);
        assert!(
            put.meta.len() > 1 && put.meta.iter().all(|(_, value)| value.len() <= SWIFT_FIELD_MAX)
        );
        assert!(put.meta.len() <= FACTS_HEADERS.len());
        let head = head(&put, bytes.len());
        let total = Some(bytes.len() as u64);
        assert!(
            matches!(parse(|name| head.header(name), total, &key), StoredFacts::Valid(back) if *back == facts)
        );
        assert_eq!(to_metadata(&facts, None, Provider::Aws).meta.len(), 1);
    }

    /// Objects of every build must stay readable: the header is compared with one made by hand from
    /// docs/FORMAT.md.
    #[test]
    fn a_key_is_in_a_field_of_its_own_as_the_golden_file_says_and_comes_back() {
        let key = key(1);
        let facts =
            Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&[7; 100]));
        let golden = include_str!("golden/key_header_v1.txt").trim_end();
        for provider in [Provider::Aws, Provider::Swift] {
            let put = to_metadata(&facts, Some(&key.canonical()), provider);
            let text = |put: &Put| {
                let lines = put.meta.iter().filter(|(name, _)| name.contains("-key"));
                lines.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(text(&put), golden);
            let head = head(&put, 100);
            let canonical = canonical_of(|name| head.header(name)).unwrap();
            assert_eq!(canonical, key.canonical());
            assert_eq!(Key::digest_of(&key.namespace().digest(), &canonical), *key.digest());
            assert!(matches!(
                parse(|name| head.header(name), Some(100), &key),
                StoredFacts::Valid(_)
            ));
        }
        let old = head(&to_metadata(&facts, None, Provider::Aws), 100);
        assert_eq!(canonical_of(|name| old.header(name)), None);
    }

    #[test]
    fn a_key_that_does_not_fit_beside_the_facts_is_left_out() {
        let key = key(1);
        let facts_of = |blocks: usize| {
            let sums = BlockSums::from_bytes(&vec![3; blocks * 65_536]);
            Facts::plain(*key.digest(), key.namespace().digest(), sums)
        };
        let sum = |put: &Put| {
            put.meta
                .iter()
                .map(|(name, value)| name.len() - META.len() + value.len())
                .sum::<usize>()
        };
        let [few, many] = [1, 64].map(facts_of);
        let cases =
            [&few, &many].map(|facts| [Provider::Aws, Provider::Swift].map(|of| (facts, of)));
        for (facts, provider) in cases.into_iter().flatten() {
            let facts_bytes = sum(&to_metadata(facts, None, provider));
            let mut kept = 0;
            for len in 1..2000_usize {
                let text_len = len.div_ceil(3) * 4;
                let fields = match provider {
                    Provider::Swift => text_len.div_ceil(SWIFT_FIELD_MAX),
                    _ => 1,
                };
                let names = KEY_HEADERS.iter().take(fields).map(|name| name.len() - META.len());
                let fits = fields <= KEY_HEADERS.len()
                    && facts_bytes + names.sum::<usize>() + text_len <= META_BYTES_MAX;
                let canonical = vec![1; len];
                let put = to_metadata(facts, Some(&canonical), provider);
                assert!(sum(&put) <= META_BYTES_MAX);
                let head = head(&put, facts.raw_len as usize);
                assert!(facts_text(|name| head.header(name)).is_some());
                let back = canonical_of(|name| head.header(name));
                assert_eq!(back, fits.then_some(canonical), "of {len} bytes: whole or not at all");
                kept += usize::from(fits);
            }
            assert!((500..1500).contains(&kept), "{kept}");
        }
    }
}
