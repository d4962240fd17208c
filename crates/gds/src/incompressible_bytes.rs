/// Fills memory with pseudorandom bytes, which no storage device can compress or deduplicate.
pub fn fill_random(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}
