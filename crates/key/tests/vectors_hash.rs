//! Chunk hashes against what LMCache 0.5.6 itself said.
#![allow(clippy::unwrap_used)]

mod common;

use std::num::NonZeroUsize;

use common::{cases, to_hex};
use kvtier_key::hash::{Algorithm, Chunking, HashChain, HashError, HashLink};
use kvtier_key::{CacheEngineKey, DType, EngineHash, PyInt};
use serde_json::{Value, json};

fn algorithm(case: &Value) -> Algorithm {
    match (case["in"]["algorithm"].as_str().unwrap(), case["kind"].as_str().unwrap()) {
        ("blake3", "mp") => Algorithm::Blake3,
        ("sha256_cbor" | "sha256_cbor_64bit", "mp") => Algorithm::Sha256Cbor,
        ("sha256_cbor" | "sha256_cbor_64bit", "non_mp") => Algorithm::Sha256Cbor64,
        ("builtin", "non_mp") => Algorithm::Builtin,
        other => panic!("{other:?}"),
    }
}

fn tokens(case: &Value) -> Vec<i128> {
    let all = case["in"]["tokens"].as_array().unwrap();
    let tokens = all.iter().map(|token| token.to_string().parse().unwrap()).collect::<Vec<_>>();
    let end = case["in"]["end"].as_u64().unwrap_or(tokens.len() as u64) as usize;
    tokens[..end].to_vec()
}

fn cut(case: &Value) -> Chunking {
    let skip = case["in"]["start"].as_u64().or(case["in"]["mask_false_prefix"].as_u64()).unwrap();
    let chunk = NonZeroUsize::new(case["in"]["chunk_size"].as_u64().unwrap() as usize).unwrap();
    let cut = Chunking::full(chunk).skipping(skip as usize);
    if case["in"]["save_unfull_chunk"] == json!(true) { cut.with_partial() } else { cut }
}

fn start(case: &Value) -> Result<HashChain, HashError> {
    HashChain::start(algorithm(case), case["env"]["PYTHONHASHSEED"].as_str())
}

fn show(link: HashLink) -> Value {
    match link.engine_hash() {
        EngineHash::Bytes(bytes) => to_hex(bytes.as_bytes()).into(),
        EngineHash::Int(number) => number.to_string().into(),
    }
}

#[test]
fn chains_are_lmcaches() {
    for case in cases("chunk_hashes") {
        let ours = start(&case).and_then(|mut chain| {
            let root = show(chain.last());
            Ok((root, chain.chunks(&tokens(&case), cut(&case))?))
        });
        match (ours, case["out"].get("ok")) {
            (Ok((root, links)), Some(theirs)) => {
                assert_eq!(root, theirs["none_hash"]);
                match case["kind"].as_str().unwrap() {
                    "mp" => assert_eq!(
                        links.into_iter().map(show).collect::<Value>(),
                        theirs["chunk_hashes_hex"]
                    ),
                    _ => check_engine(&case, &links, theirs),
                }
            }
            (Err(_), None) => assert!(case["out"]["error"].is_string()),
            (ours, theirs) => panic!("we say {ours:?}, LMCache says {theirs:?}"),
        }
    }
}

/// LMCache answers (first token, last token, hash) and the keys.
fn check_engine(case: &Value, links: &[HashLink], theirs: &Value) {
    let cut = cut(case);
    let tokens = tokens(case).len();
    let size = cut.chunk_tokens.get();
    let chunk = |(i, link): (usize, &HashLink)| {
        let from = cut.skip_tokens + i * size;
        json!([from, (from + size).min(tokens), show(*link)])
    };
    assert_eq!(links.iter().enumerate().map(chunk).collect::<Value>(), theirs["chunks"]);
    let number = |name: &str| case["in"][name].as_i64().unwrap();
    let key = |link: &HashLink| {
        let model = case["in"]["model"].as_str().unwrap();
        let dtype = DType::from_name(case["in"]["dtype"].as_str().unwrap()).unwrap();
        let hash = link.engine_hash();
        CacheEngineKey::new(model, number("world_size"), number("worker_id"), hash, dtype)
            .unwrap()
            .text()
    };
    assert_eq!(json!(links.iter().map(key).collect::<Vec<_>>()), theirs["keys"]);
}

#[test]
fn a_chain_may_be_taken_up_anywhere() {
    let tokens: Vec<u32> = (0..100).map(|i| i * 7919).collect();
    let cut = Chunking::full(NonZeroUsize::new(16).unwrap()).with_partial();
    for algorithm in
        [Algorithm::Blake3, Algorithm::Sha256Cbor, Algorithm::Sha256Cbor64, Algorithm::Builtin]
    {
        let mut whole = HashChain::start(algorithm, Some("0")).unwrap();
        let all = whole.chunks(&tokens, cut).unwrap();
        assert_eq!((all.len(), whole.last()), (7, all[6]));
        let mut later = HashChain::after(algorithm, all[2]).unwrap();
        assert_eq!(later.chunks(&tokens[48..], cut).unwrap(), all[3..]);
        let wide: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        assert_eq!(
            HashChain::start(algorithm, Some("0")).unwrap().chunks(&wide, cut).unwrap(),
            all,
            "any type of token"
        );
    }
}

#[test]
fn what_cannot_be_hashed_is_refused() {
    assert_eq!(HashChain::start(Algorithm::Sha256Cbor, None).unwrap_err(), HashError::Seed);
    assert_eq!(
        HashChain::after(Algorithm::Builtin, HashLink::Unsigned(1)).unwrap_err(),
        HashError::Parent
    );
    let mut chain = HashChain::start(Algorithm::Blake3, None).unwrap();
    let before = chain.last();
    assert_eq!(chain.push(&[1i64 << 32]), Err(HashError::Token));
    assert_eq!(chain.last(), before);
    let cut = Chunking::full(NonZeroUsize::new(4).unwrap());
    assert_eq!(chain.chunks(&[1u32; 8], cut.skipping(3)), Err(HashError::Skip));
    assert_eq!(chain.chunks(&[1u32; 8], cut.skipping(12)), Err(HashError::Skip));
    assert_eq!(chain.chunks(&[1u32; 8], cut.skipping(8)), Ok(vec![]));
}

#[test]
fn hashes_enter_keys_as_lmcache_has_them() {
    assert_eq!(HashLink::Signed(-1).chunk_hash().as_bytes(), [0xff; 8]);
    assert_eq!(HashLink::Signed(-1).engine_hash(), EngineHash::Int(PyInt::from(-1i64)));
    assert_eq!(HashLink::Unsigned(1).chunk_hash().as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
}
