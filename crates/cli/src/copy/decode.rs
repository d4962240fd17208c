//! Decodes chunks that are copied: copies begin with raw bytes, whatever is stored.

use kvtier::codec::TierEncoding;
use kvtier::key::Facts;

use super::chunk::ChunkRead;

/// The raw bytes of a chunk whose stored bytes match its facts.
pub fn decode(encoding: &TierEncoding, facts: &Facts, stored: Vec<u8>) -> ChunkRead {
    if facts.is_plain() {
        return ChunkRead::Payload(stored, true);
    }
    match encoding.decode_whole(facts, &stored) {
        Ok(Ok(raw)) => ChunkRead::Payload(raw, true),
        Ok(Err(why)) => ChunkRead::undecoded(why),
        Err(_) => ChunkRead::Damaged,
    }
}
