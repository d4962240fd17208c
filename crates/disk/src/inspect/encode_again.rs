//! Encodes a stored chunk in another way, to copy it to where other settings hold.

use kvtier_codec::{Error, TierEncoding};
use kvtier_key::{BlockSums, Facts, Key};

use super::StoredChunk;

/// Decodes a chunk by `from`, unless it is stored as it is, and encodes it by `to`, as a save of a
/// tier with that encoding does. The key needs no more than the digests and the data type.
///
/// # Errors
/// As of [`TierEncoding::decode`] and [`TierEncoding::encode`].
pub fn encode_again(
    key: &Key,
    chunk: StoredChunk,
    from: &TierEncoding,
    to: &TierEncoding,
) -> Result<StoredChunk, Error> {
    let raw = match &chunk.facts {
        Some(facts) if !facts.is_plain() => decode(facts, &chunk.bytes, from)?,
        _ => chunk.bytes,
    };
    let mut out = vec![0; to.bound(raw.len())?];
    let (digest, namespace) = (*key.digest(), key.namespace().digest());
    Ok(match to.encode(key, &[&raw], &mut out)? {
        Some((payload, len)) => {
            out.truncate(len);
            let facts = Facts::encoded(digest, namespace, payload, BlockSums::from_bytes(&out));
            StoredChunk { facts: Some(facts), bytes: out }
        }
        None => {
            let facts = Facts::plain(digest, namespace, BlockSums::from_bytes(&raw));
            StoredChunk { facts: Some(facts), bytes: raw }
        }
    })
}

/// The raw bytes of an encoded chunk.
fn decode(facts: &Facts, stored: &[u8], encoding: &TierEncoding) -> Result<Vec<u8>, Error> {
    // The facts' own checks come first: the length is a claim of the file.
    encoding.check(facts)?;
    let mut raw = vec![0; facts.raw_len as usize];
    encoding.decode(facts, stored, &mut [&mut raw])?;
    Ok(raw)
}
