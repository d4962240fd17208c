//! CacheGen of any data, NaN and infinities too: it decodes, always to the same values, and a
//! changed byte of its container gives an error or other values.
#![no_main]

use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{ErrorKind, FloatType};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, u8, u32, u8, &[u8])| {
    let (layers, head_size, float, at, flip, data) = input;
    let shape = KvShape {
        layers: usize::from(layers % 12) + 1,
        heads: 1,
        head_size: usize::from(head_size % 9) + 1,
    };
    let float = [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32][usize::from(float % 3)];
    let bins = Bins::for_layers(shape.layers);
    let codec = CacheGen::new(shape, KvOrder::ByLayer, float, bins).unwrap();
    let token_bytes = 2 * shape.layers * shape.head_size * float.bytes();
    let raw = &data[..data.len() / token_bytes * token_bytes];
    if raw.is_empty() {
        return;
    }
    let mut stored = vec![0; codec.bound(raw.len()).unwrap()];
    let len = codec.encode(raw, &mut stored).unwrap();
    stored.truncate(len);
    let mut near = vec![0; raw.len()];
    codec.decode(&stored, &mut near).unwrap();

    let at = at as usize % len;
    stored[at] ^= flip;
    let mut other = vec![0; raw.len()];
    match codec.decode(&stored, &mut other) {
        Ok(()) => assert!(flip != 0 || other == near),
        Err(error) => assert!(flip != 0 && error.kind() == ErrorKind::Corrupt),
    }
});
