//! `zstd`: one Zstandard frame after our own header.

use crate::frame_header::{FrameHeader, HEADER_LEN};
use crate::pieces::{gather, scatter, total_len_mut};
use crate::{Chunk, Error, Scratch, Stage, StageId, StageKind};

const VERSION: u8 = 1;

/// Zstandard at one of its levels. It refuses chunks that do not become smaller.
///
/// A frame has no checksum: the caller's digest of the raw bytes proves the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zstd {
    level: i32,
}

impl Default for Zstd {
    /// Level 1: KV data gains little from more.
    fn default() -> Self {
        Zstd { level: 1 }
    }
}

impl Zstd {
    /// The levels that can be set: faster ones are below 1. Those above 19 look back up to 128 MiB:
    /// encoders and decoders would need that much memory for each chunk.
    pub const LEVELS: std::ops::RangeInclusive<i32> = -7..=19;

    /// The stage at `level`.
    ///
    /// # Errors
    /// `Invalid`: none of `LEVELS`.
    pub fn with_level(level: i32) -> Result<Self, Error> {
        let (first, last) = Self::LEVELS.into_inner();
        if level == 0 || !Self::LEVELS.contains(&level) {
            let why = format!("zstd has no level {level}: set one from {first} to {last}, not 0");
            return Err(Error::invalid(why));
        }
        Ok(Zstd { level })
    }

    /// Its level.
    pub fn level(self) -> i32 {
        self.level
    }
}

impl Stage for Zstd {
    fn id(&self) -> StageId {
        StageId::ZSTD
    }

    fn kind(&self) -> StageKind {
        StageKind::Compression
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        // Only what is smaller is kept.
        let too_long = || Error::invalid(format!("{raw_len} bytes are too many"));
        raw_len.checked_add(HEADER_LEN).ok_or_else(too_long)
    }

    fn encode(
        &self,
        _: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        let raw = gather(raw, &mut scratch.spare);
        if raw.len() <= HEADER_LEN {
            return Ok(None);
        }
        let space = out.len();
        let limited = out.get_mut(..raw.len() - 1).and_then(|out| out.split_first_chunk_mut());
        let Some((header, payload)) = limited else {
            return Err(Error::invalid(format!(
                "a buffer of {space} bytes for {} raw ones",
                raw.len()
            )));
        };
        *header = FrameHeader::new(self.id(), VERSION, raw.len()).to_bytes();
        let compressor = scratch.zstd.compressor(self.level).map_err(failed)?;
        // It fails where the frame does not fit, and that is where nothing is gained.
        let len = compressor.compress_to_buffer(raw, payload).ok();
        Ok(len.map(|len| HEADER_LEN + len))
    }

    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error> {
        Ok(FrameHeader::read(stored, self.id(), VERSION)?.0.raw_len)
    }

    fn decode(
        &self,
        _: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let raw_len = total_len_mut(raw);
        let payload = FrameHeader::payload(stored, self.id(), VERSION, raw_len)?;
        let decompressor = scratch.zstd.decompressor().map_err(failed)?;
        scatter(raw, &mut scratch.spare, |raw| {
            // Decompressing at once into the caller's memory needs no window besides it.
            match decompressor.decompress_to_buffer(payload, raw) {
                Ok(len) if len == raw_len => Ok(()),
                Ok(len) => {
                    let why = format!("the Zstandard frame holds {len} bytes, not {raw_len}");
                    Err(Error::corrupt(why))
                }
                Err(error) => {
                    let why = format!("no Zstandard frame of {raw_len} bytes: {error}");
                    Err(Error::corrupt(why))
                }
            }
        })
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::invalid(format!("zstd's working memory cannot be made: {error}"))
}
