//! What a batch of saves does to an index from its begin to the end of its last save.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier_evict::{EvictionHint, PolicyKind};
use kvtier_index::{
    ChainPlace, Chunk, DigestTag, Index, IndexConfig, PendingChunk, Refusal, Reserve,
    ReserveRequest, SaveBatch, SharedIndex,
};
use kvtier_key::{ChunkHash, Digest, Key, KeyId, KvRank, Namespace, ObjectKey};

/// A tier that fails where it locks twice.
#[derive(Debug)]
struct Tier(Mutex<Index>);

impl SharedIndex for Tier {
    fn with_index<R>(&self, work: impl FnOnce(&mut Index) -> R) -> R {
        work(&mut self.0.try_lock().unwrap())
    }

    fn now_ms(&self) -> u64 {
        0
    }
}

fn tier(chunks: u64, policy: PolicyKind) -> Arc<Tier> {
    let config = IndexConfig::new(chunks * 10).with_high_mark(1.0);
    Arc::new(Tier(Mutex::new(Index::new(config, policy.build()).unwrap())))
}

fn keys<const N: usize>(numbers: [u64; N]) -> [Key; N] {
    let ns = Arc::new(Namespace::new("tests", Digest::derive("layout", b"tests")));
    numbers.map(|n| {
        let hash = ChunkHash::new(Digest::derive("chunk", &n.to_le_bytes()).as_bytes());
        let id = KeyId::Object(ObjectKey::new("model", KvRank(0), 0, hash, "").unwrap());
        Key::new(Arc::clone(&ns), id)
    })
}

fn begin(tier: &Arc<Tier>, keys: &[Key], hint: EvictionHint) -> Arc<SaveBatch<Tier>> {
    SaveBatch::begin(tier, keys.iter(), None, hint).unwrap()
}

fn insert(tier: &Tier, keys: &[Key]) {
    tier.with_index(|index| {
        keys.iter().for_each(|key| _ = index.insert(Chunk::new(*key.digest(), 8, 10)));
    });
}

fn order(tier: &Tier, chunks: usize) -> Vec<Digest> {
    let victims = |index: &mut Index| index.evict_bytes(0, 10 * chunks as u64);
    tier.with_index(victims).iter().map(|victim| victim.chunk.digest).collect()
}

fn digests<const N: usize>(keys: [&Key; N]) -> Vec<Digest> {
    keys.iter().map(|key| *key.digest()).collect()
}

#[test]
fn the_chunks_of_a_batch_count_as_used_once_when_its_last_save_has_ended() {
    let tier = tier(4, PolicyKind::Lru);
    let all = keys([0, 1, 2]);
    let [first, second, other] = &all;
    let batch = begin(&tier, &all[..2], EvictionHint::new());
    let mut pending = batch.add_pending(None, all[..2].iter());
    drop(batch);
    insert(&tier, &all);
    pending.pop();
    assert!(pending[0].batch().has_many());
    drop(pending);
    assert_eq!(order(&tier, 3), digests([other, second, first]), "the tail before the head");
}

#[test]
fn a_batch_of_one_is_no_second_use() {
    let tier = tier(4, PolicyKind::Lru);
    let all = keys([0, 1]);
    let batch = begin(&tier, &all[..1], EvictionHint::new());
    let pending = batch.add_pending(None, all[..1].iter());
    drop(batch);
    insert(&tier, &all);
    assert!(!pending[0].batch().has_many());
    drop(pending);
    assert_eq!(order(&tier, 2), digests([&all[0], &all[1]]));
}

#[test]
fn the_hint_of_a_batch_applies_to_what_it_stored() {
    let tier = tier(4, PolicyKind::Default);
    let all = keys([0, 1]);
    let day = Some(Duration::from_secs(86_400));
    let hint = EvictionHint::from_durations(false, 9, None, day);
    assert_eq!((hint.priority, hint.retention_ms), (9, Some(86_400_000)));
    let longest = EvictionHint::from_durations(true, 0, Some(Duration::MAX), None);
    assert_eq!((longest.session_ended, longest.expected_return_ms), (true, Some(u64::MAX)));
    let batch = begin(&tier, &all[..1], hint);
    insert(&tier, &all);
    assert_eq!(Arc::strong_count(&batch), 1);
    drop(batch);
    assert_eq!(order(&tier, 1), digests([&all[1]]), "the first one is retained");
}

#[test]
fn a_pending_chunk_is_known_at_its_place_until_its_save_has_ended() {
    let tier = tier(2, PolicyKind::Default);
    let all = keys([7, 8, 0, 1, 2]);
    insert(&tier, &all[..2]);
    let after =
        |key: &Key, depth| ChainPlace::new(Some(DigestTag::from_digest(key.digest())), depth);
    let batch = begin(&tier, &all[2..4], EvictionHint::new());
    let pending = batch.add_pending(Some(ChainPlace::after(None, 5)), all[2..4].iter());
    let places: Vec<ChainPlace> = pending.iter().map(PendingChunk::place).collect();
    assert_eq!(places, [ChainPlace::new(None, 5), after(&all[2], 6)]);
    let next = ReserveRequest::new(10).with_place(after(&all[3], 7));
    let reserve = || tier.with_index(|index| index.reserve_for(0, &next));
    let not_worth = Reserve::Full(Refusal::NotWorth);
    assert_ne!(reserve(), not_worth, "the chunk before it is pending");
    drop(pending);
    assert_eq!(reserve(), not_worth, "an orphan");
}

#[test]
fn an_atomic_set_is_over_with_its_batch() {
    let tier = tier(4, PolicyKind::Lru);
    let all = keys([0, 1, 2]);
    let set = digests([&all[0], &all[1]]);
    let batch = SaveBatch::begin(&tier, all[..2].iter(), Some(&set), EvictionHint::new()).unwrap();
    insert(&tier, &all[1..]);
    insert(&tier, &all[..1]);
    tier.with_index(|index| assert!(index.get(all[0].digest()).is_some(), "the set is whole"));
    tier.with_index(|index| index.forget(all[1].digest()));
    let leftover = || tier.with_index(|index| index.evict_bytes(0, 10))[0].chunk.digest;
    drop(batch);
    assert_eq!(leftover(), *all[0].digest(), "what is left of it goes before older chunks");
}
