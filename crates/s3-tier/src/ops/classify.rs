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
