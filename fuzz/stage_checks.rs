//! What holds of every stage without a key.

use kvtier_codec::{Chunk, DecodeProgress, ElementType, Error, ErrorKind, Scratch, Stage};

/// Decodes `bytes` as a frame, and as the payload of a frame with a valid header; then encodes them
/// several times over, and decodes that, whole and with a flipped bit. All is decoded at once, and
/// while it arrives.
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
        let raw = &mut [head, tail];
        check_error(stage.decode(&chunk, stored, raw, &mut scratch));
        check_error(arrive(stage, &chunk, stored, raw, &mut scratch));
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
    back.fill(0xee);
    arrive(stage, &chunk, &stored[..len], &mut [&mut back], &mut scratch).unwrap();
    assert_eq!(back, raw);

    stored[usize::from(raw_len) % len] ^= 1 << (raw_len >> 13);
    check_error(stage.decode(&chunk, &stored[..len], &mut [&mut back], &mut scratch));
    check_error(arrive(stage, &chunk, &stored[..len], &mut [&mut back], &mut scratch));
}

fn check_error(decoded: Result<(), Error>) {
    if let Err(error) = decoded {
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
    }
}

/// Decodes what arrives in three portions.
fn arrive(
    stage: &dyn Stage,
    chunk: &Chunk<'_>,
    stored: &[u8],
    raw: &mut [&mut [u8]],
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let mut progress = DecodeProgress::default();
    for end in [stored.len() / 3, stored.len() - stored.len() / 3, stored.len()] {
        if end >= progress.wanted() {
            progress = stage.decode_arrived(chunk, &stored[..end], raw, progress, scratch)?;
        }
    }
    stage.decode_rest(chunk, stored, raw, progress, scratch)
}
