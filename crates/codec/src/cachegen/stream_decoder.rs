//! The arithmetic decoder of LMCache: a channel's stream becomes up to 256 symbols. Several channels
//! are decoded in turn, since their steps do not depend on each other.
//!
//! A stream has no checksum. Its length is checked: it must be what the decoded symbols take.

use super::stream_encoder::{BLOCK_TOKENS, LANES, STREAM_BYTES_MAX, Shares, write_shares};

// The most bits that 256 symbols can take, and what one read takes beyond.
const SPACE: usize = BLOCK_TOKENS * 18 / 8 + 16;
const TOP: u32 = 1 << 31;

/// The tables of one channel.
struct Tables {
    shares: Shares,
    /// By the first 8 bits of a position in the range: the first symbol that it can be.
    first: [u8; 256],
    last_symbol: u8,
}

impl Tables {
    const fn new() -> Self {
        Tables { shares: [0; 256], first: [0; 256], last_symbol: 0 }
    }

    /// For a CDF of up to 129 bins.
    fn load(&mut self, cdf: &[u16]) {
        write_shares(cdf, &mut self.shares);
        self.last_symbol = (cdf.len() - 2) as u8;
        let mut from = 0;
        for (symbol, end) in (0u8..).zip(&self.shares[1..cdf.len()]) {
            let to = end.div_ceil(256) as usize;
            if let Some(positions) = self.first.get_mut(from..to) {
                positions.fill(symbol);
            }
            from = to;
        }
    }

    /// The last symbol whose share begins at or below `position`.
    #[inline(always)]
    fn symbol(&self, position: u16) -> u8 {
        let mut symbol = self.first[usize::from(position >> 8)];
        while symbol < self.last_symbol
            && self.shares[usize::from(symbol) + 1] <= u32::from(position)
        {
            symbol += 1;
        }
        symbol
    }
}

/// The bytes of one stream, with zeros behind it.
struct Bytes([u8; SPACE]);

impl Bytes {
    fn load(&mut self, stream: &[u8]) {
        self.0[..stream.len()].copy_from_slice(stream);
        self.0[stream.len()..].fill(0);
    }
}

/// How far one stream is decoded.
#[derive(Clone, Copy)]
struct State {
    low: u32,
    /// The width of the range: 2^32 at first.
    span: u64,
    /// How much LMCache's registers are below the bits of the stream.
    base: u32,
    /// The bits that the symbols so far have taken.
    bits: u32,
}

impl State {
    const START: State = State { low: 0, span: 1 << 32, base: 0, bits: 0 };

    /// The 32 bits after those that were taken.
    #[inline(always)]
    fn value(&self, bytes: &Bytes) -> u32 {
        let at = (self.bits / 8) as usize;
        let bytes = bytes.0.get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>());
        let bytes = bytes.copied().unwrap_or_default();
        ((u64::from_be_bytes(bytes) << (self.bits % 8)) >> 32) as u32
    }

    #[inline(always)]
    fn next(&mut self, bytes: &Bytes, tables: &Tables) -> u8 {
        let above = (self.value(bytes) ^ self.base).wrapping_sub(self.low);
        let symbol = tables.symbol(scaled_position(above, self.span));
        let index = usize::from(symbol);
        let start = (self.span * u64::from(tables.shares[index])) >> 16;
        let end = (self.span * u64::from(tables.shares[(index + 1) % 256])) >> 16;
        self.span = end.wrapping_sub(start);
        let low = self.low.wrapping_add(start as u32);
        let high = low.wrapping_add(self.span.wrapping_sub(1) as u32);
        // As in the encoder. A table rises strictly, so both stay below 32.
        let same = (low ^ high).leading_zeros();
        let (low, high) = (low.unbounded_shl(same), high.unbounded_shl(same));
        let pending = ((low << 1) & !(high << 1)).leading_ones();
        let low = low.unbounded_shl(pending);
        self.low = if pending > 0 { low & !TOP } else { low };
        self.base = if pending > 0 {
            TOP
        } else if same > 0 {
            0
        } else {
            self.base
        };
        self.span = self.span.unbounded_shl(same + pending);
        self.bits += same + pending;
        symbol
    }

    /// How long the encoder makes a stream of the symbols so far: two bits end it.
    fn expected_bytes(&self) -> usize {
        (self.bits as usize + 2).div_ceil(8)
    }
}

/// Where `above` is in a range of `span`, in 2^16 steps: `((above + 1) * 2^16 - 1) / span`, rounded
/// down.
#[inline(always)]
fn scaled_position(above: u32, span: u64) -> u16 {
    // A double holds both sides exactly. The quotient is half a step less, and an odd number of
    // 2 * span-ths: at least 2^-33 from where rounding to an integer changes, and its own error is
    // below 2^-36. Adding 1.5 * 2^52 rounds it, below zero too, and leaves the integer in the low
    // bits.
    const ROUND: f64 = (3u64 << 51) as f64;
    let span = span as i64;
    let doubled = (i64::from(above) + 1) * 0x2_0000 - 2 - (span - 1);
    ((doubled as f64) / ((2 * span) as f64) + ROUND).to_bits() as u16
}

/// One channel's CDF and stream. The CDF has at least two entries and rises strictly.
#[derive(Clone, Copy)]
pub(super) struct Channel<'a> {
    pub(super) cdf: &'a [u16],
    pub(super) stream: &'a [u8],
}

/// Decodes several channels in turn.
pub(super) struct LaneDecoder {
    tables: [Tables; LANES],
    bytes: [Bytes; LANES],
}

impl LaneDecoder {
    pub(super) const fn new() -> Self {
        LaneDecoder {
            tables: [const { Tables::new() }; LANES],
            bytes: [const { Bytes([0; SPACE]) }; LANES],
        }
    }

    /// Writes the symbols of `tokens` tokens to the front of `symbols`. `None`: a stream is not one
    /// of as many symbols.
    pub(super) fn decode(
        &mut self,
        channels: [Channel<'_>; LANES],
        symbols: &mut [[u8; LANES]; BLOCK_TOKENS],
        tokens: usize,
    ) -> Option<()> {
        for (channel, (tables, bytes)) in
            channels.iter().zip(self.tables.iter_mut().zip(&mut self.bytes))
        {
            if channel.stream.len() > STREAM_BYTES_MAX {
                return None;
            }
            tables.load(channel.cdf);
            bytes.load(channel.stream);
        }
        let (tables, bytes) = (&self.tables, &self.bytes);
        let mut states = [State::START; LANES];
        for row in symbols.get_mut(..tokens)? {
            // One after the other: in a loop the states would be in memory.
            row[0] = states[0].next(&bytes[0], &tables[0]);
            row[1] = states[1].next(&bytes[1], &tables[1]);
            row[2] = states[2].next(&bytes[2], &tables[2]);
            row[3] = states[3].next(&bytes[3], &tables[3]);
        }
        let mut lanes = states.iter().zip(&channels);
        lanes.all(|(state, channel)| state.expected_bytes() == channel.stream.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_exact_at_every_boundary() {
        let spans = [1 << 30, (1 << 30) + 1, 0x5555_5555, (3 << 30) - 1, (1 << 32) - 1, 1 << 32];
        for span in spans {
            for step in (0..=0xffffu64).step_by(if cfg!(miri) { 999 } else { 1 }) {
                for nudge in -1..=1 {
                    let above = ((step * span) >> 16) as i64 + nudge;
                    let Ok(above) = u32::try_from(above) else { continue };
                    if u64::from(above) >= span {
                        continue;
                    }
                    let exact = ((u64::from(above) + 1) * 0x1_0000 - 1) / span;
                    assert_eq!(u64::from(scaled_position(above, span)), exact, "{above} of {span}");
                }
            }
        }
    }
}
