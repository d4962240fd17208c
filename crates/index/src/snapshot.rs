//! A snapshot: the chunks of an index in the order of use, the most recent first, so that of a torn
//! one the most useful part survives.
//!
//! It is a row of numbered frames, the last of them marked; a record is 76 bytes: digest 32, length
//! u64, bytes u64, parent's tag u64 (0 = none), depth u32, tenant 16 bytes; in version 1, 4 that
//! say nothing. It can be written in pieces: see [`SnapshotEncoder`].

use crate::chunk_record::{CHUNK_BYTES, put_chunk};
use crate::fields::FieldReader;
use crate::frame::{self, BODY_BYTES_MAX, Frame, FrameHeader, Frames};
use crate::{Chunk, ReadEnd};

const MAGIC: [u8; 4] = *b"KVTS";
// Bit 0 of the flags. An empty frame has it, so that a snapshot without chunks has an end too.
const LAST: u16 = 1;

/// The most chunks in one frame of a snapshot, which has then 1 MiB.
pub const FRAME_CHUNKS_MAX: usize = BODY_BYTES_MAX / CHUNK_BYTES;

/// Encodes a snapshot piece by piece.
///
/// ```
/// use kvtier_index::{Chunk, snapshot};
/// use kvtier_key::Digest;
///
/// let chunks = [1u8, 2].map(|n| Chunk::new(Digest::derive("example", &[n]), 1000, 4096));
/// let mut bytes = Vec::new();
/// let mut encoder = snapshot::SnapshotEncoder::new(1_790_000_000_000);
/// encoder.write(&chunks, &mut bytes);
/// encoder.finish(&mut bytes);
///
/// assert_eq!(snapshot::decode(&bytes).flatten().collect::<Vec<_>>(), chunks);
/// // A torn snapshot yields the chunks before the tear, the most recent ones.
/// let torn = snapshot::decode(&bytes[..bytes.len() - 1]);
/// assert_eq!(torn.flatten().count(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct SnapshotEncoder {
    at_ms: u64,
    number: u32,
}

impl SnapshotEncoder {
    /// A snapshot taken at `at_ms`, Unix time in milliseconds.
    pub fn new(at_ms: u64) -> Self {
        SnapshotEncoder { at_ms, number: 0 }
    }

    /// Appends the next chunks, which are less recent than the ones before, to `out`.
    pub fn write(&mut self, chunks: &[Chunk], out: &mut Vec<u8>) {
        for chunks in chunks.chunks(FRAME_CHUNKS_MAX) {
            self.frame(0, chunks, out);
        }
    }

    /// Appends the end. A snapshot without one is torn.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.frame(LAST, &[], out);
    }

    fn frame(&mut self, flags: u16, chunks: &[Chunk], out: &mut Vec<u8>) {
        frame::encode(
            FrameHeader { magic: MAGIC, flags, at_ms: self.at_ms, number: self.number },
            out,
            |out| {
                chunks.iter().for_each(|chunk| put_chunk(chunk, out));
                chunks.len() as u32
            },
        );
        self.number += 1;
    }
}

/// Reads the snapshot in `bytes` until its end or the first fault. Any bytes may be given.
pub fn decode(bytes: &[u8]) -> SnapshotChunks<'_> {
    SnapshotChunks { frames: Frames::new(MAGIC, bytes), number: 0, at_ms: None, end: None }
}

/// The pieces of a snapshot, each at most [`FRAME_CHUNKS_MAX`] chunks: the most recent first. Holds
/// one at a time.
#[derive(Clone, Debug)]
pub struct SnapshotChunks<'a> {
    frames: Frames<'a>,
    number: u32,
    at_ms: Option<u64>,
    end: Option<ReadEnd>,
}

impl<'a> SnapshotChunks<'a> {
    /// When it was taken, Unix time in milliseconds; `None` before the first piece was read.
    pub fn at_ms(&self) -> Option<u64> {
        self.at_ms
    }

    /// Where reading stopped, [`ReadEnd::Clean`] only at the end of a whole snapshot; `None` before it
    /// did.
    pub fn end(&self) -> Option<ReadEnd> {
        self.end
    }

    /// The next frame, if it belongs to the same snapshot and comes next in it.
    fn read(&self) -> Result<(Frame<'a>, Vec<Chunk>), ReadEnd> {
        // A snapshot ends with its last frame, not where the bytes do.
        let frame = self
            .frames
            .peek()
            .map_err(|end| if end == ReadEnd::Clean { self.frames.torn() } else { end })?;
        // Guards against frames of an older and longer snapshot in the same file: each has a valid
        // checksum, but not the number or the time.
        let follows = frame.head.number == self.number
            && self.at_ms.is_none_or(|at_ms| at_ms == frame.head.at_ms);
        let chunks = chunks(&frame).filter(|_| follows).ok_or(self.frames.torn())?;
        Ok((frame, chunks))
    }
}

impl Iterator for SnapshotChunks<'_> {
    type Item = Vec<Chunk>;

    fn next(&mut self) -> Option<Vec<Chunk>> {
        if self.end.is_some() {
            return None;
        }
        match self.read() {
            Ok((frame, chunks)) => {
                self.frames.advance(&frame);
                self.number += 1;
                self.at_ms = Some(frame.head.at_ms);
                if frame.head.flags != LAST {
                    return Some(chunks);
                }
                // Bytes behind the end belong to no snapshot that this build wrote.
                let beyond = self.frames.peek().err() != Some(ReadEnd::Clean);
                self.end = Some(if beyond { self.frames.torn() } else { ReadEnd::Clean });
            }
            Err(end) => self.end = Some(end),
        }
        None
    }
}

/// The chunks of a frame; `None` unless they are what its header says.
fn chunks(frame: &Frame<'_>) -> Option<Vec<Chunk>> {
    let whole = frame.body.len() == frame.records as usize * frame.form.chunk_bytes();
    // Only the last frame may be empty, and it must be: so an end is never mistaken for a piece.
    let counts_match = match frame.head.flags {
        0 => frame.records > 0,
        LAST => frame.records == 0,
        _ => false,
    };
    let mut fields = FieldReader(frame.body);
    (whole && counts_match).then(|| std::iter::from_fn(|| fields.chunk(frame.form)).collect())
}

#[cfg(test)]
mod tests {
    use kvtier_key::Digest;

    use super::*;

    #[test]
    fn only_the_last_frame_is_empty_and_it_must_be() {
        let chunks = [1, 2].map(|n| Chunk::new(Digest([n; 32]), 1, 1));
        for (flags, chunks) in [(LAST, &chunks[..]), (0, &[]), (2, &chunks[..])] {
            let mut bytes = Vec::new();
            SnapshotEncoder::new(7).frame(flags, chunks, &mut bytes);
            let mut pieces = decode(&bytes);
            assert_eq!(pieces.by_ref().count(), 0, "{flags} and {}", chunks.len());
            assert_eq!(pieces.end(), Some(ReadEnd::Torn { at: 0 }));
        }
    }
}
