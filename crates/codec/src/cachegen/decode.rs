//! The steps from a container's CDFs, maxima and streams to raw KV data.

use super::Bins;
use super::cdf::is_cdf;
use super::container::Container;
use super::layout::{ChunkLayout, KeysOrValues};
use super::quantize::Steps;
use super::stream_decoder::{Channel, LaneDecoder};
use super::stream_encoder::{BLOCK_TOKENS, LANES};
use crate::float_type::Element;
use crate::{Error, ErrorKind};

/// Decodes a container whose extents are those of `layout` into `raw`.
pub(super) fn decode_chunk<E: Element>(
    container: &Container<'_>,
    layout: &ChunkLayout,
    bins: &Bins,
    raw: &mut [u8],
) -> Result<(), Error> {
    let mut work = PlaneDecoder::new(container, layout);
    for (plane, (which, layer)) in layout.planes().enumerate() {
        work.decode_plane(plane)?;
        let (bins, maxima) = match which {
            KeysOrValues::Keys => (bins.key()[layer], container.max_key),
            KeysOrValues::Values => (bins.value()[layer], container.max_value),
        };
        let max_bytes = layout.tokens * container.max_type.bytes();
        let maxima = &maxima[layer * max_bytes..][..max_bytes];
        let raw = &mut raw[layout.plane(which, layer)];
        let steps = Steps::new(bins, container.bins());
        steps.dequantize_plane::<E>(&work.symbols, maxima, container.max_type, raw);
    }
    Ok(())
}

struct PlaneDecoder<'a> {
    container: &'a Container<'a>,
    channels: usize,
    /// `[tokens, channels]` of the current plane.
    symbols: Vec<u8>,
    /// How far the streams of each block are read.
    positions: Vec<usize>,
    cdfs: Vec<u16>,
    lanes: Box<LaneDecoder>,
    rows: Box<[[u8; LANES]; BLOCK_TOKENS]>,
}

impl<'a> PlaneDecoder<'a> {
    fn new(container: &'a Container<'a>, layout: &ChunkLayout) -> Self {
        PlaneDecoder {
            container,
            channels: layout.shape.channels(),
            symbols: vec![0; layout.tokens * layout.shape.channels()],
            positions: vec![0; container.blocks.len()],
            cdfs: vec![0; LANES * container.cdf_entries],
            lanes: Box::new(LaneDecoder::new()),
            rows: Box::new([[0; LANES]; BLOCK_TOKENS]),
        }
    }

    fn decode_plane(&mut self, plane: usize) -> Result<(), Error> {
        for first in (0..self.channels).step_by(LANES) {
            let lanes = LANES.min(self.channels - first);
            let channel = plane * self.channels + first;
            self.load_cdfs(channel, lanes)?;
            let mut first_token = 0;
            for block in 0..self.container.blocks.len() {
                self.decode_block(block, channel, lanes)?;
                let tokens = self.container.blocks[block].tokens;
                let symbols = self.symbols[first_token * self.channels..]
                    .chunks_exact_mut(self.channels)
                    .take(tokens);
                for (row, decoded) in symbols.zip(self.rows.iter()) {
                    row[first..first + lanes].copy_from_slice(&decoded[..lanes]);
                }
                first_token += tokens;
            }
        }
        Ok(())
    }

    fn load_cdfs(&mut self, channel: usize, lanes: usize) -> Result<(), Error> {
        let entries = self.container.cdf_entries;
        let bytes = &self.container.cdf[channel * entries * 2..][..lanes * entries * 2];
        for (entry, bytes) in self.cdfs.iter_mut().zip(bytes.chunks_exact(2)) {
            *entry = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        if self.cdfs[..lanes * entries].chunks_exact(entries).all(is_cdf) {
            Ok(())
        } else {
            Err(corrupt("a CDF does not rise"))
        }
    }

    /// Decodes one block of `lanes` channels into `rows`.
    fn decode_block(&mut self, block: usize, channel: usize, lanes: usize) -> Result<(), Error> {
        let content = &self.container.blocks[block];
        let position = &mut self.positions[block];
        let entries = self.container.cdf_entries;
        // Lanes without a channel repeat the first one.
        let first = Channel { cdf: &self.cdfs[..entries], stream: &[] };
        let mut channels = [first; LANES];
        for (lane, decoded) in channels.iter_mut().enumerate().take(lanes) {
            let len = content.length(channel + lane);
            let stream =
                position.checked_add(len).and_then(|end| content.streams.get(*position..end));
            let stream =
                stream.ok_or_else(|| corrupt("the streams are shorter than their lengths"))?;
            *decoded = Channel { cdf: &self.cdfs[lane * entries..][..entries], stream };
            *position += len;
        }
        let repeated = channels[0];
        channels[lanes..].fill(repeated);
        let done = self.lanes.decode(channels, &mut self.rows, content.tokens);
        done.ok_or_else(|| corrupt("a stream has another length than its symbols take"))
    }
}

fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("CacheGen: {why}"))
}
