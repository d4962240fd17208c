//! Which chunks a set hides, however sets, chunks, holds and suspects come and go: what the index
//! counts against what can be seen.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, IndexHoldId, Reserve, SetId};
use kvtier_key::Digest;
use proptest::prelude::*;

const KEYS: u8 = 8;

fn digest(key: u8) -> Digest {
    Digest([key; 32])
}

#[derive(Clone, Debug)]
enum Op {
    Declare(Vec<u8>),
    End(usize),
    Save(u8),
    Found(u8),
    Forget(u8),
    Leave(u8),
    Evicted(u8),
    Restored(u8),
    Suspect(u8),
    ClearSuspect(u8),
    Hold(Vec<u8>),
    Release(usize),
    Squeeze,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    let keys = prop::collection::vec(key.clone(), 1..5);
    prop_oneof![
        4 => keys.clone().prop_map(Op::Declare),
        3 => any::<usize>().prop_map(Op::End),
        6 => key.clone().prop_map(Op::Save),
        2 => key.clone().prop_map(Op::Found),
        1 => key.clone().prop_map(Op::Forget),
        2 => key.clone().prop_map(Op::Leave),
        3 => key.clone().prop_map(Op::Evicted),
        1 => key.clone().prop_map(Op::Restored),
        3 => key.clone().prop_map(Op::Suspect),
        1 => key.prop_map(Op::ClearSuspect),
        2 => keys.prop_map(Op::Hold),
        2 => any::<usize>().prop_map(Op::Release),
        2 => Just(Op::Squeeze),
    ]
}

fn take<T>(of: &mut Vec<T>, nth: usize) -> Option<T> {
    (!of.is_empty()).then(|| of.swap_remove(nth % of.len()))
}

fn step(index: &mut Index, saving: &mut Vec<SetId>, holds: &mut Vec<IndexHoldId>, op: Op) {
    let chunk = |key: u8| Chunk::new(digest(key), 1, 1);
    let all = |keys: Vec<u8>| keys.into_iter().map(digest).collect::<Vec<Digest>>();
    match op {
        Op::Declare(keys) => saving.extend(index.declare_set(&all(keys)).unwrap()),
        Op::End(nth) => take(saving, nth).into_iter().for_each(|set| index.end_set(set)),
        Op::Save(key) => {
            let Reserve::Granted(reservation) = index.reserve(0, 1) else {
                panic!("there is space")
            };
            let _ = index.commit(reservation, chunk(key));
        }
        Op::Found(key) => {
            let _ = index.insert(chunk(key));
        }
        Op::Forget(key) => {
            let _ = index.forget(&digest(key));
        }
        Op::Leave(key) => {
            let _ = index.begin_evict(&digest(key));
        }
        Op::Evicted(key) => {
            let _ = index.finish_evict(&digest(key));
        }
        Op::Restored(key) => {
            let _ = index.abort_evict(&digest(key));
        }
        Op::Suspect(key) => drop(index.mark_suspect(&digest(key))),
        Op::ClearSuspect(key) => index.clear_suspect(&digest(key)),
        Op::Hold(keys) => holds.push(index.hold(&all(keys), 1).unwrap()),
        Op::Release(nth) => take(holds, nth).into_iter().for_each(|hold| index.release(hold)),
        Op::Squeeze => {
            let _ = index.evict_bytes(0, 1);
        }
    }
}

/// What can be seen of the set that a chunk is in.
fn check(index: &Index, digest: &Digest) {
    let Some(set) = index.set_of(digest) else { return assert!(!index.is_hidden(digest)) };
    let is_whole = set.iter().all(|member| index.slot(member).is_some());
    let is_suspect = set.iter().any(|member| index.is_suspect(member));
    if is_whole || is_suspect || !index.is_held(digest) {
        assert_eq!(index.is_hidden(digest), !is_whole || is_suspect, "{digest:?} of {set:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_chunk_is_hidden_while_its_set_is_incomplete_or_suspect(ops in prop::collection::vec(op(), 1..100)) {
        let config = IndexConfig::new(1000).with_suspects_max(3);
        let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
        let mut saving = Vec::new();
        let mut holds = Vec::new();
        for op in ops {
            step(&mut index, &mut saving, &mut holds, op);
            (0..KEYS).for_each(|key| check(&index, &digest(key)));
        }
    }
}
