//! Chunks that are there together or not at all, on a medium that is asked for what the index does
//! not show.
#![allow(clippy::unwrap_used)]

mod common;

use kvtier_core::{Ctx, Hold, Key, Mode, Presence, Saved, ShedReason};
use kvtier_file::{FileConfig, FileTier, Layout};
use kvtier_testkit::conformance::Fixture;
use std::sync::Arc;
use std::time::Duration;

use common::{LEN, absent};

fn config(dir: &std::path::Path, layout: Layout) -> FileConfig {
    common::config(dir, 20).with_layout(layout)
}

fn fixture(dir: &std::path::Path, layout: Layout) -> Fixture {
    Fixture::new(FileTier::open(config(dir, layout)).unwrap()).with_one_namespace()
}

/// Saves chunks together; those of `bad` cannot be saved.
fn together(f: &Fixture, keys: &Arc<[Key]>, bad: &[usize]) -> Vec<Option<Saved>> {
    let len = |at: usize| if bad.contains(&at) { 0 } else { LEN };
    let op = |(at, key): (usize, &Key)| match len(at) {
        0 => kvtier_core::Save { key: key.clone(), from: vec![] },
        len => f.save_op(key, len),
    };
    let ops = keys.iter().enumerate().map(op).collect();
    f.tier
        .save(&f.ctx().with_atomic(), ops)
        .wait()
        .into_iter()
        .map(|done| done.result.ok())
        .collect()
}

#[test]
fn chunks_of_an_incomplete_set_are_not_found_on_the_medium_either() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let f = fixture(dir.path(), layout);
        let keys = f.keys([1, 2]);
        assert_eq!(together(&f, &keys, &[1]), [Some(Saved::Stored), None]);
        for _ in 0..2 {
            assert_eq!(f.lookup(&keys, Mode::Each), [Presence::Miss; 2], "{layout:?}");
            assert!(
                absent(&f, 1) && f.hold(&keys, Duration::from_secs(60)).hold.is_none(),
                "{layout:?}"
            );
        }
        // The rest of it comes, and all is seen; one of them goes, and none is.
        assert_eq!(together(&f, &keys, &[]).last(), Some(&Some(Saved::Stored)));
        assert!(f.lookup(&keys, Mode::Each).iter().all(|found| found.is_hit()), "{layout:?}");
        assert_eq!(f.remove(&f.keys([2])).removed, 1);
        assert_eq!(f.lookup(&keys, Mode::Each), [Presence::Miss; 2], "{layout:?}");
        assert!(absent(&f, 1));
        assert_eq!(f.remove(&f.keys([1])).removed, 1, "{layout:?}: what is hidden can be removed");
    }
}

#[test]
fn a_part_that_is_saved_later_is_a_part_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let f = fixture(dir.path(), Layout::Kvtier);
    let keys = f.keys([1, 2, 3]);
    let all: Vec<_> = keys.iter().map(|key| *key.digest()).collect();
    let ctx: Ctx = f.ctx().with_atomic();
    let save = |places: &[usize]| {
        let ops = places.iter().map(|at| f.save_op(&keys[*at], LEN)).collect();
        let ctx = ctx.for_part(&all, places);
        f.tier
            .save(&ctx, ops)
            .wait()
            .into_iter()
            .for_each(|done| assert_eq!(done.result.unwrap(), Saved::Stored));
    };
    save(&[1, 2]);
    assert_eq!(f.lookup(&keys, Mode::Each), [Presence::Miss; 3]);
    save(&[0]);
    assert!(f.lookup(&keys, Mode::Each).iter().all(|found| found.is_hit()));
}

#[test]
fn a_chunk_that_is_held_stays_a_hit_when_a_set_is_declared_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let f = fixture(dir.path(), Layout::Kvtier);
    let keys = f.keys([1, 2]);
    assert_eq!(f.save(&keys[0], LEN), Saved::Stored);
    let held = f
        .tier
        .lookup(&f.ctx(), f.keys([1]), Mode::Each, Hold::For(Duration::from_secs(60)))
        .wait()
        .unwrap();
    assert_eq!(together(&f, &keys, &[1])[1], None);
    assert!(!absent(&f, 1), "the hold was granted");
    f.tier.release(held.hold.unwrap());
    assert!(absent(&f, 1));
}

#[test]
fn when_too_much_of_sets_is_missing_more_are_shed_and_not_shown_alone() {
    let dir = tempfile::tempdir().unwrap();
    let f = fixture(dir.path(), Layout::Kvtier);
    let many: Vec<_> =
        (0..1_u64 << 20).map(|n| kvtier_core::Digest::derive("test", &n.to_le_bytes())).collect();
    // The most keys that may be missing, less one: this save waits for no other chunk, and its set
    // is not forgotten while one chunk of it is stored.
    let ctx =
        f.ctx().with_atomic_set(many.iter().copied().skip(1).chain([*f.key(1).digest()]).collect());
    assert_eq!(
        f.tier.save(&ctx, vec![f.save_op(&f.key(1), LEN)]).wait().remove(0).result.unwrap(),
        Saved::Stored
    );
    let shed = together(&f, &f.keys([2, 3]), &[]);
    assert_eq!(shed, [Some(Saved::Shed(ShedReason::IncompleteSets)); 2]);
    assert!(absent(&f, 2));
}
