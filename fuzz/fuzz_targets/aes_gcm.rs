//! Encrypted frames, ours and LMCache's: no bytes but those of an encoder decrypt, and every
//! payload survives a round trip.
#![no_main]

use std::sync::Arc;

use kvtier_codec::{Aes256Gcm, Chunk, Keyring, LmcacheAesKey, MasterKey, Scratch, Stage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u16, u8, &[u8])| {
    let (raw_len, at, flip, bytes) = input;
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    let aes = Aes256Gcm::new(keys, 1);
    let lmcache = LmcacheAesKey::new(b"key", 128).unwrap().for_cache_salt("salt").unwrap();
    let chunk = Chunk::default().with_tenant(b"tenant").with_associated_data(b"facts");
    let mut scratch = Scratch::new();

    let mut raw = vec![0; raw_len.into()];
    assert!(aes.decode(&chunk, bytes, &mut [&mut raw], &mut scratch).is_err());
    assert!(lmcache.decode(bytes, &mut [&mut raw], &mut scratch).is_err());

    let mut back = vec![0; bytes.len()];
    let mut stored = vec![0; aes.bound(bytes.len()).unwrap()];
    let len = aes.encode(&chunk, &[bytes], &mut stored, &mut scratch).unwrap().unwrap();
    aes.decode(&chunk, &stored[..len], &mut [&mut back], &mut scratch).unwrap();
    assert_eq!(back, bytes);
    let len = lmcache.encode(&[bytes], &mut stored).unwrap();
    lmcache.decode(&stored[..len], &mut [&mut back], &mut scratch).unwrap();
    assert_eq!(back, bytes);
    if flip != 0 {
        stored[usize::from(at) % len] ^= flip;
        assert!(lmcache.decode(&stored[..len], &mut [&mut back], &mut scratch).is_err());
    }
});
