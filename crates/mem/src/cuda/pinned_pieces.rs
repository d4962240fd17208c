//! Where host memory is cut for the GPU driver.

/// Host memory is pinned in pieces that end at multiples of this, and copies are cut there: a copy
/// over two pinned pieces would be as slow as one from memory that is not pinned, and one large
/// piece would hold up everything else that maps memory while it is made.
const PINNED_PIECE_BYTES: usize = 1 << 30;

/// `at..at + len` in ranges (start, length) that cross no such multiple.
pub fn pieces(at: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = at + len;
    let next = move |(from, bytes): &(usize, usize)| Some(from + bytes);
    let piece = move |from: usize| {
        let cut = (from + 1).next_multiple_of(PINNED_PIECE_BYTES).min(end);
        (from < end).then_some((from, cut - from))
    };
    std::iter::successors(piece(at), move |last| next(last).and_then(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples() {
        let gib = PINNED_PIECE_BYTES;
        let cut = |at, len| pieces(at, len).collect::<Vec<_>>();
        assert_eq!(cut(10, 0), []);
        assert_eq!(cut(10, 20), [(10, 20)]);
        assert_eq!(cut(gib - 1, 2), [(gib - 1, 1), (gib, 1)]);
        assert_eq!(cut(gib, 2 * gib + 5), [(gib, gib), (2 * gib, gib), (3 * gib, 5)]);
    }
}
