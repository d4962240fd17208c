//! Bytes: what comes back is what was given, for every shape of memory.

use kvtier_core::{ErrorKind, Load, Loaded, MissReason, Save, Saved};

use super::Fixture;

const MIB: usize = 1 << 20;

/// A chunk comes back as it was saved.
pub fn what_was_saved_is_loaded(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert_eq!(f.save(&f.key(1), 65_536), Saved::Stored);
    assert_eq!(f.load(&f.key(1), 65_536), Loaded::Hit { len: 65_536 });
}

/// Lengths of one byte, around a page, and over a mebibyte come back exactly.
pub fn sizes_around_a_page_come_back(make: &dyn Fn() -> Fixture) {
    let f = make();
    for (n, len) in [1, 2, 511, 4095, 4096, 4097, 8191, 8192, 12_289, MIB - 4096, MIB + 1]
        .into_iter()
        .enumerate()
    {
        let key = f.key(n as u64);
        // In another lease than the one before, so that leftovers would show.
        assert_eq!(f.save(&key, len), Saved::Stored, "{len} bytes");
        assert_eq!(f.load(&key, len), Loaded::Hit { len: len as u64 }, "{len} bytes");
    }
}

/// Several leases are filled in order, and several views saved in order, as if they were one
/// buffer.
pub fn a_chunk_scatters_over_leases_and_gathers_from_views(make: &dyn Fn() -> Fixture) {
    split(&make(), &[8192, 4096, 16_384, 5000], &[4096, 20_480, 9096]);
}

/// Pieces whose lengths are no multiple of anything join as well, unless the tier says `Invalid`
/// because it copies nothing.
pub fn pieces_of_any_length_join(make: &dyn Fn() -> Fixture) {
    let f = make();
    if f.tier.caps().bounce {
        split(&f, &[1, 4095, 10_000, 3], &[7, 14_000, 92]);
    }
}

fn split(f: &Fixture, views: &[usize], leases: &[usize]) {
    let key = f.key(1);
    let len = views.iter().sum::<usize>();
    let mut at = 0;
    let cut = |n: &usize| {
        at += *n as u64;
        f.view(&key, at - *n as u64, *n)
    };
    let from = views.iter().map(cut).collect();
    let saved = f.save_with(Save { key: key.clone(), from });
    assert_eq!((saved.result.expect("a save"), saved.op.from.len()), (Saved::Stored, views.len()));
    // Saved in pieces and loaded whole, and below in other pieces: the chunk has no seams.
    assert_eq!(f.load(&key, len), Loaded::Hit { len: len as u64 }, "in one piece");
    let into = leases.iter().map(|n| f.lease(*n)).collect();
    let done = f.load_with(Load { key: key.clone(), into });
    assert_eq!(done.result.expect("a load"), Loaded::Hit { len: len as u64 });
    assert_eq!(
        done.op.into.iter().map(|l| l.len()).collect::<Vec<_>>(),
        leases,
        "the same leases in the same order"
    );
    f.verify(&key, &done.op.into, len as u64);
}

/// Where the memory is longer than the chunk, the answer and the leases' initialised lengths say how long
/// it is.
pub fn longer_leases_are_filled_as_far_as_the_chunk_goes(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert_eq!(f.save(&f.key(1), 5000), Saved::Stored);
    let into = vec![f.lease(4096), f.lease(8192), f.lease(4096)];
    let done = f.load_with(Load { key: f.key(1), into });
    assert_eq!(done.result.expect("a load"), Loaded::Hit { len: 5000 });
    let lengths: Vec<_> = done.op.into.iter().map(|l| l.init_len()).collect();
    // The last lease stays empty: the chunk ends in the one before.
    assert_eq!(lengths, [4096, 904, 0]);
    f.verify(&f.key(1), &done.op.into, 5000);
}

/// Too short memory is a miss, and not a byte behind the lease changes.
pub fn a_chunk_longer_than_the_leases_is_a_miss_and_writes_nothing_past_them(
    make: &dyn Fn() -> Fixture,
) {
    let f = make();
    assert_eq!(f.save(&f.key(1), 12_288), Saved::Stored);
    let mut both = f.lease(16_384);
    // A pattern behind the lease, where a tier that pads to whole pages would write.
    f.write(&mut both, &[0xa5; 16_384]);
    let (front, behind) = both.split_at(8192);
    let done = f.load_with(Load { key: f.key(1), into: vec![front] });
    assert_eq!(done.result.expect("a load"), Loaded::Miss(MissReason::Length));
    assert_eq!((done.op.into.len(), done.op.into[0].init_len()), (1, 0));
    assert!(f.read(&behind).iter().all(|b| *b == 0xa5), "written past the lease");
    let none = f.load_with(Load { key: f.key(1), into: vec![] });
    assert_eq!(none.result.expect("a load"), Loaded::Miss(MissReason::Length), "no memory at all");
}

/// After a miss the leases hold nothing, whatever they held before.
pub fn leftovers_in_a_lease_do_not_count_after_a_miss(make: &dyn Fn() -> Fixture) {
    let f = make();
    let mut op = f.load_op(&f.key(1), 4096);
    // As if it came back from another load.
    op.into[0].assume_filled(4096);
    let done = f.load_with(op);
    assert_eq!(done.result.expect("a load"), Loaded::Miss(MissReason::Absent));
    assert_eq!(done.op.into[0].init_len(), 0);
}

/// Memory that starts at an odd address is used through a copy where
/// [`Caps::bounce`](kvtier_core::Caps) says so, else `Invalid`.
pub fn unaligned_memory_moves_or_is_invalid(make: &dyn Fn() -> Fixture) {
    let f = make();
    let key = f.key(1);
    let len = 10_000;
    assert_eq!(f.save(&key, len), Saved::Stored);
    // Three bytes behind an aligned address: aligned to nothing.
    let (_, odd) = f.lease(len + 3).split_at(3);
    let done = f.load_with(Load { key: key.clone(), into: vec![odd] });
    if f.tier.caps().bounce {
        assert_eq!(done.result.expect("a load"), Loaded::Hit { len: len as u64 });
        f.verify(&key, &done.op.into, len as u64);
        let other = f.key(2);
        let mut lease = f.lease(len + 3);
        let mut bytes = vec![0; len + 3];
        crate::Content::of(&other).write(0, &mut bytes[3..]);
        f.write(&mut lease, &bytes);
        let from = vec![lease.freeze().slice(3..len + 3)];
        assert_eq!(
            f.save_with(Save { key: other.clone(), from }).result.expect("a save"),
            Saved::Stored
        );
        assert_eq!(f.load(&other, len), Loaded::Hit { len: len as u64 });
    } else if f.tier.caps().align > 1 {
        assert_eq!(done.result.expect_err("unaligned").kind(), ErrorKind::Invalid);
    }
}
