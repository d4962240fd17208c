//! Classifies what a response shows of an object: the chunk, of no use for this request, or unusable
//! until it is overwritten.

use kvtier_codec::DecodeProgress;
use kvtier_core::{Key, MissReason};
use kvtier_key::Facts;

use crate::ops::metadata::StoredFacts;
use crate::state::counters::add;
use crate::state::key_locks::ReadVersion;
use crate::state::shared::{FoundObject, Shared};
use crate::{Layout, Verify};

/// What a response shows of an object.
#[derive(Debug, Default)]
pub struct ReadObject {
    pub facts: Option<StoredFacts>,
    /// Its length. That of the chunk's raw bytes is in the facts.
    pub len: u64,
    pub etag: Option<String>,
    /// Its bytes match its facts.
    pub intact: bool,
    /// It is longer than the memory.
    pub too_long: bool,
    /// What was decoded of it while it arrived.
    pub decoded: DecodeProgress,
}

impl ReadObject {
    /// The length of the raw bytes; without facts they are the object.
    pub fn raw_len(&self) -> u64 {
        match &self.facts {
            Some(StoredFacts::Valid(facts)) => facts.raw_len,
            _ => self.len,
        }
    }
}

/// The result of the checks of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectState {
    /// It is the chunk.
    Verified,
    /// It has no facts, and nothing else is wrong.
    Unverified,
    /// It is fine but of no use for this request.
    Miss(MissReason),
    /// It is damaged, or cannot be decoded here: a miss until it is overwritten.
    Unusable(MissReason),
}

/// Classifies an object by its headers and, for a load into `memory_bytes`, by the received bytes.
pub fn classify(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
    memory_bytes: Option<u64>,
) -> ObjectState {
    match &read.facts {
        Some(StoredFacts::Valid(facts)) if let Some(reason) = undecodable(shared, facts) => {
            ObjectState::Unusable(reason)
        }
        // The object is fine; the caller expected a shorter one. It stays for callers that know its
        // length.
        Some(StoredFacts::Valid(_)) if read.too_long => ObjectState::Miss(MissReason::Length),
        Some(StoredFacts::Valid(_)) if read.intact => ObjectState::Verified,
        Some(StoredFacts::Valid(_) | StoredFacts::Invalid) => {
            ObjectState::Unusable(MissReason::Corrupt)
        }
        // Every object of this layout has facts, so this one was written by something else.
        Some(StoredFacts::Missing) if shared.layout == Layout::Kvtier => {
            ObjectState::Unusable(MissReason::Corrupt)
        }
        Some(StoredFacts::Missing) if shared.verify == Verify::Strict => {
            ObjectState::Unusable(MissReason::Unverified)
        }
        Some(StoredFacts::Missing) => foreign(shared, key, read, memory_bytes),
        // No head of a response was seen.
        None => ObjectState::Miss(MissReason::Corrupt),
    }
}

/// Why the chunk with these facts cannot be decoded here, as far as they say. It may become
/// readable with another build or configuration.
fn undecodable(shared: &Shared, facts: &Facts) -> Option<MissReason> {
    // The objects of LMCache's layouts are the raw bytes.
    if shared.layout != Layout::Kvtier {
        return (!facts.is_plain()).then_some(MissReason::Corrupt);
    }
    shared.encoding.tier.check(facts).err().map(|e| miss_reason(&e))
}

/// The reason of a miss where decoding failed.
pub fn miss_reason(error: &kvtier_codec::Error) -> MissReason {
    match error.kind() {
        kvtier_codec::ErrorKind::Unsupported => MissReason::Codec,
        kvtier_codec::ErrorKind::KeyMissing => MissReason::KeyMissing,
        _ => MissReason::Corrupt,
    }
}

/// Makes an object a miss until it is overwritten, or its mark expires.
pub fn mark_unusable(
    shared: &Shared,
    seen: FoundObject<'_>,
    version: &ReadVersion<'_>,
    reason: MissReason,
) {
    let is_damaged = !matches!(reason, MissReason::Codec | MissReason::KeyMissing);
    add(&shared.counters.corrupt_objects, is_damaged.into());
    shared.mark_unusable(seen, version);
}

/// An object of another program is served if its length is exactly right: that of a full chunk, or
/// where it may be shorter or the length is unknown, that of the memory.
fn foreign(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
    memory_bytes: Option<u64>,
) -> ObjectState {
    let fits_memory = memory_bytes.is_none_or(|memory_bytes| memory_bytes == read.len);
    match shared.geometry.full(key) {
        _ if read.len == 0 => ObjectState::Unusable(MissReason::Length),
        Some(full)
            if shared.geometry.is_too_long(key, read.len)
                || (read.len < full && !shared.geometry.allows_partial(key)) =>
        {
            ObjectState::Unusable(MissReason::Length)
        }
        // Full chunks are longer than was learned; only a request for exactly this length may use
        // it.
        Some(full) if read.len > full && memory_bytes != Some(read.len) => {
            ObjectState::Miss(MissReason::Length)
        }
        Some(full) if read.len < full && !fits_memory => ObjectState::Miss(MissReason::Length),
        None if !fits_memory => ObjectState::Miss(MissReason::Length),
        _ if read.too_long => ObjectState::Miss(MissReason::Length),
        // The store's own checksum failed.
        _ if memory_bytes.is_some() && !read.intact => ObjectState::Unusable(MissReason::Corrupt),
        _ => ObjectState::Unverified,
    }
}

/// Why a response without facts may not be the store's: its length differs from that of listings
/// and saves. Unknown if nothing is listed, or in LMCache's layouts, where other programs replace
/// objects.
pub fn suspicious_response(
    shared: &Shared,
    key: &Key,
    read: &ReadObject,
) -> Option<kvtier_s3::Error> {
    if !matches!(read.facts, Some(StoredFacts::Missing)) || shared.layout != Layout::Kvtier {
        return None;
    }
    let listed = shared.capacity_bytes.and_then(|_| shared.catalog().listed_bytes(key.digest()));
    let what = "the answer has no facts and another length than the store lists: a proxy may have sent it, or another program replaced the \
                object, which the next listing finds out";
    listed
        .filter(|bytes| *bytes != read.len)
        .map(|_| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, what).retryable(true))
}

#[cfg(test)]
mod tests {
    use kvtier_index::Chunk;
    use kvtier_key::{BlockSums, CodecId, Digest, EncodedPayload, KeyId, Namespace};

    use super::*;
    use crate::TierConfig;
    use crate::test_shared::shared;

    fn key_of(namespace: Namespace) -> Key {
        Key::new(namespace.into(), KeyId::from_engine_text("m@1@0@ab@half").unwrap())
    }

    fn key() -> Key {
        key_of(Namespace::new("t", Digest::default()))
    }

    /// An object of 100 bytes that arrived as it was stored.
    fn read(facts: Option<StoredFacts>) -> ReadObject {
        ReadObject { facts, len: 100, intact: true, ..ReadObject::default() }
    }

    fn valid(codec: u8) -> Option<StoredFacts> {
        let raw_crc = (codec != 0).then_some(7);
        let payload =
            EncodedPayload { codec: CodecId(codec.into()), key_id: 0, raw_len: 400, raw_crc };
        let sums = BlockSums::from_bytes(&[1; 100]);
        let (key, namespace) = (key(), key().namespace().digest());
        Some(StoredFacts::Valid(Box::new(Facts::encoded(*key.digest(), namespace, payload, sums))))
    }

    fn of_layout(layout: Layout, change: impl FnOnce(&mut TierConfig)) -> Shared {
        shared(|config| {
            config.layout = layout;
            change(config);
        })
    }

    #[test]
    fn the_raw_length_is_in_the_facts_or_that_of_the_object() {
        assert_eq!(read(valid(0)).raw_len(), 400);
        for facts in [None, Some(StoredFacts::Missing), Some(StoredFacts::Invalid)] {
            assert_eq!(read(facts).raw_len(), 100);
        }
    }

    #[test]
    fn an_object_with_facts_is_verified_by_them() {
        let shared = shared(|_| {});
        let state = |read: &ReadObject| classify(&shared, &key(), read, Some(400));
        let plain = read(valid(0));
        assert_eq!(state(&plain), ObjectState::Verified);
        assert_eq!(
            state(&ReadObject { intact: false, ..read(valid(0)) }),
            ObjectState::Unusable(MissReason::Corrupt)
        );
        let too_long = ReadObject { too_long: true, intact: false, ..plain };
        assert_eq!(state(&too_long), ObjectState::Miss(MissReason::Length));
        let damaged = ObjectState::Unusable(MissReason::Corrupt);
        assert_eq!(state(&read(Some(StoredFacts::Invalid))), damaged);
        assert_eq!(state(&read(Some(StoredFacts::Missing))), damaged, "this layout has facts");
        assert_eq!(state(&read(None)), ObjectState::Miss(MissReason::Corrupt));
        assert_eq!(state(&read(valid(99))), ObjectState::Unusable(MissReason::Codec));
    }

    #[test]
    fn an_object_of_another_program_is_the_raw_bytes() {
        let lenient = of_layout(Layout::Lmcache, |_| {});
        let state = |read: &ReadObject| classify(&lenient, &key(), read, Some(100));
        assert_eq!(state(&read(valid(0))), ObjectState::Verified);
        assert_eq!(state(&read(valid(2))), ObjectState::Unusable(MissReason::Corrupt));
        assert_eq!(state(&read(Some(StoredFacts::Missing))), ObjectState::Unverified);
        let strict = of_layout(Layout::Lmcache, |config| config.verify = Verify::Strict);
        let missing = read(Some(StoredFacts::Missing));
        let refused = ObjectState::Unusable(MissReason::Unverified);
        assert_eq!(classify(&strict, &key(), &missing, Some(100)), refused);
        assert_eq!(classify(&strict, &key(), &read(valid(0)), Some(100)), ObjectState::Verified);
    }

    const UNUSABLE: ObjectState = ObjectState::Unusable(MissReason::Length);
    const MISS: ObjectState = ObjectState::Miss(MissReason::Length);

    /// The state of objects of these lengths, whose full chunks have 100 bytes if `declared`.
    fn foreign_states<const N: usize>(
        declared: bool,
        allow_partial: bool,
        lens: [u64; N],
        memory_bytes: Option<u64>,
    ) -> [ObjectState; N] {
        let shared = of_layout(Layout::Lmcache, |_| {});
        let namespace = Namespace::new("t", Digest::default()).with_partial(allow_partial);
        let key = key_of(match declared {
            true => namespace.with_chunk_bytes(0, 100),
            false => namespace,
        });
        lens.map(|len| {
            let read = ReadObject { len, ..read(Some(StoredFacts::Missing)) };
            classify(&shared, &key, &read, memory_bytes)
        })
    }

    #[test]
    fn without_facts_a_full_chunk_has_exactly_the_declared_length() {
        use ObjectState::Unverified;
        let lens = [0, 99, 100, 101];
        let whole = [UNUSABLE, UNUSABLE, Unverified, UNUSABLE];
        for memory_bytes in [None, Some(99), Some(100), Some(101)] {
            assert_eq!(foreign_states(true, false, lens, memory_bytes), whole, "{memory_bytes:?}");
        }
        let partial = |memory_bytes| foreign_states(true, true, lens, memory_bytes);
        assert_eq!(partial(None), [UNUSABLE, Unverified, Unverified, UNUSABLE]);
        assert_eq!(partial(Some(99)), [UNUSABLE, Unverified, Unverified, UNUSABLE]);
        assert_eq!(partial(Some(100)), [UNUSABLE, MISS, Unverified, UNUSABLE]);
        let unknown = |memory_bytes| foreign_states(false, true, lens, memory_bytes);
        assert_eq!(unknown(None), [UNUSABLE, Unverified, Unverified, Unverified]);
        assert_eq!(unknown(Some(100)), [UNUSABLE, MISS, Unverified, MISS]);
    }

    #[test]
    fn a_learned_length_may_be_too_short() {
        let shared = of_layout(Layout::Lmcache, |_| {});
        let key = key_of(Namespace::new("t", Digest::default()).with_partial(false));
        shared.geometry.learn(&key, 100);
        let state = |len, memory_bytes| {
            let read = ReadObject { len, ..read(Some(StoredFacts::Missing)) };
            classify(&shared, &key, &read, memory_bytes)
        };
        assert_eq!(state(120, Some(120)), ObjectState::Unverified);
        assert_eq!(state(120, Some(100)), MISS);
        assert_eq!(state(120, None), MISS);
        assert_eq!(state(80, Some(80)), UNUSABLE);
        assert_eq!(state(100, Some(100)), ObjectState::Unverified);
    }

    #[test]
    fn a_failed_checksum_of_the_store_is_damage_where_bytes_were_read() {
        let shared = of_layout(Layout::Lmcache, |_| {});
        let damaged = ReadObject { intact: false, ..read(Some(StoredFacts::Missing)) };
        let state = |memory_bytes| classify(&shared, &key(), &damaged, memory_bytes);
        assert_eq!(state(Some(100)), ObjectState::Unusable(MissReason::Corrupt));
        assert_eq!(state(None), ObjectState::Unverified, "a lookup reads none");
        let too_long = ReadObject { too_long: true, ..read(Some(StoredFacts::Missing)) };
        assert_eq!(classify(&shared, &key(), &too_long, Some(100)), MISS);
    }

    #[test]
    fn an_answer_without_facts_and_of_another_length_than_listed_is_asked_for_again() {
        let capped = |layout| of_layout(layout, |config| config.capacity_bytes = Some(1 << 30));
        let is_suspicious = |shared: &Shared, read: &ReadObject| {
            let _ = shared.catalog().index.insert(Chunk::new(*key().digest(), 400, 120));
            let error = suspicious_response(shared, &key(), read);
            assert!(error.as_ref().is_none_or(kvtier_s3::Error::is_retryable));
            error.is_some()
        };
        let missing = |len| ReadObject { len, ..read(Some(StoredFacts::Missing)) };
        let own = capped(Layout::Kvtier);
        assert!(is_suspicious(&own, &missing(100)));
        assert!(!is_suspicious(&own, &missing(120)));
        assert!(!is_suspicious(&own, &read(valid(0))));
        assert!(!is_suspicious(&own, &read(Some(StoredFacts::Invalid))));
        assert!(!is_suspicious(&own, &read(None)));
        assert!(!is_suspicious(&capped(Layout::Lmcache), &missing(100)));
        assert!(!is_suspicious(&shared(|_| {}), &missing(100)), "without a cap nothing is listed");
    }
}
