//! With scratch memory that fits, chunks are encoded and decoded without allocating, and scratch
//! memory counts its buffers.
#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::System;
use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Chain, Chunk, Decoder, ElementType, Keyring, MasterKey, Scratch, Stored,
    stage_by_name,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::kv_like;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn chunks_after_the_first_need_no_memory() {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[3; 32]).unwrap());
    let aes = Arc::new(Aes256Gcm::new(keys, 1));
    let decoder = Decoder::new().with_stage(aes.clone());
    let cases = [
        ("bf16-split", ElementType::Bf16),
        ("bf16-split", ElementType::Fp8E4M3),
        ("bf16-split", ElementType::Fp8E5M2),
        ("zstd", ElementType::Bf16),
    ];
    for (name, element) in cases {
        let chain = Chain::new(vec![stage_by_name(name).unwrap(), aes.clone()]).unwrap();
        let raw = kv_like(element, 1_200_003, 1);
        let chunk = Chunk::default().with_element_type(element).with_tenant(b"t");
        let mut out = vec![0; chain.bound(raw.len()).unwrap()];
        let mut back = vec![0; raw.len()];
        let mut round = |scratch: &mut Scratch| {
            let pieces = [&raw[..300_001], &raw[300_001..]];
            let encoded = chain.encode(&chunk, &pieces, &mut out, scratch).unwrap();
            let (codec, key_id) = (encoded.codec, encoded.key_id);
            let stored = Stored { codec, key_id, bytes: &out[..encoded.len] };
            let (head, tail) = back.split_at_mut(777_777);
            decoder.decode(&chunk, &stored, &mut [head, tail], scratch).unwrap();
        };
        // The tenant's key is derived once.
        round(&mut Scratch::new());
        let region = Region::new(ALLOCATOR);
        let mut scratch = Scratch::new();
        round(&mut scratch);
        let change = region.change();
        let held = change.bytes_allocated - change.bytes_deallocated;
        assert_eq!(scratch.buffer_bytes(), held, "{name}: {change:?}");

        let region = Region::new(ALLOCATOR);
        (0..3).for_each(|_| round(&mut scratch));
        let change = region.change();
        assert_eq!(change.allocations + change.reallocations, 0, "{name}: {change:?}");
        assert!(back == raw);
        assert!(scratch.buffer_bytes() < 5 * raw.len(), "{}", scratch.buffer_bytes());
    }
}
