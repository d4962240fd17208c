//! Encodes chunks that are copied to places where no tier is open.

use anyhow::Result;
use kvtier::codec::TierEncoding;
use kvtier::core::Key;
use kvtier::key::{BlockSums, Facts};

use super::chunk::ChunkIdentity;

/// The facts of a chunk, and what is to be stored of it.
pub fn encode(
    encoding: &TierEncoding,
    identity: &ChunkIdentity,
    raw: Vec<u8>,
) -> Result<(Facts, Vec<u8>)> {
    let ChunkIdentity { digest, namespace, key, .. } = identity;
    if encoding.is_on() {
        let mut out = vec![0; encoding.bound(raw.len())?];
        let dtype = key.as_ref().ok().and_then(Key::dtype);
        let encoded = encoding.encode_by_digests(*digest, *namespace, dtype, &[&raw], &mut out)?;
        if let Some((payload, len)) = encoded {
            out.truncate(len);
            let sums = BlockSums::from_bytes(&out);
            return Ok((Facts::encoded(*digest, *namespace, payload, sums), out));
        }
    }
    Ok((Facts::plain(*digest, *namespace, BlockSums::from_bytes(&raw)), raw))
}
