//! The prefix code of one block: lengths of at most [`LENGTH_MAX`] bits by Huffman's method, made
//! canonical, so that the lengths alone describe it.

use super::symbol_counts::Counts;

/// The longest code: what a decoder looks up at once.
pub(super) const LENGTH_MAX: usize = 12;

/// The bytes that the lengths of all 256 symbols take, two a byte.
pub(super) const PACKED_LEN: usize = 128;

/// The length of each symbol's code in bits; 0 = the symbol does not occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CodeLengths(pub(super) [u8; 256]);

impl CodeLengths {
    /// The code for `counts`, of which at least two are not zero.
    pub(super) fn from_counts(counts: &Counts) -> Self {
        let mut sorted = [(0, 0); 256];
        let mut used = 0;
        for (symbol, count) in (0..=255u8).zip(counts).filter(|(_, count)| **count > 0) {
            sorted[used] = (*count, symbol);
            used += 1;
        }
        sorted[..used].sort_unstable();
        let mut depths = sorted.map(|(count, _)| u64::from(count));
        let depths = &mut depths[..used];
        weights_to_depths(depths);
        limit_depths(depths);
        let mut lengths = [0; 256];
        for ((_, symbol), depth) in sorted.iter().zip(depths) {
            lengths[usize::from(*symbol)] = *depth as u8;
        }
        CodeLengths(lengths)
    }

    /// The bits that symbols of these counts take.
    pub(super) fn total_bits(&self, counts: &Counts) -> u64 {
        let each = counts.iter().zip(&self.0);
        each.map(|(count, length)| u64::from(*count) * u64::from(*length)).sum()
    }

    /// Two lengths a byte, the even symbol's in the low half.
    pub(super) fn pack(&self) -> [u8; PACKED_LEN] {
        std::array::from_fn(|at| self.0[2 * at] | self.0[2 * at + 1] << 4)
    }

    /// The lengths of a complete prefix code, or nothing.
    pub(super) fn unpack(packed: &[u8; PACKED_LEN]) -> Option<Self> {
        let lengths: [u8; 256] =
            std::array::from_fn(|symbol| packed[symbol / 2] >> (symbol % 2 * 4) & 0x0f);
        let used = lengths.iter().filter(|length| **length > 0);
        if used.clone().any(|length| usize::from(*length) > LENGTH_MAX) {
            return None;
        }
        // Every bit sequence must be a sequence of codes, or decoding could stand still.
        let space: usize = used.map(|length| 1 << (LENGTH_MAX - usize::from(*length))).sum();
        (space == 1 << LENGTH_MAX).then_some(CodeLengths(lengths))
    }

    /// The symbols that occur, by length and then by value: the order of their codes.
    pub(super) fn in_code_order(&self) -> CodeOrder {
        let mut order = CodeOrder { codes: [Code::default(); 256], count: 0 };
        for length in 1..=LENGTH_MAX as u8 {
            for symbol in 0..=255u8 {
                if self.0[usize::from(symbol)] == length {
                    order.codes[order.count] = Code { symbol, length };
                    order.count += 1;
                }
            }
        }
        order
    }
}

/// A symbol and the length of its code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    pub(super) symbol: u8,
    pub(super) length: u8,
}

/// All codes of a block in their numerical order.
#[derive(Debug)]
pub(super) struct CodeOrder {
    codes: [Code; 256],
    count: usize,
}

impl CodeOrder {
    pub(super) fn as_slice(&self) -> &[Code] {
        &self.codes[..self.count]
    }
}

/// Turns the ascending weights of at least two leaves into their depths in a Huffman tree: Moffat
/// and Katajainen's method, which needs no other memory.
fn weights_to_depths(nodes: &mut [u64]) {
    let count = nodes.len();
    // Weights of inner nodes replace leaves from the left; a used inner node keeps its parent.
    let (mut leaf, mut root) = (0, 0);
    for next in 0..count - 1 {
        let mut sum = 0;
        for _ in 0..2 {
            if leaf >= count || (root < next && nodes[root] < nodes[leaf]) {
                sum += nodes[root];
                nodes[root] = next as u64;
                root += 1;
            } else {
                sum += nodes[leaf];
                leaf += 1;
            }
        }
        nodes[next] = sum;
    }
    // Depths of inner nodes, from the root on.
    nodes[count - 2] = 0;
    for node in (0..count - 2).rev() {
        nodes[node] = nodes[nodes[node] as usize] + 1;
    }
    // Depths of leaves: what inner nodes leave free at each depth.
    let (mut free, mut depth) = (1, 0);
    let (mut inner, mut leaf) = (count as i64 - 2, count);
    while free > 0 {
        let mut used = 0;
        while inner >= 0 && nodes[inner as usize] == depth {
            used += 1;
            inner -= 1;
        }
        for _ in used..free {
            leaf -= 1;
            nodes[leaf] = depth;
        }
        free = 2 * used;
        depth += 1;
    }
}

/// Makes no depth greater than `LENGTH_MAX` and fills the code again. The depths descend.
fn limit_depths(depths: &mut [u64]) {
    let max = LENGTH_MAX as u64;
    for depth in depths.iter_mut() {
        *depth = (*depth).min(max);
    }
    let all = 1i64 << max;
    let mut used: i64 = depths.iter().map(|depth| 1 << (max - depth)).sum();
    // The rarest symbols that can still be longer become so.
    while used > all {
        let Some(at) = depths.iter().position(|depth| *depth < max) else { return };
        used -= 1 << (max - depths[at] - 1);
        depths[at] += 1;
    }
    // Space that this freed goes to the most frequent symbols that fit it.
    for depth in depths.iter_mut().rev() {
        while *depth > 1 && used + (1 << (max - *depth)) <= all {
            used += 1 << (max - *depth);
            *depth -= 1;
        }
    }
}
