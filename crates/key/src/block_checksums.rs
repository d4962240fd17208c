use std::sync::OnceLock;

#[cfg(not(kvtier_unchecked))]
use crc_fast::checksum;
use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum_combine};

/// The most blocks a chunk is summed in.
pub const BLOCKS_MAX: usize = 64;
/// The smallest block in bytes; chunks up to this size are one block.
pub const BLOCK_BYTES_MIN: u64 = 64 * 1024;

/// CRC32C of each block of a chunk. The block size follows from the length alone: the smallest
/// power of two, at least [`BLOCK_BYTES_MIN`], that gives at most [`BLOCKS_MAX`] blocks.
///
/// ```
/// use kvtier_key::BlockSums;
///
/// let chunk = vec![7u8; 1 << 20];
/// let sums = BlockSums::from_bytes(&chunk);
/// assert_eq!(sums.len(), 1 << 20);
/// // The same bytes in pieces, such as the parts of a scattered buffer.
/// assert_eq!(BlockSums::from_pieces(chunk.chunks(1000)), sums);
///
/// let mut damaged = chunk;
/// damaged[12345] ^= 1;
/// assert_ne!(BlockSums::from_bytes(&damaged), sums);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSums {
    len: u64,
    crcs: Box<[u32]>,
}

impl BlockSums {
    /// The block size in bytes for a chunk of `len` bytes.
    pub fn block_bytes(len: u64) -> u64 {
        // A power of two, so that every power-of-two unit up to the minimum fits into one block.
        len.div_ceil(BLOCKS_MAX as u64).max(BLOCK_BYTES_MIN).next_power_of_two()
    }

    /// The number of blocks of a chunk of `len` bytes.
    pub fn blocks(len: u64) -> usize {
        len.div_ceil(Self::block_bytes(len)) as usize
    }

    /// Sums contiguous bytes in one pass.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let block = Self::block_bytes(bytes.len() as u64) as usize;
        BlockSums { len: bytes.len() as u64, crcs: bytes.chunks(block).map(crc32c).collect() }
    }

    /// Sums a chunk in several pieces, in order, in one pass.
    pub fn from_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]> + Clone) -> Self {
        // The block size follows from the length, so the length is needed before the first byte is
        // summed.
        let len = pieces.clone().into_iter().map(|p| p.len() as u64).sum();
        let mut sums = PieceSums::new(len);
        let mut offset = 0;
        for piece in pieces {
            sums.piece(offset, piece);
            offset += piece.len() as u64;
        }
        sums.finish().expect("pieces in order cover the chunk")
    }

    /// Rebuilds sums that were stored: `None` unless the count of `crcs` fits `len`.
    pub fn from_parts(len: u64, crcs: &[u32]) -> Option<Self> {
        (crcs.len() == Self::blocks(len)).then(|| BlockSums { len, crcs: crcs.into() })
    }

    /// The chunk's length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the chunk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC32C of each block, in order.
    pub fn crcs(&self) -> &[u32] {
        &self.crcs
    }

    /// CRC32C of the whole chunk, combined from its blocks.
    pub fn whole(&self) -> u32 {
        let Some((last, full)) = self.crcs.split_last() else { return 0 };
        let block = Self::block_bytes(self.len);
        let head = full.iter().fold(0, |crc, next| shifted(crc, block) ^ next);
        let left = self.len - full.len() as u64 * block;
        shifted(head, left) ^ last
    }
}

/// What `crc` contributes to a sum that goes on for `bytes`. The general way to combine two sums takes
/// microseconds; this takes nanoseconds for each power of two of which `bytes` is the sum.
fn shifted(crc: u32, bytes: u64) -> u32 {
    if crc == 0 {
        return 0;
    }
    let powers = (0..u64::BITS).filter(|power| bytes >> power & 1 == 1);
    powers.fold(crc, shifted_by_power)
}

/// The same for two to the `power` bytes.
fn shifted_by_power(crc: u32, power: u32) -> u32 {
    /// For each power of two, what each byte of a sum contributes, by its place.
    static TABLES: [OnceLock<Box<[[u32; 256]; 4]>>; 64] = [const { OnceLock::new() }; 64];
    // A CRC is linear over GF(2): what it contributes after `bytes` more zeros is the XOR of what
    // each of its bits contributes.
    let tables = TABLES[power as usize].get_or_init(|| {
        let of_bit =
            |bit: usize| checksum_combine(Crc32Iscsi, 1u64 << bit, 0, 1u64 << power) as u32;
        let bits: [u32; 32] = std::array::from_fn(of_bit);
        let of = |value: u32| {
            (0..32).filter(|bit| value >> bit & 1 == 1).fold(0, |sum, bit| sum ^ bits[bit])
        };
        // One lookup for each of the four bytes instead of 32 single bits.
        Box::new(std::array::from_fn(|place| {
            std::array::from_fn(|byte| of((byte as u32) << (8 * place)))
        }))
    });
    tables
        .iter()
        .zip(crc.to_le_bytes())
        .fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
}

/// Sums of a chunk whose pieces arrive in any order: each piece may start and end anywhere, but no
/// byte may come twice.
///
/// ```
/// use kvtier_key::{BlockSums, PieceSums};
///
/// let chunk: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
/// let mut sums = PieceSums::new(chunk.len() as u64);
/// // Two ranges of a parallel download, the later one first.
/// sums.piece(60_000, &chunk[60_000..]);
/// sums.piece(0, &chunk[..60_000]);
/// assert_eq!(sums.finish(), Some(BlockSums::from_bytes(&chunk)));
/// ```
#[derive(Clone, Debug)]
pub struct PieceSums {
    len: u64,
    parts: Vec<(u64, u64, u32)>,
}

impl PieceSums {
    /// Sums for a chunk of `len` bytes of which nothing has arrived.
    pub fn new(len: u64) -> Self {
        PieceSums { len, parts: Vec::with_capacity(BlockSums::blocks(len)) }
    }

    /// Adds the bytes at `offset` of the chunk.
    pub fn piece(&mut self, offset: u64, bytes: &[u8]) {
        let block = BlockSums::block_bytes(self.len);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            // A piece is cut where a block ends: the part sums of one block must combine without
            // bytes of the next.
            let n = (block - at % block).min(rest.len() as u64);
            let (head, tail) = rest.split_at(n as usize);
            self.parts.push((at, n, crc32c(head)));
            at += n;
            rest = tail;
        }
    }

    /// Adds bytes whose sums are known: the CRC32C of each of as many units of `unit` bytes as
    /// `crcs` has, contiguous from `offset` of the chunk. A unit is a power
    /// of two of at most [`BLOCK_BYTES_MIN`], and `offset` a multiple of it, so that none falls in
    /// two blocks; whatever else is given is never equal to the sums of a chunk.
    pub fn units(&mut self, offset: u64, unit: u64, crcs: &[u32]) {
        if !unit.is_power_of_two() || unit > BLOCK_BYTES_MIN || !offset.is_multiple_of(unit) {
            // Twice the first byte covers no chunk exactly once.
            return self.parts.extend([(0, 1, 0), (0, 1, 0)]);
        }
        let block = BlockSums::block_bytes(self.len);
        let mut at = offset;
        let mut rest = crcs;
        while !rest.is_empty() {
            // As in `piece`, but in whole units: the block size is a multiple of the unit.
            let n = ((block - at % block) / unit).min(rest.len() as u64);
            let (head, tail) = rest.split_at(n as usize);
            self.parts.push((
                at,
                n * unit,
                head.iter().fold(0, |crc, next| shifted(crc, unit) ^ next),
            ));
            at += n * unit;
            rest = tail;
        }
    }

    /// The sums, or `None` when the pieces do not cover the chunk exactly once.
    pub fn finish(mut self) -> Option<BlockSums> {
        // By offset, since pieces arrive in any order.
        self.parts.sort_unstable();
        let block = BlockSums::block_bytes(self.len);
        let mut crcs: Vec<u32> = Vec::with_capacity(BlockSums::blocks(self.len));
        let mut at = 0;
        for (offset, n, crc) in self.parts {
            // A gap or an overlap. Either way some byte is not proven, so there is no sum at all.
            if offset != at {
                return None;
            }
            match crcs.last_mut() {
                // Still inside the block that an earlier part began.
                Some(last) if at % block != 0 => *last = shifted(*last, n) ^ crc,
                _ => crcs.push(crc),
            }
            at += n;
        }
        (at == self.len).then(|| BlockSums { len: self.len, crcs: crcs.into() })
    }
}

/// CRC32C of `bytes`.
#[cfg(not(kvtier_unchecked))]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(Crc32Iscsi, bytes) as u32
}

/// No sum at all, for benchmarks that measure what the checksums cost. It is a flag of the compiler
/// and not a feature, so that no dependency and no configuration can turn verification off.
#[cfg(kvtier_unchecked)]
pub(crate) fn crc32c(_bytes: &[u8]) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_sum_to_the_whole() {
        let bytes: Vec<u8> = (0..300_001u32).map(|i| (i * 31) as u8).collect();
        let whole = BlockSums::from_bytes(&bytes);
        let mut sums = PieceSums::new(bytes.len() as u64);
        for range in [(100_000, 300_001), (0, 7), (7, 100_000)] {
            sums.piece(range.0 as u64, &bytes[range.0..range.1]);
        }
        assert_eq!(sums.finish().unwrap(), whole);
        assert_eq!(whole.whole(), crc32c(&bytes));
    }

    #[test]
    fn units_whose_sums_are_known_count_as_their_bytes() {
        let bytes: Vec<u8> = (0..5 << 20u32).map(|i| (i * 31 + i / 1000) as u8).collect();
        for (len, unit) in [(5 << 20, 2048), (300_000, 4096), (70_000, 65_536), (6000, 8)] {
            let bytes = &bytes[..len];
            let crcs: Vec<u32> = bytes.chunks_exact(unit).map(crc32c).collect();
            let cut = crcs.len() / 3;
            let whole = crcs.len() * unit;
            let mut sums = PieceSums::new(len as u64);
            sums.piece(whole as u64, &bytes[whole..]);
            sums.units((cut * unit) as u64, unit as u64, &crcs[cut..]);
            sums.units(0, unit as u64, &crcs[..cut]);
            assert_eq!(
                sums.finish().unwrap(),
                BlockSums::from_bytes(bytes),
                "{len} bytes in units of {unit}"
            );
        }
        for (offset, unit) in [(0, 3), (0, 131_072), (1, 2048)] {
            let mut sums = PieceSums::new(unit);
            sums.units(offset, unit, &[0]);
            assert_eq!(sums.finish(), None, "{offset}, {unit}");
        }
    }

    #[test]
    fn blocks_combine_to_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..9 << 20u32).map(|i| (i * 31 + i / 1000) as u8).collect();
        let uneven = [65_537, 131_071, 471_097, (4 << 20) + 1, (9 << 20) - 1];
        let even = [0, 1, 65_535, 65_536, 131_072, 4 << 20, 9 << 20];
        for len in uneven.into_iter().chain(even) {
            assert_eq!(
                BlockSums::from_bytes(&bytes[..len]).whole(),
                crc32c(&bytes[..len]),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn only_the_sums_of_no_bytes_are_empty() {
        let empty = [0, 1, 70_000].map(|len| BlockSums::from_bytes(&vec![7; len]).is_empty());
        assert_eq!(empty, [true, false, false]);
    }
}
