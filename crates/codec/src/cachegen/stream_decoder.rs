//! The arithmetic decoder of LMCache: a channel's stream becomes up to 256 symbols. Several channels
//! are decoded in turn, since their steps do not depend on each other.
//!
//! A stream has no checksum. Its length is checked: it must be what the decoded symbols take.

use super::stream_encoder::{BLOCK_TOKENS, LANES, STREAM_BYTES_MAX, Shares, write_shares};

// The most bits that 256 symbols can take, and what one read takes beyond.
const SPACE: usize = BLOCK_TOKENS * 18 / 8 + 16;
const TOP: u32 = 1 << 31;

/// The tables of one channel. `WIDTH` is at least its number of symbols.
struct Tables<const WIDTH: usize> {
    /// Where each symbol's share begins.
    starts: [u16; WIDTH],
    shares: Shares,
    last_symbol: u32,
}

impl<const WIDTH: usize> Tables<WIDTH> {
    const fn new() -> Self {
        Tables { starts: [u16::MAX; WIDTH], shares: [0; 256], last_symbol: 0 }
    }

    fn load(&mut self, cdf: &[u16]) {
        let bins = cdf.len() - 1;
        self.starts[..bins].copy_from_slice(&cdf[..bins]);
        write_shares(cdf, &mut self.shares);
        self.last_symbol = bins as u32 - 1;
    }

    /// The last symbol whose share begins at or below `count`.
    #[inline(always)]
    fn symbol(&self, count: u16) -> u32 {
        let at_or_below: u16 = self.starts.iter().map(|start| u16::from(*start <= count)).sum();
        // The first share begins at 0, so the sum is at least 1. Entries behind the last symbol
        // count where `count` is the greatest.
        u32::from(at_or_below).wrapping_sub(1).min(self.last_symbol)
    }
}

/// One stream under work.
struct Stream {
    low: u32,
    /// The width of the range: 2^32 at first.
    span: u64,
    /// How much LMCache's registers are below the bits of the stream.
    base: u32,
    /// The bits that the symbols so far have taken.
    bits: u32,
    bytes: [u8; SPACE],
}

impl Stream {
    const fn new() -> Stream {
        Stream { low: 0, span: 1 << 32, base: 0, bits: 0, bytes: [0; SPACE] }
    }

    fn load(&mut self, stream: &[u8]) {
        self.low = 0;
        self.span = 1 << 32;
        self.base = 0;
        self.bits = 0;
        self.bytes[..stream.len()].copy_from_slice(stream);
        self.bytes[stream.len()..].fill(0);
    }

    /// The 32 bits after those that were taken.
    #[inline(always)]
    fn value(&self) -> u32 {
        let at = (self.bits / 8) as usize;
        let bytes = self.bytes.get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>());
        let bytes = bytes.copied().unwrap_or_default();
        ((u64::from_be_bytes(bytes) << (self.bits % 8)) >> 32) as u32
    }

    #[inline(always)]
    fn next<const WIDTH: usize>(&mut self, tables: &Tables<WIDTH>) -> u8 {
        let above = (self.value() ^ self.base).wrapping_sub(self.low);
        // Below 2^48 over up to 2^32: a double holds both, and the quotient is as far from the next
        // integer as rounding cannot reach.
        let scaled = ((i64::from(above) + 1) * 0x1_0000 - 1) as f64;
        let count = (scaled / self.span as i64 as f64) as i32 as u16;
        let symbol = tables.symbol(count);
        let index = symbol as usize % 256;
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
        symbol as u8
    }

    /// How long the encoder makes a stream of the symbols so far: two bits end it.
    fn expected_bytes(&self) -> usize {
        (self.bits as usize + 2).div_ceil(8)
    }
}

/// One channel's CDF and stream. The CDF has at least two entries and rises strictly.
#[derive(Clone, Copy)]
pub(super) struct Channel<'a> {
    pub(super) cdf: &'a [u16],
    pub(super) stream: &'a [u8],
}

/// Decodes one block of several channels at once.
pub(super) trait LaneDecoder {
    /// Writes the symbols of `tokens` tokens to the front of `symbols`. `None`: a stream is not one
    /// of as many symbols.
    fn decode(
        &mut self,
        channels: [Channel<'_>; LANES],
        symbols: &mut [[u8; LANES]; BLOCK_TOKENS],
        tokens: usize,
    ) -> Option<()>;
}

/// The decoder for CDFs of `bins` bins.
pub(super) fn lane_decoder(bins: usize) -> Box<dyn LaneDecoder> {
    match bins {
        0..=16 => Box::new(Lanes::<16>::new()),
        17..=32 => Box::new(Lanes::<32>::new()),
        33..=64 => Box::new(Lanes::<64>::new()),
        _ => Box::new(Lanes::<136>::new()),
    }
}

struct Lanes<const WIDTH: usize> {
    tables: [Tables<WIDTH>; LANES],
    streams: [Stream; LANES],
}

impl<const WIDTH: usize> Lanes<WIDTH> {
    fn new() -> Self {
        Lanes {
            tables: [const { Tables::new() }; LANES],
            streams: [const { Stream::new() }; LANES],
        }
    }
}

impl<const WIDTH: usize> LaneDecoder for Lanes<WIDTH> {
    fn decode(
        &mut self,
        channels: [Channel<'_>; LANES],
        symbols: &mut [[u8; LANES]; BLOCK_TOKENS],
        tokens: usize,
    ) -> Option<()> {
        for (lane, channel) in channels.iter().enumerate() {
            if channel.stream.len() > STREAM_BYTES_MAX {
                return None;
            }
            self.tables[lane].load(channel.cdf);
            self.streams[lane].load(channel.stream);
        }
        for row in symbols.get_mut(..tokens)? {
            let lanes = self.streams.iter_mut().zip(&self.tables);
            for (symbol, (stream, tables)) in row.iter_mut().zip(lanes) {
                *symbol = stream.next(tables);
            }
        }
        let mut lanes = self.streams.iter().zip(&channels);
        lanes.all(|(stream, channel)| stream.expected_bytes() == channel.stream.len()).then_some(())
    }
}
