//! Decodes a chunk that a load has read, from memory for encoded bytes into the caller's memory.
//!
//! Where the tier knew that the object is encoded, its bytes arrived in that memory. Otherwise they
//! arrived in the caller's memory, and are copied first.

use kvtier_codec::DecodeProgress;
use kvtier_core::{Error, ErrorKind, Key, Load, Loaded, MissReason};
use kvtier_key::Facts;
use kvtier_mem::Lease;
use tokio::time::Instant;

use crate::ops::classify::{mark_unusable, miss_reason};
use crate::ops::lookup;
use crate::state::counters::add;
use crate::state::key_locks::ReadVersion;
use crate::state::shared::{FoundObject, Shared};

/// An object that a load read, and that is to be decoded.
#[derive(Debug)]
pub struct EncodedRead<'a> {
    pub facts: Box<Facts>,
    pub name: String,
    pub etag: Option<String>,
    /// The state of the key when the request began.
    pub version: ReadVersion<'a>,
    /// All stored bytes arrived and match the facts; otherwise there was not enough memory.
    pub is_whole: bool,
    /// What was decoded while it arrived, into the memory of the load.
    pub decoded: DecodeProgress,
}

impl EncodedRead<'_> {
    /// Whether the raw bytes do not fit the caller's memory.
    pub fn exceeds(&self, into: &[Lease]) -> bool {
        !fits(&self.facts, into)
    }

    /// Ends the load of a chunk that is too large for the memory of this node. Its lengths are known
    /// from now on, so that the next load reads no bytes of it.
    pub fn too_large(&self, shared: &Shared, key: &Key) -> Loaded {
        let EncodedRead { facts, name, etag, version, .. } = self;
        let (len, bytes) = (facts.raw_len, facts.stored_len());
        let etag = etag.as_deref();
        shared.record_found(FoundObject { key, name, len, bytes, etag, verified: false }, version);
        too_large(shared, key, bytes)
    }
}

/// Whether the raw bytes of a chunk fit this memory.
pub fn fits(facts: &Facts, into: &[Lease]) -> bool {
    facts.raw_len <= into.iter().map(|lease| lease.len() as u64).sum()
}

/// Memory for the stored bytes of a chunk; `None` where they need more than all of it.
pub async fn lease(shared: &Shared, key: &Key, bytes: u64) -> Result<Option<Lease>, Error> {
    match shared.encoding.loads.lease(bytes).await {
        Ok(lease) => Ok(Some(lease)),
        Err(e) if e.kind() == ErrorKind::Invalid => Ok(None),
        Err(e) => Err(failed(shared, key, e)),
    }
}

/// The length of the chunk's object, if it is known to be encoded. Before a chunk is taken for too
/// large, the bucket is asked whether its object is still the same.
pub async fn expected_bytes(
    shared: &Shared,
    key: &Key,
    deadline: Instant,
) -> Result<Option<u64>, Error> {
    let expected = || shared.catalog().encoded_bytes(key.digest());
    match expected() {
        Some(bytes) if !shared.encoding.loads.fits(bytes) => {
            lookup::head(shared, key, deadline).await.map_err(|e| e.with_op("load"))?;
            Ok(expected())
        }
        bytes => Ok(bytes),
    }
}

/// The miss of a chunk that is too large for the memory of this node. Others may have more, and the
/// next load looks again.
pub fn too_large(shared: &Shared, key: &Key, bytes: u64) -> Loaded {
    let have = shared.encoding.loads.bytes();
    let key = key.digest();
    shared.fault(format!(
        "load: {key}: decoding it needs {bytes} bytes of memory, more than the {have} that it may have; raise encode_bytes"
    ));
    Loaded::Miss(MissReason::TooLarge)
}

fn failed(shared: &Shared, key: &Key, e: Error) -> Error {
    e.with_op("load").with_key(*key.digest()).with_tier(shared.caps.name.clone())
}

/// Decodes what was read into the memory of the load, and enters what it shows into the index. The
/// stored bytes are in `staging`, or else in the memory of the load.
pub async fn finish(
    shared: &Shared,
    op: &mut Load,
    read: EncodedRead<'_>,
    staging: Option<Lease>,
) -> Result<Loaded, Error> {
    let EncodedRead { facts, name, etag, version, .. } = &read;
    let key = &op.key;
    let seen = FoundObject {
        key,
        name,
        len: facts.raw_len,
        bytes: facts.stored_len(),
        etag: etag.as_deref(),
        verified: false,
    };
    if read.exceeds(&op.into) {
        // Its length is known from now on.
        shared.record_found(seen, version);
        return Ok(Loaded::Miss(MissReason::Length));
    }
    let is_staged = staging.is_some();
    let mut staging = match staging {
        Some(staging) => staging,
        None => match lease(shared, key, facts.stored_len()).await? {
            Some(staging) => staging,
            None => return Ok(read.too_large(shared, key)),
        },
    };
    let into = &mut op.into;
    let decoded = shared.encoding.loads.run(|| {
        if !is_staged {
            copy_to_staging(into, &mut staging);
        }
        decode(shared, &read, &staging, into)
    });
    let decoded = decoded.await;
    drop(staging);
    add(&shared.counters.copied_encoded_bytes, if is_staged { 0 } else { facts.stored_len() });
    match decoded {
        Ok(()) => {
            add(&shared.counters.decoded_chunks, 1);
            shared.geometry.learn(key, facts.raw_len);
            // `false` where its atomic set is incomplete.
            Ok(match shared.record_found(FoundObject { verified: true, ..seen }, version) {
                true => Loaded::Hit { len: facts.raw_len },
                false => Loaded::Miss(MissReason::Absent),
            })
        }
        Err(e) if e.kind() == kvtier_codec::ErrorKind::Invalid => {
            let what = "the chunk cannot be decoded into this memory";
            Err(failed(shared, key, Error::new(ErrorKind::Invalid, what).with_source(e)))
        }
        Err(e) => {
            let reason = miss_reason(&e);
            shared.fault(format!("load: {}: {e}", key.digest()));
            mark_unusable(shared, seen, version, reason);
            Ok(Loaded::Miss(reason))
        }
    }
}

/// Copies the bytes that arrived in the memory of a load.
fn copy_to_staging(from: &[Lease], staging: &mut Lease) {
    let mut at = 0;
    for piece in from.iter().filter_map(Lease::as_host) {
        let here = piece.len().min(staging.len() - at);
        // It fits, and begins where the last one ended.
        let _ = staging.write_at(at, &piece[..here]);
        at += here;
    }
}

fn decode(
    shared: &Shared,
    read: &EncodedRead<'_>,
    staging: &Lease,
    into: &mut [Lease],
) -> Result<(), kvtier_codec::Error> {
    let EncodedRead { facts, decoded, .. } = read;
    let stored_len = usize::try_from(facts.stored_len()).unwrap_or(usize::MAX);
    let stored = staging.as_host().and_then(|bytes| bytes.get(..stored_len)).unwrap_or_default();
    let mut raw = raw_pieces(into, facts.raw_len);
    shared.encoding.tier.decode_rest(facts, stored, &mut raw, *decoded)?;
    fill_in(into, facts.raw_len);
    Ok(())
}

/// The first `raw_len` bytes of the memory of a load.
pub fn raw_pieces(into: &mut [Lease], raw_len: u64) -> Vec<&mut [u8]> {
    let mut left = usize::try_from(raw_len).unwrap_or(usize::MAX);
    let mut raw = Vec::with_capacity(into.len());
    for piece in into.iter_mut().filter_map(Lease::as_host_mut) {
        let here = left.min(piece.len());
        raw.push(&mut piece[..here]);
        left -= here;
    }
    raw
}

/// Marks `len` bytes as filled.
pub fn fill_in(into: &mut [Lease], len: u64) {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    for lease in into {
        let here = left.min(lease.len());
        lease.assume_filled(here);
        left -= here;
    }
}
