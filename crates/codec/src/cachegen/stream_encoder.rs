//! The arithmetic encoder of LMCache: a channel's symbols of up to 256 tokens become a stream of
//! bits. Several channels are encoded in turn, since their steps do not depend on each other.
//!
//! LMCache holds back the bits that a later carry may change and counts them ("pending"). Here they
//! are written at once, and a carry adds one to what is written: the same bits, without a branch
//! for each. `base` is the part of `low` that LMCache's register lacks while bits are pending.

/// Channels that are encoded in turn.
pub(super) const LANES: usize = 4;
/// The most bytes of one stream: the decoder of LMCache has no more space.
pub(super) const STREAM_BYTES_MAX: usize = 256;
/// The most tokens of one stream.
pub(super) const BLOCK_TOKENS: usize = 256;
// A symbol takes at most 18 bits, since its share of the range is at least 2^14 of 2^32. Each step
// writes 4 bytes, of which fewer may count.
const SPACE: usize = BLOCK_TOKENS * 18 / 8 + 16;
const TOP: u32 = 1 << 31;

/// The symbol tables of one channel, which end with 0x10000.
pub(super) type Shares = [u32; 256];

/// Writes the limits of each symbol's share of the range, from a channel's CDF.
pub(super) fn write_shares(cdf: &[u16], shares: &mut Shares) {
    let bins = cdf.len() - 1;
    for (share, entry) in shares.iter_mut().zip(&cdf[..bins]) {
        *share = u32::from(*entry);
    }
    shares[bins] = 0x1_0000;
}

/// One stream under work.
pub(super) struct Encoder {
    /// The bits that are not written yet, above the 32 bits of the lower limit.
    low: u64,
    /// The width of the range: 2^32 at first.
    span: u64,
    base: u32,
    /// How many bits above the 32 are not written.
    unwritten: u32,
    len: usize,
    bytes: [u8; SPACE],
}

impl Encoder {
    pub(super) const fn new() -> Encoder {
        Encoder { low: 0, span: 1 << 32, base: 0, unwritten: 0, len: 0, bytes: [0; SPACE] }
    }

    pub(super) fn reset(&mut self) {
        self.low = 0;
        self.span = 1 << 32;
        self.base = 0;
        self.unwritten = 0;
        self.len = 0;
    }

    #[inline(always)]
    fn put(&mut self, from: u32, to: u32) {
        let start = (self.span * u64::from(from)) >> 16;
        let end = (self.span * u64::from(to)) >> 16;
        self.low += start;
        self.span = end - start;
        // What LMCache's two registers hold.
        let low = (self.low as u32) ^ self.base;
        let high = low.wrapping_add((self.span - 1) as u32);
        // The leading bits that both share are final. Then come those that a carry may change: 1
        // in `low` and 0 in `high`, below the first.
        let same = (low ^ high).leading_zeros();
        let (low, high) = (low << same, high << same);
        let pending = ((low << 1) & !(high << 1)).leading_ones();
        self.base = if pending > 0 {
            TOP
        } else if same > 0 {
            0
        } else {
            self.base
        };
        let shift = same + pending;
        self.low <<= shift;
        self.span <<= shift;
        self.unwritten += shift;
        self.write();
    }

    /// Writes all whole bytes. At most 7 bits stay, and a carry above them is added to the bytes.
    #[inline(always)]
    fn write(&mut self) {
        let prefix = self.low >> 32;
        if (prefix >> self.unwritten) != 0 {
            self.carry();
        }
        let aligned = (prefix as u32).unbounded_shl(32 - self.unwritten);
        if let Some(out) = self.bytes[self.len..].first_chunk_mut::<4>() {
            *out = aligned.to_be_bytes();
        }
        self.len += (self.unwritten / 8) as usize;
        self.unwritten %= 8;
        self.low &= (1 << (32 + self.unwritten)) - 1;
    }

    #[cold]
    fn carry(&mut self) {
        for byte in self.bytes[..self.len].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
    }

    /// Ends the stream and answers its bytes.
    pub(super) fn finish(&mut self) -> &[u8] {
        let low = (self.low as u32) ^ self.base;
        let inside = if low < 1 << 30 { 1 << 30 } else { 1 << 31 };
        // Two bits name a point inside the range, whatever follows them.
        self.low = (self.low >> 32 << 32) + u64::from(self.base) + inside;
        self.low <<= 2;
        self.unwritten += 2;
        self.write();
        // The bits of the last byte are written by now, followed by zeros.
        self.len += usize::from(self.unwritten > 0);
        &self.bytes[..self.len]
    }
}

/// Encodes one block of several channels: `symbols[lane]` with `shares[lane]`, by `encoders[lane]`.
/// All have as many symbols as the first, and at most 256.
pub(super) fn encode_lanes(
    symbols: [&[u8]; LANES],
    shares: &[Shares; LANES],
    encoders: &mut [Encoder; LANES],
) {
    let tokens = symbols[0].len().min(BLOCK_TOKENS);
    let mut symbols = symbols.map(|lane| lane.iter());
    for _ in 0..tokens {
        for ((symbols, shares), encoder) in symbols.iter_mut().zip(shares).zip(&mut *encoders) {
            let Some(symbol) = symbols.next() else { return };
            let next = usize::from(*symbol) + 1;
            let to = shares.get(next).copied().unwrap_or(0x1_0000);
            encoder.put(shares[usize::from(*symbol)], to);
        }
    }
}
