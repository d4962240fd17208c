//! The coder written bit by bit as LMCache has it, to test the fast ones against.

use proptest::prelude::*;

use super::cdf::{is_cdf, write_cdf};
use super::stream_decoder::{Channel, LaneDecoder};
use super::stream_encoder::{BLOCK_TOKENS, Encoder, LANES, encode_lanes, write_shares};

#[derive(Default)]
struct Bits {
    bits: Vec<bool>,
    pending: usize,
}

impl Bits {
    fn put(&mut self, bit: bool) {
        self.bits.push(bit);
        self.bits.extend(std::iter::repeat_n(!bit, std::mem::take(&mut self.pending)));
    }

    fn bytes(&self) -> Vec<u8> {
        let byte = |bits: &[bool]| {
            (0..8).fold(0, |byte, i| byte << 1 | u8::from(bits.get(i) == Some(&true)))
        };
        self.bits.chunks(8).map(byte).collect()
    }
}

fn share(cdf: &[u16], symbol: usize) -> (u64, u64) {
    let last = cdf.len() - 2;
    let end = if symbol == last { 0x1_0000 } else { u64::from(cdf[symbol + 1]) };
    (u64::from(cdf[symbol]), end)
}

/// LMCache's `_encode_single_channel`.
pub(super) fn encode(cdf: &[u16], symbols: &[u8]) -> Vec<u8> {
    let (mut low, mut high) = (0u32, u32::MAX);
    let mut out = Bits::default();
    for symbol in symbols {
        let (start, end) = share(cdf, usize::from(*symbol));
        let span = u64::from(high) - u64::from(low) + 1;
        high = (u64::from(low) + ((span * end) >> 16) - 1) as u32;
        low = (u64::from(low) + ((span * start) >> 16)) as u32;
        loop {
            if high < 1 << 31 || low >= 1 << 31 {
                out.put(low >= 1 << 31);
                low <<= 1;
                high = high << 1 | 1;
            } else if low >= 1 << 30 && high < 3 << 30 {
                out.pending += 1;
                low = low << 1 & 0x7fff_ffff;
                high = high << 1 | 0x8000_0001;
            } else {
                break;
            }
        }
    }
    out.pending += 1;
    out.put(low >= 1 << 30);
    out.bytes()
}

/// LMCache's `_decode_single_channel`.
fn decode(cdf: &[u16], stream: &[u8], tokens: usize) -> Vec<u8> {
    let bit = |at: usize| stream.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let mut value = (0..32).fold(0u32, |value, at| value << 1 | u32::from(bit(at)));
    let (mut low, mut high, mut at) = (0u32, u32::MAX, 32);
    let mut symbols = vec![];
    for _ in 0..tokens {
        let span = u64::from(high) - u64::from(low) + 1;
        let count = ((u64::from(value - low) + 1) * 0x1_0000 - 1) / span;
        let symbol = (0..cdf.len() - 1).rposition(|s| u64::from(cdf[s]) <= count).unwrap();
        symbols.push(symbol as u8);
        let (start, end) = share(cdf, symbol);
        high = (u64::from(low) + ((span * end) >> 16) - 1) as u32;
        low = (u64::from(low) + ((span * start) >> 16)) as u32;
        loop {
            if high < 1 << 31 || low >= 1 << 31 {
                value = value << 1 | u32::from(bit(at));
                low <<= 1;
                high = high << 1 | 1;
            } else if low >= 1 << 30 && high < 3 << 30 {
                value = (value - (1 << 30)) << 1 | u32::from(bit(at));
                low = low << 1 & 0x7fff_ffff;
                high = high << 1 | 0x8000_0001;
            } else {
                break;
            }
            at += 1;
        }
    }
    symbols
}

fn fast_encode(cdfs: [&[u16]; LANES], symbols: [&[u8]; LANES]) -> [Vec<u8>; LANES] {
    let mut shares = [[0; 256]; LANES];
    for (shares, cdf) in shares.iter_mut().zip(cdfs) {
        write_shares(cdf, shares);
    }
    let mut encoders = [const { Encoder::new() }; LANES];
    encode_lanes(symbols, &shares, &mut encoders);
    encoders.each_mut().map(|encoder| encoder.finish().to_vec())
}

/// Symbols of one channel, more or less even, and the number of bins.
fn channel(bins: usize, tokens: usize) -> impl Strategy<Value = Vec<u8>> {
    let even = prop::collection::vec(0..bins as u8, tokens);
    let mostly_one = (0..bins as u8, prop::collection::vec((0u8..40, 0..bins as u8), tokens))
        .prop_map(|(one, all)| {
            all.into_iter().map(|(chance, other)| if chance == 0 { other } else { one }).collect()
        });
    prop_oneof![even, mostly_one]
}

/// Symbols of the channels that are coded together, and of other tokens of theirs.
#[derive(Clone, Debug)]
struct CodedSymbols {
    bins: usize,
    symbols: [Vec<u8>; LANES],
    others: Vec<u8>,
}

fn coded_symbols() -> impl Strategy<Value = CodedSymbols> {
    (2usize..=129, 1usize..=BLOCK_TOKENS).prop_flat_map(|(bins, tokens)| {
        let four = std::array::from_fn(|_| channel(bins, tokens));
        (Just(bins), four, channel(bins, 300)).prop_map(|(bins, symbols, others)| CodedSymbols {
            bins,
            symbols,
            others,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 300 }))]

    /// The tables are of other tokens too, as in a chunk of several blocks.
    #[test]
    fn the_fast_coders_equal_the_reference(coded in coded_symbols()) {
        let CodedSymbols { bins, symbols, others } = coded;
        let cdfs = symbols.each_ref().map(|symbols| {
            let mut cdf = vec![0; bins + 1];
            let chunk: Vec<u8> = symbols.iter().chain(&others).copied().collect();
            write_cdf(&chunk, &mut cdf);
            assert!(is_cdf(&cdf));
            cdf
        });
        let cdfs = cdfs.each_ref().map(|cdf| &cdf[..]);
        let streams = fast_encode(cdfs, symbols.each_ref().map(|symbols| &symbols[..]));
        let tokens = symbols[0].len();
        for lane in 0..LANES {
            prop_assert_eq!(&streams[lane], &encode(cdfs[lane], &symbols[lane]));
            prop_assert_eq!(&symbols[lane], &decode(cdfs[lane], &streams[lane], tokens));
        }
        if streams.iter().any(|stream| stream.len() > 256) {
            return Ok(());
        }
        let mut rows = [[0; LANES]; BLOCK_TOKENS];
        let channels = std::array::from_fn(|lane| Channel { cdf: cdfs[lane], stream: &streams[lane] });
        LaneDecoder::new().decode(channels, &mut rows, tokens).unwrap();
        for lane in 0..LANES {
            let decoded: Vec<u8> = rows[..tokens].iter().map(|row| row[lane]).collect();
            prop_assert_eq!(&decoded, &symbols[lane]);
        }

        // With a byte more it gives the same symbols, and they do not take that byte.
        let longer = [&streams[0][..], &[0]].concat();
        let longer = [Channel { stream: &longer, ..channels[0] }; LANES];
        prop_assert!(LaneDecoder::new().decode(longer, &mut rows, tokens).is_none());
    }
}

#[test]
fn carries_run_through_whole_streams() {
    // Each symbol at the middle keeps bits pending; the last decides them all.
    let cdf = [0u16, 0x5555, 0xaaaa, 0xffff];
    for last in 0..3 {
        for tokens in (2..=BLOCK_TOKENS).step_by(if cfg!(miri) { 90 } else { 1 }) {
            let mut symbols = vec![1; tokens];
            symbols[tokens - 1] = last;
            let streams = fast_encode([&cdf; LANES], [&symbols; LANES]);
            assert_eq!(streams[0], encode(&cdf, &symbols), "{tokens} tokens");
        }
    }
}
