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

use kvtier_key::{BlockSums, Digest};

use crate::{Chunk, DigestTag, TenantId};

const VERSION: u16 = 2;
/// Its records have 4 bytes that some other way of numbering tenants made: those are not followed.
const VERSION_1: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 32;
/// The most bytes of records that one frame has: what a reader may be made to look at before it
/// finds a fault.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// A chunk as a record: digest 32, length u64, bytes u64, parent's tag u64 (0 = none), depth u32,
/// tenant 16 bytes (all 0: none).
pub(crate) const CHUNK_BYTES: usize = 76;
/// The same in version 1, whose tenants had 4 bytes.
const CHUNK_BYTES_1: usize = 64;

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

/// How a chunk is spelled in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkEncoding {
    /// Version 1: whose it is remains unknown.
    Numbered,
    /// Version 2.
    Digested,
}

impl ChunkEncoding {
    /// Bytes of a chunk.
    pub fn chunk_bytes(self) -> usize {
        match self {
            ChunkEncoding::Numbered => CHUNK_BYTES_1,
            ChunkEncoding::Digested => CHUNK_BYTES,
        }
    }
}

/// Appends a frame whose records `write` appends to the buffer; it answers how many.
pub(crate) fn encode(
    head: FrameHeader,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> u32,
) {
    let start = out.len();
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
        let mut rest = Fields(&self.bytes[self.at..]);
        self.frame(&mut rest).ok_or(self.torn())?
    }

    /// Goes on past a frame that was read with [`peek`](Self::peek).
    pub fn advance(&mut self, frame: &Frame<'a>) {
        self.at += HEADER_BYTES + frame.body.len();
    }

    /// `None`: torn.
    fn frame(&self, rest: &mut Fields<'a>) -> Option<Result<Frame<'a>, ReadEnd>> {
        let header = rest.0;
        let magic = rest.array()?;
        let version = u16::from_le_bytes(rest.array()?);
        if magic != self.magic {
            return None;
        }
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

/// Appends a chunk as a record of [`CHUNK_BYTES`].
pub(crate) fn put_chunk(chunk: &Chunk, out: &mut Vec<u8>) {
    out.extend_from_slice(chunk.digest.as_bytes());
    out.extend_from_slice(&chunk.len.to_le_bytes());
    out.extend_from_slice(&chunk.bytes.to_le_bytes());
    out.extend_from_slice(&chunk.parent.map_or(0, DigestTag::as_u64).to_le_bytes());
    out.extend_from_slice(&chunk.depth.to_le_bytes());
    out.extend_from_slice(&chunk.tenant.to_bytes());
}

/// Takes little-endian fields from the front of bytes; `None` when they run out.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn digest(&mut self) -> Option<Digest> {
        self.array().map(Digest)
    }

    pub fn chunk(&mut self, form: ChunkEncoding) -> Option<Chunk> {
        let chunk = Chunk::new(self.digest()?, self.u64()?, self.u64()?);
        let parent = DigestTag::from_u64(self.u64()?);
        let depth = self.u32()?;
        let tenant = match form {
            ChunkEncoding::Digested => TenantId::from_bytes(self.array()?),
            ChunkEncoding::Numbered => self.u32().map(|_| TenantId::NONE)?,
        };
        Some(Chunk { parent, depth, tenant, ..chunk })
    }
}

fn crc(header: &[u8], body: &[u8]) -> u32 {
    BlockSums::from_pieces([header, body]).whole()
}
