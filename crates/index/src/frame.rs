//! The frame that journal and snapshot share: a header of 32 bytes, then records. Integers are
//! little-endian.
//!
//! ```text
//!  0  magic    4 bytes: "KVTJ" (journal) or "KVTS" (snapshot)
//!  4  version  u16 = 2; 1 is read
//!  6  flags    u16: 1 = last frame of a snapshot; other bits are 0
//!  8  at_ms    u64: when it was written, Unix time in milliseconds
//! 16  number   u32: of the frame in its snapshot from 0; in a journal the low bits of the at_ms of the snapshot that it follows, or 0
//! 20  records  u32
//! 24  length   u32: of the records in bytes
//! 28  crc      u32: CRC32C of bytes 0..28 and the records
//! 32  records
//! ```

use kvtier_key::BlockSums;

use crate::chunk_record::ChunkEncoding;
use crate::fields::FieldReader;

const VERSION: u16 = 2;
/// Its records have 4 bytes that some other way of numbering tenants made: those are not followed.
const VERSION_1: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 32;
/// The most bytes of records that one frame has: what a reader may be made to look at before it
/// finds a fault.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Where reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadEnd {
    /// At the end of the bytes, and nothing was lost.
    Clean,
    /// At this byte: what follows is cut off, damaged, or not ours.
    Torn {
        /// Offset from the start of the bytes.
        at: usize,
    },
    /// At this byte: what follows has a version that this build does not read.
    Version {
        /// Offset from the start of the bytes.
        at: usize,
        /// That version.
        version: u16,
    },
}

/// What a header says, apart from lengths and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub magic: [u8; 4],
    pub flags: u16,
    pub at_ms: u64,
    pub number: u32,
}

/// A frame whose checksum held.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub head: FrameHeader,
    pub records: u32,
    pub body: &'a [u8],
    pub form: ChunkEncoding,
}

/// Appends a frame whose records `write` appends to the buffer; it answers how many.
pub(crate) fn encode(
    head: FrameHeader,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> u32,
) {
    let start = out.len();
    // Filled in below, when length and checksum of the records are known.
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let records = write(out);
    let body_len = out.len() - start - HEADER_BYTES;
    debug_assert!(body_len <= BODY_BYTES_MAX);
    let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
    header[0..4].copy_from_slice(&head.magic);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&head.flags.to_le_bytes());
    header[8..16].copy_from_slice(&head.at_ms.to_le_bytes());
    header[16..20].copy_from_slice(&head.number.to_le_bytes());
    header[20..24].copy_from_slice(&records.to_le_bytes());
    header[24..28].copy_from_slice(&(body_len as u32).to_le_bytes());
    let crc = crc(&header[..28], body);
    header[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// Reads frames of one magic from `bytes`, until the end or the first fault.
#[derive(Clone, Debug)]
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    magic: [u8; 4],
}

impl<'a> Frames<'a> {
    pub fn new(magic: [u8; 4], bytes: &'a [u8]) -> Self {
        Frames { bytes, at: 0, magic }
    }

    pub fn torn(&self) -> ReadEnd {
        ReadEnd::Torn { at: self.at }
    }

    /// The frame that comes next, without going on to the one after: see
    /// [`advance`](Self::advance).
    pub fn peek(&self) -> Result<Frame<'a>, ReadEnd> {
        if self.at == self.bytes.len() {
            return Err(ReadEnd::Clean);
        }
        let mut rest = FieldReader(&self.bytes[self.at..]);
        // A header that is cut off is torn too: the process may have been killed between any two
        // bytes.
        self.frame(&mut rest).ok_or(self.torn())?
    }

    /// Goes on past a frame that was read with [`peek`](Self::peek).
    pub fn advance(&mut self, frame: &Frame<'a>) {
        self.at += HEADER_BYTES + frame.body.len();
    }

    /// `None`: torn.
    fn frame(&self, rest: &mut FieldReader<'a>) -> Option<Result<Frame<'a>, ReadEnd>> {
        let header = rest.0;
        let magic = rest.array()?;
        let version = u16::from_le_bytes(rest.array()?);
        // The version is read before the magic is judged, but a foreign file has no version to
        // report.
        if magic != self.magic {
            return None;
        }
        // Before the checksum, whose place a later version may change.
        let form = match version {
            VERSION => ChunkEncoding::Digested,
            VERSION_1 => ChunkEncoding::Numbered,
            _ => return Some(Err(ReadEnd::Version { at: self.at, version })),
        };
        let flags = u16::from_le_bytes(rest.array()?);
        let at_ms = rest.u64()?;
        let number = rest.u32()?;
        let records = rest.u32()?;
        let length = rest.u32()?;
        let stored = rest.u32()?;
        // The length is not verified yet. The bound keeps a damaged one from a checksum over the
        // whole file.
        let body = rest.take((length as usize).min(BODY_BYTES_MAX + 1))?;
        // One checksum over header and records: a frame is accepted as a whole or not at all.
        if body.len() > BODY_BYTES_MAX || crc(&header[..28], body) != stored {
            return None;
        }
        Some(Ok(Frame { head: FrameHeader { magic, flags, at_ms, number }, records, body, form }))
    }
}

fn crc(header: &[u8], body: &[u8]) -> u32 {
    BlockSums::from_pieces([header, body]).whole()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 4] = *b"TEST";

    /// A frame with the most bytes of records, and a checksum that holds.
    fn longest() -> Vec<u8> {
        let mut bytes = Vec::new();
        let head = FrameHeader { magic: MAGIC, flags: 0, at_ms: 7, number: 0 };
        encode(head, &mut bytes, |out| {
            out.resize(HEADER_BYTES + BODY_BYTES_MAX, 5);
            1
        });
        bytes
    }

    #[test]
    fn a_frame_with_the_most_bytes_is_read() {
        let bytes = longest();
        let mut frames = Frames::new(MAGIC, &bytes);
        let frame = frames.peek().unwrap();
        assert_eq!((frame.body.len(), frame.records), (BODY_BYTES_MAX, 1));
        frames.advance(&frame);
        assert_eq!(frames.peek().unwrap_err(), ReadEnd::Clean);
    }

    #[test]
    fn a_frame_with_one_byte_too_many_is_torn_even_if_its_checksum_holds() {
        let mut bytes = longest();
        bytes.push(5);
        bytes[24..28].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
        // A checksum of all, and one of as much as a frame may have.
        for end in [bytes.len(), bytes.len() - 1] {
            let sum = crc(&bytes[..28], &bytes[HEADER_BYTES..end]);
            bytes[28..32].copy_from_slice(&sum.to_le_bytes());
            let frames = Frames::new(MAGIC, &bytes);
            assert_eq!(frames.peek().unwrap_err(), ReadEnd::Torn { at: 0 });
        }
    }
}
