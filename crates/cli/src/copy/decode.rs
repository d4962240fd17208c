//! Decodes chunks that are copied: copies begin with raw bytes, whatever is stored.

use kvtier::codec::{ErrorKind, TierEncoding};
use kvtier::key::Facts;

use super::chunk::ChunkRead;

/// The raw bytes of a chunk whose stored bytes match its facts.
pub fn decode(encoding: &TierEncoding, facts: &Facts, stored: Vec<u8>) -> ChunkRead {
    if facts.is_plain() {
        return ChunkRead::Payload(stored, true);
    }
    let mut raw = Vec::new();
    // Facts may say any length.
    let len = usize::try_from(facts.raw_len).unwrap_or(usize::MAX);
    if let Err(e) = raw.try_reserve_exact(len) {
        return ChunkRead::Undecodable(format!("no memory for its {len} raw bytes: {e}"));
    }
    raw.resize(len, 0);
    match encoding.decode(facts, &stored, &mut [&mut raw]) {
        Ok(()) => ChunkRead::Payload(raw, true),
        Err(e) if e.kind() == ErrorKind::Corrupt => ChunkRead::Damaged,
        Err(e) if e.kind() == ErrorKind::KeyMissing => ChunkRead::without_key(facts.key_id),
        Err(e) => ChunkRead::Undecodable(e.to_string()),
    }
}
