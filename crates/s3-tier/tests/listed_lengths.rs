//! Raw lengths of chunks that are known from a listing alone: exact, and without a HEAD wherever the
//! length of an object shows that it is not encoded.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_codec::may_be_encoded;
use kvtier_core::{Key, MissReason, Mode, Presence, Saved, Tier};
use kvtier_testkit::s3::{SeenRequest, Server};
use support::encoded::*;
use support::tier::*;

const LEN: usize = 100_000;

/// Lengths of chunks that are stored as they are: full ones and short ones, none of which an encoded
/// object has.
const PLAIN: [usize; 8] = [LEN, LEN, 1, 62, 64, 4096, 65_536, 99_999];

fn keys(world: &World, count: u64) -> Vec<Key> {
    (0..count).map(|n| world.suite.key(n)).collect()
}

fn hits(lens: &[usize]) -> Vec<Presence> {
    lens.iter().map(|len| Presence::Hit { len: *len as u64 }).collect()
}

fn heads(asked: &[SeenRequest]) -> usize {
    asked.iter().filter(|request| request.method == "HEAD").count()
}

/// Saves through one node and closes it. What remains are objects: no journal and no snapshot.
fn fill(server: &Arc<Server>, node: World, chunks: &[(u64, Vec<u8>)]) {
    for (n, raw) in chunks {
        store(&node, &node.suite.key(*n), raw);
    }
    close(node);
    for name in server.keys(&format!("{PREFIX}/.kvtier/")) {
        server.remove_object(&name);
    }
}

fn noise(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(n * 2 + 0x9e37_79b9) >> 7) as u8).collect()
}

#[test]
fn a_bucket_of_plain_chunks_costs_no_head_after_a_restart() {
    let server = plain_server();
    let chunks: Vec<_> = (0..).zip(PLAIN).map(|(n, len)| (n, noise(n, len))).collect();
    fill(&server, World::over(Arc::clone(&server), |config| config), &chunks);
    // With and without an encoding of its own.
    for is_encoding in [false, true] {
        let before = server.seen().len();
        let again = World::over(Arc::clone(&server), |config| match is_encoding {
            true => config.with_encoding(zstd()),
            false => config,
        });
        let keys = keys(&again, PLAIN.len() as u64);
        assert_eq!(again.tier.lookup_in_memory(&keys), hits(&PLAIN));
        assert_eq!(again.suite.lookup(&keys.clone().into(), Mode::Each), hits(&PLAIN));
        assert_eq!(again.suite.lookup(&keys.clone().into(), Mode::Prefix), hits(&PLAIN));
        for ((_, raw), key) in chunks.iter().zip(&keys) {
            store_as(&again, key, raw, Saved::Present);
            assert_eq!(load_bytes(&again, key, &[raw.len()]).as_ref(), Ok(raw));
        }
        // Of the background neither.
        let mut asked = server.seen().split_off(before);
        asked.retain(|seen| !seen.target.contains(".kvtier"));
        let puts = asked.iter().filter(|seen| seen.method == "PUT").count();
        assert_eq!((heads(&asked), puts, again.count("heads")), (0, 0, 0));
        close(again);
    }
}

#[test]
fn encoded_chunks_of_other_nodes_keep_their_raw_lengths() {
    let server = plain_server();
    let plain: Vec<_> = (0..4).map(|n| (n, noise(n, LEN))).collect();
    fill(&server, World::over(Arc::clone(&server), |config| config), &plain);
    // Compressed to many lengths, and encrypted at many.
    let encoded: Vec<_> =
        (4..20).map(|n| (n, compressible(n, LEN / 2 + 977 * n as usize))).collect();
    let (some, others) = encoded.split_at(8);
    fill(&server, World::over(Arc::clone(&server), |c| c.with_encoding(zstd())), some);
    fill(&server, World::over(Arc::clone(&server), |c| c.with_encoding(aes())), others);

    let node = World::over(Arc::clone(&server), |config| config.with_encoding(keyed()));
    let keys = keys(&node, 20);
    let raw_lens: Vec<_> = plain.iter().chain(&encoded).map(|(_, raw)| raw.len()).collect();
    let in_memory = node.tier.lookup_in_memory(&keys);
    assert_eq!(in_memory[..4], hits(&raw_lens[..4]));
    assert_eq!(in_memory[4..], [Presence::Unknown; 16], "no stored length counts as the raw one");
    // One HEAD for each that is encoded, and none again.
    for expected in [16, 0] {
        let (found, asked) = node.asked(|| node.suite.lookup(&keys.clone().into(), Mode::Each));
        assert_eq!((found, heads(&asked)), (hits(&raw_lens), expected));
    }
    for ((_, raw), key) in plain.iter().chain(&encoded).zip(&keys) {
        assert_eq!(load_bytes(&node, key, &[raw.len()]).as_ref(), Ok(raw));
    }
}

/// Loads everything, and saves as it is.
fn keyed() -> Arc<kvtier_codec::TierEncoding> {
    encoding(vec![], Some(aes_stage(&[1])))
}

#[test]
fn a_load_shows_the_raw_length_of_a_listed_chunk_without_a_head() {
    let server = plain_server();
    let raw = compressible(1, LEN);
    let encodes = World::over(Arc::clone(&server), |config| config.with_encoding(zstd()));
    fill(&server, encodes, &[(1, raw.clone())]);
    let node = World::over(server, |config| config);
    let key = node.suite.key(1);
    let (loaded, asked) = node.asked(|| load_bytes(&node, &key, &[LEN]));
    assert_eq!((loaded, asked.len(), heads(&asked)), (Ok(raw), 1, 0));
    assert_eq!(node.tier.lookup_in_memory(&[key]), hits(&[LEN]));
}

/// Its length shows nothing, so one HEAD does.
#[test]
fn a_plain_chunk_as_long_as_an_encoded_object_is_asked_for_once() {
    let server = plain_server();
    let len = 64 * 100 - 1;
    assert!(may_be_encoded(len as u64));
    fill(&server, World::over(Arc::clone(&server), |c| c), &[(0, noise(0, len))]);
    let node = World::over(server, |config| config);
    let key = node.suite.key(0);
    assert_eq!(node.tier.lookup_in_memory(std::slice::from_ref(&key)), [Presence::Unknown]);
    // A save takes what is listed with its length for the chunk.
    let (_, asked) = node.asked(|| store_as(&node, &key, &noise(0, len), Saved::Present));
    assert!(asked.is_empty(), "{asked:?}");
    for expected in [1, 0] {
        let (found, asked) = node.asked(|| node.lookup(&key));
        assert_eq!((vec![found], asked.len()), (hits(&[len]), expected));
    }
}

#[test]
fn a_listing_for_a_lookup_needs_no_heads_for_plain_chunks() {
    let config_of = |mut config: kvtier_s3_tier::TierConfig| {
        config.fresh_hit_max = Duration::ZERO;
        config.fresh_miss_max = Duration::from_secs(5);
        config
    };
    let world = World::with(config_of);
    let encodes =
        World::over(Arc::clone(&world.server), |config| config_of(config).with_encoding(zstd()));
    let keys: Arc<[Key]> = (0..400).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys[..60], 1000);
    store(&encodes, &keys[60], &compressible(60, 1000));
    let (found, asked) = encodes.asked(|| encodes.suite.lookup(&keys, Mode::Each));
    let lists = asked.iter().filter(|seen| seen.target.contains("list-type")).count();
    // The node has saved the encoded one itself, and has its raw length.
    assert_eq!((lists, heads(&asked), asked.len()), (1, 0, 1));
    assert_eq!(found[..61], hits(&[1000; 61]));
    assert!(found[61..].iter().all(|presence| *presence == Presence::Miss));
}

/// It is a miss for a tier that encrypts: a length must not make it a hit.
#[test]
fn a_listed_chunk_in_clear_is_no_hit_of_a_tier_that_encrypts() {
    let server = plain_server();
    let raw = noise(0, LEN);
    fill(&server, World::over(Arc::clone(&server), |c| c), &[(0, raw.clone())]);
    let node = World::over(server, |config| config.with_encoding(aes()));
    let key = node.suite.key(0);
    assert_eq!(node.tier.lookup_in_memory(std::slice::from_ref(&key)), [Presence::Unknown]);
    assert_eq!(node.lookup(&key), Presence::Miss);
    assert_eq!(load_bytes(&node, &key, &[LEN]), Err(MissReason::Codec));
    store(&node, &key, &raw);
    assert_eq!(load_bytes(&node, &key, &[LEN]), Ok(raw));
}
