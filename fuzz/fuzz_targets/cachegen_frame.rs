//! CacheGen as a stage: any payload behind a valid header gives values or an error within the buffer,
//! and any data that it takes decodes to what was proven when it was encoded.
#![no_main]

use kvtier_codec::cachegen::{KvOrder, KvShape};
use kvtier_codec::{CacheGenStage, Chunk, ErrorKind, Scratch, Stage};
use kvtier_key::DType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, u8, u16, u32, u8, &[u8])| {
    let (layers, width, parameter, raw_len, at, flip, bytes) = input;
    let shape = KvShape {
        layers: usize::from(layers % 12) + 1,
        heads: 1,
        head_size: usize::from(width % 9) + 1,
    };
    let order = [KvOrder::KeysThenValues, KvOrder::ByLayer][usize::from(layers & 1)];
    let stage = CacheGenStage::new(shape, order, 64).unwrap();
    let mut scratch = Scratch::new();

    // Fields of this shape, and the fuzzed bytes behind them; or the fuzzed bytes alone.
    let mut framed = vec![5, 1, parameter % 5, 0, 0, 0, 0, 0];
    framed.extend(u64::from(raw_len).to_le_bytes());
    let header = framed.clone();
    framed.extend((shape.layers as u32).to_le_bytes());
    framed.extend((shape.head_size as u32).to_le_bytes());
    framed.extend([layers & 1, 0, 0, 0]);
    framed.extend(bytes);
    let mut memory = vec![0xee; usize::from(raw_len) + 16];
    for stored in [bytes, &framed, &[&header, bytes].concat()] {
        let raw = &mut memory[8..8 + usize::from(raw_len)];
        let (head, tail) = raw.split_at_mut(usize::from(raw_len) / 3);
        check(stage.decode(&Chunk::default(), stored, &mut [head, tail], &mut scratch));
        let around = [&memory[..8], &memory[8 + usize::from(raw_len)..]].concat();
        assert_eq!(around, [0xee; 16]);
    }

    let (dtype, element) =
        [(DType::BFloat16, 2), (DType::Half, 2), (DType::Float, 4)][usize::from(parameter % 3)];
    let raw_len = 2 * shape.layers * shape.head_size * 64 * element;
    if bytes.is_empty() {
        return;
    }
    let raw: Vec<u8> = bytes.iter().copied().cycle().take(raw_len).collect();
    let chunk = Chunk::default().with_declared_dtype(dtype);
    let mut stored = vec![0; raw_len];
    let encoded = stage.encode(&chunk, &[&raw], &mut stored, &mut scratch).unwrap();
    let Some(len) = encoded else { return };
    let mut near = vec![0; raw_len];
    stage.decode(&chunk, &stored[..len], &mut [&mut near], &mut scratch).unwrap();
    let mut again = vec![0; raw_len];
    stored[at as usize % len] ^= flip;
    let outcome = stage.decode(&chunk, &stored[..len], &mut [&mut again], &mut scratch);
    assert!(flip != 0 || (outcome.is_ok() && near == again));
    check(outcome);
});

fn check(outcome: Result<(), kvtier_codec::Error>) {
    if let Err(error) = outcome {
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
    }
}
