//! Chunks of any codec: a chain of stages around any bytes ends in an error or within the buffer,
//! with bounded memory.
#![no_main]

use kvtier_codec::{Chunk, Decoder, ErrorKind, Scratch, Stored};
use kvtier_key::CodecId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u32, u16, &[u8])| {
    let (codec, key_id, raw_len, bytes) = input;
    let stored = Stored { codec: CodecId(codec), key_id, bytes };
    let (mut raw, mut scratch) = (vec![0; raw_len.into()], Scratch::new());
    let outcome = Decoder::new().decode(&Chunk::default(), &stored, &mut [&mut raw], &mut scratch);
    if let Err(error) = outcome {
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
    }
    assert!(scratch.buffer_bytes() < 4 << 20);
});
