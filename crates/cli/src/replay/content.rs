//! The bytes of a block: made from its id alone, so that every loaded byte can be checked.

/// Eight bytes that depend on the block and on where they lie.
fn lane(id: u64, at: u64) -> u64 {
    // Every eight bytes depend on the block and on their place, so a block in the wrong place or a
    // shifted one is found.
    let x = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// Fills a buffer with the bytes of block `id`.
pub fn fill(id: u64, bytes: &mut [u8]) {
    let (lanes, rest) = bytes.as_chunks_mut::<8>();
    let n = lanes.len() as u64;
    lanes.iter_mut().zip(0..).for_each(|(out, at)| *out = lane(id, at).to_le_bytes());
    rest.copy_from_slice(&lane(id, n).to_le_bytes()[..rest.len()]);
}

/// How many bytes are not those of block `id`.
pub fn wrong(id: u64, bytes: &[u8]) -> u64 {
    let (lanes, rest) = bytes.as_chunks::<8>();
    let n = lanes.len() as u64;
    let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count() as u64;
    let bad = |(found, at): (&[u8; 8], u64)| match lane(id, at).to_le_bytes() {
        right if right == *found => 0,
        right => differ(&right, found),
    };
    lanes.iter().zip(0..).map(bad).sum::<u64>()
        + differ(&lane(id, n).to_le_bytes()[..rest.len()], rest)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_changed_byte_is_seen() {
        let mut bytes = vec![0; 1003];
        super::fill(9, &mut bytes);
        assert_eq!(super::wrong(9, &bytes), 0);
        assert!(super::wrong(10, &bytes) > 900);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(super::wrong(9, &bytes), 1, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
