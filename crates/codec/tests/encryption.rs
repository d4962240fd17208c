//! Keys, tenants, nonces and associated data: what does not belong together does not decrypt.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use kvtier_codec::{
    AES_256_GCM_OVERHEAD, Aes256Gcm, CHUNKS_PER_KEY_MAX, Chain, Chunk, Decoder, ElementType,
    ErrorKind, Keyring, MasterKey, SECRET_LEN_MIN, Scratch, Stage, Stored, stage_by_name,
};
use kvtier_key::CodecId;
use support::{decoded, encoded, kv_like, noise};

fn keyring(keys: &[(u32, u8)]) -> Arc<Keyring> {
    let keyring = Keyring::new();
    for (id, secret) in keys {
        keyring.insert(MasterKey::new(*id, &[*secret; 32]).unwrap());
    }
    Arc::new(keyring)
}

#[test]
fn tenants_facts_and_chunks_do_not_mix() {
    let aes = Aes256Gcm::new(keyring(&[(1, 7)]), 1);
    let raw = noise(1000, 1);
    let chunk = Chunk::default().with_tenant(b"a").with_associated_data(b"key 1, raw length 1000");
    let stored = encoded(&aes, &chunk, &raw).unwrap();
    assert_eq!(stored.len(), raw.len() + AES_256_GCM_OVERHEAD);
    assert_eq!(decoded(&aes, &chunk, &stored, raw.len()).unwrap(), raw);
    assert!(!stored.windows(8).any(|part| part == &raw[..8]), "plaintext is stored");

    let others = [
        ("another tenant", chunk.with_tenant(b"b")),
        ("no tenant", chunk.with_tenant(b"")),
        ("the ciphertext of another key", chunk.with_associated_data(b"key 2, raw length 1000")),
        ("other facts", chunk.with_associated_data(b"key 1, raw length 999")),
        ("no facts", chunk.with_associated_data(b"")),
    ];
    for (what, other) in others {
        let error = decoded(&aes, &other, &stored, raw.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
    }

    // Parts of two frames of the same key.
    let other = encoded(&aes, &chunk, &noise(1000, 2)).unwrap();
    for from in [16..28, 28..1028, 1028..1044] {
        let mut mixed = stored.clone();
        mixed[from.clone()].copy_from_slice(&other[from.clone()]);
        assert!(decoded(&aes, &chunk, &mixed, raw.len()).is_err(), "{from:?} of another frame");
    }
}

/// Raw bytes may look like a frame of ours: the tag proves which stages the plaintext came from.
#[test]
fn facts_changed_to_other_stages_are_corrupt() {
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keyring(&[(1, 7)]), 1));
    let decoder = Decoder::new().with_stage(aes.clone());
    let element = ElementType::Bf16;
    let chunk = Chunk::default().with_element_type(element).with_associated_data(b"key");
    let raw = kv_like(element, 2000, 1).repeat(3);
    for (name, codec) in [("lz4", 0x41), ("zstd", 0x42), ("bf16-split", 0x43)] {
        let stage = stage_by_name(name).unwrap();
        let frame = encoded(&*stage, &chunk, &raw).unwrap();
        let with_stage = (vec![stage, aes.clone()], &raw, CodecId(codec));
        let without = (vec![aes.clone()], &frame, CodecId(0x4));
        for ((stages, raw, codec), (_, other_raw, other_codec)) in
            [(with_stage.clone(), without.clone()), (without, with_stage)]
        {
            let chain = Chain::new(stages).unwrap();
            let mut out = vec![0; chain.bound(raw.len()).unwrap()];
            let saved = chain.encode(&chunk, &[raw], &mut out, &mut Scratch::new()).unwrap();
            assert_eq!(saved.codec, codec);
            let load = |codec, len| {
                let stored = Stored { codec, key_id: 1, bytes: &out[..saved.len] };
                let mut back = vec![0; len];
                let outcome =
                    decoder.decode(&chunk, &stored, &mut [&mut back], &mut Scratch::new());
                outcome.map(|()| back).map_err(|error| error.kind())
            };
            assert!(load(codec, raw.len()).unwrap() == *raw, "{codec:?}");
            assert!(decoder.proves_bytes(other_codec).unwrap());
            let changed = load(other_codec, other_raw.len()).map(|back| back.len());
            assert_eq!(changed, Err(ErrorKind::Corrupt), "{codec:?} as {other_codec:?}");
        }
    }
}

#[test]
fn a_missing_key_and_a_wrong_key_are_different_errors() {
    let (raw, chunk) = (noise(100, 1), Chunk::default());
    let keys = keyring(&[(1, 7), (2, 8)]);
    let stored = encoded(&Aes256Gcm::new(keys.clone(), 1), &chunk, &raw).unwrap();
    let kind = |keys| {
        let outcome = decoded(&Aes256Gcm::new(keys, 2), &chunk, &stored, raw.len());
        outcome.map_err(|error| error.kind())
    };
    assert_eq!(kind(keys.clone()), Ok(raw.clone()), "any key of the ring decrypts");
    assert_eq!(kind(keyring(&[(2, 7)])), Err(ErrorKind::KeyMissing));
    assert_eq!(kind(keyring(&[(1, 8)])), Err(ErrorKind::Corrupt));

    let mut nameless = stored.clone();
    nameless[4..8].fill(0);
    let error = decoded(&Aes256Gcm::new(keys.clone(), 1), &chunk, &nameless, raw.len());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt, "no key has id 0");

    // Rotation: the new key encrypts, the old one still decrypts until it is removed. It comes back.
    assert_eq!(keys.ids(), [1, 2]);
    assert!(keys.remove(1) && !keys.remove(1));
    assert_eq!(kind(keys.clone()), Err(ErrorKind::KeyMissing));
    let outcome =
        Aes256Gcm::new(keys.clone(), 1).encode(&chunk, &[&raw], &mut [0; 200], &mut Scratch::new());
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::KeyMissing);
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    assert_eq!(kind(keys.clone()), Ok(raw.clone()));
    // Another key of the same id replaces those derived from the first one.
    keys.insert(MasterKey::new(1, &[9; 32]).unwrap());
    assert_eq!(kind(keys), Err(ErrorKind::Corrupt));
}

#[test]
fn no_nonce_comes_twice_and_equal_chunks_look_different() {
    let aes = Aes256Gcm::new(keyring(&[(1, 7)]), 1);
    let raw = noise(32, 1);
    let frames: Vec<Vec<u8>> =
        (0..2000).map(|_| encoded(&aes, &Chunk::default(), &raw).unwrap()).collect();
    let nonces: HashSet<&[u8]> = frames.iter().map(|frame| &frame[16..28]).collect();
    let ciphertexts: HashSet<&[u8]> = frames.iter().map(|frame| &frame[28..60]).collect();
    assert_eq!((nonces.len(), ciphertexts.len()), (2000, 2000));
}

#[test]
fn a_key_that_encrypted_its_chunks_encrypts_no_more_and_decrypts_on() {
    let keys = Keyring::new();
    let key = MasterKey::new(1, &[7; 32]).unwrap();
    keys.insert(key.with_encrypted_chunks(CHUNKS_PER_KEY_MAX - 2));
    let keys = Arc::new(keys);
    let (aes, raw) = (Aes256Gcm::new(keys.clone(), 1), noise(50, 1));
    let stored = encoded(&aes, &Chunk::default(), &raw).unwrap();
    // All tenants count together.
    encoded(&aes, &Chunk::default().with_tenant(b"b"), &raw).unwrap();
    assert_eq!(keys.get(1).unwrap().encrypted_chunks(), CHUNKS_PER_KEY_MAX);
    let mut out = [0; 200];
    for _ in 0..3 {
        let outcome = aes.encode(&Chunk::default(), &[&raw], &mut out, &mut Scratch::new());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::KeyExhausted);
        assert_eq!(out, [0; 200], "written although the key is exhausted");
    }
    assert_eq!(decoded(&aes, &Chunk::default(), &stored, raw.len()).unwrap(), raw);
    // Rotation ends it.
    keys.insert(MasterKey::new(2, &[8; 32]).unwrap());
    encoded(&Aes256Gcm::new(keys, 2), &Chunk::default(), &raw).unwrap();
}

#[test]
fn more_tenants_than_derived_keys_are_kept() {
    let aes = Aes256Gcm::new(keyring(&[(1, 7)]), 1);
    let raw = noise(20, 1);
    let tenant = |nth: u32| nth.to_le_bytes();
    let frames: Vec<Vec<u8>> = (0..5000)
        .map(|nth| encoded(&aes, &Chunk::default().with_tenant(&tenant(nth)), &raw).unwrap())
        .collect();
    for (nth, frame) in (0..).zip(&frames) {
        let tenant = tenant(nth);
        let chunk = Chunk::default().with_tenant(&tenant);
        assert_eq!(decoded(&aes, &chunk, frame, raw.len()).unwrap(), raw);
    }
}

#[test]
fn keys_are_checked_and_never_printed() {
    let secret = b"0123456789abcdef0123456789abcdef";
    assert_eq!(MasterKey::new(0, secret).unwrap_err().kind(), ErrorKind::Invalid);
    let short = MasterKey::new(1, &secret[..SECRET_LEN_MIN - 1]).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Invalid);
    let keys = Keyring::new();
    keys.insert(MasterKey::new(1, secret).unwrap());
    let keys = Arc::new(keys);
    let aes = Aes256Gcm::new(keys.clone(), 1);
    encoded(&aes, &Chunk::default().with_tenant(b"t"), &[1; 10]).unwrap();
    let printed = format!("{aes:?} {keys:?} {:?} {short}", keys.get(1));
    for text in ["0123", "abcdef", "48, 49", "secret"] {
        assert!(!printed.contains(text), "{printed}");
    }
}
