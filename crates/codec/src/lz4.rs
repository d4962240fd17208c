//! `lz4`: one LZ4 block after the frame's header.

use lz4_flex::block;

use crate::frame_header::{FrameHeader, HEADER_LEN};
use crate::pieces::{gather, scatter, total_len_mut};
use crate::{Chunk, Error, Scratch, Stage, StageId, StageKind};

/// The most raw bytes of one chunk: LZ4's own limit for a block.
pub const LZ4_RAW_BYTES_MAX: usize = 0x7e00_0000;

const VERSION: u8 = 1;

/// LZ4 in its block format. It refuses chunks that do not become smaller.
///
/// A frame has no checksum: the caller's digest of the raw bytes proves the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lz4;

impl Stage for Lz4 {
    fn id(&self) -> StageId {
        StageId::LZ4
    }

    fn kind(&self) -> StageKind {
        StageKind::Compression
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        if raw_len > LZ4_RAW_BYTES_MAX {
            let why =
                format!("{raw_len} bytes are more than LZ4 takes at once ({LZ4_RAW_BYTES_MAX})");
            return Err(Error::invalid(why));
        }
        Ok(HEADER_LEN + block::get_maximum_output_size(raw_len))
    }

    fn encode(
        &self,
        _: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        let raw = gather(raw, &mut scratch.spare);
        let (bound, space) = (self.bound(raw.len())?, out.len());
        let Some((header, payload)) =
            out.split_first_chunk_mut::<HEADER_LEN>().filter(|_| space >= bound)
        else {
            return Err(Error::invalid(format!("a buffer of {space} bytes, not {bound}")));
        };
        *header = FrameHeader::new(self.id(), VERSION, raw.len()).to_bytes();
        let len = block::compress_into(raw, payload).map_err(|error| {
            Error::invalid(format!("{} bytes do not fit {space} with LZ4: {error}", raw.len()))
        })?;
        let len = HEADER_LEN + len;
        Ok((len < raw.len()).then_some(len))
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
        // The raw length comes from a record on a medium. No encoder here ever wrote such a chunk.
        if raw_len > LZ4_RAW_BYTES_MAX {
            return Err(Error::corrupt(format!(
                "{raw_len} bytes are more than LZ4 writes at once"
            )));
        }
        scatter(raw, &mut scratch.spare, |raw| match block::decompress_into(payload, raw) {
            // A block does not state its length: one that ends early is a valid block of another
            // chunk.
            Ok(len) if len == raw_len => Ok(()),
            Ok(len) => {
                Err(Error::corrupt(format!("the LZ4 block holds {len} bytes, not {raw_len}")))
            }
            Err(error) => Err(Error::corrupt(format!("no LZ4 block of {raw_len} bytes: {error}"))),
        })
    }
}
