//! LMCache's AES-GCM frame against golden vectors.

use std::sync::atomic::Ordering;

use serde_json::Value;

use super::lmcache_frame::{LMCACHE_AES_OVERHEAD, LmcacheAesKey};
use super::master_key::CHUNKS_PER_KEY_MAX;
use crate::{ErrorKind, Scratch, vectors};

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    let pairs = digits.as_chunks::<2>().0.iter();
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_frame_is_lmcaches() {
    let cases = vectors::cases("serde_aesgcm.json");
    let mut frames = 0;
    for case in &cases {
        let input = &case["in"];
        let aes_bits = input["aes_bits"].as_u64().unwrap() as u32;
        let key = LmcacheAesKey::new(&bytes(&input["master_key_hex"]), aes_bits);
        let frame = &case["out"]["ok"]["frame_hex"];
        if frame.is_null() {
            assert_eq!(key.unwrap_err().kind(), ErrorKind::Invalid, "{case}");
            continue;
        }
        frames += 1;
        let salt = input["cache_salt"].as_str().unwrap();
        let cipher = key.unwrap().for_cache_salt(salt).unwrap();
        let (raw, frame) = (bytes(&input["plaintext_hex"]), bytes(frame));
        let nonce = bytes(&input["iv_hex"]).try_into().unwrap();
        let mut out = vec![0; frame.len()];
        assert_eq!(cipher.encode_with_nonce(nonce, &[&raw], &mut out).unwrap(), frame.len());
        assert_eq!(out, frame, "{case}");

        // LMCache reads frames from buffers that may be longer.
        for padding in [0, 7] {
            let mut stored = frame.clone();
            stored.resize(frame.len() + padding, 0xee);
            let mut back = vec![0; raw.len()];
            cipher.decode(&stored, &mut [&mut back], &mut Scratch::new()).unwrap();
            assert_eq!(back, raw, "{case}");
        }
    }
    assert!(!vectors::is_committed() || (frames, cases.len()) == (4, 5));
}

#[test]
fn damage_and_another_salt_or_size_are_errors() {
    let key = LmcacheAesKey::new(b"a secret", 128).unwrap();
    let cipher = key.for_cache_salt("a").unwrap();
    let (raw, mut scratch) = ([7; 100], Scratch::new());
    let mut frame = [0; 100 + LMCACHE_AES_OVERHEAD];
    cipher.encode(&[&raw[..30], &raw[30..]], &mut frame).unwrap();
    let mut back = [0; 100];
    let (head, tail) = back.split_at_mut(41);
    cipher.decode(&frame, &mut [head, tail], &mut scratch).unwrap();
    assert_eq!(back, raw);

    for at in 0..frame.len() {
        let mut damaged = frame;
        damaged[at] ^= 1;
        let error = cipher.decode(&damaged, &mut [&mut back], &mut scratch).unwrap_err();
        let expected = if at == 0 { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
        assert_eq!(error.kind(), expected, "bit of byte {at}");
        let error = cipher.decode(&frame[..at], &mut [&mut back], &mut scratch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {at}");
    }
    let other = key.for_cache_salt("b").unwrap();
    assert!(other.decode(&frame, &mut [&mut back], &mut scratch).is_err());
    assert!(cipher.decode(&frame, &mut [&mut back[..99]], &mut scratch).is_err());
    let longer = LmcacheAesKey::new(b"a secret", 256).unwrap().for_cache_salt("a").unwrap();
    assert!(longer.decode(&frame, &mut [&mut back], &mut scratch).is_err());
    assert_eq!(cipher.encode(&[&raw], &mut frame[1..]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(LmcacheAesKey::new(b"a secret", 192).is_err());
    assert_eq!(format!("{key:?}"), "LmcacheAesKey { bits: 128, .. }");
}

#[test]
fn a_key_that_encrypted_its_chunks_encrypts_no_more() {
    let key = LmcacheAesKey::new(b"a secret", 128).unwrap();
    let cipher = key.for_cache_salt("").unwrap();
    cipher.encrypted.store(CHUNKS_PER_KEY_MAX - 1, Ordering::Relaxed);
    let mut frame = [0; 1 + LMCACHE_AES_OVERHEAD];
    cipher.encode(&[&[1]], &mut frame).unwrap();
    let error = cipher.encode(&[&[1]], &mut frame).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyExhausted);
    cipher.decode(&frame, &mut [&mut [0]], &mut Scratch::new()).unwrap();
}
