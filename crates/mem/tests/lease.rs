//! What leases and views promise whatever memory they are of: parts, bytes that are data, sums kept
//! once, owners kept long enough.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvtier_mem::{Arena, ArenaConfig, ErrorKind, Lease, View};
use proptest::prelude::*;

const PAGE: usize = 4096;

/// Bytes that say when they are dropped.
struct Owned(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Owned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn only_bytes_that_are_data_can_be_read() {
    let arena = Arena::new(ArenaConfig::heap(PAGE)).unwrap();
    let mut lease = arena.lease(100).unwrap();
    assert!(lease.as_host().unwrap().is_empty());
    assert_eq!(lease.write_at(1, &[1]).unwrap_err().kind(), ErrorKind::Invalid, "a hole");
    lease.write_at(0, &[1; 60]).unwrap();
    lease.write_at(30, &[2; 60]).unwrap();
    lease.write_at(0, &[3]).unwrap();
    assert_eq!(lease.init_len(), 90);
    for (offset, len) in [(90, 11), (usize::MAX, 1), (1, 100)] {
        assert_eq!(lease.write_at(offset, &vec![0; len]).unwrap_err().kind(), ErrorKind::Invalid);
    }
    lease.assume_filled(1000);
    assert_eq!(lease.init_len(), 100);
    lease.assume_filled(40);
    let view = lease.freeze();
    assert_eq!((view.len(), view.as_ref()[0], view.as_ref()[29], view.as_ref()[30]), (40, 3, 1, 2));
}

#[test]
fn a_memo_is_computed_once_for_its_bytes() {
    let asked = Cell::new(0);
    let sum = |view: &View| {
        let sum = |view: &View| view.as_ref().iter().map(|b| u64::from(*b)).sum::<u64>();
        view.memo(|| {
            asked.set(asked.get() + 1);
            sum(view)
        })
        .copied()
    };
    let view = View::from((0..100).collect::<Vec<u8>>());
    assert_eq!(sum(&view), Some(4950));
    assert_eq!(
        (sum(&view.clone()), sum(&view.slice(0..1000)), asked.get()),
        (Some(4950), Some(4950), 1)
    );
    assert_eq!(sum(&view.slice(0..99)), None, "other bytes");
    assert_eq!((view.memo(|| "of another type"), asked.get()), (None, 1));
    let part = View::from(vec![1; 10]).slice(2..5);
    assert_eq!(sum(&part), Some(3));
    assert_eq!(sum(&part.slice(0..2)), None);
}

#[test]
fn a_memo_is_dropped_when_the_bytes_can_change() {
    let view = View::from(vec![1_u8; 8]);
    assert_eq!(view.memo(|| view.as_ref()[0]), Some(&1));
    let mut lease = view.into_lease().unwrap();
    lease.write_at(0, &[9]).unwrap();
    let view = lease.freeze();
    assert_eq!(view.memo(|| view.as_ref()[0]), Some(&9));
}

#[test]
fn a_view_thaws_when_it_is_the_only_one() {
    let view = View::from(vec![5; 20]);
    let part = view.slice(3..4);
    let view = view.into_lease().unwrap_err();
    assert_eq!(view.len(), 20);
    drop(view);
    let lease = part.into_lease().unwrap();
    assert_eq!((lease.len(), lease.init_len()), (20, 20), "the whole, not the part");
}

#[test]
fn memory_lent_for_reading_never_becomes_writable() {
    static CONSTANT: [u8; 3] = [1, 2, 3];
    let view = View::from_owner(CONSTANT.as_slice());
    assert_eq!(view.addr(), CONSTANT.as_ptr() as usize);
    let view = view.into_lease().unwrap_err();
    assert_eq!(view.slice(1..9).as_ref(), [2, 3]);
}

#[test]
fn an_owner_is_dropped_once_after_the_last_part() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let owned = || Owned(vec![7; 10], Arc::clone(&dropped));
    let (head, tail) = Lease::from_owner(owned()).split_at(4);
    assert_eq!((head.init_len(), tail.init_len()), (4, 6));
    drop(head);
    let view = tail.freeze();
    let part = view.slice(1..3);
    drop(view);
    assert_eq!((part.as_ref(), dropped.load(Ordering::SeqCst)), (&[7, 7][..], 0));
    drop(part);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);

    let view = View::from_owner(owned());
    let part = view.slice(0..1);
    let other = view.clone();
    drop((view, other));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn bytes_inside_their_owner_stay_where_they_are() {
    let mut lease = Lease::from_owner([1_u8, 2, 3]);
    lease.as_host_mut().unwrap()[2] = 9;
    let moved = Box::new(lease);
    assert_eq!(moved.as_host().unwrap(), [1, 2, 9]);
    assert!(Lease::from_owner(Vec::new()).is_empty());
}

proptest! {
    /// However a lease is cut and its views sliced, every byte is where it was, and all memory comes back.
    #[test]
    fn parts_have_the_bytes_of_the_whole(
        len in 0_usize..3 * PAGE,
        filled in 0_usize..3 * PAGE,
        cuts in prop::collection::vec(0_usize..3 * PAGE, 0..6),
        slices in prop::collection::vec((0_usize..PAGE, 0_usize..2 * PAGE), 0..6),
    ) {
        let arena = Arena::new(ArenaConfig::heap(3 * PAGE)).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut lease = arena.lease(len).unwrap();
        lease.as_host_mut().unwrap().copy_from_slice(&bytes);
        lease.assume_filled(filled);
        let mut at = 0;
        let base = lease.addr();
        let mut rest = Some(lease);
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (part, tail) = rest.take().unwrap().split_at(cut);
            let data = filled.min(len).saturating_sub(at).min(part.len());
            prop_assert_eq!((part.addr(), part.init_len()), (base + at, data));
            let mut view = part.freeze();
            let mut expected = &bytes[at..at + data];
            at += cut.min(len - at);
            for (start, n) in &slices {
                prop_assert_eq!(view.as_ref(), expected);
                view = view.slice(*start..start + n);
                expected = &expected[(*start).min(expected.len())..(start + n).min(expected.len())];
            }
            prop_assert_eq!(view.as_ref(), expected);
            rest = Some(tail);
        }
        prop_assert!(rest.take().unwrap().is_empty());
        prop_assert_eq!(arena.stats().free, arena.stats().capacity);
    }
}
