//! Chunks that are decoded while they arrive: also over connections that break, and never from
//! bytes that do not match their checksums.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_codec::{Chain, Decoder, ElementType, TierEncoding, stage_by_name};
use kvtier_core::{Key, MissReason};
use kvtier_testkit::s3::{Fault, Rule};
use support::encoded::*;
use support::tier::*;

/// Four whole blocks and a part of one.
const LEN: usize = (2 << 20) + 70_002;

/// The raw bytes of a block.
const BLOCK: u64 = 512 << 10;

fn bf16_split() -> Arc<TierEncoding> {
    let chain = Chain::new(vec![stage_by_name("bf16-split").unwrap()]).unwrap();
    Arc::new(TierEncoding::new(chain, Decoder::new()).with_element_type(ElementType::Bf16))
}

/// Exponents of few kinds; the other bits differ.
fn bf16_chunk(n: u32) -> Vec<u8> {
    let element = |at: u32| [(at ^ n).wrapping_mul(2_654_435_761).to_be_bytes()[0], 0x3f];
    (0..LEN as u32 / 2).flat_map(element).collect()
}

/// A tier that has saved a chunk, and so has its lengths in its index.
fn saved(n: u32) -> (World, Key, Vec<u8>) {
    let world = World::with(|config| config.with_encoding(bf16_split()));
    let (key, raw) = (world.suite.key(n.into()), bf16_chunk(n));
    store(&world, &key, &raw);
    assert!(world.in_bucket() < LEN as u64 * 3 / 4);
    (world, key, raw)
}

/// In small portions: one block at most is decoded for each read.
const DRIP: Fault = Fault::Drip(50_000, Duration::from_millis(1));

/// Tries until it is so: a busy machine reads larger portions, and decodes less before the end.
fn at_some_try(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(600), "at no try: {what}");
    }
}

#[test]
fn all_but_the_last_block_is_decoded_before_the_end() {
    let (world, key, raw) = saved(1);
    for lens in [&[LEN][..], &[1, LEN / 2, LEN]] {
        at_some_try("three blocks are decoded before the end", || {
            let before = world.count("decoded_arriving_bytes");
            world.server.script(Rule::next(DRIP).method("GET").containing(world.name(&key).leak()));
            assert_eq!(load_bytes(&world, &key, lens), Ok(raw.clone()));
            let decoded = world.count("decoded_arriving_bytes") - before;
            assert!(decoded <= 4 * BLOCK, "{decoded} of {LEN}");
            decoded >= 3 * BLOCK
        });
    }
}

#[test]
fn a_read_that_starts_over_decodes_all_again() {
    let (world, key, raw) = saved(6);
    let stored = world.in_bucket() as usize;
    let of_one_load = |ignored: bool| {
        let script = |fault| {
            world
                .server
                .script(Rule::next(fault).method("GET").containing(world.name(&key).leak()));
        };
        let before = world.count("decoded_arriving_bytes");
        script(Fault::Cut(stored - 1000));
        if ignored {
            script(Fault::IgnoreRange);
        }
        script(DRIP);
        assert_eq!(load_bytes(&world, &key, &[LEN]), Ok(raw.clone()));
        world.count("decoded_arriving_bytes") - before
    };
    // What was decoded at first counts, and the read goes on behind it.
    assert!(of_one_load(false) <= 4 * BLOCK);
    at_some_try("it is decoded twice", || of_one_load(true) > 4 * BLOCK);
}

#[test]
fn a_connection_that_breaks_anywhere_changes_nothing() {
    let (world, key, raw) = saved(2);
    let stored = world.in_bucket() as usize;
    for at in [1, 15, 16, 30, 65_536, stored / 3, stored / 2, stored - 65_537, stored - 1] {
        for fault in [Fault::Cut(at), Fault::Reset(at)] {
            world
                .server
                .script(Rule::next(fault).method("GET").containing(world.name(&key).leak()));
            assert_eq!(load_bytes(&world, &key, &[LEN]), Ok(raw.clone()), "at {at}");
        }
    }
}

#[test]
fn an_object_that_is_replaced_while_it_arrives_is_read_from_its_start() {
    let (world, key, raw) = saved(3);
    let stored = world.in_bucket() as usize;
    for at in [stored / 4, stored / 2, stored - 70_000] {
        let replaced = Fault::Error(412, "PreconditionFailed");
        world
            .server
            .script(Rule::next(Fault::Cut(at)).method("GET").containing(world.name(&key).leak()));
        world.server.script(Rule::next(replaced).method("GET").containing(world.name(&key).leak()));
        let (loaded, asked) = world.asked(|| load_bytes(&world, &key, &[LEN]));
        assert_eq!((loaded, asked.len()), (Ok(raw.clone()), 3));
    }
}

#[test]
fn damaged_bytes_are_not_decoded() {
    let (world, key, raw) = saved(4);
    let name = world.name(&key);
    // The first block of checksums is damaged, so no byte is proven.
    world.spoil(&name, |bytes| bytes[100] ^= 1);
    let before = world.count("decoded_arriving_bytes");
    assert_eq!(load_bytes(&world, &key, &[LEN]), Err(MissReason::Corrupt));
    assert_eq!(world.count("decoded_arriving_bytes"), before);
    // The last one is: what was decoded before counts for nothing.
    let other = World::with(|config| config.with_encoding(bf16_split()));
    store(&other, &key, &raw);
    other.spoil(&other.name(&key), |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert_eq!(load_bytes(&other, &key, &[LEN]), Err(MissReason::Corrupt));
}

#[test]
fn memory_that_is_too_short_is_not_written_to() {
    let (world, key, _) = saved(5);
    assert_eq!(load_bytes(&world, &key, &[LEN - 1]), Err(MissReason::Length));
    assert_eq!(world.count("decoded_arriving_bytes"), 0);
}
