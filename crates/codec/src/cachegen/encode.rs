//! The steps from raw KV data to CDFs, maxima and streams.

use super::Bins;
use super::cdf::write_cdf;
use super::layout::{ChunkLayout, KeysOrValues};
use super::quantize::{Steps, quantize_token};
use super::stream_encoder::{
    BLOCK_TOKENS, Encoder, LANES, STREAM_BYTES_MAX, Shares, encode_lanes, write_shares,
};
use crate::float_type::Element;
use crate::{Error, ErrorKind};

/// What a container holds.
pub(super) struct Encoded {
    /// Entries of each CDF.
    pub(super) cdf_entries: usize,
    /// `[2 * layers, channels, cdf_entries]`.
    pub(super) cdf: Vec<u8>,
    /// `[layers, tokens, 1]`, of the raw data's type.
    pub(super) max_key: Vec<u8>,
    /// As `max_key`.
    pub(super) max_value: Vec<u8>,
    pub(super) blocks: Vec<EncodedBlock>,
}

impl Encoded {
    fn maxima(&self, which: KeysOrValues) -> &[u8] {
        match which {
            KeysOrValues::Keys => &self.max_key,
            KeysOrValues::Values => &self.max_value,
        }
    }
}

/// Up to 256 tokens.
pub(super) struct EncodedBlock {
    pub(super) tokens: usize,
    /// The streams of all channels of all layers' keys, then of the values.
    pub(super) streams: Vec<u8>,
    /// `[2 * layers, channels]` of 32 bits.
    pub(super) lengths: Vec<u8>,
}

/// Encodes a chunk. Errors: `Invalid`, a stream would be longer than LMCache reads.
pub(super) fn encode_chunk<E: Element>(
    raw: &[u8],
    layout: &ChunkLayout,
    bins: &Bins,
) -> Result<Encoded, Error> {
    encode::<E>(raw, layout, bins, None)
}

/// Encodes a chunk, and writes to `decoded` what it decodes to: the values of its symbols.
/// Errors: as of [`encode_chunk`].
pub(super) fn encode_and_quantize<E: Element>(
    raw: &[u8],
    layout: &ChunkLayout,
    bins: &Bins,
    decoded: &mut [u8],
) -> Result<Encoded, Error> {
    encode::<E>(raw, layout, bins, Some(decoded))
}

fn encode<E: Element>(
    raw: &[u8],
    layout: &ChunkLayout,
    bins: &Bins,
    mut decoded: Option<&mut [u8]>,
) -> Result<Encoded, Error> {
    let mut work = PlaneEncoder::new(layout, bins.most() + 1);
    for (which, layer) in layout.planes() {
        let layer_bins = match which {
            KeysOrValues::Keys => bins.key()[layer],
            KeysOrValues::Values => bins.value()[layer],
        };
        work.quantize::<E>(&raw[layout.plane(which, layer)], layer_bins, which);
        if let Some(decoded) = decoded.as_deref_mut() {
            let max_bytes = layout.tokens * E::BYTES;
            let maxima = &work.encoded.maxima(which)[layer * max_bytes..];
            let decoded = &mut decoded[layout.plane(which, layer)];
            let steps = Steps::new(layer_bins, bins.most());
            steps.dequantize_plane::<E>(&work.by_token, maxima, E::FLOAT, decoded);
        }
        work.encode_plane()?;
    }
    Ok(work.encoded)
}

/// The scratch space of one plane: the keys or the values of one layer.
struct PlaneEncoder {
    layout: ChunkLayout,
    /// `[tokens, channels]`.
    by_token: Vec<u8>,
    /// `[channels, tokens]`.
    by_channel: Vec<u8>,
    cdf: Vec<u16>,
    shares: [Shares; LANES],
    encoders: [Encoder; LANES],
    encoded: Encoded,
}

impl PlaneEncoder {
    fn new(layout: &ChunkLayout, cdf_entries: usize) -> PlaneEncoder {
        let symbols = layout.tokens * layout.shape.channels();
        let block_tokens =
            (0..layout.tokens).step_by(BLOCK_TOKENS).map(|at| BLOCK_TOKENS.min(layout.tokens - at));
        let blocks =
            block_tokens.map(|tokens| EncodedBlock { tokens, streams: vec![], lengths: vec![] });
        PlaneEncoder {
            layout: *layout,
            by_token: vec![0; symbols],
            by_channel: vec![0; symbols],
            cdf: vec![0; cdf_entries],
            shares: [[0; 256]; LANES],
            encoders: [const { Encoder::new() }; LANES],
            encoded: Encoded {
                cdf_entries,
                cdf: vec![],
                max_key: vec![],
                max_value: vec![],
                blocks: blocks.collect(),
            },
        }
    }

    fn quantize<E: Element>(&mut self, plane: &[u8], bins: u8, which: KeysOrValues) {
        let maxima = match which {
            KeysOrValues::Keys => &mut self.encoded.max_key,
            KeysOrValues::Values => &mut self.encoded.max_value,
        };
        let rows = plane.chunks_exact(self.layout.row_bytes());
        let channels = self.layout.shape.channels();
        for (row, symbols) in rows.zip(self.by_token.chunks_exact_mut(channels)) {
            let max = quantize_token::<E>(row, bins, symbols);
            let at = maxima.len();
            maxima.resize(at + E::BYTES, 0);
            E::write(max, &mut maxima[at..]);
        }
        transpose(&self.by_token, channels, &mut self.by_channel);
    }

    fn encode_plane(&mut self) -> Result<(), Error> {
        let channels = self.layout.shape.channels();
        let tokens = self.layout.tokens;
        for first in (0..channels).step_by(LANES) {
            let lanes = LANES.min(channels - first);
            // Lanes without a channel repeat the last one.
            let symbols: [&[u8]; LANES] = std::array::from_fn(|lane| {
                let channel = first + lane.min(lanes - 1);
                &self.by_channel[channel * tokens..][..tokens]
            });
            for (lane, (symbols, shares)) in symbols.iter().zip(&mut self.shares).enumerate() {
                write_cdf(symbols, &mut self.cdf);
                write_shares(&self.cdf, shares);
                if lane < lanes {
                    self.encoded.cdf.extend(self.cdf.iter().flat_map(|entry| entry.to_le_bytes()));
                }
            }
            for (index, block) in self.encoded.blocks.iter_mut().enumerate() {
                let start = index * BLOCK_TOKENS;
                let symbols = symbols.map(|lane| &lane[start..start + block.tokens]);
                self.encoders.iter_mut().for_each(Encoder::reset);
                encode_lanes(symbols, &self.shares, &mut self.encoders);
                for encoder in &mut self.encoders[..lanes] {
                    block.push(encoder.finish())?;
                }
            }
        }
        Ok(())
    }
}

impl EncodedBlock {
    fn push(&mut self, stream: &[u8]) -> Result<(), Error> {
        if stream.len() > STREAM_BYTES_MAX {
            let why = format!(
                "a channel's stream takes {} bytes, and LMCache reads {STREAM_BYTES_MAX}: use \
                 chunks of fewer tokens",
                stream.len(),
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        self.streams.extend_from_slice(stream);
        self.lengths.extend_from_slice(&(stream.len() as u32).to_le_bytes());
        Ok(())
    }
}

/// `rows` of `width` bytes become columns. By tiles, since each column is in other cache lines.
fn transpose(rows: &[u8], width: usize, columns: &mut [u8]) {
    const TILE: usize = 32;
    let height = rows.len() / width;
    for left in (0..width).step_by(TILE) {
        let right = (left + TILE).min(width);
        for top in (0..height).step_by(TILE) {
            let bottom = (top + TILE).min(height);
            for column in left..right {
                let out = &mut columns[column * height + top..column * height + bottom];
                for (byte, row) in out.iter_mut().zip(top..) {
                    *byte = rows[row * width + column];
                }
            }
        }
    }
}
