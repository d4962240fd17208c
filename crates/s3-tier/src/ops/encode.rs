//! Encodes the chunk of a save into memory, before space is reserved: then exactly the bytes that
//! are stored are reserved.
//!
//! A chunk that no encoding makes smaller is saved as it is, from the caller's memory. Where a
//! required encryption fails, the save fails and nothing is stored.

use kvtier_codec::ErrorKind as CodecErrorKind;
use kvtier_core::{Error, ErrorKind, Op, Save};
use kvtier_key::{BlockSums, EncodedPayload, Facts};
use kvtier_mem::View;

use crate::ops::admission_order::AdmissionOrder;
use crate::state::counters::add;
use crate::state::encoding::Encoding;
use crate::state::shared::Shared;

/// An encoded chunk that waits to be sent.
#[derive(Debug)]
pub struct EncodedChunk {
    /// The bytes of its object.
    pub body: View,
    payload: EncodedPayload,
    sums: BlockSums,
}

impl EncodedChunk {
    /// What the object's header says of it.
    pub fn facts(&self, op: &Save) -> Facts {
        let key = &op.key;
        let namespace = key.namespace().digest();
        Facts::encoded(*key.digest(), namespace, self.payload, self.sums.clone())
    }
}

/// Encodes the chunk; `None` where it is to be stored as it is. Waits for memory, in the order of
/// its batch.
pub async fn encode(
    shared: &Shared,
    op: &Save,
    order: &mut AdmissionOrder,
) -> Result<Option<EncodedChunk>, Error> {
    let encoding = &shared.encoding;
    if !encoding.tier.is_on() {
        return Ok(None);
    }
    let failed =
        |e: Error| e.with_op("save").with_key(*op.key.digest()).with_tier(shared.caps.name.clone());
    let raw_len = op.bytes();
    let bound = encoding.bound(raw_len).map_err(failed)?;
    order.wait().await;
    let mut lease = encoding.saves.lease(bound as u64).await.map_err(failed)?;
    order.done();
    let encoded = encoding.saves.run(|| {
        let raw: Vec<&[u8]> = op.from.iter().filter_map(View::as_host).collect();
        let out = lease.as_host_mut().unwrap_or_default();
        let encoded = encoding.tier.encode(&op.key, &raw, out)?;
        Ok(encoded.map(|(payload, len)| (payload, len, BlockSums::from_bytes(&out[..len]))))
    });
    let Some((payload, len, sums)) = encoded.await.map_err(|e| failed(encode_error(e)))? else {
        add(&shared.counters.encode_refused_chunks, 1);
        return Ok(None);
    };
    add(&shared.counters.encoded_chunks, 1);
    add(&shared.counters.encoded_raw_bytes, raw_len);
    add(&shared.counters.encoded_stored_bytes, len as u64);
    lease.assume_filled(len);
    Ok(Some(EncodedChunk { body: lease.freeze(), payload, sums }))
}

fn encode_error(e: kvtier_codec::Error) -> Error {
    let (kind, what) = match e.kind() {
        CodecErrorKind::KeyMissing => (
            ErrorKind::Denied,
            "the chunk cannot be encrypted, and nothing was stored: load the key, or choose another key_id",
        ),
        CodecErrorKind::KeyExhausted => (
            ErrorKind::Denied,
            "the chunk cannot be encrypted, and nothing was stored: rotate the key",
        ),
        _ => (
            ErrorKind::Invalid,
            "the chunk cannot be encoded, and nothing was stored: choose another encoding",
        ),
    };
    Error::new(kind, what).with_source(e)
}

/// Why a save can never be encoded here.
pub fn refusal(encoding: &Encoding, op: &Save) -> Option<Error> {
    if !encoding.tier.is_on() {
        return None;
    }
    let refused = encoding.bound(op.bytes()).err()?;
    Some(refused.with_op("save").with_key(*op.key.digest()))
}
