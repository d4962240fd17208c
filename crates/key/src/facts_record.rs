//! The facts record as bytes, version 1. Numbers are little-endian; every field has one fixed
//! place:
//!
//! | at  | bytes | field                                                                      |
//! |-----|-------|----------------------------------------------------------------------------|
//! | 0   | 8     | magic                                                                      |
//! | 8   | 2     | version                                                                    |
//! | 10  | 2     | length of the whole record, its checksum included                          |
//! | 12  | 2     | flags: bit 0 = has a parent, bit 1 = has a CRC32C of the raw payload       |
//! | 14  | 2     | codec                                                                      |
//! | 16  | 4     | id of the encryption key                                                   |
//! | 20  | 4     | depth in the prefix chain, 0 without a parent                              |
//! | 24  | 8     | raw length                                                                 |
//! | 32  | 8     | stored length                                                              |
//! | 40  | 4     | block size as its power of two                                             |
//! | 44  | 4     | number of blocks                                                           |
//! | 48  | 32    | key                                                                        |
//! | 80  | 32    | namespace                                                                  |
//! | 112 | 32    | parent, zeros without one                                                  |
//! | 144 | 4 n   | CRC32C of each of the n blocks of the stored payload                       |
//! |     | 4     | CRC32C of the raw payload; only with bit 1                                 |
//! | end | 4     | CRC32C of everything before                                                |
//!
//! There is exactly one encoding of each record: what decodes encodes to the same bytes again.

use crate::block_checksums::crc32c;
use crate::{BLOCKS_MAX, BlockSums, CodecId, Digest, FACTS_BYTES_MAX, Facts, FactsError};

const MAGIC: [u8; 8] = *b"KVTFACTS";
const VERSION: u16 = 1;
const HAS_PARENT: u16 = 1;
const HAS_RAW_CRC: u16 = 2;
const HEAD_BYTES: usize = 144;
const CRC_BYTES: usize = 4;

// Readers have buffers of this size, so no record may be longer.
const _: () = assert!(RECORD_BYTES_MAX <= FACTS_BYTES_MAX);
const RECORD_BYTES_MAX: usize = record_bytes(BLOCKS_MAX, true);

const fn record_bytes(blocks: usize, has_raw_crc: bool) -> usize {
    HEAD_BYTES + CRC_BYTES * (blocks + has_raw_crc as usize) + CRC_BYTES
}

impl Facts {
    /// The record as bytes, at most [`FACTS_BYTES_MAX`]. It contains its own length, so other bytes
    /// may follow it.
    pub fn encode(&self) -> Vec<u8> {
        let len = record_bytes(self.sums.crcs().len(), self.raw_crc.is_some());
        let mut out = Vec::with_capacity(len);
        let (parent, depth) = self.parent.unwrap_or_default();
        let mut flags = if self.parent.is_some() { HAS_PARENT } else { 0 };
        flags |= if self.raw_crc.is_some() { HAS_RAW_CRC } else { 0 };
        out.extend_from_slice(&MAGIC);
        // In the order of the table: these four are adjacent.
        for short in [VERSION, len as u16, flags, self.codec.0] {
            out.extend_from_slice(&short.to_le_bytes());
        }
        out.extend_from_slice(&self.key_id.to_le_bytes());
        out.extend_from_slice(&depth.to_le_bytes());
        out.extend_from_slice(&self.raw_len.to_le_bytes());
        out.extend_from_slice(&self.sums.len().to_le_bytes());
        out.extend_from_slice(&BlockSums::block_bytes(self.sums.len()).ilog2().to_le_bytes());
        out.extend_from_slice(&(self.sums.crcs().len() as u32).to_le_bytes());
        for digest in [&self.key, &self.namespace, &parent] {
            out.extend_from_slice(digest.as_bytes());
        }
        let crcs = self.sums.crcs().iter().chain(&self.raw_crc);
        crcs.for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        // Last, over everything before it.
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out
    }

    /// Reads a record that fills `bytes` exactly. Never panics; allocates at most the block sums.
    pub fn decode(bytes: &[u8]) -> Result<Facts, FactsError> {
        match Self::decode_prefix(bytes)? {
            (facts, used) if used == bytes.len() => Ok(facts),
            _ => Err(FactsError::Length),
        }
    }

    /// Reads the record that `bytes` begin with, and its length in bytes; what follows it is not
    /// looked at.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Facts, usize), FactsError> {
        let (head, _) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(FactsError::Length)?;
        // Magic and version come before the checksum: a foreign record or one of a later version is
        // no damage, and must not be reported as such.
        if head[..8] != MAGIC {
            return Err(FactsError::Magic);
        }
        if u16_at(head, 8) != VERSION {
            return Err(FactsError::Version);
        }
        let len = u16_at(head, 10) as usize;
        let body_len = len.checked_sub(CRC_BYTES).ok_or(FactsError::Length)?;
        // The length is not proven yet, so it is bounded before the checksum reads that far.
        if len < record_bytes(0, false) || len > RECORD_BYTES_MAX || len > bytes.len() {
            return Err(FactsError::Length);
        }
        if crc32c(&bytes[..body_len]) != u32_at(bytes, body_len) {
            return Err(FactsError::Checksum);
        }
        let facts = fields(head, &bytes[HEAD_BYTES..body_len]).ok_or(FactsError::Fields)?;
        Ok((facts, len))
    }
}

/// The fields of a record with a valid checksum; `None` when they contradict one another.
fn fields(head: &[u8; HEAD_BYTES], crc_bytes: &[u8]) -> Option<Facts> {
    let stored_len = u64_at(head, 32);
    let flags = u16_at(head, 12);
    let depth = u32_at(head, 20);
    let blocks = u32_at(head, 44) as usize;
    let mut crcs = [0; BLOCKS_MAX];
    // On the stack: a count from the medium allocates nothing.
    let crcs = crcs.get_mut(..blocks)?;
    let (crc_bytes, raw_crc) = match flags & HAS_RAW_CRC {
        0 => (crc_bytes, None),
        _ => crc_bytes
            .split_last_chunk()
            .map(|(crcs, raw)| (crcs, Some(u32::from_le_bytes(*raw))))?,
    };
    if crc_bytes.len() != 4 * blocks
        || BlockSums::block_bytes(stored_len).ilog2() != u32_at(head, 40)
    {
        return None;
    }
    crcs.iter_mut().enumerate().for_each(|(i, crc)| *crc = u32_at(crc_bytes, 4 * i));
    let facts = Facts {
        key: digest_at(head, 48),
        namespace: digest_at(head, 80),
        raw_len: u64_at(head, 24),
        codec: CodecId(u16_at(head, 14)),
        key_id: u32_at(head, 16),
        parent: (flags & HAS_PARENT != 0).then(|| (digest_at(head, 112), depth)),
        sums: BlockSums::from_parts(stored_len, crcs)?,
        raw_crc,
    };
    // A checksum holds for any fields that were written. These rules keep one encoding for each
    // record, so equal facts have equal bytes.
    let orphan_is_bare =
        facts.parent.is_some() || (depth == 0 && digest_at(head, 112) == Digest::default());
    // Without codec and encryption the stored bytes are the payload, so both lengths must agree.
    let plain_is_whole = !facts.is_plain() || (facts.raw_len == stored_len && raw_crc.is_none());
    // A flag that this version does not define may change what the other fields mean.
    let flags_are_known = flags & !(HAS_PARENT | HAS_RAW_CRC) == 0;
    (flags_are_known && orphan_is_bare && plain_is_whole).then_some(facts)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the lengths were checked before any field is read")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

fn digest_at(bytes: &[u8], at: usize) -> Digest {
    Digest(bytes_at(bytes, at))
}
