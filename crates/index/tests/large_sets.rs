//! What is asked of sets takes time in proportion to their members: the bound below is thousands
//! of times what it takes, and a part of what it took to look at all members for each.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, InsertOutcome, RemoveOutcome};
use kvtier_key::Digest;

const MEMBERS: u64 = 1 << 18;
const LONG: Duration = Duration::from_secs(600);

fn digest(n: u64) -> Digest {
    Digest::derive("kvtier index large sets test", &n.to_le_bytes())
}

/// One set, all of which is there.
fn whole() -> (Index, Vec<Digest>) {
    let mut index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
    let members: Vec<Digest> = (0..MEMBERS).map(digest).collect();
    let set = index.declare_set(&members).unwrap().unwrap();
    members.iter().for_each(|member| {
        assert!(matches!(index.insert(Chunk::new(*member, 1, 1)), InsertOutcome::New(_)))
    });
    index.end_set(set);
    (index, members)
}

#[test]
fn leftovers_of_a_set_are_evicted_in_one_pass_over_it() {
    let (mut index, members) = whole();
    assert!(matches!(index.remove(&members[0]), RemoveOutcome::Gone(_)));
    let begun = Instant::now();
    let mut gone = 1;
    while gone < MEMBERS {
        let victims = index.evict_bytes(0, 256);
        assert!(victims.iter().all(|victim| index.finish_evict(&victim.chunk.digest)));
        gone += victims.len() as u64;
        assert!(begun.elapsed() < LONG, "{gone} of {MEMBERS} went in {:?}", begun.elapsed());
    }
}

#[test]
fn a_set_is_looked_up_in_one_pass_over_it_whatever_is_suspect_elsewhere() {
    let (mut index, members) = whole();
    index.mark_suspect(&digest(MEMBERS));
    let begun = Instant::now();
    for (n, member) in members.iter().enumerate() {
        assert!(index.get(member).is_some());
        assert!(begun.elapsed() < LONG, "{n} of {MEMBERS} were looked up in {:?}", begun.elapsed());
    }
}

#[test]
fn keys_of_a_hold_are_released_in_one_pass_over_it() {
    let mut index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
    let count = MEMBERS * 4;
    let keys: Vec<Digest> = (0..count).map(digest).collect();
    keys.iter().for_each(|key| {
        assert!(matches!(index.insert(Chunk::new(*key, 1, 1)), InsertOutcome::New(_)))
    });
    let hold = index.hold(&keys, 1000).unwrap();
    let (first, last) = keys.split_at(keys.len() / 2);
    let last_first: Vec<Digest> = last.iter().rev().copied().collect();
    let begun = Instant::now();
    index.release_keys(hold, &last_first);
    assert!(!index.is_held(&last[0]) && index.is_held(&first[0]));
    index.release_keys(hold, first);
    assert!(begun.elapsed() < LONG, "{count} keys were given back in {:?}", begun.elapsed());
    assert_eq!((index.is_held(&first[0]), index.usage().holds), (false, 0));
}
