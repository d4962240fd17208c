//! Answers: the right one for each op and each key.

use std::sync::Arc;

use kvtier_core::{
    Digest, ErrorKind, Loaded, MissReason, Mode, Namespace, Presence, Removed, Save, Saved,
};

use super::Fixture;

const LEN: usize = 9000;
const HIT: Loaded = Loaded::Hit { len: LEN as u64 };
const HERE: Presence = Presence::Hit { len: LEN as u64 };

/// What was never saved is absent, and the op's leases come back.
pub fn absent_is_a_miss_with_the_leases_back(make: &dyn Fn() -> Fixture) {
    let f = make();
    let done = f.load_with(f.load_op(&f.key(1), LEN));
    assert_eq!(done.result.expect("a load"), Loaded::Miss(MissReason::Absent));
    assert_eq!((done.op.into.len(), done.op.into[0].len()), (1, LEN));
}

/// A second save of the same chunk says so.
pub fn saved_again_is_present(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert_eq!(f.save(&f.key(1), LEN), Saved::Stored);
    assert_eq!(f.save(&f.key(1), LEN), Saved::Present);
    assert_eq!(f.load(&f.key(1), LEN), HIT);
}

/// Each key has its own bytes.
pub fn keys_do_not_mix(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..16);
    f.store(&keys, LEN);
    keys.iter().rev().for_each(|key| assert_eq!(f.load(key, LEN), HIT));
}

/// Tenants and layouts never see each other's chunks.
pub fn the_same_id_in_another_namespace_is_another_key(make: &dyn Fn() -> Fixture) {
    let f = make();
    let mine = f.key_of("mine", 1);
    let other = f.key_of("other", 1);
    let layout = f.key_within(Namespace::new("mine", Digest([1; 32])), 1);
    assert_eq!(f.save(&mine, LEN), Saved::Stored);
    // Files of a layout with one namespace carry no trace of it. A key of another one could hit the
    // wrong chunk, so it must be refused.
    if f.one_namespace {
        for key in [&other, &layout] {
            let kind = |e: Option<kvtier_core::Error>| e.map(|e| e.kind());
            let looked = f
                .tier
                .lookup(&f.ctx(), [key.clone()].into(), Mode::Each, kvtier_core::Hold::None)
                .wait();
            assert_eq!(
                kind(f.load_with(f.load_op(key, LEN)).result.err()),
                Some(ErrorKind::Invalid)
            );
            assert_eq!(
                kind(f.save_with(f.save_op(key, LEN)).result.err()),
                Some(ErrorKind::Invalid)
            );
            assert_eq!(kind(looked.err()), Some(ErrorKind::Invalid));
        }
        return;
    }
    for key in [&other, &layout] {
        assert_eq!(f.load(key, LEN), Loaded::Miss(MissReason::Absent));
        assert_eq!(f.save(key, LEN), Saved::Stored);
    }
    for key in [&mine, &other, &layout] {
        assert_eq!(f.load(key, LEN), HIT);
    }
}

/// Where a chunk's size is known and partial ones are not allowed, no other length is taken.
pub fn a_chunk_of_the_wrong_length_is_invalid(make: &dyn Fn() -> Fixture) {
    let f = make();
    let ns =
        Namespace::new("exact", Digest::default()).with_chunk_bytes(0, 8192).with_partial(false);
    // One byte, a page, one byte less and more than a chunk, and a page more.
    for len in [1, 4096, 8191, 8193, 12_288] {
        let key = f.key_within(ns.clone(), len as u64);
        let done = f.save_with(f.save_op(&key, len));
        assert_eq!(
            done.result.expect_err("the wrong length").kind(),
            ErrorKind::Invalid,
            "{len} bytes"
        );
        assert_eq!(done.op.from.len(), 1, "the memory comes back");
        assert_eq!(f.load(&key, len), Loaded::Miss(MissReason::Absent), "{len} bytes");
    }
    assert_eq!(f.save(&f.key_within(ns, 1), 8192), Saved::Stored);
}

/// Where partial chunks are allowed, a shorter one is taken and a longer one is not.
pub fn a_partial_chunk_is_taken_where_it_may_be(make: &dyn Fn() -> Fixture) {
    let f = make();
    let ns = Namespace::new("partial", Digest::default()).with_chunk_bytes(0, 8192);
    let short = f.key_within(ns.clone(), 1);
    let long = f.key_within(ns, 2);
    assert_eq!(f.save(&short, 5000), Saved::Stored);
    assert_eq!(f.load(&short, 8192), Loaded::Hit { len: 5000 });
    let done = f.save_with(f.save_op(&long, 8193));
    assert_eq!(done.result.expect_err("longer than a chunk").kind(), ErrorKind::Invalid);
}

/// A chunk has at least one byte.
pub fn an_empty_chunk_is_invalid(make: &dyn Fn() -> Fixture) {
    let f = make();
    let done = f.save_with(Save { key: f.key(1), from: vec![] });
    assert_eq!(done.result.expect_err("no bytes").kind(), ErrorKind::Invalid);
}

/// One answer an op, in the order of the ops, each with its own memory.
pub fn a_batch_is_answered_in_order(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..24);
    // Hits and misses in turn, each of another length, so that an answer in the wrong place shows.
    let there = |n: usize| n % 3 != 1;
    let saves =
        keys.iter().enumerate().filter(|(n, _)| there(*n)).map(|(n, key)| f.save_op(key, LEN + n));
    let saves: Vec<Save> = saves.collect();
    let order: Vec<_> = saves.iter().map(|op| op.key.clone()).collect();
    let saved = f.tier.save(&f.ctx(), saves).wait();
    assert_eq!(saved.iter().map(|d| d.op.key.clone()).collect::<Vec<_>>(), order);
    saved.into_iter().for_each(|done| assert_eq!(done.result.expect("a save"), Saved::Stored));
    let loads = keys.iter().enumerate().map(|(n, key)| f.load_op(key, LEN + n)).collect();
    let loaded = f.tier.load(&f.ctx(), loads).wait();
    assert_eq!(loaded.len(), keys.len());
    for ((n, key), done) in keys.iter().enumerate().zip(loaded) {
        let len = (LEN + n) as u64;
        let expected =
            if there(n) { Loaded::Hit { len } } else { Loaded::Miss(MissReason::Absent) };
        assert_eq!((&done.op.key, done.op.into[0].len() as u64), (key, len), "answer {n}");
        assert_eq!(done.result.expect("a load"), expected, "answer {n}");
        if there(n) {
            f.verify(key, &done.op.into, len);
        }
    }
}

/// Nothing asked is answered with nothing.
pub fn empty_batches_are_answered(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert!(f.tier.load(&f.ctx(), vec![]).wait().is_empty());
    assert!(f.tier.save(&f.ctx(), vec![]).wait().is_empty());
    assert!(f.lookup(&f.keys([]), Mode::Each).is_empty());
    assert!(f.lookup(&f.keys([]), Mode::Prefix).is_empty());
    assert_eq!(f.remove(&f.keys([])), Removed::default());
}

/// `Mode::Each` says of every key whether it is here and how long.
pub fn lookup_answers_each_key(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys([0, 2, 3]), LEN);
    // Two gaps: a tier that stops at the first miss is found out.
    let found = f.lookup(&f.keys(0..5), Mode::Each);
    assert_eq!(found, [HERE, Presence::Miss, HERE, HERE, Presence::Miss]);
}

/// What the tier has in memory never contradicts what it has: a saved chunk is no miss, and an absent
/// one is no hit.
pub fn a_lookup_in_memory_agrees(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys([0, 2]), LEN);
    let keys = f.keys(0..4);
    // A lookup that may ask the medium, so that a tier that keeps answers has them.
    assert_eq!(f.lookup(&keys, Mode::Each), [HERE, Presence::Miss, HERE, Presence::Miss]);
    for (at, found) in f.tier.lookup_in_memory(&keys).into_iter().enumerate() {
        let allowed = if at % 2 == 0 { HERE } else { Presence::Miss };
        assert!([allowed, Presence::Unknown].contains(&found), "key {at}: {found:?}");
    }
    f.tier.touch(&[*keys[0].digest(), *keys[1].digest()], &kvtier_core::Hint::default());
    f.remove(&keys);
    assert!(f.tier.lookup_in_memory(&keys).iter().all(|found| !found.is_hit()));
    assert!(f.tier.lookup_in_memory(&[]).is_empty());
}

/// `Mode::Prefix` says how far the unbroken prefix reaches; nothing behind the first miss is called
/// a miss that is here.
pub fn lookup_of_a_prefix_ends_at_the_first_miss(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys([0, 1, 3]), LEN);
    let found = f.lookup(&f.keys(0..5), Mode::Prefix);
    assert_eq!((found.len(), &found[..3]), (5, &[HERE, HERE, Presence::Miss][..]));
    // Behind the first miss a tier may look on or not. It may not report a miss where there is a
    // chunk.
    assert!([HERE, Presence::Unknown].contains(&found[3]), "{:?}", found[3]);
    assert!(!found[4].is_hit());
    assert_eq!(f.lookup(&f.keys([0, 1]), Mode::Prefix), [HERE, HERE]);
}

/// Removed chunks miss, count as removed or absent, and can be saved again.
pub fn removed_is_gone(make: &dyn Fn() -> Fixture) {
    let f = make();
    let keys = f.keys(0..3);
    f.store(&keys[..2], LEN);
    assert_eq!(f.remove(&keys), Removed::new(2, 1, 0));
    // Removing again is no error.
    assert_eq!(f.remove(&Arc::clone(&keys)), Removed::new(0, 3, 0));
    assert_eq!(f.load(&keys[0], LEN), Loaded::Miss(MissReason::Absent));
    assert_eq!(f.lookup(&keys, Mode::Each), [Presence::Miss; 3]);
    // Nothing of the removal lasts: the key can be saved anew.
    assert_eq!(f.save(&keys[0], LEN), Saved::Stored);
    assert_eq!(f.load(&keys[0], LEN), HIT);
}
