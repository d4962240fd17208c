//! Eviction to the letter as LMCache does it.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, InsertOutcome, LmcacheEviction};
use kvtier_key::Digest;

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn enter(index: &mut Index, chunks: std::ops::Range<u8>) {
    chunks.for_each(|n| {
        assert!(matches!(index.insert(Chunk::new(key(n), 8, 10)), InsertOutcome::New(_)))
    });
}

fn index(chunks: u8, compat: LmcacheEviction) -> Index {
    let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build_compat()).unwrap();
    index.set_compat(Some(compat));
    enter(&mut index, 0..chunks);
    index
}

fn go(index: &mut Index, now_ms: u64) -> Vec<u8> {
    let victims = index.compat_victims(now_ms);
    victims.iter().for_each(|victim| assert!(index.finish_evict(&victim.chunk.digest)));
    victims.iter().map(|victim| victim.chunk.digest.0[0]).collect()
}

#[test]
fn a_fifth_of_the_chunks_goes_once_a_second_above_the_watermark() {
    let mut index = index(85, LmcacheEviction::new());
    assert_eq!(
        go(&mut index, 5000),
        (0..17).collect::<Vec<u8>>(),
        "int(85 * 0.2), the oldest first"
    );
    assert_eq!(index.usage().used, 680);
    enter(&mut index, 100..120);
    assert!(go(&mut index, 5999).is_empty(), "it looks once a second");
    assert_eq!(go(&mut index, 6000).len(), 17, "int(88 * 0.2)");
    assert!(go(&mut index, 7000).is_empty(), "below the watermark");
}

#[test]
fn shares_are_clamped_as_there_and_at_least_one_goes() {
    assert_eq!(go(&mut index(3, LmcacheEviction::new().with(0.0, 0.01)), 0).len(), 1);
    assert_eq!(go(&mut index(3, LmcacheEviction::new().with(0.0, 5.0)), 0).len(), 3);
    assert_eq!(go(&mut index(3, LmcacheEviction::new().with(0.0, -1.0)), 0).len(), 0);
    assert_eq!(go(&mut index(0, LmcacheEviction::new().with(0.0, 1.0)), 0).len(), 0);
    assert!(
        LmcacheEviction::new().with(f64::NAN, 0.2).check().is_err()
            && LmcacheEviction::new().check().is_ok()
    );
    let mut without = Index::new(IndexConfig::new(10), PolicyKind::Lru.build()).unwrap();
    let _ = without.insert(Chunk::new(key(1), 8, 10));
    assert!(without.compat_victims(0).is_empty());
}

#[test]
fn held_chunks_stay() {
    let mut index = index(90, LmcacheEviction::new());
    let hold = index.hold(&[key(0), key(1)], 1 << 40).unwrap();
    let gone = go(&mut index, 0);
    assert_eq!((gone.len(), gone[0]), (18, 2));
    index.release(hold);
}
