//! What holds of every stage without a key.

use kvtier_codec::{Chunk, ElementType, ErrorKind, Scratch, Stage};

/// Decodes `bytes` as a frame, and as the payload of a frame with a valid header; then encodes them
/// several times over, and decodes that, whole and with a flipped bit.
pub fn check(stage: &dyn Stage, parameter: u8, raw_len: u16, bytes: &[u8]) {
    let (chunk, mut scratch) = (Chunk::default(), Scratch::new());
    let framed = |version| {
        let mut framed = vec![stage.id().number(), version, parameter, 0, 0, 0, 0, 0];
        framed.extend(u64::from(raw_len).to_le_bytes());
        framed.extend(bytes);
        framed
    };
    let mut memory = vec![0xee; usize::from(raw_len) + 16];
    for stored in [bytes, &framed(1), &framed(2)] {
        let raw = &mut memory[8..8 + usize::from(raw_len)];
        let (head, tail) = raw.split_at_mut(usize::from(raw_len) / 3);
        if let Err(error) = stage.decode(&chunk, stored, &mut [head, tail], &mut scratch) {
            assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
        }
        let around = [&memory[..8], &memory[8 + usize::from(raw_len)..]].concat();
        assert_eq!(around, [0xee; 16]);
    }

    let element = ElementType::ALL[usize::from(raw_len) % 4];
    let chunk = chunk.with_element_type(element);
    let raw = bytes.repeat(9);
    let mut stored = vec![0; stage.bound(raw.len()).unwrap()];
    let (head, tail) = raw.split_at(raw.len() / 2);
    let encoded = stage.encode(&chunk, &[head, tail], &mut stored, &mut scratch).unwrap();
    let Some(len) = encoded else { return };
    let mut back = vec![0; raw.len()];
    stage.decode(&chunk, &stored[..len], &mut [&mut back], &mut scratch).unwrap();
    assert_eq!(back, raw);

    stored[usize::from(raw_len) % len] ^= 1 << (raw_len >> 13);
    if let Err(error) = stage.decode(&chunk, &stored[..len], &mut [&mut back], &mut scratch) {
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
    }
}
