//! The content of the objects: prefixes of one stream of pseudorandom bytes.

/// The largest object.
pub const BYTES_MAX: usize = 64 << 20;

/// The first `len` bytes of the stream.
pub fn stream(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
