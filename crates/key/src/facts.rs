use std::fmt;

use crate::{BlockSums, Digest};

/// The most bytes an encoded facts record may have.
pub const FACTS_BYTES_MAX: usize = 1024;

/// Which codec turned the raw payload into the stored one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodecId(pub u16);

/// What is known of one stored chunk; one format on all media.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Digest of the key.
    pub key: Digest,
    /// Digest of the namespace.
    pub namespace: Digest,
    /// Length of the payload as `save` was given it, in bytes.
    pub raw_len: u64,
    /// The codec of the stored payload; 0 = as it is.
    pub codec: CodecId,
    /// Which encryption key; 0 = none.
    pub key_id: u32,
    /// Digest of the chunk before this one in its prefix chain, and this one's depth there.
    pub parent: Option<(Digest, u32)>,
    /// Sums of the *stored* payload; its length is the stored length.
    pub sums: BlockSums,
}

/// Why bytes are no facts record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FactsError {
    /// Too short, too long, or cut off.
    Length,
    /// Not our magic.
    Magic,
    /// A version this build does not read.
    Version,
    /// Its own checksum does not match.
    Checksum,
    /// Fields contradict one another.
    Fields,
}

impl fmt::Display for FactsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FactsError::Length => "facts record has the wrong length",
            FactsError::Magic => "not a facts record",
            FactsError::Version => "facts record of a version this build does not read",
            FactsError::Checksum => "facts record fails its checksum",
            FactsError::Fields => "facts record contradicts itself",
        })
    }
}

impl std::error::Error for FactsError {}

impl Facts {
    /// Facts of a payload stored as it is.
    pub fn plain(key: Digest, namespace: Digest, sums: BlockSums) -> Self {
        Facts { key, namespace, raw_len: sums.len(), codec: CodecId(0), key_id: 0, parent: None, sums }
    }

    /// Sets the parent in the prefix chain and the depth.
    pub fn with_parent(mut self, parent: Digest, depth: u32) -> Self {
        self.parent = Some((parent, depth));
        self
    }
}

const MAGIC: [u8; 4] = *b"KVTF";
const VERSION: u8 = 1;
const HAS_PARENT: u8 = 1;
/// Everything before the block checksums: see `docs/FORMAT.md`.
const HEAD_BYTES: usize = 132;

impl Facts {
    /// The record's bytes: little-endian, self-describing in length, closed by a CRC32C of its own.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + 4 * self.sums.crcs().len() + 4);
        let (parent, depth) = self.parent.unwrap_or_default();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(if self.parent.is_some() { HAS_PARENT } else { 0 });
        out.extend_from_slice(&(self.sums.crcs().len() as u16).to_le_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.extend_from_slice(self.namespace.as_bytes());
        out.extend_from_slice(&self.raw_len.to_le_bytes());
        out.extend_from_slice(&self.sums.len().to_le_bytes());
        out.extend_from_slice(&self.codec.0.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.key_id.to_le_bytes());
        out.extend_from_slice(&depth.to_le_bytes());
        out.extend_from_slice(parent.as_bytes());
        self.sums.crcs().iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        let crc = crate::sums::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a record that is all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Facts, FactsError> {
        match Self::decode_prefix(bytes)? {
            (facts, used) if used == bytes.len() => Ok(facts),
            _ => Err(FactsError::Length),
        }
    }

    /// Reads a record at the start of `bytes`; also says how long it is.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Facts, usize), FactsError> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk().ok_or(FactsError::Length)?;
        if head[..4] != MAGIC {
            return Err(FactsError::Magic);
        }
        if head[4] != VERSION {
            return Err(FactsError::Version);
        }
        let blocks = u16::from_le_bytes(array(head, 6)) as usize;
        let end = HEAD_BYTES + 4 * blocks;
        if blocks > crate::BLOCKS_MAX {
            return Err(FactsError::Fields);
        }
        let stored_crc = bytes.get(end..end + 4).ok_or(FactsError::Length)?;
        if crate::sums::crc32c(&bytes[..end]).to_le_bytes() != stored_crc {
            return Err(FactsError::Checksum);
        }
        let (flags, depth, parent) = (head[5], u32::from_le_bytes(array(head, 96)), Digest(array(head, 100)));
        let crcs: Vec<u32> = bytes[HEAD_BYTES..end].as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        let sums = BlockSums::from_parts(u64::from_le_bytes(array(head, 80)), &crcs).ok_or(FactsError::Fields)?;
        let parentless = depth == 0 && parent == Digest::default();
        if flags > HAS_PARENT || head[90..92] != [0; 2] || (flags == 0 && !parentless) {
            return Err(FactsError::Fields);
        }
        let facts = Facts {
            key: Digest(array(head, 8)),
            namespace: Digest(array(head, 40)),
            raw_len: u64::from_le_bytes(array(head, 72)),
            codec: CodecId(u16::from_le_bytes(array(head, 88))),
            key_id: u32::from_le_bytes(array(head, 92)),
            parent: (flags == HAS_PARENT).then_some((parent, depth)),
            sums,
        };
        Ok((facts, end + 4))
    }
}

/// `N` bytes of the head at a fixed place inside it.
fn array<const N: usize>(head: &[u8; HEAD_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let sums = BlockSums::of(&[7; 200_000]);
        Facts::plain(Digest([1; 32]), Digest([2; 32]), sums).with_parent(Digest([3; 32]), 9)
    }

    #[test]
    fn a_record_comes_back_and_fits() {
        for facts in [facts(), Facts { parent: None, ..facts() }] {
            let bytes = facts.encode();
            assert!(bytes.len() <= FACTS_BYTES_MAX);
            assert_eq!(Facts::decode(&bytes), Ok(facts));
        }
    }

    #[test]
    fn any_cut_or_flip_is_refused() {
        let bytes = facts().encode();
        for cut in 0..bytes.len() {
            assert!(Facts::decode(&bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Facts::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
