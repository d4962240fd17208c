use kvtier_key::CodecId;
use lz4_flex::block;

use crate::{Codec, Error, ErrorKind};

/// The most raw bytes of one chunk: LZ4's own limit for a block.
pub const LZ4_RAW_BYTES_MAX: usize = 0x7e00_0000;

/// One LZ4 block, without any frame: the raw length stands in the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lz4;

impl Codec for Lz4 {
    fn id(&self) -> CodecId {
        CodecId(1)
    }

    fn name(&self) -> &'static str {
        "lz4"
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        if raw_len > LZ4_RAW_BYTES_MAX {
            let why =
                format!("{raw_len} bytes are more than LZ4 takes at once ({LZ4_RAW_BYTES_MAX})");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(block::get_maximum_output_size(raw_len))
    }

    fn encode(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        // Refuses payloads above the limit of LZ4 before anything is written.
        self.bound(raw.len())?;
        let space = out.len();
        block::compress_into(raw, out).map_err(|error| {
            let why = format!("{} bytes do not fit {space} with LZ4: {error}", raw.len());
            Error::new(ErrorKind::Invalid, why)
        })
    }

    fn decode(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        let corrupt = |why: String| Err(Error::new(ErrorKind::Corrupt, why));
        // The raw length comes from a record on a medium. No encoder here ever wrote such a chunk.
        if raw.len() > LZ4_RAW_BYTES_MAX {
            return corrupt(format!("{} raw bytes are more than LZ4 writes at once", raw.len()));
        }
        match block::decompress_into(stored, raw) {
            // A block does not state its length: one that ends early is a valid block of another
            // chunk.
            Ok(len) if len == raw.len() => Ok(()),
            Ok(len) => corrupt(format!("the LZ4 block holds {len} bytes, not {}", raw.len())),
            Err(error) => corrupt(format!("no LZ4 block of {} bytes: {error}", raw.len())),
        }
    }
}
