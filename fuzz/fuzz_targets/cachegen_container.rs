//! LMCache's CacheGen containers, as they were stored: reading any bytes gives an error or values,
//! and the shape that a container states is the only one it decodes to.
#![no_main]

use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{ErrorKind, FloatType};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let shape = match CacheGen::inspect(bytes) {
        Ok(shape) => shape,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Corrupt),
    };
    let kv = KvShape { layers: shape.layers, heads: shape.heads, head_size: shape.head_size };
    // A caller has as many raw bytes as it announces; the CDFs alone are larger than this.
    let elements = 2 * kv.layers * kv.heads * kv.head_size * shape.tokens;
    assert!(elements <= bytes.len() * 256, "{shape:?} of {} bytes", bytes.len());
    let bins = Bins::for_layers(kv.layers);
    let codec = CacheGen::new(kv, KvOrder::KeysThenValues, FloatType::Fp16, bins).unwrap();
    let mut raw = vec![0; elements * 2];
    if let Err(error) = codec.decode(bytes, &mut raw) {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let mut other = vec![0; elements * 4];
    assert!(codec.decode(bytes, &mut other).is_err(), "twice the tokens");
});
