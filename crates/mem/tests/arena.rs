//! What arenas, leases, views and budgets promise, with every kind of memory.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use kvtier_mem::{Arena, ArenaConfig, BackingKind, Budget, ErrorKind, Lease, Place, View};

const PAGE: usize = 4096;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn full(free: usize, largest: usize) -> ErrorKind {
    ErrorKind::Full { free, largest }
}

#[test]
fn every_kind_of_memory_is_zeroed_aligned_and_written() {
    let bytes = 4 << 20;
    let kinds = [
        (ArenaConfig::heap(bytes), &[BackingKind::Heap][..], Place::Heap),
        (
            ArenaConfig::huge(bytes),
            &[BackingKind::HugeTlb, BackingKind::TransparentHuge, BackingKind::Mapped],
            Place::Heap,
        ),
        (ArenaConfig::memfd(bytes), &[BackingKind::Memfd], Place::Shm),
        (ArenaConfig::named("kvtier-test-kinds", bytes), &[BackingKind::Named], Place::Shm),
    ];
    for (config, got, place) in kinds {
        for config in [config.clone(), config.with_prefault()] {
            let arena = Arena::new(config).unwrap();
            assert!(got.contains(&arena.backing()), "{:?}", arena.backing());
            let mut lease = arena.lease(bytes).unwrap();
            assert_eq!((lease.place(), lease.region()), (place, Some(arena.regions()[0].id)));
            assert!(lease.addr().is_multiple_of(PAGE));
            assert!(lease.as_host_mut().unwrap().iter().all(|b| *b == 0));
            lease.as_host_mut().unwrap().fill(7);
            lease.assume_filled(bytes);
            assert!(lease.freeze().as_ref().iter().all(|b| *b == 7));
            assert_eq!(arena.stats().free, arena.stats().capacity);
        }
    }
}

#[test]
fn an_existing_numa_node_is_used_and_another_is_refused() {
    if std::path::Path::new("/sys/devices/system/node/node0").exists() {
        let arena =
            Arena::new(ArenaConfig::huge(4 << 20).with_numa_node(0).with_prefault()).unwrap();
        arena.lease(4 << 20).unwrap().as_host_mut().unwrap().fill(1);
    }
    let error = Arena::new(ArenaConfig::huge(4 << 20).with_numa_node(1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("node 1000"));
    assert_eq!(
        Arena::new(ArenaConfig::heap(PAGE).with_numa_node(5000)).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

/// What the kernel says of the mapping that holds an address: one line of `/proc/self/KIND`.
fn of_mapping(kind: &str, addr: usize, line: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/{kind}")).unwrap();
    let mut inside = false;
    for text in text.lines() {
        let range = text.split(' ').next().unwrap().split_once('-');
        if let Some((Ok(from), Ok(to))) =
            range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)))
        {
            inside = (from..to).contains(&addr);
        } else if inside && text.starts_with(line) {
            return Some(text[line.len()..].trim().to_owned());
        }
    }
    None
}

#[test]
fn memory_is_what_the_arena_says_it_is() {
    let arena = Arena::new(ArenaConfig::huge(8 << 20).with_prefault()).unwrap();
    let kib = |line: &str| {
        let text = of_mapping("smaps", arena.regions()[0].addr, line).unwrap();
        text.trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    match arena.backing() {
        BackingKind::HugeTlb => assert_eq!(kib("KernelPageSize:"), 2048),
        // As the kernel can; but where it has this much memory free, it does.
        BackingKind::TransparentHuge => assert!(kib("AnonHugePages:") >= 2048),
        other => assert_eq!((other, kib("AnonHugePages:")), (BackingKind::Mapped, 0)),
    }
    for kind in [BackingKind::Mapped, BackingKind::TransparentHuge] {
        let mut config = ArenaConfig::heap(1 << 20);
        config.kind = kind;
        let got = Arena::new(config).unwrap().backing();
        assert!(got == kind || got == BackingKind::Mapped, "{got:?}");
    }
    if std::path::Path::new("/sys/devices/system/node/node0").exists() {
        let arena = Arena::new(ArenaConfig::heap(1 << 20).with_numa_node(0)).unwrap();
        assert_eq!(arena.backing(), BackingKind::Mapped);
        let addr = format!("{:x} bind:0", arena.regions()[0].addr);
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_else(|_| addr.clone());
        assert!(maps.lines().any(|line| line.starts_with(&addr)), "{addr} in {maps}");
    }
}

#[test]
fn oversized_arenas_are_refused_before_any_memory_is_allocated() {
    type Make = fn(usize) -> ArenaConfig;
    let kinds: [Make; 4] = [ArenaConfig::heap, ArenaConfig::huge, ArenaConfig::memfd, |bytes| {
        ArenaConfig::named("kvtier-test-vast", bytes)
    }];
    for make in kinds {
        for bytes in [usize::MAX, usize::MAX - PAGE, 1 << 45] {
            assert_eq!(Arena::new(make(bytes)).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
    let shm = nix::sys::statvfs::statvfs("/dev/shm").unwrap();
    let more = shm.blocks() as usize * shm.fragment_size() as usize + PAGE;
    let error = Arena::new(ArenaConfig::named("kvtier-test-vast", more)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "not a SIGBUS when it is touched");
    let source =
        std::error::Error::source(&error).unwrap().downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        names.into_iter().all(|name| !name.to_string_lossy().starts_with("kvtier-test-vast")),
        "nothing is left"
    );
}

#[test]
fn full_reports_free_bytes_and_the_largest_run() {
    let arena = Arena::new(ArenaConfig::heap(4 * PAGE)).unwrap();
    let mut leases: Vec<Lease> = (0..4).map(|_| arena.lease(1).unwrap()).collect();
    assert_eq!(arena.lease(1).unwrap_err().kind(), full(0, 0));
    leases.remove(2);
    leases.remove(0);
    assert_eq!(arena.lease(PAGE + 1).unwrap_err().kind(), full(2 * PAGE, PAGE));
    assert_eq!(arena.lease(5 * PAGE).unwrap_err().kind(), ErrorKind::Invalid, "never");
    drop(leases);
    assert_eq!(arena.stats().largest, 4 * PAGE);
    assert_eq!(arena.lease(0).unwrap().len(), 0);
}

#[test]
fn slots_are_all_alike() {
    let arena = Arena::new(ArenaConfig::heap(10 * PAGE).with_slots(3 * PAGE - 5)).unwrap();
    assert_eq!(arena.stats().capacity, 9 * PAGE, "one page is left over");
    let leases: Vec<Lease> =
        [1, PAGE, 3 * PAGE].iter().map(|len| arena.lease(*len).unwrap()).collect();
    assert_eq!(arena.lease(1).unwrap_err().kind(), full(0, 0));
    assert_eq!(arena.lease(3 * PAGE + 1).unwrap_err().kind(), ErrorKind::Invalid);
    let mut starts: Vec<usize> =
        leases.iter().map(|l| (l.addr() - arena.regions()[0].addr) / PAGE).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 3, 6]);
    drop(leases);
    assert_eq!(arena.stats().free, 9 * PAGE);
    for bad in [0, 11 * PAGE] {
        let error = Arena::new(ArenaConfig::heap(10 * PAGE).with_slots(bad)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
    }
}

#[test]
fn leases_outlive_their_arena_and_parts_their_lease() {
    let arena = Arena::new(ArenaConfig::huge(1 << 20)).unwrap();
    let mut lease = arena.lease(3 * PAGE).unwrap();
    lease.write_at(0, &[1; 3 * PAGE]).unwrap();
    let (head, tail) = lease.split_at(PAGE);
    let part = tail.freeze().slice(10..20);
    drop((arena, head));
    assert_eq!(part.as_ref(), [1; 10]);
}

#[test]
fn a_vector_becomes_memory_without_a_copy() {
    let bytes: Vec<u8> = (0..100).collect();
    let at = bytes.as_ptr() as usize;
    let mut lease = Lease::from(bytes);
    assert_eq!((lease.addr(), lease.init_len(), lease.region()), (at, 100, None));
    lease.as_host_mut().unwrap()[0] = 9;
    assert_eq!(lease.freeze().slice(0..2).as_ref(), [9, 1]);
    assert!(View::from(Vec::new()).is_empty());
}

#[test]
fn foreign_memory_is_kept_until_the_last_lease() {
    struct Memory(Vec<u8>, Arc<AtomicUsize>);
    impl Drop for Memory {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut memory = Memory(vec![0; 5 * PAGE], Arc::clone(&dropped));
    let skip = memory.0.as_ptr().align_offset(PAGE);
    let base = std::ptr::NonNull::from(&mut memory.0[skip..]).cast();
    // SAFETY: four whole pages of the vector, which its owner keeps and nothing else touches.
    let arena = unsafe { Arena::from_raw(base, 4 * PAGE, Place::Heap, Arc::new(memory)) }.unwrap();
    assert_eq!(arena.backing(), BackingKind::Foreign);
    let lease = arena.lease(2 * PAGE).unwrap();
    drop(arena);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(lease);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    // SAFETY: refused before it is used.
    let odd = unsafe { Arena::from_raw(base.add(1), PAGE, Place::Heap, Arc::new(())) };
    assert_eq!(odd.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn waiters_for_memory_are_served_in_order() {
    let arena = Arena::new(ArenaConfig::heap(2 * PAGE)).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let all = arena.lease(2 * PAGE).unwrap();
    let mut first = Box::pin(arena.lease_waiting(2 * PAGE));
    let mut second = Box::pin(arena.lease_waiting(1));
    let mut third = pin!(arena.lease_waiting(1));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(third.as_mut().poll(&mut cx).is_pending());
    drop(all);
    assert!(woken.0.load(Ordering::SeqCst) > 0);
    assert!(second.as_mut().poll(&mut cx).is_pending(), "the first has not had its turn");
    let Poll::Ready(Ok(lease)) = first.as_mut().poll(&mut cx) else { panic!("there is memory") };
    drop(second);
    assert!(third.as_mut().poll(&mut cx).is_pending());
    drop(lease);
    assert!(matches!(third.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
    let mut never = pin!(arena.lease_waiting(3 * PAGE));
    assert!(
        matches!(never.as_mut().poll(&mut cx), Poll::Ready(Err(e)) if e.kind() == ErrorKind::Invalid)
    );
}

#[test]
fn a_budget_counts_each_user_and_stranded_bytes() {
    let budget = Budget::new(100);
    let mut loads = budget.acquire("loads", 60).unwrap();
    let saves = budget.acquire("saves", 30).unwrap();
    assert_eq!(budget.acquire("saves", 11).unwrap_err().kind(), full(10, 10));
    assert_eq!(budget.acquire("saves", 101).unwrap_err().kind(), ErrorKind::Invalid);
    let mut lost = loads.split(20);
    lost.strand();
    lost.strand();
    let stats = budget.stats();
    assert_eq!(
        (stats.used, stats.stranded, stats.by_use),
        (90, 20, vec![("loads", 40), ("saves", 30)])
    );
    drop((saves, loads));
    assert_eq!((budget.stats().used, budget.stats().stranded), (20, 20));

    let waker = Waker::from(Arc::new(Woken::default()));
    let mut cx = Context::from_waker(&waker);
    let mut waiting = pin!(budget.acquire_waiting("loads", 90));
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    assert!(budget.acquire("saves", 1).is_err(), "nothing overtakes a waiter");
    drop(lost);
    let Poll::Ready(Ok(permit)) = waiting.as_mut().poll(&mut cx) else { panic!("there is memory") };
    assert_eq!(permit.bytes(), 90);
}

/// Many threads lease, write, check and free; no two write the same memory.
#[test]
fn many_threads_never_share_a_byte() {
    for config in [ArenaConfig::heap(64 * PAGE), ArenaConfig::heap(64 * PAGE).with_slots(2 * PAGE)]
    {
        let arena = Arena::new(config).unwrap();
        std::thread::scope(|scope| {
            for me in 1..=8u8 {
                let arena = arena.clone();
                scope.spawn(move || {
                    let mut mine: Vec<Lease> = Vec::new();
                    for n in 0..4000usize {
                        let len = 1 + (n * 7919 + me as usize * 104_729) % (2 * PAGE);
                        match arena.lease(len) {
                            Ok(mut lease) if mine.len() < 6 => {
                                lease.write_at(0, &vec![me; len]).unwrap();
                                mine.push(lease);
                            }
                            _ => drop((!mine.is_empty()).then(|| mine.remove(n % mine.len()))),
                        }
                        assert!(
                            mine.iter().all(|lease| lease
                                .as_host()
                                .unwrap()
                                .iter()
                                .all(|b| *b == me))
                        );
                    }
                });
            }
        });
        assert_eq!(arena.stats().free, arena.stats().capacity);
    }
}
